"""Every record that is written to disk or sent between processes, once.

Each class here is a pydantic model, so the same definition checks a file, a pipe and an HTTP
body. Unknown keys are errors: a file from another program is reported, not half understood.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)

from p2p.config import JudgeStrategy as JudgeStrategy
from p2p.config import LoopConfig
from p2p.config import RunConfigEntry as RunConfigEntry
from p2p.validation import Record as Record
from p2p.validation import describe_errors as describe_errors
from p2p.validation import did_you_mean as did_you_mean
from p2p.validation import field_error as field_error

StatusLiteral = Literal[
    "pending",
    "queued",
    "running",
    "paused",
    "completed",
    "passed",
    "unverified",
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

    @field_validator("terms", mode="before")
    @classmethod
    def _read_listed_terms(cls, terms: Any) -> Any:
        """The public Prompt2Policy lists them, each with its name and its description."""
        if not isinstance(terms, list) or not all(isinstance(term, dict) for term in terms):
            return terms
        return {str(term.get("name")): str(term.get("description", "")) for term in terms}


class PolicyMetadata(Record):
    """policy_metadata.json: what a robot's controller has to know beside the policy's weights.

    Names that mjlab's own ONNX files have mean what they mean there.
    """

    env_id: str
    engine: str
    engine_version: str
    run_path: str = ""
    step_dt: float
    """Seconds between two actions."""
    physics_dt: float
    quaternion_order: Literal["wxyz", "xyzw"]
    """Of the engine, and so of quaternions that the policy observes."""
    joint_names: tuple[str, ...]
    default_joint_pos: tuple[float, ...]
    joint_stiffness: tuple[float, ...]
    """Gains of the PD drive of each of `joint_names`; 0 where a joint has none."""
    joint_damping: tuple[float, ...]
    command_names: tuple[str, ...] = ()
    observation_names: tuple[str, ...]
    """Terms, in the order of the policy's input; the other fields have an entry for each."""
    observation_dims: tuple[int, ...]
    observation_elements: tuple[tuple[str, ...], ...]
    """What each number of a term is of: a joint, an axis, an index; empty text for a single one."""
    observation_terms_scale: tuple[float | tuple[float, ...], ...]
    """Applied already to what the policy observes; so is the clip, before it."""
    observation_terms_clip: tuple[tuple[float, float] | None, ...]
    observation_terms_history_length: tuple[int, ...]
    action_names: tuple[str, ...]
    """Terms, in the order of the policy's output."""
    action_types: tuple[str, ...]
    """The engine's class of each term, such as JointPositionAction."""
    action_joint_names: tuple[str, ...]
    """Of each number of the action, as are the three that follow."""
    action_scale: tuple[float, ...]
    action_offset: tuple[float, ...]
    """The target is action * scale + offset, clipped then."""
    action_clip: tuple[tuple[float, float] | None, ...]

    def with_time(self) -> Self:
        """Return the metadata of a policy that also observes the elapsed share of the episode."""
        last = {
            "observation_names": "episode_share",
            "observation_dims": 1,
            "observation_elements": ("",),
            "observation_terms_scale": 1.0,
            "observation_terms_clip": None,
            "observation_terms_history_length": 0,
        }
        return self.model_copy(
            update={name: (*getattr(self, name), value) for name, value in last.items()}
        )


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
    backend: Literal["fast", "sb3", "rsl_rl"]
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

TITLE = 80
"""Characters of a criterion's title, at most."""
Category = Literal["task", "gait", "posture", "dynamics", "stability", "efficiency"]


CLEAR_MISS, MOST_MISSED = 0.5, 1 / 8
"""An episode with a lower score clearly misses a criterion. So may this share of them, 2 of
16, where it is no event."""


class Criterion(Record):
    """One measurable part of what was asked for."""

    id: Name
    title: Annotated[str, Field(min_length=1, max_length=TITLE)]
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
    """`task` is what was asked for; the others are how it is done."""
    soft_reason: Annotated[str, Field(max_length=200)] = ""
    """Why missing it does not keep a policy from passing: it only moves the score. Empty: the
    criterion is hard."""
    visual: bool = False
    """Only who looks at the videos judges it; its value is the share to which it is met."""
    event: Annotated[str, Field(max_length=TITLE)] = ""
    """What must not happen, in the past tense, as `fell`. Its value is how often it happens in an
    episode, and over several episodes the worst of them counts."""

    @model_validator(mode="after")
    def _check_event(self) -> Self:
        if self.event and (self.comparison != "at_most" or self.threshold < 0):
            raise ValueError(
                f"event {self.event!r} is counted, so that comparison must be at_most and "
                "threshold how often it may happen, such as 0"
            )
        return self

    @classmethod
    def from_remark(cls, number: int, text: str) -> Self:
        """Return the criterion of a user's remark about the videos."""
        return cls(
            id=f"seen_{number}",
            title=text if len(text) <= TITLE else f"{text[: TITLE - 1]}…",
            description=text,
            measure="share to which it is seen in the videos",
            comparison="at_least",
            threshold=0.8,
            weight=0.5,
            category="task",
            visual=True,
        )

    @property
    def hard(self) -> bool:
        """Whether there is no pass without it."""
        return not self.soft_reason

    @property
    def target(self) -> str:
        """`≥ 3 m/s`; of an event `never`, or how often at most."""
        if self.event:
            count = math.floor(self.threshold)
            return "never" if count < 1 else f"at most {count} time{'s' if count > 1 else ''}"
        sign = {"at_least": "≥", "at_most": "≤"}[self.comparison]
        return f"{sign} {self.with_unit(self.threshold, f'{self.threshold:g}')}"

    @property
    def demand(self) -> str:
        """Title and target: `Goes forward ≥ 3 m/s`; events: `Does not fall` or `never: fell`."""
        negated = self.title.lower().startswith(("never ", "does not "))
        if self.event and self.target == "never" and negated:
            return self.title
        return f"{self.target}: {self.event}" if self.event else f"{self.title} {self.target}"

    def with_unit(self, value: float, text: str) -> str:
        """`3 m/s`, `2 turns`, `1 turn`, for a value that is written like this."""
        singular = value == 1 and len(self.unit) > 3 and self.unit.isalpha()
        return f"{text} {self.unit.removesuffix('s') if singular else self.unit}".rstrip()

    def is_met(self, result: CriterionScore, share: float) -> bool:
        """Return whether episodes meet it: what was measured of them does, and the score is enough.

        Partial credit makes up for no value that falls short, nor a value for a low score: who
        looked may have found a trick. Nor does a mean make up for episodes that clearly miss it.
        """
        if result.score is None or result.score < share:
            return False
        if result.missed and (self.event or result.missed > MOST_MISSED):
            return False
        sign = 1 if self.comparison == "at_least" else -1
        slack = 1e-6 * abs(self.threshold)  # recordings are float32
        return result.value is None or sign * (result.value - self.threshold) >= -slack

    def count_happened(self, results: Iterable[CriterionScore]) -> tuple[int, int]:
        """Return the number of judged episodes with the event, and of judged episodes.

        More often than it may: by its count, or by the score of who could only look.
        """
        judged = [result for result in results if result.score is not None]
        broken = (
            (result.score or 0.0) < 0.5 if result.value is None else result.value > self.threshold
            for result in judged
        )
        return sum(broken), len(judged)


class Intent(Record):
    """intent.json: the prompt, and the rubric it became. Fixed once training begins."""

    prompt: str
    env_id: str
    criteria: Annotated[tuple[Criterion, ...], Field(min_length=1, max_length=30)]
    unused_words: tuple[str, ...] = ()
    """What in the prompt no criterion covers."""
    note: str = ""
    assumptions: tuple[str, ...] = ()
    """What the prompt leaves open and the criteria settle, such as which leg waves."""
    idle: str = ""
    """Why doing nothing meets the prompt, where it does, as when it asks to stay where one is."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Settings of the first iteration's training that the task needs."""
    author: str
    """The model that proposed it, or `user`."""
    final: bool = True
    """Whether the criteria stand; else their author may be asked for others, once, before training,
    where they turn out to take no skill."""

    @field_validator("criteria")
    @classmethod
    def _check_criteria(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        ids = [criterion.id for criterion in criteria]
        if twice := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"criteria with the same id: {', '.join(twice)}")
        task = [criterion for criterion in criteria if criterion.category == "task"]
        if not task:
            raise ValueError("no criterion has the category `task`: nothing is asked for")
        if not any(criterion.hard for criterion in task):
            raise ValueError("every `task` criterion is soft: then any policy would pass")
        return criteria

    @property
    def measured(self) -> tuple[Criterion, ...]:
        """The criteria that code can judge."""
        return tuple(criterion for criterion in self.criteria if not criterion.visual)


class SessionConfig(Record):
    """session.json."""

    session_id: str
    prompt: Annotated[str, Field(max_length=4000)]
    loop: LoopConfig
    criteria: tuple[Criterion, ...] | None = None
    """What to measure, where the user says so; None: it is read off the prompt."""
    options: dict[str, Any] | None = None
    """What `loop_config` was given, while the environment is still to be chosen; `loop` is then for
    a stand-in, and of it only the models and the budget count."""
    env_reason: str = ""
    """Why this environment, where it was chosen and not named."""
    first_minutes: float | None = None
    """The first `max_minutes` it was given, once that has been changed."""
    created_at: datetime
    version: str
    """Of this package, when the session began."""

    @field_validator("loop", mode="before")
    @classmethod
    def _drop_unsafe_local(cls, loop: Any) -> Any:
        """Drop what folders of earlier versions say: only a command line goes without a sandbox."""
        if isinstance(loop, dict):
            return {name: value for name, value in loop.items() if name != "unsafe_local"}
        return loop

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, prompt: str) -> str:
        if not prompt.strip():
            raise ValueError("the prompt is empty: say what the agent should do")
        return prompt

    @property
    def env_id(self) -> str:
        """The environment of all its runs; empty while none is chosen."""
        return self.loop.train.env_id if self.options is None else ""


class AuthoringStep(Record):
    """One draft, review or check on the way to a reward or a judge."""

    kind: Literal["draft", "review", "check", "ranking", "fix"]
    ok: bool
    text: str
    """What the reviewer or the checker said, or what the author says of the draft."""
    code: str = ""
    """The code as it stood after this step, where it changed."""
    diff: str = ""
    """What a reviewer or a fix changed in the code before it, as a unified diff."""


class CriterionGradient(Record):
    """Whether a reward's return rises with a criterion's score along a scripted motion."""

    motion: str
    criterion: str
    correlation: Annotated[float, Field(ge=-1, le=1)]
    """Over pairs of its points of which one is better: 1 where the better always pays more, -1
    where it always pays less, 0 where it makes no difference."""


class AuthoredCode(Record):
    """reward.json or judge.json: generated code and how it came to be."""

    code: str
    explanation: str = ""
    author: str
    valid: bool
    """Whether it ran, in the sandbox and on the real environment, without an error."""
    steps: tuple[AuthoringStep, ...] = ()
    gradients: tuple[CriterionGradient, ...] = ()
    """Of a reward that is one of several: how it pays along scripted motions."""

    @property
    def last_problem(self) -> str:
        """Why it could not be made to run."""
        problems = [step.text for step in self.steps if not step.ok]
        return problems[-1] if problems else "no reason given"


JudgeName = Literal["code", "vlm"]

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
    missed: Score | None = None
    """The share of the episodes that clearly miss it: their scores are below CLEAR_MISS."""
    value: float | None = None
    """The number measured, where there is one; its mean over the episodes, and of an event the most
    in one of them."""
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
    shown: str = ""
    """What a judge that looks has seen of the episode: a video or which frames, and why."""


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
    """Every hard criterion is met, and no failure is tagged."""
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
    amendments: tuple[str, ...] = ()
    """What the arbiter found the code judge to measure wrongly."""

    @model_validator(mode="before")
    @classmethod
    def _drop_stored_pass_with_tags(cls, data: Any, info: ValidationInfo) -> Any:
        """Version 0.1.0 wrote passes with failure tags: read from a file, such is no pass."""
        stored = info.mode == "json" and isinstance(data, dict)
        if stored and data.get("passed") and data.get("failure_tags"):
            return {**data, "passed": False}
        return data

    @model_validator(mode="after")
    def _check_pass(self) -> Self:
        if self.passed and self.failure_tags:
            raise ValueError(f"passed, with the failure tags {', '.join(self.failure_tags)}")
        return self


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
    warm_start: bool = False
    """Train on from the policy of `based_on`, and not from the start."""
    lessons: tuple[Lesson, ...] = ()
    """All lessons as they stand after this revision."""
    remarks_taken_up: str = ""
    """How the user's remarks were followed."""
    notes: tuple[str, ...] = ()
    """What of it was not taken over, and why."""
    author: str


ReviseResult = Revision
"""What the revise agent comes to."""


class SteeringOrder(Record):
    """steering/<number>.json: feedback, what a user wants changed before the next iteration."""

    pause: bool | None = None
    """True: stop after this iteration until it is resumed. False: go on."""
    remark: str = ""
    score: Score | None = None
    """The user's own score of the last judged iteration; it counts instead of the judges'."""
    scored_iteration: int | None = None
    """Where it is set, the score counts for this iteration alone: the user has seen no other."""
    criteria: tuple[Criterion, ...] | None = None
    reward_code: str | None = None
    hp_changes: dict[str, Any] = Field(default_factory=dict)
    withdraws: tuple[int, ...] = ()
    """Numbers of earlier feedback that is taken back, unless it was taken up before."""
    given_at: datetime


class SessionResult(Record):
    """result.json: how a session ended, and where what it made lies (relative to the session)."""

    status: StatusLiteral
    message: str = ""
    refused: bool = False
    """Whether nothing could be made of the prompt, as it is."""
    best_iteration: int | None = None
    run_id: str | None = None
    step: int | None = None
    score: Score | None = None
    confirmed_score: Score | None = None
    """On unseen episodes; None unless the score passed."""
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


LoopResult = SessionResult
"""What `run_loop` returns."""


class HumanLabel(Record):
    """A person's score of a video, given without seeing the judges'."""

    video: str
    """Its path in the session's folder."""
    score: Score
    annotator: Annotated[str, Field(min_length=1, max_length=100)]
    note: str = ""
    given_at: datetime


class HumanLabels(Record):
    """human_labels.json: one label of a video by each annotator."""

    labels: tuple[HumanLabel, ...] = ()


class SessionAnalysis(Record):
    """analysis.json: an after-the-fact report of a session."""

    summary: str
    worked: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    author: str = ""
    """The model that wrote it, as it was asked."""


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


class IterationRunEntry(Record):
    """One training run of an iteration."""

    model_config = ConfigDict(from_attributes=True)

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


IterationRunInfo = IterationRunEntry
"""The same record, by its name among the contracts."""


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
    env_return: float | None = None
    """Mean over episodes of the environment's own rewards; None: of an earlier version."""
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
    def _check_metric_names(cls, values: dict[str, float]) -> dict[str, float]:
        if taken := {"type", "global_step", "iteration"} & values.keys():
            raise ValueError(f"not metrics: {sorted(taken)}")
        return values

    def line(self) -> dict[str, float | int | str]:
        """Flat, as it stands in scalars.jsonl."""
        return {"type": self.type, "global_step": self.global_step, "iteration": self.iteration,
                **self.values}  # fmt: skip


class Series(Record):
    """One metric: None where it has no value."""

    steps: tuple[int, ...]
    values: tuple[float | None, ...]


class RunMetricsDetail(Record):
    """The curves of one run."""

    run_id: str
    total_points: int
    """Of training, before they were thinned."""
    training: dict[str, Series]
    evaluation: tuple[EvalResult, ...]


class MeanStdSeries(Record):
    """One metric over several seeds, on a common grid of steps."""

    mean: tuple[float | None, ...]
    std: tuple[float | None, ...]


class SeedCurves(Record):
    """One run of a configuration, on the grid of all of them."""

    run_id: str
    series: dict[str, tuple[float | None, ...]]
    evaluation: tuple[float | None, ...] = ()


class AggregatedMetrics(Record):
    """The curves of the seeds of a configuration, as bands."""

    config_id: str
    run_ids: tuple[str, ...]
    steps: tuple[int, ...]
    """The grid; empty where it is one of time."""
    series: dict[str, MeanStdSeries]
    evaluation_steps: tuple[int, ...]
    evaluation: MeanStdSeries
    """Mean returns of the evaluations."""
    seconds: tuple[float, ...] = ()
    """The grid, where it is one of time since the start of training."""
    evaluation_seconds: tuple[float | None, ...] = ()
    """When the evaluations were, on average over the runs."""
    seeds: tuple[SeedCurves, ...] = ()
    """Each run by itself."""


# --- what the sandboxed trainer tells the process that started it -----------------------------


class Started(Record):
    """Environment, reward and policy are ready; the first rollout begins."""

    type: Literal["started"] = "started"
    backend: Literal["fast", "sb3", "rsl_rl"]
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
    reward_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """What the reward's calls have taken in this process."""


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
