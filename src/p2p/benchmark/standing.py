"""How a case stands, read off its session's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from p2p.benchmark.records import Benchmark, case_record, read_gate
from p2p.benchmark.suite import Case
from p2p.contracts import SessionResult, StatusLiteral
from p2p.records.iteration_record import SessionRecord

Outcome = Literal["passed", "not_passed", "error", "unfinished", "not_run"]
"""error: it ended without a verdict, as when its author could make nothing of the sentence."""
FINISHED: tuple[Outcome, ...] = ("passed", "not_passed", "error")
"""Counted in pass rates; the others are only named."""

_OUTCOMES: dict[StatusLiteral, Outcome] = {
    "passed": "passed",
    "max_iterations": "not_passed",
    "budget_exhausted": "not_passed",
    "time_exhausted": "not_passed",
    "error": "error",
    "failed": "error",
    "invalid_code": "error",
    "pending": "not_run",
    "queued": "not_run",
    "unknown": "not_run",
}
"""Any other status is `unfinished`."""


@dataclass(frozen=True)
class Standing:
    """A case as its files show it."""

    case: Case
    stage: int
    status: StatusLiteral
    outcome: Outcome
    message: str
    iterations: int
    """How many it has begun."""
    score: float | None
    """Of its best iteration that is judged; None: nothing is judged yet."""
    result: SessionResult | None


def standing(benchmark: Benchmark, folder: Path, number: int) -> Standing:
    """How a case stands."""
    record = case_record(folder, number)
    stage = next(k for k, numbers in enumerate(benchmark.stages) if number in numbers)
    status, told, result = record.derive_status(), record.read_status(), record.result.read()
    outcome = _OUTCOMES.get(status, "unfinished")
    message = (result.message if result else "") or (told.error if told else None) or ""
    return Standing(
        case=benchmark.case(number),
        stage=stage,
        status=status,
        outcome=outcome,
        message=_why_not(folder, stage) if outcome == "not_run" else message,
        iterations=len(record.iteration_records()),
        score=best_score(record, result),
        result=result,
    )


def best_score(record: SessionRecord, result: SessionResult | None = None) -> float | None:
    """The best score of a session, also of one that was killed; None: nothing is judged."""
    result = result or record.result.read()
    if result is not None and result.status != "running":
        return result.score
    judged = (iteration.read_judgment() for iteration in record.iteration_records())
    scores = [j.intent_score for j in judged if j is not None and j.intent_score is not None]
    return max(scores, default=None)


def live_score(record: SessionRecord) -> float | None:
    """The last that was said of what is being trained: the newest judged checkpoint's best."""
    iterations = record.iteration_records()
    found = [run.read_streaming() for run in (iterations[-1].runs() if iterations else [])]
    last = [scores[max(scores)].intent_score for scores in found if scores]
    return max((score for score in last if score is not None), default=None)


def _why_not(folder: Path, stage: int) -> str:
    for earlier in range(stage):
        gate = read_gate(folder, earlier)
        if gate is not None and not gate.passed:
            return (
                f"stage {earlier + 1} had a mean score of {gate.mean_score:.2f}, "
                f"below {gate.threshold:g}"
            )
    return "it has not begun"
