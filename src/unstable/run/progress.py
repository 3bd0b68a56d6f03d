"""The progress, saved states and result of a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unstable import buffer, collector
from unstable.config import ConfigError, RunConfig
from unstable.evaluation import Z_95
from unstable.run import RunFolder, parse_step
from unstable.run.parts import Parts
from unstable.utils.files import MAX_STATE_BYTES, read_json, to_json, write_whole
from unstable.utils.handles import call


@dataclass(frozen=True)
class Progress:
    phase: str
    """What comes next: `evaluating`, `playing` or `learning`."""
    step: int
    updates: int
    learner: Mapping[str, float] = field(default_factory=dict)
    """What the learner logged at its last step."""
    evaluations: tuple[Mapping[str, Any], ...] = ()
    """Every evaluation so far."""


ReportProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class RunResult:
    run_dir: str
    step: int
    checkpoint: str | None
    evaluations: tuple[Mapping[str, Any], ...]
    counts: Mapping[str, Any] = field(default_factory=dict)
    """Games and what happened to them, as Collector.stats has it, `write_failures`, and `steps`."""


def select_settled_evaluations(
    evaluations: Sequence[Mapping[str, Any]], games: int
) -> tuple[Mapping[str, Any], ...]:
    """Return the evaluations that are complete, or older than a complete one.

    Where playing and learning run at the same time, an evaluation grows game by game, and may end
    unfinished when there is a newer checkpoint.
    """
    shown: list[Mapping[str, Any]] = []
    whole: set[tuple[str, str]] = set()
    for one in reversed(evaluations):
        key = (one["env_id"], one["opponent"])
        if one["games"] >= games:
            whole.add(key)
        if key in whole:
            shown.append(one)
    return tuple(reversed(shown))


def collect_result(folder: RunFolder, parts: Parts, step: int) -> RunResult:
    uid = call(parts.pool.current_uid)
    checkpoint = call(parts.pool.ckpt_path, uid) if uid else None
    evaluations = tuple(call(parts.tracker.get_evaluations))
    counts = call(parts.collector.stats)
    del counts["under_way"]
    unwritten = call(parts.tracker.get_interface_info)["write_failures"]
    unwritten += call(parts.buffer.stats)["csv_failures"]
    counts["write_failures"] = unwritten
    counts["steps"] = account_for_steps(parts)
    return RunResult(
        str(folder.path), step, checkpoint[0] if checkpoint else None, evaluations, counts
    )


def account_for_steps(parts: Parts) -> dict[str, int]:
    """Return the fate of the `sampled` steps: `trained`, `left`, or lost by reason."""
    played, kept = call(parts.collector.stats), call(parts.buffer.stats)
    return {
        "sampled": played["steps"],
        **call(parts.learner.step_counts),
        "left": kept["size"] + kept["waiting"],
        **{name: kept[name] for name in buffer.LOSSES},
        **{name.removeprefix("lost_"): played[name] for name in collector.LOSSES},
    }


LEARNER = "learner"
"""The folder of the learner's own files."""


def save_state(folder: RunFolder, parts: Parts, step: int, config: RunConfig) -> None:
    """Save everything that the run needs to continue as if it had not stopped.

    Then delete the checkpoints that are not kept, since no state has to do with them any more.
    """
    retired = retire(parts, config)
    with folder.new_state(step, config.keep_states) as state:
        # As bytes, since the learner may be on another machine.
        files = call(parts.learner.state_files)
        (state / LEARNER).mkdir()
        for name, content in files.items():
            (state / LEARNER / name).write_bytes(content)
        write_json_states(state, parts)
    if retired:
        call(parts.learner.remove_checkpoints, retired)
        for path in map(Path, retired):  # the learner's are elsewhere, if it is
            if path.parent == folder.path / "checkpoints":
                shutil.rmtree(path, ignore_errors=True)


def retire(parts: Parts, config: RunConfig) -> list[str]:
    """Retire checkpoints that are not kept, and return their folders."""
    if not config.keep_checkpoints:
        return []
    best = find_best_checkpoints(call(parts.tracker.get_evaluations))
    playing = call(parts.collector.checkpoints_in_use)
    return call(parts.pool.retire, config.keep_checkpoints, [*best, *playing])


def write_json_states(state: Path, parts: Parts) -> None:
    for name, part in parts.with_json_state().items():
        write_whole(state / f"{name}.json", to_json(call(part.state_dict)) + "\n")


def find_best_checkpoints(evaluations: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the best checkpoint per environment and opponent; of equals the newest."""
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for one in evaluations:
        key = (one["env_id"], one["opponent"])
        if key not in best or _lower_bound(one) >= _lower_bound(best[key]):
            best[key] = one
    return [one["ckpt_uid"] for one in best.values()]


def _lower_bound(evaluation: Mapping[str, Any]) -> float:
    """Return the lower bound of the win rate, or of the reward in single-player games."""
    if evaluation["players"] == 1:
        return float(evaluation["reward"] - Z_95 * evaluation["reward_se"])
    return float(evaluation["win_rate_low"])


def load_state(state: Path, parts: Parts) -> int:
    """Load a state into new parts, also one of an older version.

    What it does not have is as in a new part. The tracker comes last: before that, nothing on disk
    is changed.

    Returns:
        The learner's step that it was taken at.

    Raises:
        ConfigError: the state cannot be read, or is of another run.
    """
    try:
        files = {path.name: path.read_bytes() for path in (state / LEARNER).iterdir()}
        call(parts.learner.load_state_files, files)
        for name, part in reversed(parts.with_json_state().items()):
            written = read_json(state / f"{name}.json", state, MAX_STATE_BYTES)
            call(part.load_state_dict, fill_defaults(written, call(part.state_dict)))
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise ConfigError(f"{state} cannot be read: {type(error).__name__}: {error}") from error
    return parse_step(state)


def fill_defaults(written: Any, defaults: Any) -> Any:
    """Complete a state with the fields that its version did not write yet."""
    if not (isinstance(written, dict) and isinstance(defaults, dict)):
        return written
    return defaults | {
        name: fill_defaults(value, defaults.get(name)) for name, value in written.items()
    }
