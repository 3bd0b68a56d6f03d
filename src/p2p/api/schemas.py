"""What the API answers and takes: the contracts themselves, or what is put together from them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from p2p.benchmark.measuring import TruthResult
from p2p.benchmark.planning import BenchmarkRequest, Workload
from p2p.benchmark.records import Benchmark, Mode
from p2p.benchmark.report import CaseReport, Findings, Group
from p2p.benchmark.suite import Case, Difficulty
from p2p.config import LoopConfig
from p2p.contracts import (
    AggregatedMetrics,
    AuthoredCode,
    Criterion,
    EntityMetadata,
    Event,
    Intent,
    LineageData,
    MeanStdSeries,
    Record,
    RunConfigEntry,
    RunMetricsDetail,
    Score,
    SessionAnalysis,
    SessionResult,
    SteeringOrder,
)
from p2p.contracts import (
    IterationRunEntry as IterationRunEntry,
)
from p2p.records.session_view import Video
from p2p.records.statuses import Outcome
from p2p.records.summaries import IterationDetail as IterationDetail
from p2p.records.summaries import IterationSummary as IterationSummary
from p2p.records.summaries import LoopIterationSummary as LoopIterationSummary
from p2p.records.summaries import SessionRow, part_of
from p2p.scheduler.controllers import JobRequest
from p2p.scheduler.records import BackendName, Id, NodeConfig
from p2p.session.request import ResumeOptions, SessionRequest
from p2p.training.reward_check import CheckReport

RunMetricsResponse = RunMetricsDetail
MetricsResponse = RunMetricsDetail
MeanStdArray = MeanStdSeries
AggregatedMetricsResponse = AggregatedMetrics
RunConfigEntrySchema = RunConfigEntry
SessionAnalysisResponse = SessionAnalysis
EventSummary = Event
EventDetail = Event


def fields_of(model: type[BaseModel], source: object) -> dict[str, Any]:
    """The fields of a model, as the attributes of a source have them."""
    return {name: getattr(source, name) for name in model.model_fields}


Budget = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
"""In dollars; kept where the model's price is known."""
Name = Annotated[str, Field(max_length=200)]
Prompt = Annotated[str, Field(min_length=1, max_length=4000)]
Tag = Annotated[str, Field(min_length=1, max_length=50)]

# --- sessions and iterations ----------------------------------------------------------------------


class PendingFeedback(SteeringOrder):
    """Feedback that a session has not taken up yet."""

    number: int
    """Withdraws it."""


class SessionDetail(SessionRow):
    """A session, with all that its page shows at once."""

    phase: str
    waiting: str
    env_reason: str
    intent: Intent | None
    judge: AuthoredCode | None
    config: LoopConfig | None = part_of("config", "loop")
    result: SessionResult | None
    ground_truth: TruthResult | None = None
    """Of a case of a benchmark: what was measured on the simulator, which no agent is shown."""
    lineage: LineageData | None = Field(validation_alias="lineage_data")
    orders: tuple[PendingFeedback, ...] = ()
    """Feedback that the session has not taken up yet."""
    analysis: SessionAnalysis | None = None
    """The latest look back at it."""
    seconds_left: float | None = None
    """Until it ends at the latest, if no further iteration passes; None: not known."""
    resumable: bool = False
    minutes_to_go_on: float | None = None
    """The time limit, in all, with which it resumes unless the request sets one."""
    command: str = ""
    """The same on a command line."""


class UpdateMetadataRequest(Record):
    """Fields that are not sent stay as they are."""

    alias: Name | None = None
    starred: bool | None = None
    tags: Annotated[tuple[Tag, ...], Field(max_length=50)] | None = None


class UpdateMetadataResponse(Record):
    id: str
    alias: str
    starred: bool
    tags: tuple[str, ...]


class StopResponse(Record):
    id: str
    status: Literal["cancelled", "deleted", "restored", "removed"]


class StartSessionRequest(SessionRequest):
    """The options of `p2p run`, as JSON, with the same defaults."""

    priority: Annotated[int, Field(ge=-100, le=100)] = 0


class StartSessionResponse(Record):
    """The session that was started, and the job that runs it."""

    session_id: str
    job_id: str


class ResumeRequest(ResumeOptions):
    """The options that may change when a session resumes, as for `p2p resume`."""


class TunableSetting(Record):
    """A hyperparameter that feedback may set."""

    name: str
    kind: Literal["number", "integer", "boolean", "layers"]
    value: Any = None
    """As the last iteration was trained with, or the first one will be."""
    low: float | None = None
    high: float | None = None
    """What revisions keep it within; feedback may go beyond."""


class RewardCheckRequest(Record):
    """A reward to try on a session's environment."""

    reward_code: Annotated[str, Field(min_length=1, max_length=200_000)]


class RewardCheckResponse(CheckReport):
    """The report of `p2p check`."""

    fit: bool
    """Whether it can be trained on."""


class SteerRequest(Record):
    """Feedback to take up before the next iteration; see `p2p steer`."""

    pause: bool | None = None
    remark: Annotated[str, Field(max_length=4000)] = ""
    score: Score | None = None
    scored_iteration: Annotated[int, Field(ge=1)] | None = None
    """Which iteration the score is for: refused unless it is the last one and judged."""
    criteria: tuple[Criterion, ...] | None = None
    reward_code: Annotated[str, Field(max_length=200_000)] | None = None
    hp_changes: dict[str, Any] = Field(default_factory=dict)


class BlindVideo(Record):
    """A video to score, under a name that says nothing of it."""

    video: str
    url: str
    score: Score | None = None
    """The annotator's own."""


class LabelRequest(Record):
    """A person's score of a video."""

    video: Annotated[str, Field(max_length=64)]
    score: Score
    annotator: Annotated[str, Field(min_length=1, max_length=100)]
    note: Annotated[str, Field(max_length=4000)] = ""


class LabelsResponse(Record):
    videos: tuple[BlindVideo, ...]
    compared: int
    """Scores of people whose episode a judge has scored, too."""
    mean_difference: float | None = None
    same_verdict: int = 0
    """How many of them are on the judges' side of the threshold."""


class TrashItem(Record):
    id: str
    kind: Literal["session", "benchmark"]
    title: str
    deleted_at: datetime


# --- questions to models --------------------------------------------------------------------------


class ProposalRequest(Record):
    """A prompt whose criteria are wanted; without `env_id` the environment is chosen."""

    prompt: Prompt
    env_id: Name | None = None
    model: str | None = None
    budget_usd: Budget = 0.5


class AnalyzeRequest(Record):
    model: Name | None = None
    """Else the session's own."""
    again: bool = False
    """Also where there is an analysis."""
    budget_usd: Budget = 1.0


class VlmMessage(Record):
    """A turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(max_length=100_000)]
    images: tuple[str, ...] = ()
    """JPEG or PNG files in base64."""


class VlmChatRequest(Record):
    """A conversation whose next turn is wanted."""

    model: Name | None = None
    """Else VLM_MODEL."""
    messages: Annotated[tuple[VlmMessage, ...], Field(min_length=1, max_length=100)]
    stream: Literal[False] = False
    budget_usd: Budget = 0.5


class VlmChatResponse(Record):
    model: str
    created_at: datetime
    message: VlmMessage
    done: bool = True


class VlmTag(Record):
    name: str
    model: str


class VlmTags(Record):
    """A list of models, as Ollama gives it."""

    models: tuple[VlmTag, ...]


class VlmStatusResponse(Record):
    configured: bool
    model: str = ""
    provider: str = ""
    reachable: bool | None = None
    """Whether a local model server answers; others are not tried."""
    message: str = ""


# --- jobs and nodes -------------------------------------------------------------------------------


class JobSummary(Record):
    job_id: str
    kind: str
    title: str
    state: str
    priority: int
    created_at: datetime
    counts: dict[str, int]
    """How many of its runs are in which state."""


class JobRun(Record):
    model_config = ConfigDict(from_attributes=True)

    run_id: str
    state: str
    attempt: int
    cancel_requested: bool
    node_id: str | None
    cores: int
    gpus: int
    exit_code: int | None
    message: str
    folder: str
    started_at: datetime | None
    ended_at: datetime | None


class JobDetail(JobSummary):
    nodes: tuple[str, ...]
    max_parallel: int
    runs: tuple[JobRun, ...]


class JobLog(Record):
    """The output of an attempt at a run, or a part of it."""

    run_id: str
    attempt: int
    offset: int
    """In bytes, where this part begins."""
    next_offset: int
    """Ask from here for what comes after it."""
    text: str


class SubmitJobRequest(JobRequest):
    """A session as a job: the options of `p2p jobs submit`, with the same defaults."""

    backend: BackendName | None = None
    """Any node of this kind."""


class ChangedRuns(Record):
    """How many runs were cancelled, or run again."""

    job_id: str
    runs: int


class NodeStatus(NodeConfig):
    runs_now: int = 0
    cores_in_use: int = 0
    gpus_in_use: int = 0


class NodeCheck(Record):
    """Whether a node can be used."""

    node_id: str
    usable: bool
    message: str


# --- benchmarks -----------------------------------------------------------------------------------

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
    """The choices of the form that starts a benchmark."""

    suites: tuple[SuiteInfo, ...]
    modes: tuple[Mode, ...]
    difficulties: tuple[Difficulty, ...]
    truths: tuple[str, ...]
    """Names that the column `truth` of a CSV file may have."""
    columns: tuple[str, ...]
    """Of a CSV file: all that it must have, then all that it may have."""
    nodes: tuple[str, ...]


class StartBenchmarkRequest(BenchmarkRequest):
    """The options of `p2p benchmark`, as JSON, with the same defaults."""

    suite: Annotated[str, Field(min_length=1, max_length=200)] = "mujoco_prompts"
    """A suite of ours; with `csv`, what to call it."""
    csv: Annotated[str, Field(max_length=900_000)] | None = None
    """The text of a CSV file."""


class StartBenchmarkResponse(Record):
    """The benchmark that was started; its job has the same id."""

    benchmark_id: str
    job_id: str
    cases: int


class BenchmarkPlanResponse(Record):
    """The estimate for a benchmark."""

    workload: Workload
    lines: tuple[str, ...]
    """The same for people."""


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


# --- self-play ------------------------------------------------------------------------------------

GameKind = Literal["train", "eval"]


class SelfPlayOptions(Record):
    """The choices of the form that starts a self-play run."""

    missing: str = ""
    """What has to be installed first."""
    games: tuple[str, ...] = ()
    """Those that the player `random-legal` knows the moves of."""
    opponents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


class StartSelfPlayRequest(Record):
    """The options of `unstable train`, and where it runs."""

    model: Annotated[str, Field(min_length=1, max_length=300)] = "tiny"
    games: Annotated[tuple[Name, ...], Field(max_length=20)] = ()
    """Empty: those of the model's own recipe."""
    opponents: Annotated[tuple[Name, ...], Field(max_length=10)] = ()
    updates: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    cores: Annotated[int, Field(ge=1, le=4096)] = 1
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    nodes: Annotated[tuple[Id, ...], Field(max_length=100)] = ()


class StartSelfPlayResponse(Record):
    """The run that was started, and its job."""

    run_id: str
    job_id: str


class SelfPlayRow(Record):
    """A self-play run in a list."""

    run_id: str
    name: str
    job_id: str | None = None
    """Of a run that is a job: it has a log, and can be stopped from here."""
    status: str
    step: int
    updates: int | None = None
    message: str = ""
    changed_at: float
    """Unix time."""


class _Game(Record):
    """Written by `unstable`, which may write more than is shown here."""

    model_config = ConfigDict(extra="ignore")


class GamePlayer(_Game):
    seat: int
    uid: str
    kind: str
    version: int
    """The learner's step that the policy is from; negative: it is no checkpoint of the run."""
    learner: bool
    """Whether its moves are trained on, or evaluated."""


class GameMove(_Game):
    seat: int
    observation: str
    answer: str
    """All that the player wrote."""
    action: str
    """What the game parsed from it."""
    legal: bool
    board: str = ""
    """After the move, as the game draws it."""
    opening: bool = False
    """A random move to begin with, chosen by no player."""


class GameRow(_Game):
    """A game in a list."""

    id: str
    kind: GameKind
    env_id: str
    step: int
    """The learner's, when it was played."""
    time: float
    players: tuple[GamePlayer, ...]
    rewards: dict[int, float | None]
    reason: str
    turns: int
    illegal: int
    """How many moves were illegal."""


class GameDetail(GameRow):
    moves: tuple[GameMove, ...]


# --- catalogue ------------------------------------------------------------------------------------


class EnvInfo(Record):
    env_id: str
    engine: str
    description: str
    observations: int
    actions: int
    horizon: int | None
    can: tuple[str, ...] = ()
    """What there are built-in rewards for: prompts to begin with."""


class RewardTemplateInfo(Record):
    name: str
    env_id: str
    description: str
    source: str


class ProviderInfo(Record):
    name: str
    configured: bool
    default_model: str = ""
    local: bool = False


class CoreInfo(Record):
    core: int
    busy: float
    """Share of the last second, 0 to 1."""
    held: bool
    """By a training run of ours."""


class GpuInfo(Record):
    name: str
    busy: float
    memory_used_mb: int
    memory_total_mb: int


class ResourceSample(Record):
    """How busy this machine was at a moment, as shares."""

    time: float
    """Unix time."""
    cpu: float
    memory: float
    gpus: tuple[float, ...] = ()


class ResourceStatusResponse(Record):
    cores: tuple[CoreInfo, ...]
    load: tuple[float, float, float]
    memory_used_mb: int
    memory_total_mb: int
    disk_free_mb: int
    gpus: tuple[GpuInfo, ...] = ()
