"""What every phase of a session is handed: its folder, what was asked for, and who does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from p2p.contracts import Intent
from p2p.event_log import span
from p2p.records.loop_files import SteeringTaken
from p2p.records.session_view import IterationView
from p2p.session.stopping import StopSwitch

if TYPE_CHECKING:
    from p2p.config import LoopConfig
    from p2p.contracts import SessionConfig
    from p2p.records.folder import ModelFile
    from p2p.records.iteration_record import SessionRecord
    from p2p.session.agents import SessionAgents
    from p2p.training.trainer import LocalTrainer, Trainer

Model = TypeVar("Model", bound=BaseModel)
TrainerFactory = Callable[["LoopConfig", StopSwitch], "Trainer"]


def local_trainer(loop: LoopConfig, switch: StopSwitch) -> LocalTrainer:
    from p2p.training.trainer import LocalTrainer

    return LocalTrainer(
        max_parallel=loop.max_parallel,
        cores_per_run=loop.cores_per_run,
        videos=loop.videos,
        cancelled=switch.cancelled,
    )


def accept(intent: Intent) -> Intent:
    """Take the criteria as they were proposed."""
    return intent


@dataclass(frozen=True)
class SessionContext:
    """A session, and who works on it."""

    session: SessionRecord
    config: SessionConfig
    agents: SessionAgents
    switch: StopSwitch = field(default_factory=StopSwitch)
    review_intent: Callable[[Intent], Intent] = accept
    """Shown the criteria before anything is written for them; gives those that count."""
    trainer: TrainerFactory = local_trainer
    judge_waits_s: tuple[float, ...] = (5.0, 30.0, 60.0)
    """How long to wait before each new attempt when no judge could judge."""

    @property
    def loop(self) -> LoopConfig:
        return self.config.loop

    def iteration(self, number: int) -> IterationView:
        return IterationView(self.session.iteration(number), number, self.loop.train)

    def feedback(self, iteration: int) -> SteeringTaken:
        """The feedback taken up after this iteration; 0: before the first."""
        owner = self.session.iteration(iteration) if iteration else self.session
        return owner.steering.read() or SteeringTaken()


def load_or_run(
    file: ModelFile[Model],
    produce: Callable[[], Model],
    *,
    event: str,
    iteration: int | None = None,
    **data: Any,
) -> Model:
    """The record in the file; where there is none that is valid, it is produced and saved.

    So a phase that is done is not done again by a session that is resumed.
    """
    record = file.read()
    if record is not None:
        return record
    with span(event, iteration=iteration, **data):
        record = produce()
        file.save(record)
    return record
