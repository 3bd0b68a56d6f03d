"""What the API answers and takes: the contracts themselves, or what is put together from them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from p2p.api.metrics import AggregatedMetrics, MeanStdSeries, RunMetricsDetail
from p2p.api.rows import SessionRow
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import (
    AuthoredCode,
    Criterion,
    CriterionScore,
    EvalResult,
    Event,
    Intent,
    IterationAggregation,
    JudgmentResult,
    LineageData,
    Record,
    Revision,
    RewardSpec,
    RunConfigEntry,
    Score,
    SessionAnalysis,
    SessionResult,
    StatusLiteral,
    SteeringOrder,
    TrainSummary,
)
from p2p.records.loop_files import SteeringTaken
from p2p.scheduler.records import NodeConfig
from p2p.session.request import SessionRequest

RunMetricsResponse = RunMetricsDetail
MeanStdArray = MeanStdSeries
AggregatedMetricsResponse = AggregatedMetrics
RunConfigEntrySchema = RunConfigEntry
SessionAnalysisResponse = SessionAnalysis
EventSummary = Event
EventDetail = Event

Budget = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class Video(Record):
    """A video of an evaluation episode."""

    run_id: str
    name: str
    step: int | None = None
    label: str = ""
    """p10, median or p90."""
    url: str


class SessionDetail(SessionRow):
    """A session: its line in a list, and all that its page shows at once."""

    phase: str
    waiting: str = ""
    env_reason: str = ""
    intent: Intent | None = None
    judge: AuthoredCode | None = None
    config: LoopConfig | None = None
    result: SessionResult | None = None
    lineage: LineageData | None = None
    orders: tuple[SteeringOrder, ...] = ()
    """What a person has ordered and the session has not taken up yet."""
    resumable: bool = False
    minutes_to_go_on: float | None = None
    """The bound on its time, in all, with which it goes on where no other is named."""
    command: str = ""
    """The same on a command line."""


class IterationRunEntry(Record):
    """One training run of an iteration."""

    run_id: str
    config_id: str = ""
    seed: int | None = None
    status: StatusLiteral
    error: str = ""
    progress: float = 0.0
    total_timesteps: int = 0
    final_return: float | None = None
    score: Score | None = None
    """By the judges."""
    checkpoint_scores: dict[int, Score | None] = Field(default_factory=dict)
    """Of the checkpoints judged on the way, by step."""


class LoopIterationSummary(Record):
    """One iteration of the loop."""

    iteration: int
    iteration_id: str
    status: StatusLiteral
    progress: float | None = None
    parent: int | None = None
    changes: str = ""
    """Against the parent."""
    hp_changes: dict[str, Any] = Field(default_factory=dict)
    train: TrainConfig | None = None
    """What every run of it begins from; configurations and seeds vary it."""
    notes: tuple[str, ...] = ()
    intent_score: Score | None = None
    score_std: float | None = None
    passed: bool = False
    confirmed_score: Score | None = None
    criteria: tuple[CriterionScore, ...] = ()
    diagnosis: str = ""
    failure_tags: tuple[str, ...] = ()
    agreement: Score | None = None
    confidence: Score | None = None
    unavailable: dict[str, str] = Field(default_factory=dict)
    reward: AuthoredCode | None = None
    reward_spec: RewardSpec = RewardSpec()
    aggregation: IterationAggregation | None = None
    runs: tuple[IterationRunEntry, ...] = ()
    best_run_id: str | None = None
    best_step: int | None = None
    revision: Revision | None = None
    """What the next iteration does differently."""
    steering: SteeringTaken | None = None
    videos: tuple[Video, ...] = ()


class IterationSummary(Record):
    """A training run in a list."""

    iteration_id: str
    session_id: str
    env_id: str = ""
    status: StatusLiteral
    final_episodic_return: float | None = None
    reward_latex: str = ""
    reward_description: str = ""


class IterationDetail(IterationSummary):
    """A training run, or an iteration of the loop, in full."""

    config: TrainConfig | None = None
    reward_spec: RewardSpec = RewardSpec()
    reward_source: str = ""
    summary: TrainSummary | None = None
    eval_results: tuple[EvalResult, ...] = ()
    judgment: JudgmentResult | None = None
    progress: float | None = None
    videos: tuple[Video, ...] = ()


class UpdateMetadataRequest(Record):
    """What people attach to a session or a benchmark; what is not given stays as it is."""

    alias: Annotated[str, Field(max_length=200)] | None = None
    starred: bool | None = None
    tags: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=50)], ...],
                    Field(max_length=50)] | None = None  # fmt: skip


class UpdateMetadataResponse(Record):
    """The metadata as they are now."""

    id: str
    alias: str
    starred: bool
    tags: tuple[str, ...]


class StopResponse(Record):
    """What became of it."""

    id: str
    status: Literal["cancelled", "deleted", "restored", "removed"]


class StartSessionRequest(SessionRequest):
    """The options of `p2p run`, as JSON, with the same defaults."""

    priority: int = 0


class ProposalRequest(Record):
    """A sentence whose criteria are wanted; the environment is chosen where none is given."""

    prompt: Annotated[str, Field(min_length=1, max_length=4000)]
    env_id: Annotated[str, Field(max_length=200)] | None = None
    model: str | None = None
    budget_usd: Budget = 0.5
    """What asking may cost, where the model's price is known."""


class AnalyzeRequest(Record):
    """Who looks back at a session."""

    model: Annotated[str, Field(max_length=200)] | None = None
    """Else the session's own."""
    again: bool = False
    """Also where there is a report."""
    budget_usd: Budget = 1.0
    """What it may cost, where the model's price is known."""


class ResumeRequest(Record):
    """What may be different when a session goes on."""

    max_iterations: Annotated[int, Field(ge=1)] | None = None
    budget_usd: Annotated[float, Field(ge=0)] | None = None
    max_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """In all; not given, a session out of time gets as much again as it was given at first."""
    pass_threshold: Score | None = None
    model: str | None = None
    vlm_model: str | None = None


class StartSessionResponse(Record):
    """The session that was started, and the job that runs it."""

    session_id: str
    job_id: str


class SteerRequest(Record):
    """What a person wants changed before the next iteration; see `p2p steer`."""

    pause: bool | None = None
    remark: Annotated[str, Field(max_length=4000)] = ""
    score: Score | None = None
    criteria: tuple[Criterion, ...] | None = None
    reward_code: Annotated[str, Field(max_length=200_000)] | None = None
    hp_changes: dict[str, Any] = Field(default_factory=dict)


class JobSummary(Record):
    """A job in a list."""

    job_id: str
    kind: str
    title: str
    state: str
    priority: int
    created_at: datetime
    counts: dict[str, int]
    """How many of its runs are in which state."""


class JobRun(Record):
    """A run of a job."""

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
    """A job and its runs."""

    nodes: tuple[str, ...]
    max_parallel: int
    runs: tuple[JobRun, ...]


class JobLog(Record):
    """What an attempt at a run wrote, or a part of it."""

    run_id: str
    attempt: int
    offset: int
    """In bytes, where this part begins."""
    next_offset: int
    """Ask from here for what comes after it."""
    text: str


class ChangedRuns(Record):
    """How many runs were cancelled, or run again."""

    job_id: str
    runs: int


class NodeStatus(NodeConfig):
    """A node and what of it is in use."""

    runs_now: int = 0
    cores_in_use: int = 0
    gpus_in_use: int = 0


class NodeCheck(Record):
    """Whether a node can be used."""

    node_id: str
    usable: bool
    message: str


class SelfPlayRow(Record):
    """A self-play run in a list."""

    run_id: str
    status: str
    step: int
    updates: int | None = None
    message: str = ""
    changed_at: float
    """Unix time."""


class TrashItem(Record):
    """Something that was put away."""

    id: str
    kind: Literal["session", "benchmark"]
    title: str
    deleted_at: datetime


class EnvInfo(Record):
    """An environment to choose."""

    env_id: str
    engine: str
    description: str
    observations: int
    actions: int
    horizon: int | None
    can: tuple[str, ...] = ()
    """What there are built-in rewards for: sentences to begin with."""


class RewardTemplateInfo(Record):
    """A built-in reward."""

    name: str
    env_id: str
    description: str
    source: str


class ProviderInfo(Record):
    """Who can be asked."""

    name: str
    configured: bool
    default_model: str = ""
    local: bool = False


class CoreInfo(Record):
    """A core of this machine."""

    core: int
    busy: float
    """Share of the last second, 0 to 1."""
    held: bool
    """By a training run of ours."""


class GpuInfo(Record):
    """A graphics card."""

    name: str
    busy: float
    memory_used_mb: int
    memory_total_mb: int


class ResourceStatusResponse(Record):
    """What the machine is doing."""

    cores: tuple[CoreInfo, ...]
    load: tuple[float, float, float]
    memory_used_mb: int
    memory_total_mb: int
    disk_free_mb: int
    gpus: tuple[GpuInfo, ...] = ()
