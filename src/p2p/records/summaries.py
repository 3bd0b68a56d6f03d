"""Sessions and iterations as records: what lists, the API and `--json` show of the views.

Each is read off a view: `SessionRow.model_validate(SessionView(record))`. A field is the view's
attribute of its name, unless it says which one.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import AliasPath, ConfigDict, Field

from p2p.config import TrainConfig
from p2p.contracts import (
    AuthoredCode,
    CriterionScore,
    EntityMetadata,
    EvalResult,
    IterationAggregation,
    IterationRunEntry,
    JudgmentResult,
    Record,
    Revision,
    RewardSpec,
    Score,
    StatusLiteral,
    TrainSummary,
)
from p2p.records.loop_files import CandidateRow, SteeringTaken
from p2p.records.session_view import Video


def part_of(*path: str, default: Any = None) -> Any:
    """A field that is read from an attribute of an attribute; the default where that is None."""
    return Field(default, validation_alias=AliasPath(*path))


class Summary(Record):
    """A record that is read off a view."""

    model_config = ConfigDict(from_attributes=True, validate_by_name=True, validate_by_alias=True)


class SessionRow(Summary, EntityMetadata):
    """A session in a list."""

    alias: str = part_of("metadata", "alias", default="")
    starred: bool = part_of("metadata", "starred", default=False)
    tags: tuple[str, ...] = part_of("metadata", "tags", default=())
    deleted_at: datetime | None = part_of("metadata", "deleted_at")
    session_id: str
    prompt: str
    env_id: str
    status: StatusLiteral
    error: str
    best_score: Score | None
    confirmed_score: Score | None = part_of("result", "confirmed_score")
    unchecked_words: tuple[str, ...]
    """What the prompt asks and no criterion measures; a pass says nothing about it."""
    best_iteration: int | None = part_of("result", "best_iteration")
    video: Video | None
    """What stands for it: the median episode of its best policy, or of its newest checkpoint."""
    iterations: int = Field(validation_alias="iteration_count")
    max_iterations: int | None = part_of("config", "loop", "max_iterations")
    model: str = part_of("config", "loop", "model", default="")
    cost_usd: float = part_of("result", "cost_usd", default=0.0)
    tokens: int = part_of("result", "tokens", default=0)
    seconds: float = part_of("result", "seconds", default=0.0)
    created_at: datetime
    updated_at: datetime


class LoopIterationSummary(Summary):
    """One iteration of the loop."""

    iteration: int = Field(validation_alias="number")
    iteration_id: str
    status: StatusLiteral
    progress: float | None
    seconds_left: float | None
    """Until all its runs are trained, at their pace so far; None: it is not training."""
    parent: int | None = part_of("plan", "parent")
    changes: str = ""
    """Against the parent."""
    hp_changes: dict[str, Any] = part_of("plan", "hp_changes", default={})
    train: TrainConfig | None = part_of("plan", "train")
    """What every run of it begins from; configurations and seeds vary it."""
    notes: tuple[str, ...] = part_of("plan", "notes", default=())
    verdict: str = ""
    """In a sentence: what was measured, and what is missing. Empty: not judged yet."""
    intent_score: Score | None = Field(validation_alias="score")
    score_std: float | None = part_of("judgment", "score_std")
    passed: bool
    """Every hard criterion is met, and no failure is tagged."""
    evidence: str = ""
    """`1 of 2 training seeds passed; that policy held on 16 unseen episodes`; may be empty."""
    unverified: bool = False
    """It passed, and no criterion measures some words of the prompt."""
    confirmed_score: Score | None = part_of("confirmation", "intent_score")
    criteria: tuple[CriterionScore, ...] = part_of("judgment", "criteria", default=())
    diagnosis: str = part_of("judgment", "diagnosis", default="")
    failure_tags: tuple[str, ...] = part_of("judgment", "failure_tags", default=())
    agreement: Score | None = part_of("judgment", "agreement")
    confidence: Score | None = part_of("judgment", "confidence")
    unavailable: dict[str, str] = part_of("judgment", "unavailable", default={})
    reward: AuthoredCode | None
    candidates: tuple[CandidateRow, ...]
    """The rewards that it chose from, where there were several."""
    choice: str
    """Why it chose the one it did."""
    reward_code: str
    reward_spec: RewardSpec
    aggregation: IterationAggregation | None
    runs: tuple[IterationRunEntry, ...] = Field(validation_alias="listed_runs")
    best_run_id: str | None = part_of("best", "run_id")
    best_step: int | None = part_of("best", "step")
    revision: Revision | None
    """What the next iteration does differently."""
    steering: SteeringTaken | None = Field(validation_alias="feedback")
    videos: tuple[Video, ...]


class RunHyperparameters(Summary):
    """What a run was trained with."""

    iteration: int
    run_id: str
    config: TrainConfig


class IterationSummary(Summary):
    """A training run in a list."""

    iteration_id: str
    session_id: str
    env_id: str
    status: StatusLiteral
    final_episodic_return: float | None = part_of("best_run", "summary", "final_episodic_return")
    reward_latex: str = part_of("reward_spec", "latex", default="")
    reward_description: str = part_of("reward_spec", "description", default="")


class IterationDetail(IterationSummary):
    """A training run, or an iteration of the loop, in full."""

    config: TrainConfig | None = Field(validation_alias="run_config")
    reward_spec: RewardSpec
    reward_source: str = Field(validation_alias="reward_code")
    summary: TrainSummary | None = part_of("best_run", "summary")
    eval_results: tuple[EvalResult, ...]
    judgment: JudgmentResult | None
    candidates: tuple[CandidateRow, ...]
    """The rewards that it chose from, where there were several."""
    choice: str
    """Why it chose the one it did."""
    progress: float | None
    videos: tuple[Video, ...]
