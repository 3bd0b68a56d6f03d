"""What the API answers and takes about benchmarks: the report's own records, and how they stand."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from p2p.api.schemas import JobRun, Video
from p2p.benchmark.records import Benchmark, Mode
from p2p.benchmark.report import CaseReport, Findings, Group
from p2p.benchmark.suite import Case, Difficulty
from p2p.contracts import Record, Score
from p2p.records.statuses import Outcome
from p2p.scheduler.records import BackendName, Id
from p2p.session.request import SessionOptions

BenchmarkState = Literal["queued", "running", "completed", "cancelled", "incomplete"]
"""completed: every case has a verdict, or a gate has closed the stages of the others."""
CaseState = Literal["waiting", "starting", "running"] | Outcome
"""What the scheduler still has to do with it; once it is done, what came of it."""
StageState = Literal["waiting", "running", "ended", "closed"]
"""closed: the gate before it has let nothing through."""


class BenchmarkCase(CaseReport):
    """A case: its line in the report, and how it stands now."""

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
    """A stage and how far it is."""

    stage: int
    state: StageState
    cases: tuple[int, ...]
    ended: int


class BenchmarkRunSummary(Record):
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
    alias: str = ""
    starred: bool = False
    tags: tuple[str, ...] = ()
    deleted_at: datetime | None = None


class BenchmarkRunDetail(BenchmarkRunSummary, Findings):
    """A benchmark: what it is made of, and all that its cases together say."""

    benchmark: Benchmark
    stages: tuple[BenchmarkStage, ...]


class SuiteInfo(Record):
    """A suite that comes with the package."""

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


Names = Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=100)]


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
    hp_tuning: bool | None = None
    use_code_judge: bool | None = None
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
    """How many runs were told to end."""

    benchmark_id: str
    status: Literal["cancelled"] = "cancelled"
    runs: int


class ResumeBenchmarkResponse(Record):
    """How many runs are begun again."""

    benchmark_id: str
    runs: int


class ReportJob(Record):
    """The job that measures and writes the report."""

    benchmark_id: str
    job_id: str
