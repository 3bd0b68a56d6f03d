"""Every record that is written to disk or sent between processes, once.

Each class here is a pydantic model, so the same definition checks a file, a pipe and an HTTP
body. Unknown keys are errors: a file from another program is reported, not half understood.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

if TYPE_CHECKING:
    from pathlib import Path

    from p2p.config import TrainConfig

StatusLiteral = Literal[
    "pending",
    "queued",
    "running",
    "paused",
    "completed",
    "passed",
    "failed",
    "error",
    "cancelled",
    "stale",
    "unknown",
    "max_iterations",
    "budget_exhausted",
    "rate_limited",
    "auth_error",
    "invalid_code",
    "gate_passed",
    "gate_failed",
]
STATUSES: tuple[str, ...] = get_args(StatusLiteral)

ROLLOUT_LABELS = ("p10", "median", "p90")
"""The evaluation episodes kept as video and trajectory, by their place among the returns."""


def utc_now() -> datetime:
    """The current time, in UTC."""
    return datetime.now(UTC)


class Record(BaseModel):
    """A checked, immutable record; unknown keys are errors.

    NaN and infinity, where a record has them, stand in JSON as text: plain JSON that any reader
    takes, and a record that reads back as it was.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings"
    )


# --- sessions, iterations, runs ---------------------------------------------------------------


class StatusData(Record):
    """status.json: how a session, an iteration or a run stands."""

    status: StatusLiteral
    updated_at: datetime
    error: str | None = None
    pid: int | None = None
    """The process that does the work, while there is one."""
    pid_started: float | None = None
    """When it started (Unix time), because the system gives numbers out again."""


class EntityMetadata(Record):
    """metadata.json: what people attach to a session or a benchmark."""

    alias: str = ""
    starred: bool = False
    tags: tuple[str, ...] = ()
    deleted_at: datetime | None = None


class RewardSpec(Record):
    """reward_spec.json: a reward function, described."""

    latex: str = ""
    terms: dict[str, str] = Field(default_factory=dict)
    description: str = ""


class CheckpointInfo(Record):
    """An evaluated checkpoint: its step and what its episodes returned."""

    step: int
    mean_return: float
    std_return: float


class TrainSummary(Record):
    """summary.json: how a finished training run ended."""

    env_id: str
    seed: int
    algorithm: str = "ppo"
    backend: Literal["fast", "sb3"]
    total_timesteps: int
    training_time_s: float
    total_episodes: int
    final_episodic_return: float | None
    """Mean return of the last training episodes; None if no episode ended."""
    reward_calls: Literal["batch", "per_env"]
    checkpoints: tuple[CheckpointInfo, ...] = ()
    selected_step: int | None = None
    """The checkpoint that stands for the run, by TrainConfig.judgment_select."""
    warnings: tuple[str, ...] = ()
    """What the guardrails, the renderer and the jail had to say."""


class JudgmentResult(Record):
    """judgment.json: what the judges made of a run."""

    intent_score: Annotated[float, Field(ge=0, le=1)] | None
    """0 to 1; None when no judge could judge, which is not a zero."""
    passed: bool = False
    diagnosis: str = ""
    failure_tags: tuple[str, ...] = ()


class RunConfigEntry(Record):
    """One configuration of an iteration: what it changes against the base TrainConfig."""

    config_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    label: str = ""
    params: dict[str, Any] = Field(default_factory=dict)


class SeedResult(Record):
    """One run of a configuration."""

    run_id: str
    seed: int
    status: StatusLiteral
    final_return: float | None = None
    error: str | None = None


class ConfigAggregation(Record):
    """All seeds of one configuration."""

    config_id: str
    label: str = ""
    per_seed: tuple[SeedResult, ...]
    mean_return: float | None = None
    std_return: float | None = None
    """Over the seeds that completed; None if none did, and then the configuration cannot win."""


class IterationAggregation(Record):
    """aggregation.json: configurations x seeds of an iteration, and which of them is best."""

    configs: tuple[ConfigAggregation, ...]
    best_config_id: str | None
    best_run_id: str | None


class Event(Record):
    """One line of events.jsonl."""

    seq: int
    timestamp: datetime
    event: str
    iteration: int | None = None
    data: dict[str, Any] = Field(default_factory=dict)
    duration_ms: float | None = None


# --- metrics ----------------------------------------------------------------------------------


class EvalResult(Record):
    """One evaluation: deterministic episodes on fixed seeds, with the policy of that step."""

    type: Literal["eval"] = "eval"
    global_step: int
    all_returns: tuple[float, ...]
    episode_lengths: tuple[int, ...]
    mean_return: float
    std_return: float
    min_return: float
    max_return: float
    median_return: float
    p10_return: float
    p90_return: float
    episode_length: float
    """Mean length."""
    total_reward: float
    """Return of the median episode, the one that stands for the checkpoint."""
    reward_terms: dict[str, float] = Field(default_factory=dict)
    """Mean over episodes of each term's sum."""
    rollouts: dict[str, int] = Field(default_factory=dict)
    """Label (p10, median, p90) to index into all_returns."""


class TrainScalars(Record):
    """One training line of scalars.jsonl: one rollout and its update.

    A metric that does not exist yet (no episode has ended) is absent, never NaN.
    """

    type: Literal["train"] = "train"
    global_step: int
    iteration: int
    values: dict[str, float]

    @field_validator("values")
    @classmethod
    def _no_second_step(cls, values: dict[str, float]) -> dict[str, float]:
        if taken := {"type", "global_step", "iteration"} & values.keys():
            raise ValueError(f"not metrics: {sorted(taken)}")
        return values

    def line(self) -> dict[str, float | int | str]:
        """Flat, as it stands in scalars.jsonl."""
        return {"type": self.type, "global_step": self.global_step, "iteration": self.iteration,
                **self.values}  # fmt: skip


# --- what the jailed trainer tells the process that started it -----------------------------------


class Started(Record):
    """Environment, reward and policy are ready; the first rollout begins."""

    type: Literal["started"] = "started"
    backend: Literal["fast", "sb3"]
    start_step: int
    total_timesteps: int
    reward: RewardSpec
    reward_calls: Literal["batch", "per_env"]
    note: str = ""


class ScalarsReady(Record):
    """A rollout and its update are done."""

    type: Literal["scalars"] = "scalars"
    scalars: TrainScalars


class EvalReady(Record):
    """A checkpoint was evaluated; its arrays lie in the jail's folder under these names."""

    type: Literal["eval"] = "eval"
    result: EvalResult
    policy_file: str
    trajectory_files: dict[str, str] = Field(default_factory=dict)


class StateSaved(Record):
    """A state to continue from lies in the jail's folder.

    It counts from the moment the parent adopts it, which is after everything that was sent before
    it has been published: a run that is killed then loses nothing that came before its state.
    """

    type: Literal["state"] = "state"
    global_step: int
    file: Annotated[str, Field(pattern=r"^state_\d{1,12}\.safetensors$")]


class Alive(Record):
    """Sent between other messages, so that a hang can be told from slow work."""

    type: Literal["alive"] = "alive"
    phase: Literal["setup", "compile", "rollout", "update", "eval"]
    global_step: int


class Finished(Record):
    """Training came to its end."""

    type: Literal["finished"] = "finished"
    global_step: int
    total_episodes: int
    final_episodic_return: float | None


class Failed(Record):
    """Training cannot go on."""

    type: Literal["failed"] = "failed"
    kind: Literal["reward", "environment", "config", "internal"]
    message: str
    traceback: str = ""


WorkerMessage = Annotated[
    Started | ScalarsReady | EvalReady | StateSaved | Alive | Finished | Failed,
    Field(discriminator="type"),
]
WORKER_MESSAGE: TypeAdapter[WorkerMessage] = TypeAdapter(WorkerMessage)

Json = Mapping[str, Any]


# --- what training is handed ----------------------------------------------------------------------


class RunRecord(Protocol):
    """The folder of one training run, as the training floor knows it."""

    @property
    def path(self) -> Path: ...  # noqa: D102
    @property
    def work_dir(self) -> Path: ...  # noqa: D102
    @property
    def scalars_path(self) -> Path: ...  # noqa: D102
    @property
    def videos_dir(self) -> Path: ...  # noqa: D102
    @property
    def checkpoints_dir(self) -> Path: ...  # noqa: D102

    def trajectory_file(self, step: int, label: str) -> Path:
        """Where the trajectory of an evaluation episode goes."""

    def save_config(self, config: TrainConfig) -> None:
        """Write config.json."""

    def save_reward_source(self, source: str) -> None:
        """Write reward_fn.py."""

    def save_reward_spec(self, spec: RewardSpec) -> None:
        """Write reward_spec.json."""

    def save_summary(self, summary: TrainSummary) -> None:
        """Write summary.json."""

    def set_status(self, status: StatusLiteral, error: str | None = None) -> None:
        """Write status.json, unless the run was cancelled."""

    def set_status_if(
        self, status: StatusLiteral, expected: Collection[StatusLiteral], error: str | None = None
    ) -> bool:
        """Write status.json only if it is one of `expected` now; says if so."""

    def read_status(self) -> StatusData | None:
        """Read status.json."""

    def read_config(self) -> dict[str, Any] | None:
        """Read config.json."""

    def read_reward_source(self) -> str:
        """Read reward_fn.py; empty if there is none."""

    def read_reward_spec(self) -> RewardSpec:
        """Read reward_spec.json."""

    def read_summary(self) -> TrainSummary | None:
        """Read summary.json."""

    def parse_scalars(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Training and evaluation lines of scalars.jsonl."""

    def compute_progress(self) -> float | None:
        """Share of the run that is done, 0 to 1."""

    def touch_heartbeat(self) -> None:
        """Say that the work goes on."""
