"""Benchmarks over HTTP: what is answered and taken, and how it is read from their folders.

A case is read again only where something has changed.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from p2p.api.problems import NotFound
from p2p.api.schemas import JobRun, Name, Video, fields_of
from p2p.api.views import video_at
from p2p.benchmark.measuring import NOT_YET, truth_path
from p2p.benchmark.planning import REPORT_FOLDER
from p2p.benchmark.records import (
    BENCHMARK_ID,
    FILE,
    Benchmark,
    Mode,
    case_id,
    case_record,
    case_status,
    gate_folder,
    live_score,
    read_benchmark,
)
from p2p.benchmark.report import CaseReport, Findings, Group, case_report, findings
from p2p.benchmark.suite import Case, Difficulty
from p2p.contracts import EntityMetadata, Record, Score
from p2p.records.iteration_record import SessionRecord
from p2p.records.statuses import Outcome
from p2p.scheduler.records import BackendName, Id
from p2p.session.request import SessionOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from p2p.scheduler.records import JobRow, RunRow
    from p2p.scheduler.store import Store

BenchmarkState = Literal["queued", "running", "completed", "cancelled", "incomplete"]
"""completed: every case has a verdict, or a gate has closed the stages of the others."""
CaseState = Literal["waiting", "starting", "running"] | Outcome
"""What the scheduler still has to do with it; once it is done, what came of it."""
StageState = Literal["waiting", "running", "ended", "closed"]
"""closed: the gate before it has let nothing through."""


class BenchmarkCase(CaseReport):
    """A case: its line in the report, and its status now."""

    benchmark_id: str
    session_id: str
    state: CaseState
    passed: bool | None
    """By the judge; None: there is no verdict."""
    true_pass: bool | None
    """By the ground truth; None: it says nothing, or nothing yet."""
    live_score: Score | None = None
    """Of what is being trained."""
    node: str = ""
    note: str = ""
    """What the scheduler has to say."""
    media: tuple[Video, ...] = ()
    """The report's videos, with their addresses."""


class JobCase(Record):
    """A case of any job: its run, and what it works on."""

    job_id: str
    index: int
    run: JobRun
    session_id: str | None = None
    """Where the run works on a session that is there."""
    case: BenchmarkCase | None = None
    """Where the job is a benchmark's."""


class BenchmarkStage(Record):
    stage: int
    state: StageState
    cases: tuple[int, ...]
    ended: int


class BenchmarkRunSummary(EntityMetadata):
    """A benchmark in a list."""

    benchmark_id: str
    suite: str
    mode: Mode
    model: str
    state: BenchmarkState
    created_at: datetime
    counts: dict[CaseState, int]
    """How many cases are in which state."""
    overall: Group
    cost_usd: float
    """Of all cases together."""
    unmeasured: int
    """Policies whose ground truth is still to be measured."""
    measuring: bool
    """Whether the scheduler is about to, or at it."""
    has_job: bool
    """Whether this runs folder's scheduler knows it: a job of the same id."""


class BenchmarkRunDetail(BenchmarkRunSummary, Findings):
    """A benchmark: what it is made of, and all that its cases together say."""

    benchmark: Benchmark
    stages: tuple[BenchmarkStage, ...]


class SuiteInfo(Record):
    name: str
    cases: tuple[Case, ...]


class BenchmarkOptionsResponse(Record):
    """What a benchmark can be started with."""

    suites: tuple[SuiteInfo, ...]
    modes: tuple[Mode, ...]
    difficulties: tuple[Difficulty, ...]
    truths: tuple[str, ...]
    """Names that the column `truth` of a CSV file may have."""
    columns: tuple[str, ...]
    """Of a CSV file: all that it must have, then all that it may have."""
    nodes: tuple[str, ...]


Names = Annotated[tuple[Name, ...], Field(max_length=100)]


class StartBenchmarkRequest(SessionOptions):
    """The options of `p2p benchmark`, as JSON, with the same defaults."""

    suite: Annotated[str, Field(min_length=1, max_length=200)] = "mujoco_prompts"
    """A suite of ours; with `csv`, what to call it."""
    csv: Annotated[str, Field(max_length=900_000)] | None = None
    """The text of a CSV file."""
    mode: Mode = "flat"
    num_stages: Annotated[int, Field(ge=1, le=1000)] = 5
    gate_threshold: Score = 0.5
    filter_envs: Names = ()
    filter_categories: Names = ()
    filter_difficulties: tuple[Difficulty, ...] = ()
    num_envs: int | None = None
    side_info: bool | None = None
    max_parallel: Annotated[int, Field(ge=0, le=100_000)] = 0
    cores_per_run: Annotated[int, Field(ge=1, le=4096)] = 1
    nodes: Annotated[tuple[Id, ...], Field(max_length=100)] = ()
    backend: BackendName | None = None


class StartBenchmarkResponse(Record):
    """The benchmark that was started; its job has the same id."""

    benchmark_id: str
    job_id: str
    cases: int


class StopBenchmarkResponse(Record):
    benchmark_id: str
    status: Literal["cancelled"] = "cancelled"
    runs: int


class ResumeBenchmarkResponse(Record):
    benchmark_id: str
    runs: int


class ReportJob(Record):
    """The job that measures and writes the report."""

    benchmark_id: str
    job_id: str


Stamp = tuple[int | None, ...]
_WAITS: dict[str, CaseState] = {
    "pending": "waiting", "starting": "starting", "running": "running",
}  # fmt: skip
UNENDED = frozenset(_WAITS.values())


@dataclass
class _Kept:
    """What was read of a benchmark."""

    benchmark: Benchmark
    stamp: int | None
    cases: dict[int, tuple[Stamp, CaseReport]] = field(default_factory=dict)


class BenchmarkReader:
    """The benchmarks of a runs folder; any number of threads may use one."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Their ids, newest first; those in the trash too."""
        names = (path.parent.name for path in self.runs_dir.glob(f"bm_*/{FILE}"))
        return sorted((name for name in names if BENCHMARK_ID.fullmatch(name)), reverse=True)

    def folder(self, benchmark_id: str) -> Path:
        """Where it lies; raises NotFound."""
        folder = self.runs_dir / benchmark_id
        if (
            not BENCHMARK_ID.fullmatch(benchmark_id)
            or not (folder / FILE).is_file()
            or not folder.resolve().is_relative_to(self.runs_dir.resolve())
        ):
            raise NotFound(f"there is no benchmark {benchmark_id!r}")
        return folder

    def benchmark(self, benchmark_id: str) -> Benchmark:
        """What it is benchmark of; raises NotFound."""
        with self._lock:
            return self._open(benchmark_id, self.folder(benchmark_id)).benchmark

    def _open(self, benchmark_id: str, folder: Path) -> _Kept:
        stamp = _changed(folder / FILE)
        kept = self._kept.get(benchmark_id)
        if kept is None or kept.stamp != stamp:
            benchmark = read_benchmark(folder)
            if benchmark is None:
                raise NotFound(f"{benchmark_id}/{FILE} cannot be read")
            kept = self._kept[benchmark_id] = _Kept(benchmark, stamp)
        return kept

    def cases(self, benchmark_id: str, store: Store) -> list[BenchmarkCase]:
        """All cases, as they stand now; raises NotFound."""
        folder = self.folder(benchmark_id)
        runs = {run.run_id: run for run in store.runs(benchmark_id)}
        with self._lock:
            kept = self._open(benchmark_id, folder)
            benchmark = kept.benchmark
            gates = tuple(
                _changed(folder / gate_folder(stage) / "gate.json")
                for stage in range(len(benchmark.stages) - 1)
            )
            reports = [self._report(kept, folder, case.number, gates) for case in benchmark.cases]
        return [
            _case(benchmark, folder, report, runs.get(case_id(benchmark_id, report.case.number)))
            for report in reports
        ]

    def case(self, benchmark_id: str, number: int, store: Store) -> BenchmarkCase:
        """One case; raises NotFound."""
        for case in self.cases(benchmark_id, store):
            if case.case.number == number:
                return case
        raise NotFound(f"benchmark {benchmark_id} has no case {number}")

    def _report(self, kept: _Kept, folder: Path, number: int, gates: Stamp) -> CaseReport:
        there = _changed(case_record(folder, number).path)
        stamp = (there, _changed(truth_path(folder, number)), *gates)
        before, report = kept.cases.get(number, (None, None))
        if report is None or before != stamp or report.status == "running":  # it may have died
            now = case_status(kept.benchmark, folder, number)
            report = case_report(folder, now, play=False)
            kept.cases[number] = (stamp, report)
        return report

    def summaries(self, store: Store) -> list[BenchmarkRunSummary]:
        """All that are not in the trash, newest first."""
        rows = []
        for name in self.names():
            if SessionRecord(self.runs_dir / name).read_metadata().deleted_at is None:
                with suppress(NotFound):  # removed at this moment, or its file is damaged
                    detail = self.detail(name, store)
                    rows.append(BenchmarkRunSummary(**fields_of(BenchmarkRunSummary, detail)))
        return rows

    def detail(
        self, benchmark_id: str, store: Store, cases: Sequence[BenchmarkCase] | None = None
    ) -> BenchmarkRunDetail:
        """All of it but the cases, which may be given where they are known; raises NotFound."""
        benchmark, folder = self.benchmark(benchmark_id), self.folder(benchmark_id)
        if cases is None:
            cases = self.cases(benchmark_id, store)
        summary = findings(benchmark, folder, cases)
        job = store.job(benchmark_id)
        measuring = store.run_in(f"{benchmark_id}/{REPORT_FOLDER}") is not None
        return BenchmarkRunDetail(
            **fields_of(Findings, summary),
            benchmark_id=benchmark_id,
            suite=benchmark.suite,
            mode=benchmark.mode,
            model=str(benchmark.options.get("model", "")),
            state=_state(cases, summary, job),
            created_at=benchmark.created_at,
            counts=dict(Counter(case.state for case in cases)),
            cost_usd=sum(case.cost_usd for case in cases),
            unmeasured=sum(case.truth_note == NOT_YET for case in cases),
            measuring=measuring,
            has_job=job is not None,
            benchmark=benchmark,
            stages=tuple(
                _stage(benchmark, number, cases, summary) for number in range(len(benchmark.stages))
            ),
            **SessionRecord(folder).read_metadata().model_dump(),
        )


def _case(
    benchmark: Benchmark, folder: Path, report: CaseReport, run: RunRow | None
) -> BenchmarkCase:
    number = report.case.number
    state: CaseState = report.outcome if run is None else _WAITS.get(run.state, report.outcome)
    session_id = case_id(benchmark.benchmark_id, number)
    working = state in ("starting", "running")
    videos = (video_at(session_id, path.partition("/")[2]) for path in report.videos)
    return BenchmarkCase(
        **fields_of(CaseReport, report),
        benchmark_id=benchmark.benchmark_id,
        session_id=session_id,
        state=state,
        passed=report.outcome == "passed" if report.finished else None,
        true_pass=report.truly_passed,
        live_score=live_score(case_record(folder, number)) if working else None,
        node=(run.node_id or "") if run else "",
        note=run.message if run else "",
        media=tuple(video for video in videos if video is not None),
    )


def _state(cases: Sequence[BenchmarkCase], summary: Findings, job: JobRow | None) -> BenchmarkState:
    if any(case.state in UNENDED for case in cases):
        return "queued" if job is not None and job.state == "pending" else "running"
    closed = _closed(summary)
    left = [case for case in cases if not case.finished and case.stage < closed]
    if not left:
        return "completed"
    stopped = job is not None and job.counts.get("cancelled", 0) > 0
    return "cancelled" if stopped else "incomplete"


def _stage(
    benchmark: Benchmark, number: int, cases: Sequence[BenchmarkCase], summary: Findings
) -> BenchmarkStage:
    mine = [case for case in cases if case.stage == number]
    ended = sum(case.state not in UNENDED for case in mine)
    state: StageState
    if number >= _closed(summary):
        state = "closed"
    elif ended == len(mine):
        state = "ended"
    else:
        state = "waiting" if all(case.state == "waiting" for case in mine) else "running"
    return BenchmarkStage(stage=number, state=state, cases=benchmark.stages[number], ended=ended)


def _closed(summary: Findings) -> float:
    """The first stage that a gate did not let begin."""
    return min((gate.stage + 1 for gate in summary.gates if not gate.passed), default=float("inf"))


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
