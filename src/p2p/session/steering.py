"""Feedback on a session that runs: given by any process, taken up by the loop.

Each piece is a file that nobody changes after it is there: `give_feedback` makes the next number,
and to withdraw one is another. The loop writes down in files of its own which of them it has taken
up, under `steering_lock`: what was withdrawn before is not taken up, and what was taken up
before cannot be withdrawn. A session on another node hears of a withdrawal as late as of feedback.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from p2p.config import TrainConfig
from p2p.contracts import SteeringOrder, did_you_mean, utc_now
from p2p.event_log import emit
from p2p.files import free_number, hold_lock, read_model, save_model
from p2p.records.folder import names_in
from p2p.records.loop_files import SteeringTaken
from p2p.records.session_view import SessionView
from p2p.session.stopping import SessionPaused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from p2p.records.iteration_record import SessionRecord
    from p2p.session.context import SessionContext

_FILE = re.compile(r"(\d{4,})\.json")


class NotPending(ValueError):
    """The feedback was taken up or withdrawn before, or never given."""


def give_feedback(session: Path, feedback: SteeringOrder) -> Path:
    """Add feedback to a session, by its folder; any number of processes may at once."""
    return _add(session / "steering", feedback)


@contextmanager
def steering_lock(folder: Path) -> Iterator[None]:
    """Keep others from taking up or withdrawing feedback."""
    with hold_lock(folder / ".lock"):
        yield


def _add(folder: Path, feedback: SteeringOrder) -> Path:
    with free_number(folder, lambda: _numbers(folder)) as number:
        path = folder / f"{number:04d}.json"
        save_model(path, feedback)
    return path


def pending_feedback(session: SessionRecord) -> dict[int, SteeringOrder]:
    """The feedback that a session has not taken up yet, by number."""
    return find_pending(session.steering_dir, SessionView(session).steering)


def withdraw_feedback(session: SessionRecord, number: int) -> SteeringOrder:
    """Take feedback back before the session takes it up; raises NotPending if that is too late."""
    if not session.steering_dir.is_dir():
        raise NotPending(f"{session.session_id} has no feedback")
    with steering_lock(session.steering_dir):
        pending = pending_feedback(session)
        if number not in pending:
            given = number in all_feedback(session.steering_dir)
            numbers = ", ".join(map(str, pending)) or "none"
            why = "is applied or withdrawn already" if given else "was not given"
            raise NotPending(f"feedback {number} {why}; pending: {numbers}")
        _add(session.steering_dir, SteeringOrder(withdraws=(number,), given_at=utc_now()))
    return pending[number]


def check_settings(changes: Mapping[str, Any], train: TrainConfig) -> None:
    """Raises ValueError, beginning with the field, for what a session could not be set to."""
    for name, value in changes.items():
        if name not in train.tunable:
            names, hint = ", ".join(train.tunable), did_you_mean(name, train.tunable)
            raise ValueError(f"{name}: only {names} can be changed on the way{hint}")
        try:
            # Alone: whether it goes with the others depends on the iteration that it is for.
            train.alone(name, value)
        except ValidationError as error:
            if any(each["loc"][:1] == (name,) for each in error.errors()):
                raise ValueError(f"{name}={value!r}: {error.errors()[0]['msg']}") from None


def all_feedback(folder: Path) -> dict[int, SteeringOrder]:
    """Return all feedback by number, without unreadable pieces."""
    pieces = ((n, read_model(folder / f"{n:04d}.json", SteeringOrder)) for n in _numbers(folder))
    return {number: piece for number, piece in pieces if piece is not None}


def merge_feedback(
    before: SteeringTaken, new: Mapping[int, SteeringOrder], iteration: int | None = None
) -> SteeringTaken:
    """What the feedback taken up before and this amount to: of two that differ the later counts.

    A score that was given for another iteration than this one does not count.
    """
    values = before.model_dump()
    for number in sorted(new):
        order = new[number]
        values["orders"] = (*values["orders"], number)
        if order.remark.strip():
            values["remarks"] = (*values["remarks"], order.remark.strip())
        if order.score is not None and order.scored_iteration in (None, iteration):
            values["score"] = order.score
        if order.criteria is not None:
            values["criteria"] = order.criteria
        if order.reward_code is not None:
            values["reward_code"] = order.reward_code
        values["hp_changes"] = {**values["hp_changes"], **order.hp_changes}
    return SteeringTaken.model_validate(values)


def wants_pause(new: Mapping[int, SteeringOrder]) -> bool:
    """Return whether the last of these orders on pausing asks for a pause."""
    words = [new[number].pause for number in sorted(new) if new[number].pause is not None]
    return bool(words and words[-1])


def find_pending(folder: Path, taken: Iterable[SteeringTaken]) -> dict[int, SteeringOrder]:
    """The feedback that is neither taken up nor withdrawn."""
    pieces = all_feedback(folder)
    gone = {number for record in taken for number in record.orders}
    gone |= {number for piece in pieces.values() for number in piece.withdraws}
    return {n: piece for n, piece in pieces.items() if n not in gone and not piece.withdraws}


def _numbers(folder: Path) -> list[int]:
    return sorted(int(match[1]) for name in names_in(folder) if (match := _FILE.fullmatch(name)))


def take_feedback(context: SessionContext, number: int) -> SteeringTaken:
    """Take up the feedback given since; raises SessionPaused where that is to pause.

    Once the next iteration is decided on, new feedback waits for the one after it.
    """
    session = context.session
    owner = session.iteration(number) if number else session
    before = context.feedback(number)
    decided = session.iteration(number).revision if number else session.iteration(1).reward
    if decided.exists():
        return before
    if not session.steering_dir.is_dir():
        return before
    with steering_lock(session.steering_dir):
        new = find_pending(session.steering_dir, [context.feedback(k) for k in range(number + 1)])
        if not new:
            return before
        pauses = wants_pause(new) and not before.paused
        after = merge_feedback(before, new, number)
        after = after.model_copy(update={"paused": before.paused or pauses})
        owner.steering.save(after)
    emit("steering.taken", iteration=number or None, orders=list(new), paused=pauses)
    if pauses:
        where = f"after iteration {number}" if number else "before the first iteration"
        raise SessionPaused(f"paused {where}, as asked; `p2p resume` resumes it")
    return after
