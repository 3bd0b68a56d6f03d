"""How a session stands right now, read off its files: for whoever looks on from outside.

The process that runs a session tells nobody what it does; it leaves a file after each phase. So
the terminal, the dashboard and a second terminal all see the same, also after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from p2p.event_log import last_event

if TYPE_CHECKING:
    from p2p.contracts import (
        AuthoredCode,
        Intent,
        JudgmentResult,
        Revision,
        SessionResult,
        StatusLiteral,
    )
    from p2p.records.iteration_record import IterationRecord, SessionRecord

Phase = Literal["intent", "authoring", "training", "judging", "confirming", "revising", "ended"]

ENDED: frozenset[StatusLiteral] = frozenset({
    "passed", "max_iterations", "cancelled", "error", "failed", "invalid_code", "rate_limited",
    "auth_error", "budget_exhausted", "time_exhausted", "completed", "stale", "paused",
})  # fmt: skip


@dataclass(frozen=True)
class RunSnapshot:
    """One training run."""

    run_id: str
    status: StatusLiteral
    progress: float
    """0 to 1."""
    total_timesteps: int
    curve: tuple[float, ...]
    """Mean returns while training; left empty for iterations before the last."""


@dataclass(frozen=True)
class IterationSnapshot:
    """One iteration; what is not there yet is None."""

    number: int
    reward: AuthoredCode | None
    runs: tuple[RunSnapshot, ...]
    judgment: JudgmentResult | None
    confirmation: JudgmentResult | None
    revision: Revision | None


@dataclass(frozen=True)
class SessionSnapshot:
    """A session as its files show it."""

    status: StatusLiteral
    error: str
    phase: Phase
    prompt: str
    env_id: str
    """Empty while none is chosen."""
    env_reason: str
    """Why it was chosen; empty where the person has named it."""
    intent: Intent | None
    judge: AuthoredCode | None
    iterations: tuple[IterationSnapshot, ...]
    result: SessionResult | None
    waiting: str
    """Why nothing happens just now, as when a provider asks to come back later."""

    @property
    def current(self) -> IterationSnapshot | None:
        """The last iteration."""
        return self.iterations[-1] if self.iterations else None


def snapshot(record: SessionRecord, *, curves: bool = True) -> SessionSnapshot:
    """Read a session's files. What is torn or absent counts as not there yet.

    It is called again and again while a session goes on: curves, which grow, are read of the last
    iteration only, or not at all.
    """
    status = standing(record)
    told = record.read_status()
    records = [found for found in record.iteration_records() if found.number is not None]
    iterations = tuple(
        _iteration(found, curves=curves and found == records[-1]) for found in records
    )
    intent, asked = record.intent.read(), record.config.read()
    return SessionSnapshot(
        status=status,
        error=(told.error or "") if told else "",
        phase="ended" if status in ENDED else _phase(intent, iterations),
        prompt=asked.prompt if asked else "",
        env_id=asked.env_id if asked else "",
        env_reason=asked.env_reason if asked else "",
        intent=intent,
        judge=record.judge.read(),
        iterations=iterations,
        result=record.result.read(),
        waiting=_waiting(record) if status == "running" else "",
    )


def standing(record: SessionRecord) -> StatusLiteral:
    """The session's status; a folder of plain training runs has that of its last run."""
    iterations = record.iteration_records()
    if record.status_path.exists() or not iterations:
        return record.derive_status()
    return iterations[-1].derive_status()


def _iteration(record: IterationRecord, *, curves: bool) -> IterationSnapshot:
    # An iteration of `p2p train` is a run itself.
    runs = [record] if record.config_path.is_file() else record.runs()
    return IterationSnapshot(
        number=record.number or 0,
        reward=record.reward.read(),
        runs=tuple(_run(run, curves=curves) for run in runs),
        judgment=record.read_judgment(),
        confirmation=record.confirmation.read(),
        revision=record.revision.read(),
    )


def _run(record: IterationRecord, *, curves: bool) -> RunSnapshot:
    config = record.config.read()
    training, _ = record.parse_scalars() if curves else ([], [])
    return RunSnapshot(
        run_id=record.iteration_id,
        status=record.derive_status(),
        progress=record.compute_progress() or 0.0,
        total_timesteps=config.total_timesteps if config else 0,
        curve=tuple(line["episodic_return"] for line in training if "episodic_return" in line),
    )


def _phase(intent: Intent | None, iterations: tuple[IterationSnapshot, ...]) -> Phase:
    if intent is None:
        return "intent"
    last = iterations[-1] if iterations else None
    if last is None or last.reward is None:
        return "revising" if len(iterations) > 1 else "authoring"
    if last.judgment is None:
        trained = last.runs and all(run.status in ENDED for run in last.runs)
        return "judging" if trained else "training"
    failed = last.confirmation is not None and not last.confirmation.passed
    if last.judgment.passed and not failed:  # what follows a pass that holds is the end
        return "confirming"
    return "revising"


def _waiting(record: SessionRecord) -> str:
    last = last_event(record.events_path)
    return str(last.data.get("reason", "")) if last and last.event == "llm.wait" else ""
