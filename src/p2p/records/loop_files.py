"""The files of a session's loop that say what an iteration is to do and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator

from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import Criterion, Record, RunConfigEntry, Score

if TYPE_CHECKING:
    from pathlib import Path


class IterationPlan(Record):
    """plan.json: what an iteration trains."""

    iteration: int
    parent: int | None = None
    """The iteration whose reward and configuration this one changes; None: the first."""
    train: TrainConfig
    configs: Annotated[tuple[RunConfigEntry, ...], Field(min_length=1)]
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    hp_changes: dict[str, Any] = Field(default_factory=dict)
    """Against the parent, as they were taken over."""
    notes: tuple[str, ...] = ()
    """What of the changes was refused or had to be fitted."""


class BestRun(Record):
    """best_run.json: the run that stands for the iteration, by intent score, then by return."""

    run_id: str
    step: int
    score: Score | None
    final_return: float | None = None

    def policy(self, iteration: Path) -> Path:
        """The folder of its policy."""
        return iteration / self.run_id / "checkpoints" / f"step_{self.step}"


class ClockReading(Record):
    """clock.json: how long a session has been worked on, by whoever works on it, as it goes on."""

    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SteeringTaken(Record):
    """steering.json: the feedback that was taken up after an iteration, and what it amounts to.

    It lies in the iteration's folder; the one in the session's own is from before the first.
    """

    orders: tuple[int, ...] = ()
    """Numbers of the files in steering/."""
    paused: bool = False
    """Whether the session was stopped here; it is not stopped a second time."""
    remarks: tuple[str, ...] = ()
    score: Score | None = None
    criteria: tuple[Criterion, ...] | None = None
    reward_code: str | None = None
    hp_changes: dict[str, Any] = Field(default_factory=dict)

    @property
    def wants_more(self) -> bool:
        """Whether the user wants another iteration, also after a pass."""
        return bool(
            self.remarks or self.criteria or self.reward_code is not None or self.hp_changes
        )


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

    @field_validator("prompt")
    @classmethod
    def _something_is_asked(cls, prompt: str) -> str:
        if not prompt.strip():
            raise ValueError("the prompt is empty: say what the agent should do")
        return prompt

    @property
    def env_id(self) -> str:
        """The environment of all its runs; empty while none is chosen."""
        return self.loop.train.env_id if self.options is None else ""
