"""How a session stands right now, read off its files: for whoever looks on from outside.

The process that runs a session tells nobody what it does; it leaves a file after each phase. So
the terminal, the dashboard and a second terminal all see the same, also after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from p2p.contracts import AuthoredCode, Intent, JudgmentResult, Revision, SessionResult
from p2p.event_log import last_event
from p2p.session.record_files import read_model

if TYPE_CHECKING:
    from p2p.contracts import StatusLiteral
    from p2p.session.iteration_record import IterationRecord, SessionRecord

Phase = Literal["intent", "authoring", "training", "judging", "confirming", "revising", "ended"]

ENDED: frozenset[StatusLiteral] = frozenset({
    "passed", "max_iterations", "cancelled", "error", "failed", "invalid_code", "rate_limited",
    "auth_error", "budget_exhausted", "completed", "stale", "paused",
})  # fmt: skip


@dataclass(frozen=True)
class RunSnapshot:
    """One training run."""

    run_id: str
    status: StatusLiteral
    progress: float
    """0 to 1."""
    total_timesteps: int
    curve: tuple[tuple[int, float], ...]
    """(step, mean return while training)."""
    evaluations: tuple[tuple[int, float], ...]
    """(step, mean return of an evaluation)."""
    judgment: JudgmentResult | None


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


def snapshot(record: SessionRecord) -> SessionSnapshot:
    """Read a session's files. What is torn or absent counts as not there yet."""
    status = record.derive_status()
    told = record.read_status()
    iterations = tuple(_iteration(found) for found in record.iteration_records())
    intent = read_model(record.path / "intent.json", Intent)
    judge = read_model(record.path / "judge.json", AuthoredCode)
    return SessionSnapshot(
        status=status,
        error=(told.error or "") if told else "",
        phase="ended" if status in ENDED else _phase(intent, iterations),
        intent=intent,
        judge=judge,
        iterations=iterations,
        result=read_model(record.path / "result.json", SessionResult),
        waiting=_waiting(record) if status == "running" else "",
    )


def _iteration(record: IterationRecord) -> IterationSnapshot:
    return IterationSnapshot(
        number=int(record.iteration_id.rpartition("_")[2]),
        reward=read_model(record.path / "reward.json", AuthoredCode),
        runs=tuple(_run(run) for run in record.runs()),
        judgment=record.read_judgment(),
        confirmation=read_model(record.path / "confirmation.json", JudgmentResult),
        revision=read_model(record.path / "revision.json", Revision),
    )


def _run(record: IterationRecord) -> RunSnapshot:
    config = record.read_train_config()
    training, evaluations = record.parse_scalars()
    return RunSnapshot(
        run_id=record.iteration_id,
        status=record.derive_status(),
        progress=record.compute_progress() or 0.0,
        total_timesteps=config.total_timesteps if config else 0,
        curve=tuple(
            (line["global_step"], line["episodic_return"])
            for line in training
            if "episodic_return" in line
        ),
        evaluations=tuple((line["global_step"], line["mean_return"]) for line in evaluations),
        judgment=record.read_judgment(),
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
