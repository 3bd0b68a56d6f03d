"""What each agent asks a model, as data.

A prompt is a text file with one place for such a request, which stands there as JSON: a language
model reads it, and the built-in author parses it back. Both answer from the same inputs.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from p2p.contracts import (
    Criterion,
    CriterionScore,
    JudgeOpinion,
    Lesson,
    LessonCheck,
    Name,
    Record,
    Score,
)

# --- intent ---------------------------------------------------------------------------------------


class EnvironmentChoices(Record):
    """Role `environment_chooser`: which environment can do what was asked?"""

    prompt: str
    environments: dict[str, str]
    """Environment id to what it is."""


class EnvironmentChoice(Record):
    """Its answer."""

    reason: str
    env_id: str | None
    """None: none of them can."""


class RejectedCriteria(Record):
    """The hard `task` criteria of an answer, all of which zero or random actions meet."""

    met_by: str
    criteria: tuple[Criterion, ...]
    measured: tuple[str, ...]
    """What such actions gave, a line for each episode."""


class CriteriaTooEasy(Exception):
    """A judge that measures the criteria as they are written finds that they take no skill."""

    def __init__(self, rejected: RejectedCriteria) -> None:
        super().__init__(f"{rejected.met_by} meet every hard task criterion")
        self.rejected = rejected


class IntentRequest(Record):
    """Role `intent_elicitor`: what would one measure?"""

    prompt: str
    env_id: str
    pictures: bool = False
    """Whether a judge that looks at pictures will score the episodes, too."""
    usual: dict[str, str] = Field(default_factory=dict)
    """What goes without saying for this robot, by its model: id to title, measure and bound."""
    rejected: RejectedCriteria | None = None
    """Of an earlier answer; this one replaces it."""


class IntentProposal(Record):
    """Its answer: criteria, at least one of them `task`; those of `usual` come on top."""

    criteria: tuple[Criterion, ...]
    left_out: dict[str, str] = Field(default_factory=dict)
    """Ids of `usual` that the wish contradicts, and what in it does."""
    unused_words: tuple[str, ...] = ()
    note: str = ""
    assumptions: tuple[str, ...] = ()
    """What the prompt leaves open, and how it is settled here."""
    idle: str = ""
    """Why doing nothing meets the wish; empty where it does not."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Settings of TrainConfig that the task needs; those that the user has set count more."""
    refusal: str = ""
    """Why nothing can be proposed; empty otherwise."""


# --- code -----------------------------------------------------------------------------------------


class RewardRequest(Record):
    """Role `reward_author`: write the reward."""

    prompt: str
    env_id: str
    criteria: tuple[Criterion, ...]
    side_info: bool = False
    observe_time: bool = False
    """Whether the last number of the observation is the share of the episode that has passed."""
    total_timesteps: int = 0
    """Environment steps of training; 0: not settled."""
    training_horizon: int | None = None
    """Steps after which training, and nothing else, begins a new episode; None: the horizon."""


class JudgeRequest(Record):
    """Role `judge_author`: write `judge_fn(trajectory, summary)`."""

    prompt: str
    env_id: str
    criteria: tuple[Criterion, ...]
    columns: dict[str, str]
    """What a step of a trajectory holds: name to shape and meaning."""
    code: str = ""
    """The judge as it stands, where it is to be amended."""
    amendments: tuple[str, ...] = ()
    """What it was found to measure wrongly on earlier policies."""


class CodeDraft(Record):
    """The answer of an author."""

    explanation: str = ""
    """Before the code: models write fields in this order."""
    code: str


class FixRequest(Record):
    """Role `fix`, the next turn of an author's conversation: what the checker found."""

    problems: tuple[str, ...]
    code: str = ""
    """The code to fix, where it is not the author's own last draft."""
    ranking: bool = False
    """It runs, but puts worse behaviour first."""


class AlternativeRequest(Record):
    """Role `alternative`, a later turn of the reward author's conversation: another reward."""

    number: int
    """From 2 on."""
    of: int
    """So many are written in all, to be trained and compared."""
    code: str
    """The first one."""
    tried: tuple[str, ...] = ()
    """What the others before this one do, in their author's words."""


class ReviewRequest(Record):
    """Roles `reward_reviewer` and `judge_reviewer`: what is wrong with this code?"""

    prompt: str
    env_id: str
    criteria: tuple[Criterion, ...]
    code: str
    measured: str = ""
    """What the checker measured: ranges of the terms, scores of known episodes."""


class CodeReview(Record):
    """Its answer."""

    findings: tuple[str, ...] = ()
    approved: bool
    code: str = ""
    """The corrected code; empty when approved."""


# --- judging --------------------------------------------------------------------------------------


class VisualRequest(Record):
    """Role `visual_judge`: score what these frames show."""

    prompt: str
    env_id: str
    criteria: tuple[Criterion, ...]
    camera: str
    seconds: float
    frames: int
    question: str = ""
    """Asked again: what to look at."""
    amendments: tuple[str, ...] = ()
    """What was misjudged on earlier policies."""


class SeenCriterion(Record):
    """One criterion, as seen."""

    id: Name
    evidence: str = ""
    score: Score | None


class VisualVerdict(Record):
    """Its answer. Models write fields in this order: reasons come before scores."""

    analysis: str
    """What happens from the beginning to the end, before anything is scored."""
    criteria: tuple[SeenCriterion, ...]
    diagnosis: str
    failure_tags: tuple[str, ...] = ()


class SynthesisRequest(Record):
    """Role `synthesiser`: two judges saw the same episode."""

    prompt: str
    env_id: str
    criteria: tuple[Criterion, ...]
    code: JudgeOpinion
    vlm: JudgeOpinion
    calls_left: int
    amendments: tuple[str, ...] = ()
    """What was misjudged on earlier policies."""


class Synthesis(Record):
    """Its answer."""

    analysis: str
    """Which judge is right about what, and why."""
    criteria: tuple[SeenCriterion, ...]
    diagnosis: str
    failure_tags: tuple[str, ...] = ()
    confidence: Score
    amendment: str = ""
    """What the program measures wrongly, and how to measure it; empty if it was right."""


# --- revision -------------------------------------------------------------------------------------


class PastIteration(Record):
    """A line of the history."""

    iteration: int
    parent: int | None
    score: Score | None
    final_return: float | None
    failure_tags: tuple[str, ...] = ()
    changes: str = ""
    # What tells it from a new proposal, for a revision only.
    rule: str = ""
    """The rule of the built-in author that made it."""
    reward_digest: str = ""
    """Equal for rewards that do the same; empty: there is no reward."""
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    """Those that differ from this iteration's."""


class TermStatistics(Record):
    """One reward term on the judged checkpoint, over the steps of its recorded episodes."""

    name: str
    mean: float
    """Signed, per step."""
    share: float
    """Of the sum of the terms' absolute values."""
    low: float | None = None
    high: float | None = None
    """None where no episode of it is recorded any more."""
    correlations: dict[str, float] = Field(default_factory=dict)
    """By criterion: over episodes, of the term's mean and the number that is measured."""


class ReviseRequest(Record):
    """Role `revise_agent`: what to change, and why."""

    prompt: str
    env_id: str
    criteria: tuple[Criterion, ...]
    iteration: int
    best_iteration: int | None
    """None: none is judged yet."""
    reward_code: str
    """Of this iteration."""
    best_reward_code: str = ""
    """Of the best iteration, where that is another one."""
    score: Score | None
    pass_threshold: Score
    criterion_scores: tuple[CriterionScore, ...]
    unmet: tuple[str, ...] = ()
    """Ids of the criteria that keep it from a pass."""
    failure_tags: tuple[str, ...]
    diagnosis: str
    judged: str = ""
    """The checkpoint that scores, terms and frames are of: its run and step."""
    dynamics: str
    """How the training went, in words."""
    terms: tuple[TermStatistics, ...] = ()
    screening: str = ""
    """How the reward pays along scripted motions, where it was one of several."""
    learning_curve: tuple[tuple[int, float], ...] = ()
    """(step, mean return) of evaluations of the deterministic policy."""
    training_curve: tuple[tuple[int, float], ...] = ()
    """(step, mean return) of training episodes, whose actions are sampled."""
    still_improving: bool | None = None
    hyperparameters: dict[str, Any]
    """The tunable ones, as they are."""
    bounds: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """Between which a revision may move them."""
    fixed: tuple[str, ...] = ()
    """Hyperparameters that the person has fixed."""
    history: tuple[PastIteration, ...]
    lessons: tuple[Lesson, ...] = ()
    remarks: tuple[str, ...] = ()
    """What the person said; the revision must take it up."""
    stagnation: str = ""
    trained: bool = True
    """Whether some run of this iteration could be trained."""
    training_error: str = ""
    """Why no run of this iteration could be trained or judged; empty otherwise."""


class LessonUpdate(Record):
    """A change to a lesson's tier."""

    index: int
    """Its place in the request's lessons, from 0."""
    tier: str
    reason: str
    check: LessonCheck | None = None
    """Lets a HARD lesson be held against proposals by code."""


class RevisionProposal(Record):
    """Its answer."""

    diagnosis: str
    lesson: str = ""
    """What this iteration taught, for all later ones; empty if nothing."""
    lesson_check: LessonCheck | None = None
    """The same for code, where it can be said so; used once the lesson is HARD."""
    based_on: int
    changes: str
    rule: str = ""
    """The built-in author's name for this kind of change; others leave it empty."""
    reward_code: str
    hp_changes: dict[str, Any] = Field(default_factory=dict)
    warm_start: bool = False
    """Train on from the judged policy of `based_on`, and not from the start."""
    lesson_updates: tuple[LessonUpdate, ...] = ()
    remarks_taken_up: str = ""


# --- afterwards -----------------------------------------------------------------------------------


class AnalysisRequest(Record):
    """Role `session_analyzer`: what happened, and why?"""

    prompt: str
    env_id: str
    status: str
    criteria: tuple[Criterion, ...]
    history: tuple[PastIteration, ...]
    lessons: tuple[Lesson, ...] = ()
    criterion_scores: dict[int, tuple[CriterionScore, ...]] = Field(default_factory=dict)
    """By iteration."""


REQUESTS: dict[str, type[Record]] = {
    "environment_chooser": EnvironmentChoices,
    "intent_elicitor": IntentRequest,
    "reward_author": RewardRequest,
    "judge_author": JudgeRequest,
    "fix": FixRequest,
    "alternative": AlternativeRequest,
    "reward_reviewer": ReviewRequest,
    "judge_reviewer": ReviewRequest,
    "visual_judge": VisualRequest,
    "synthesiser": SynthesisRequest,
    "revise_agent": ReviseRequest,
    "session_analyzer": AnalysisRequest,
}
"""What stands in a request block, by the block's role. The last block of a conversation is the one
to answer; those before it say what it is about."""
