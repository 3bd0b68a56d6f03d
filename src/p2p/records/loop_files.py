"""The files of a session's loop that say what an iteration is to do and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from p2p.config import TrainConfig
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
