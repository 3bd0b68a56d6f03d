"""benchmark.json, where the parts of a benchmark lie, and how far its cases are."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from p2p.benchmark.suite import Case
from p2p.contracts import Record, Score, SessionResult, StatusLiteral
from p2p.files import read_model
from p2p.records.formatting import format_score
from p2p.records.iteration_record import SessionRecord
from p2p.records.session_view import SessionView
from p2p.records.statuses import STATUS, Outcome
from p2p.scheduler.records import Id

BENCHMARK_ID = re.compile(r"bm_(?:\d{8}_\d{6}_)?[0-9a-f]+")
FILE = "benchmark.json"

Mode = Literal["staged", "flat"]
JUDGED: tuple[Outcome, ...] = ("passed", "unverified", "not_passed")
FINISHED: tuple[Outcome, ...] = (*JUDGED, "error")
"""Counted in pass rates; the others are only named."""


class Benchmark(Record):
    """A suite, or what a filter left of it, and how it is run. Fixed once it is made."""

    benchmark_id: Annotated[str, Field(pattern=rf"^{BENCHMARK_ID.pattern}$")]
    suite: str
    """Where the prompts came from."""
    cases: Annotated[tuple[Case, ...], Field(min_length=1)]
    mode: Mode = "flat"
    stages: tuple[tuple[int, ...], ...]
    """The numbers of the cases, stage by stage; one stage if it is flat."""
    gate_threshold: Score = 0.0
    """What the mean score of a stage must reach for the next one to begin."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Of every session: fields of LoopConfig and TrainConfig."""
    cores_per_run: Annotated[int, Field(ge=1)] = 1
    max_parallel: Annotated[int, Field(ge=0)] = 0
    nodes: tuple[Id, ...] = ()
    created_at: datetime
    version: str
    """Of this package, when it was made."""

    @model_validator(mode="after")
    def _check_stages(self) -> Benchmark:
        staged = sorted(number for stage in self.stages for number in stage)
        if staged != sorted(case.number for case in self.cases) or not all(self.stages):
            raise ValueError("stages: every case must be in one of them, once")
        return self

    def case(self, number: int) -> Case:
        return next(case for case in self.cases if case.number == number)


class GateResult(Record):
    """gate<k>/gate.json: whether the stage after this one may begin."""

    stage: int
    mean_score: Score
    """Over all cases of the stage; one without a score counts as 0."""
    threshold: Score
    passed: bool
    scores: dict[int, Score | None]
    """By the number of the case; None: it has none, for the reason in `missing`."""
    missing: dict[int, str] = Field(default_factory=dict)


def new_benchmark_id() -> str:
    """`bm_{YYYYmmdd_HHMMSS}_{hex8}`, in local time."""
    now = datetime.now().astimezone()
    return f"bm_{now:%Y%m%d_%H%M%S}_{secrets.token_hex(4)}"


def case_id(benchmark_id: str, number: int) -> str:
    """The session of a case, and the run that works on it."""
    return f"{benchmark_id}_case{number}"


def gate_id(benchmark_id: str, stage: int) -> str:
    """The run that decides about the stage after this one."""
    return f"{benchmark_id}_gate{stage}"


def report_id(benchmark_id: str) -> str:
    """The run that measures and writes the report when all cases have ended."""
    return f"{benchmark_id}_report"


def gate_folder(stage: int) -> str:
    return f"gate{stage}"


def case_record(folder: Path, number: int) -> SessionRecord:
    """The session of a case, in the benchmark's folder."""
    return SessionRecord(folder / f"case{number}")


def read_benchmark(folder: Path) -> Benchmark | None:
    """The benchmark in this folder; None if there is none that can be read."""
    return read_model(folder / FILE, Benchmark)


def read_gate(folder: Path, stage: int) -> GateResult | None:
    return read_model(folder / gate_folder(stage) / "gate.json", GateResult)


@dataclass(frozen=True)
class CaseStatus:
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
    unchecked_words: tuple[str, ...]
    result: SessionResult | None


def case_status(benchmark: Benchmark, folder: Path, number: int) -> CaseStatus:
    view = SessionView(case_record(folder, number))
    stage = next(k for k, numbers in enumerate(benchmark.stages) if number in numbers)
    outcome = STATUS[view.status].outcome
    message = (view.result.message if view.result else "") or view.error
    return CaseStatus(
        case=benchmark.case(number),
        stage=stage,
        status=view.status,
        outcome=outcome,
        message=_explain_not_run(folder, stage) if outcome == "not_run" else message,
        iterations=len(view.iterations),
        score=view.best_score,
        unchecked_words=view.unchecked_words,
        result=view.result,
    )


def live_score(record: SessionRecord) -> float | None:
    """The last that was said of what is being trained: the newest judged checkpoint's best."""
    iterations = record.iteration_records()
    judged = [run.read_streaming() for run in (iterations[-1].runs() if iterations else [])]
    last = [scores[max(scores)].intent_score for scores in judged if scores]
    return max((score for score in last if score is not None), default=None)


def _explain_not_run(folder: Path, stage: int) -> str:
    for earlier in range(stage):
        gate = read_gate(folder, earlier)
        if gate is not None and not gate.passed:
            return (
                f"stage {earlier + 1} had a mean score of {format_score(gate.mean_score)}, "
                f"below {gate.threshold:g}"
            )
    return "it has not begun"
