"""A session's folder as agents see it: `p2p.agents.session_view`, read from the files.

What is absent or cannot be read is None or empty, so that a session can be looked at in any state;
lineage.json alone must be whole if it is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from p2p.analysis.series import number
from p2p.analysis.training_dynamics import TrainingDynamics, analyze_training
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import Intent, IterationAggregation, JudgmentResult
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.run_checks import step_of
from p2p.session.lineage import Lineage
from p2p.session.outcome import training_error

if TYPE_CHECKING:
    from p2p.agents.session_view import SessionView

Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class RecordedRun:
    """One training run, in its folder."""

    record: IterationRecord

    @property
    def run_id(self) -> str:
        """The name of the folder."""
        return self.record.iteration_id

    @property
    def status(self) -> str:
        """How it stands."""
        return self.record.derive_status()

    @property
    def error(self) -> str:
        """Why it failed."""
        status = self.record.read_status()
        return (status.error if status else None) or ""

    @property
    def config(self) -> TrainConfig | None:
        """config.json."""
        return self.record.config.read()

    @property
    def judgment(self) -> JudgmentResult | None:
        """judgment.json."""
        return self.record.read_judgment()

    @property
    def checkpoint_judgments(self) -> dict[int, JudgmentResult]:
        """streaming_judgments/<step>.json and judgment.json, which counts for its step."""
        found = self.record.read_streaming()
        judgment = self.judgment
        if judgment is not None and judgment.step is not None:
            found[judgment.step] = judgment
        return dict(sorted(found.items()))

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """The evaluations of scalars.jsonl."""
        points = ((step_of(line), line.get("mean_return")) for line in self._scalars[1])
        return tuple(
            (step, float(value))
            for step, value in points
            if step is not None and isinstance(value, int | float)
        )

    @property
    def term_shares(self) -> dict[str, float]:
        """The terms of the last evaluation."""
        last = self._scalars[1][-1].get("reward_terms") if self._scalars[1] else None
        terms = last if isinstance(last, Mapping) else {}
        sizes = {name: abs(number(value)) for name, value in terms.items()}
        sizes = {name: size for name, size in sizes.items() if math.isfinite(size)}
        total = sum(sizes.values())
        return {name: size / total for name, size in sizes.items()} if total > 0 else {}

    def dynamics(self) -> TrainingDynamics:
        """From the training lines of scalars.jsonl."""
        return analyze_training(self._scalars[0])

    @cached_property
    def _scalars(self) -> tuple[Lines, Lines]:
        return self.record.parse_scalars()


@dataclass(frozen=True)
class RecordedIteration:
    """iter_N/, with its runs inside; or a single run."""

    record: IterationRecord
    number: int
    train: TrainConfig
    """The session's own, where the iteration's cannot be read."""

    @property
    def reward_code(self) -> str:
        """reward_fn.py, or what was drafted in vain."""
        drafted = self.record.reward.read()
        return self.record.read_reward_source() or (drafted.code if drafted else "")

    @property
    def config(self) -> TrainConfig:
        """The `train` of plan.json, or what the best run was trained with."""
        plan, run = self.record.plan.read(), self.best_run
        return plan.train if plan else (run.config if run else None) or self.train

    @property
    def judgment(self) -> JudgmentResult | None:
        """judgment.json."""
        return self.record.read_judgment()

    @property
    def aggregation(self) -> IterationAggregation | None:
        """aggregation.json."""
        return self.record.aggregation.read()

    @cached_property
    def runs(self) -> tuple[RecordedRun, ...]:
        """All its runs, by configuration and seed."""
        records = self.record.runs()
        if not records and self.record.config_path.exists():
            records = [self.record]
        return tuple(RecordedRun(record) for record in records)

    @property
    def best_run(self) -> RecordedRun | None:
        """By best_run.json, or else the one with the best return."""
        chosen, aggregation = self.record.best_run.read(), self.aggregation
        run_id = chosen.run_id if chosen else aggregation.best_run_id if aggregation else None
        found = (run for run in self.runs if run.run_id == run_id)
        return next(found, next(iter(self.runs), None))

    @property
    def error(self) -> str:
        """Of its reward or its runs; empty if one of them came to its end."""
        if any(run.status == "completed" for run in self.runs):
            return ""
        status = self.record.read_status()
        told = [
            training_error(self.record.reward.read(), self.aggregation),
            status.error if status else None,
            *(run.error for run in self.runs),
        ]
        return next((error for error in told if error), "")


@dataclass(frozen=True)
class RecordedSession:
    """A session's folder. Each look reads the files as they are then."""

    record: SessionRecord

    @property
    def loop(self) -> LoopConfig:
        """How the session goes."""
        session = self.record.config.read()
        return session.loop if session else LoopConfig()

    @property
    def prompt(self) -> str:
        """The sentence."""
        session, intent = self.record.config.read(), self.intent
        return session.prompt if session else intent.prompt if intent else ""

    @property
    def env_id(self) -> str:
        """The environment; empty while none is chosen."""
        session, intent = self.record.config.read(), self.intent
        return intent.env_id if intent else session.env_id if session else ""

    @property
    def intent(self) -> Intent | None:
        """intent.json."""
        return self.record.intent.read()

    @property
    def status(self) -> str:
        """How the session stands."""
        return self.record.derive_status()

    @property
    def error(self) -> str:
        """Why it ended early."""
        status = self.record.read_status()
        return (status.error if status else None) or ""

    @property
    def iterations(self) -> dict[int, RecordedIteration]:
        """By number, in their order."""
        train = self.loop.train
        records = ((record.number, record) for record in self.record.iteration_records())
        return {
            number: RecordedIteration(record, number, train)
            for number, record in records
            if number is not None
        }

    @property
    def lineage(self) -> Lineage:
        """lineage.json; raises UnreadableError if it is torn or foreign."""
        return Lineage.load(self.record.lineage.path)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Taken up since an agent has last made a revision."""
        taken = self.record.steering.read()
        found = [*taken.remarks] if taken else []
        records = [iteration.record for iteration in self.iterations.values()]
        for record in records:
            taken, revision = record.steering.read(), record.revision.read()
            found += taken.remarks if taken else ()
            if revision.author != "user" if revision else record != records[-1]:
                found = []
        return tuple(found)

    @property
    def fixed(self) -> frozenset[str]:
        """What the person set, at the beginning, on the way or in every configuration."""
        loop = self.loop
        everywhere = set.intersection(*(set(config.params) for config in loop.configs))
        iterations = self.iterations.values()
        taken = [self.record.steering.read(), *(i.record.steering.read() for i in iterations)]
        ordered = [name for orders in taken if orders for name in orders.hp_changes]
        return frozenset({*loop.fixed, *everywhere, *ordered})

    @property
    def hp_tuning(self) -> bool:
        """Whether a revision may change hyperparameters at all."""
        return self.loop.hp_tuning

    @property
    def pass_threshold(self) -> float:
        """What the score must reach."""
        return self.loop.pass_threshold


if TYPE_CHECKING:

    def _is_a_session_view(session: RecordedSession) -> SessionView:
        """The type checker holds the folder and what agents ask of it together."""
        return session
