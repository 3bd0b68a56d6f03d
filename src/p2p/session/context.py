"""What every phase of a session is handed: its folder, what was asked for, and who does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from p2p.contracts import Intent
from p2p.event_log import span
from p2p.records.loop_files import IterationPlan, SteeringTaken
from p2p.records.session_view import IterationView
from p2p.session.stopping import StopSwitch

if TYPE_CHECKING:
    from p2p.config import LoopConfig
    from p2p.contracts import Revision, SessionConfig
    from p2p.records.folder import ModelFile
    from p2p.records.iteration_record import IterationRecord, SessionRecord
    from p2p.session.agents import SessionAgents
    from p2p.training.trainer import LocalTrainer, Trainer

Model = TypeVar("Model", bound=BaseModel)
TrainerFactory = Callable[["LoopConfig", StopSwitch], "Trainer"]


def local_trainer(loop: LoopConfig, switch: StopSwitch) -> LocalTrainer:
    from p2p.training.trainer import LocalTrainer

    return LocalTrainer(
        max_parallel=loop.max_parallel,
        cores_per_run=loop.cores_per_run,
        wait_for_cores=loop.wait_for_cores,
        videos=False,
        trackers=loop.trackers,
        cancelled=switch.is_cancelled,
    )


def accept_criteria(intent: Intent) -> Intent:
    """Accept the criteria as proposed."""
    return intent


@dataclass(frozen=True)
class SessionContext:
    """A session, and who works on it."""

    session: SessionRecord
    config: SessionConfig
    agents: SessionAgents
    switch: StopSwitch = field(default_factory=StopSwitch)
    review_intent: Callable[[Intent], Intent] = accept_criteria
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


@dataclass(frozen=True)
class IterationState:
    """What an iteration begins with: read once, and passed to each of its phases."""

    record: IterationRecord
    number: int
    intent: Intent
    """The criteria, with what the user has changed before it."""
    feedback: tuple[SteeringTaken, ...]
    """Taken up before the first iteration, and after each one before this."""
    revision: Revision | None
    """Of the iteration before."""
    rubric_since: int
    """The first iteration that was judged by these criteria."""
    findings: dict[int, tuple[str, ...]]
    """What was found wrong with the code judge, by iteration from `rubric_since` on."""
    plan: IterationPlan

    @property
    def proposed_reward(self) -> tuple[str | None, str]:
        """The reward that the user or the revision gives, and its author."""
        own = self.feedback[-1].reward_code
        if own is not None:
            return own, "user"
        return (self.revision.reward_code, self.revision.author) if self.revision else (None, "")

    def judge_since(self, number: int) -> int:
        """The first iteration with the judge of iteration `number`: each finding changes it."""
        amended = [k + 1 for k, texts in self.findings.items() if texts and k < number]
        return max(amended, default=self.rubric_since)

    def amendments(self, number: int) -> tuple[str, ...]:
        """Return what judging has got wrong by these criteria before iteration `number`."""
        earlier = (texts for k, texts in self.findings.items() if k < number)
        return tuple(dict.fromkeys(text for texts in earlier for text in texts))


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
