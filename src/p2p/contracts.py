"""Every record that is written to disk or sent between processes, once.

Each class here is a pydantic model, so the same definition checks a file, a pipe and an HTTP
body. Unknown keys are errors: a file from another program is reported, not half understood.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
)
from pydantic_core import PydanticCustomError

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
    "time_exhausted",
    "rate_limited",
    "auth_error",
    "invalid_code",
    "gate_passed",
    "gate_failed",
]

ROLLOUT_LABELS = ("p10", "median", "p90")
"""The evaluation episodes kept as video and trajectory, by their place among the returns."""


def utc_now() -> datetime:
    return datetime.now(UTC)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint to append to a message about an unknown name; empty where nothing is close."""
    close = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def field_error(field: str, message: str) -> ValidationError:
    """What a record's own check would raise about a field, for checks that no record can do."""
    # As a value, a message may hold braces.
    reason = PydanticCustomError("value_error", "{message}", {"message": message})
    return ValidationError.from_exception_data(
        "", [{"type": reason, "loc": (field,), "input": None}]
    )


def describe_errors(
    error: ValueError,
    names: Mapping[str, str] | None = None,
    *,
    known: Iterable[str] = (),
    formats: Mapping[str, str] | None = None,
) -> str:
    """What is wrong, in one line: `field: message; field: message`.

    `names` are what the reader calls the fields, such as flags. `known` are the fields that there
    are, one of which is suggested in place of an unknown one. `formats` say what a text may be, in
    place of a regular expression.
    """
    if not isinstance(error, ValidationError):
        return str(error)
    names, formats, problems = names or {}, formats or {}, []
    for item in error.errors(include_url=False, include_input=False):
        field, first = ".".join(map(str, item["loc"])), "".join(map(str, item["loc"][:1]))
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = f"no such field{did_you_mean(field, known)}"
        elif item["type"].startswith("string_") and first in formats:
            message = f"allowed are {formats[first]}"
        field = names.get(field) or names.get(first, field)
        problems.append(f"{field}: {message}" if field else message)
    return "; ".join(dict.fromkeys(problems))


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
    """What the guardrails, the renderer and the sandbox had to say."""


Score = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
"""A short name in lower case, as it stands in files and in generated code."""

Category = Literal["task", "gait", "posture", "dynamics", "stability", "efficiency"]


class Criterion(Record):
    """One measurable part of what was asked for."""

    id: Name
    title: Annotated[str, Field(min_length=1, max_length=80)]
    description: str
    measure: Annotated[str, Field(min_length=1)]
    """What number is measured on an episode, in words."""
    comparison: Literal["at_least", "at_most"]
    threshold: Annotated[float, Field(allow_inf_nan=False)]
    """Met from here on; short of it a judge gives partial credit."""
    unit: str = ""
    weight: Annotated[float, Field(gt=0, le=1)]
    """Against the other criteria; they need not sum to one."""
    category: Category
    """`task` is what was asked for, and no pass without it; the others are how it is done."""

    @property
    def target(self) -> str:
        """`≥ 3 m/s`."""
        sign = {"at_least": "≥", "at_most": "≤"}[self.comparison]
        return f"{sign} {self.threshold:g} {self.unit}".rstrip()


class Intent(Record):
    """intent.json: the prompt, and the rubric it became. Fixed once training begins."""

    prompt: str
    env_id: str
    criteria: Annotated[tuple[Criterion, ...], Field(min_length=1, max_length=20)]
    unused_words: tuple[str, ...] = ()
    """What in the prompt no criterion covers."""
    note: str = ""
    author: str
    """The model that proposed it, or `user`."""

    @field_validator("criteria")
    @classmethod
    def _ids_are_unique(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        ids = [criterion.id for criterion in criteria]
        if twice := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"criteria with the same id: {', '.join(twice)}")
        if not any(criterion.category == "task" for criterion in criteria):
            raise ValueError("no criterion has the category `task`: nothing is asked for")
        return criteria


class AuthoringStep(Record):
    """One draft, review or check on the way to a reward or a judge."""

    kind: Literal["draft", "review", "check", "ranking", "fix"]
    ok: bool
    text: str
    """What the reviewer or the checker said, or what the author says of the draft."""
    code: str = ""
    """The code as it stood after this step, where it changed."""


class AuthoredCode(Record):
    """reward.json or judge.json: generated code and how it came to be."""

    code: str
    explanation: str = ""
    author: str
    valid: bool
    """Whether it ran, in the sandbox and on the real environment, without an error."""
    steps: tuple[AuthoringStep, ...] = ()

    @property
    def last_problem(self) -> str:
        """Why it could not be made to run."""
        problems = [step.text for step in self.steps if not step.ok]
        return problems[-1] if problems else "no reason given"


JudgeName = Literal["code", "vlm"]
JudgeStrategy = Literal["code", "vlm", "both"]

FAILURE_TAGS: dict[str, str] = {
    "no_motion": "hardly moves although motion was asked for",
    "wrong_direction": "moves, but the wrong way",
    "too_slow": "slower than asked",
    "too_fast": "faster than asked",
    "fell": "falls or tips over",
    "early_end": "the episode ends before its time",
    "wrong_posture": "height, angle or limbs are not as asked",
    "unstable": "wobbles or cannot hold what it reached",
    "drifts": "leaves the place or line it should keep",
    "jerky": "shakes or jumps in its motion",
    "wasteful": "spends far more effort than needed",
    "asymmetric": "one side does another thing than the other",
    "not_reached": "comes close, but not to the goal",
    "incomplete": "does a part of a sequence only",
    "exploit": "earns reward in a way that was not meant",
    "other": "see the diagnosis",
}
"""The controlled list; what does not fit goes into the diagnosis."""


class CriterionScore(Record):
    """How well one criterion is met: 1 is met."""

    id: Name
    score: Score | None
    """None: could not be judged."""
    std: float | None = None
    """Over the episodes."""
    value: float | None = None
    """The number measured, where there is one; its mean over the episodes."""
    evidence: str = ""


class JudgeOpinion(Record):
    """What one judge says of one episode. A judge that cannot judge says why, not zero."""

    judge: JudgeName
    available: bool
    reason: str = ""
    """Why it is not available."""
    score: Score | None = None
    criteria: tuple[CriterionScore, ...] = ()
    diagnosis: str = ""
    failure_tags: tuple[str, ...] = ()


class RolloutJudgment(Record):
    """One episode, judged."""

    label: str
    """`seed_<seed>`, or p10, median, p90 for an evaluation's own episodes."""
    seed: int | None = None
    score: Score | None
    criteria: tuple[CriterionScore, ...] = ()
    opinions: tuple[JudgeOpinion, ...] = ()
    diagnosis: str = ""
    failure_tags: tuple[str, ...] = ()


class JudgmentResult(Record):
    """judgment.json: what the judges made of a run."""

    intent_score: Score | None
    """0 to 1; None when no judge could judge, which is not a zero."""
    passed: bool = False
    diagnosis: str = ""
    failure_tags: tuple[str, ...] = ()
    strategy: JudgeStrategy = "code"
    step: int | None = None
    """The checkpoint that was judged."""
    score_std: float | None = None
    """Over the episodes."""
    criteria: tuple[CriterionScore, ...] = ()
    rollouts: tuple[RolloutJudgment, ...] = ()
    agreement: Score | None = None
    """Of the two judges, 1 is full agreement; None with one judge."""
    confidence: Score | None = None
    unavailable: dict[JudgeName, str] = Field(default_factory=dict)
    """Judges that were asked for and could not judge, and why."""


LessonTier = Literal["HARD", "STRONG", "SOFT", "RETIRED"]


class LessonCheck(Record):
    """A lesson in a form that code can hold a proposal against."""

    kind: Literal["hyperparameter_at_most", "hyperparameter_at_least", "term_required",
                  "term_forbidden", "code_forbidden"]  # fmt: skip
    name: str
    """The hyperparameter, the reward term, or the text."""
    value: float | None = None


class Lesson(Record):
    """What an iteration taught."""

    text: Annotated[str, Field(min_length=1, max_length=500)]
    tier: LessonTier = "STRONG"
    learned_at: int
    """The iteration."""
    reason: str = ""
    """Why it has its tier."""
    check: LessonCheck | None = None


class LineageNode(Record):
    """An iteration in the tree."""

    iteration: int
    parent: int | None = None
    score: Score | None = None
    """None: not judged. It is then neither best nor a lesson."""
    score_std: float | None = None
    passed: bool = False
    final_return: float | None = None
    failure_tags: tuple[str, ...] = ()
    diagnosis: str = ""
    lesson: str = ""
    changes: str = ""
    """What was changed against the parent."""
    rule: str = ""
    """The rule of the built-in author that changed it; empty for other authors."""
    hp_changes: dict[str, Any] = Field(default_factory=dict)
    reward_digest: str = ""
    """SHA-256 of the reward's source, to know a proposal that was tried before."""


class LineageData(Record):
    """lineage.json: the tree of iterations and what was learnt."""

    nodes: tuple[LineageNode, ...] = ()
    lessons: tuple[Lesson, ...] = ()


class Revision(Record):
    """revision.json: what the next iteration does differently, and why."""

    based_on: int
    """The iteration whose reward was changed."""
    diagnosis: str
    lesson: str = ""
    changes: str
    rule: str = ""
    """The rule of the built-in author behind it; empty for other authors."""
    reward_code: str
    hp_changes: dict[str, Any] = Field(default_factory=dict)
    """Against the configuration of `based_on`."""
    lessons: tuple[Lesson, ...] = ()
    """All lessons as they stand after this revision."""
    remarks_taken_up: str = ""
    """How the user's remarks were followed."""
    notes: tuple[str, ...] = ()
    """What had to be refused or clamped."""
    author: str


class SteeringOrder(Record):
    """steering/<number>.json: feedback, what a user wants changed before the next iteration."""

    pause: bool | None = None
    """True: stop after this iteration until it is resumed. False: go on."""
    remark: str = ""
    score: Score | None = None
    """The user's own score of the last judged iteration; it counts instead of the judges'."""
    criteria: tuple[Criterion, ...] | None = None
    reward_code: str | None = None
    hp_changes: dict[str, Any] = Field(default_factory=dict)
    given_at: datetime


class SessionResult(Record):
    """result.json: how a session ended, and where what it made lies (relative to the session)."""

    status: StatusLiteral
    message: str = ""
    best_iteration: int | None = None
    run_id: str | None = None
    step: int | None = None
    score: Score | None = None
    confirmed_score: Score | None = None
    """On held-out seeds; None unless the score passed."""
    unchecked_words: tuple[str, ...] = ()
    """What the prompt asks and no criterion measures; a pass says nothing about it."""
    policy: str | None = None
    videos: tuple[str, ...] = ()
    iterations: int = 0
    seconds: float = 0.0
    model_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    unanswered: int = 0
    """Requests that got no answer and may be charged for; they are not among the calls."""
    unanswered_usd: float = 0.0
    """The most that those can cost, beside `cost_usd`."""


class SessionAnalysis(Record):
    """analysis.json: an after-the-fact report of a session."""

    summary: str
    worked: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    author: str


class ModelCall(Record):
    """One request to a model, as it is counted. The exchange itself lies in its own file."""

    number: int
    role: str
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    """None: nobody knows the price of this model."""
    latency_s: float = 0.0
    retries: int = 0
    file: str = ""
    no_answer: str = ""
    """Why none came, where the provider may charge for one all the same: the tokens and the cost
    are then the most that it can be."""


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


# --- what the sandboxed trainer tells the process that started it -----------------------------


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
    """A checkpoint was evaluated; its arrays lie in the sandbox's folder under these names."""

    type: Literal["eval"] = "eval"
    result: EvalResult
    policy_file: str
    trajectory_files: dict[str, str] = Field(default_factory=dict)


class StateSaved(Record):
    """A state to continue from lies in the sandbox's folder.

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
