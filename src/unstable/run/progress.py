"""What a run says while it goes on, and at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unstable.utils.handles import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from unstable.run.folder import RunFolder
    from unstable.run.parts import Parts


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

    phase: str
    """What comes next: `evaluating`, `playing` or `learning`."""
    step: int
    updates: int
    learner: Mapping[str, float] = field(default_factory=dict)
    """What the learner logged at its last step."""
    evaluations: tuple[Mapping[str, Any], ...] = ()
    """Every evaluation so far."""


if TYPE_CHECKING:
    Tell = Callable[[Progress], None]


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    run_dir: str
    step: int
    checkpoint: str | None
    evaluations: tuple[Mapping[str, Any], ...]
    counts: Mapping[str, Any] = field(default_factory=dict)
    """Games and what happened to them, as Collector.stats has it, and `write_failures`."""


def settled(evaluations: Sequence[Mapping[str, Any]], games: int) -> tuple[Mapping[str, Any], ...]:
    """Evaluations that have all their games, or after which a newer one has.

    Where playing and learning go on at the same time, an evaluation grows game by game, and may end
    unfinished when there is a newer checkpoint.
    """
    found: list[Mapping[str, Any]] = []
    whole: set[tuple[str, str]] = set()
    for one in reversed(evaluations):
        key = (one["env_id"], one["opponent"])
        if one["games"] >= games:
            whole.add(key)
        if key in whole:
            found.append(one)
    return tuple(reversed(found))


def result_of(folder: RunFolder, parts: Parts, step: int) -> RunResult:
    """What a run that has ended leaves."""
    uid = ask(parts.pool, "current_uid")
    found = ask(parts.pool, "ckpt_path", uid) if uid else None
    evaluations = tuple(ask(parts.tracker, "get_evaluations"))
    counts: dict[str, Any] = ask(parts.collector, "stats")
    del counts["under_way"]
    unwritten = ask(parts.tracker, "get_interface_info")["write_failures"]
    unwritten += ask(parts.buffer, "stats")["csv_failures"]
    counts["write_failures"] = unwritten
    return RunResult(str(folder.path), step, found[0] if found else None, evaluations, counts)
