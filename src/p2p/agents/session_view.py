"""What those who think about a whole session may read of it.

`p2p.session.view.RecordedSession` is one, over the folder of a session; agents know the protocols
only. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from p2p.analysis.training_dynamics import TrainingDynamics
from p2p.config import TrainConfig
from p2p.contracts import (
    Intent,
    IterationAggregation,
    JudgmentResult,
    Lesson,
    LineageData,
    LineageNode,
)


class LineageView(Protocol):
    """The tree of iterations and its lessons; a change gives a new one."""

    @property
    def data(self) -> LineageData:
        """As lineage.json holds it."""

    @property
    def best(self) -> LineageNode | None:
        """The highest score, the earlier of equals; None while nothing is judged."""

    @property
    def since_best(self) -> int:
        """How many judged iterations came after the best one."""

    @property
    def active_lessons(self) -> tuple[Lesson, ...]:
        """All but the retired; a lesson is called by its place in here."""

    def node(self, iteration: int) -> LineageNode | None:
        """This iteration's node."""

    def text(self) -> str:
        """The tree and the lessons in words, of bounded length."""

    def violations(self, code: str, hyperparameters: Mapping[str, Any]) -> list[str]:
        """Which HARD lessons a proposal breaks, as far as code can tell."""

    def learn(self, lesson: Lesson) -> Self:
        """With one lesson more; an equal one is merged, the weakest gives way to the bound."""

    def replace_lesson(self, index: int, lesson: Lesson) -> Self:
        """With another lesson at this place of `active_lessons`; IndexError if there is none."""


class RunView(Protocol):
    """One training run of an iteration."""

    @property
    def run_id(self) -> str:
        """The name of its folder, `<config>_seed_<seed>`."""

    @property
    def status(self) -> str:
        """How it stands."""

    @property
    def error(self) -> str:
        """Why it failed; empty if it did not."""

    @property
    def config(self) -> TrainConfig | None:
        """What it was trained with; None if nobody can read it any more."""

    @property
    def judgment(self) -> JudgmentResult | None:
        """Of the checkpoint that stands for the run; None if nobody has judged it yet."""

    @property
    def checkpoint_judgments(self) -> Mapping[int, JudgmentResult]:
        """All judged checkpoints by step, `judgment` among them where it names its step."""

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """(step, mean return) of every evaluation."""

    @property
    def term_shares(self) -> Mapping[str, float]:
        """Of each reward term in the sum of absolute terms, in the last evaluation."""

    def dynamics(self) -> TrainingDynamics:
        """How PPO fared."""


class IterationView(Protocol):
    """One iteration: a reward, and the runs that were trained with it."""

    @property
    def number(self) -> int:
        """From 1."""

    @property
    def reward_code(self) -> str:
        """Empty if there is none."""

    @property
    def config(self) -> TrainConfig:
        """The base of all its runs, before what the person's configurations change."""

    @property
    def judgment(self) -> JudgmentResult | None:
        """Of its best run; None if nobody has judged it yet."""

    @property
    def aggregation(self) -> IterationAggregation | None:
        """Configurations x seeds, compared."""

    @property
    def runs(self) -> Sequence[RunView]:
        """All its runs, by configuration and seed."""

    @property
    def best_run(self) -> RunView | None:
        """The one that stands for the iteration."""

    @property
    def error(self) -> str:
        """Why nothing could be trained; empty if something could."""


class SessionView(Protocol):
    """A session, finished or not."""

    @property
    def prompt(self) -> str:
        """The sentence."""

    @property
    def env_id(self) -> str:
        """The environment; empty while none is chosen."""

    @property
    def intent(self) -> Intent | None:
        """The rubric; None while there is none."""

    @property
    def status(self) -> str:
        """How the session stands."""

    @property
    def error(self) -> str:
        """Why it ended early; empty if it did not."""

    @property
    def iterations(self) -> Mapping[int, IterationView]:
        """By number, in their order."""

    @property
    def lineage(self) -> LineageView:
        """The tree as it stands on disk."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the person said after the last iteration, for the next one."""

    @property
    def fixed(self) -> frozenset[str]:
        """TrainConfig fields that no revision moves: by the person or by all configurations."""

    @property
    def hp_tuning(self) -> bool:
        """Whether a revision may change hyperparameters at all."""

    @property
    def pass_threshold(self) -> float:
        """What the score must reach."""
