"""A session from its sentence to its end: a sequence of phases over its folder.

`intent -> (reward | judge) -> [train -> judge -> confirm -> orders -> revise -> reward]*`

Every phase leaves a file, and one whose file is there is not done again. So a session that was
killed, paused, cancelled or ran out of money or time goes on by the same call.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from p2p.contracts import AuthoredCode, Revision, SessionResult, StatusLiteral
from p2p.event_log import EventLog, emit, use_log
from p2p.files import locked, read_model
from p2p.records.session_view import SessionView
from p2p.session.clock import Clock, time_exhausted
from p2p.session.endings import (
    InvalidCode,
    SessionBusy,
    SessionCancelled,
    came_of_interrupt,
    is_expected,
    message_of,
    status_of,
)
from p2p.session.environment import on_an_environment
from p2p.session.iteration_runner import run_iteration, settle_verdict
from p2p.session.phases import (
    Work,
    author,
    done_or,
    intent_for,
    propose_intent,
    take_orders,
)
from p2p.session.publishing import publish
from p2p.session.stopping import cancel_trainings, heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from p2p.contracts import Intent
    from p2p.records.iteration_record import SessionRecord
    from p2p.records.session_view import IterationView

MOST_UNTRAINED_IN_A_ROW = 3
"""So many rewards that cannot be trained, one after the other, and the session gives up."""
LOCK_PATIENCE_S = 1.0


def run_loop(work: Work, *, resume: bool = False) -> SessionResult:
    """Work on a session until it ends, in whatever way; its status.json then says how.

    A session that was cancelled before it began is left alone unless it is to `resume`. What ends a
    session early and is nobody's mistake here is a status; anything else is raised, too.

    Raises:
        SessionBusy: another process works on it; nothing was touched.
    """
    session = work.session
    with one_process(session), use_log(EventLog(session.events_path)), work.switch.listening():
        stated = session.read_status()
        gave_up = resume and stated is not None and stated.status == "invalid_code"
        if not _begin(session, resume=resume):
            return session.result.read() or SessionResult(status="cancelled")
        clock = Clock.of(session, work.config)
        work = replace(work, review_intent=_off_the_clock(work.review_intent, clock))
        with heartbeat(session, work.switch, clock):
            try:
                emit("session.started", resumed=session.result.read() is not None)
                _needs_time(work, clock)
                work = on_an_environment(work)
                forgiven = _look_again(work) if gave_up else 0
                status, message = _phases(work, clock, forgiven)
            except BaseException as error:
                with work.switch.polled():
                    ended = _why(work, error, clock)
                    result = _end(work, status_of(ended), message_of(ended), clock, ended)
                if not is_expected(ended):
                    raise
                return result
            with work.switch.polled():
                return _end(work, status, message, clock)


def _off_the_clock(review: Callable[[Intent], Intent], clock: Clock) -> Callable[[Intent], Intent]:
    """The time that a person takes to look at the criteria is not the session's."""

    def reviewed(intent: Intent) -> Intent:
        with clock.held():
            return review(intent)

    return reviewed


def _needs_time(work: Work, clock: Clock) -> None:
    if clock.is_over():
        raise time_exhausted(work.session, work.config, clock.seconds())


def _why(work: Work, error: BaseException, clock: Clock) -> BaseException:
    """What ended the session: what was stopped does not know why, and may have failed of it."""
    failed_of_it = work.switch.cancelled() and came_of_interrupt(error)
    if status_of(error) != "cancelled" and not failed_of_it:
        return error
    if work.switch.out_of_time:
        return time_exhausted(work.session, work.config, clock.seconds())
    return SessionCancelled() if failed_of_it else error


@contextmanager
def one_process(session: SessionRecord) -> Iterator[None]:
    """Be the only process that works on this session."""
    lock = locked(session.lock_path, patience_s=LOCK_PATIENCE_S)
    try:
        lock.__enter__()
    except TimeoutError:
        status = session.read_status()
        who = f"process {status.pid}" if status and status.pid else "another process"
        raise SessionBusy(f"{session.session_id} is being worked on by {who}") from None
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def _begin(session: SessionRecord, *, resume: bool) -> bool:
    """Say that work begins; False if it was cancelled before."""
    if resume and session.set_status_if("running", {"cancelled"}):
        return True
    session.set_status("running")
    status = session.read_status()
    return status is not None and status.status == "running"


def _look_again(work: Work) -> int:
    """After a session gave up on its code: the last iteration whose reward it is not given up for.

    Rewards up to there are revised. A judge that could not be made to run is written anew, by a
    model that is asked anew; the old one stays beside it.
    """
    iterations = work.session.iteration_records()
    for path in (work.session.judge.path, *(found.judge.path for found in iterations)):
        judge = read_model(path, AuthoredCode)
        if judge is not None and not judge.valid:
            path.replace(path.with_name("judge_invalid.json"))
            work.thinking.ask_anew("judge_author", "judge_reviewer")
    return max((found.number or 0 for found in iterations), default=0)


def _phases(work: Work, clock: Clock, forgiven: int) -> tuple[StatusLiteral, str]:
    """The session's phases in their order; how it ended."""
    propose_intent(work)
    take_orders(work, 0)
    number, untrained = 1, 0
    while True:
        intent = intent_for(work, number)
        reward, judge = author(work, number)
        judge = _usable(work, judge)
        work.switch.check()
        outcome = run_iteration(work, number, intent, reward, judge)
        publish(work, "running", "", clock)
        orders = take_orders(work, number)
        if settle_verdict(work, number):
            outcome = work.iteration(number)
            publish(work, "running", "", clock)
        if outcome.passed and not orders.wants_more:
            return "passed", f"iteration {number} does what was asked for"
        untrained = untrained + 1 if outcome.training_error and number > forgiven else 0
        _give_up_on_rewards(number, untrained, outcome)
        if number >= work.loop.max_iterations:
            return "max_iterations", _without_a_pass(work, outcome)
        work.switch.check()
        _revise(work, number)
        publish(work, "running", "", clock)
        number += 1


def _usable(work: Work, judge: AuthoredCode | None) -> AuthoredCode | None:
    """The judge if it runs; without it, someone else must be there to judge."""
    if judge is None or judge.valid:
        return judge
    if work.loop.vlm_model:
        return None
    raise InvalidCode(f"no judge could be made to run: {judge.last_problem}")


def _give_up_on_rewards(number: int, untrained: int, outcome: IterationView) -> None:
    if untrained and (number == 1 or untrained >= MOST_UNTRAINED_IN_A_ROW):
        how_often = f"{untrained} rewards in a row" if untrained > 1 else "the first reward"
        raise InvalidCode(f"{how_often} could not be trained: {outcome.training_error}")


def _without_a_pass(work: Work, outcome: IterationView) -> str:
    if outcome.passed:
        return f"no iteration is left of {work.loop.max_iterations} for what was ordered"
    return f"no pass within {work.loop.max_iterations} iterations"


def _revise(work: Work, number: int) -> Revision:
    """What the next iteration does differently: the person's own reward, or the agent's."""
    iteration = work.session.iteration(number)
    ordered = work.taken(number).reward_code

    def produce() -> Revision:
        if ordered is None:
            return work.thinking.revise(SessionView(work.session), number)
        known = work.session.lineage.read()
        return Revision(
            based_on=number,
            diagnosis="",
            changes="the reward as the person wrote it",
            reward_code=ordered,
            lessons=known.lessons if known else (),
            author="user",
        )

    return done_or(iteration.revision.path, Revision, produce, event="revise", iteration=number)


def _end(
    work: Work,
    status: StatusLiteral,
    message: str,
    clock: Clock,
    error: BaseException | None = None,
) -> SessionResult:
    """Say how the session ended. A cancel stands, whoever said it and however late."""
    session = work.session
    if error is not None and not is_expected(error):
        emit("session.traceback", text="".join(traceback.format_exception(error))[-20_000:])
    stated = session.read_status()
    if stated is not None and stated.status == "cancelled" and status != "cancelled":
        status, message = "cancelled", message_of(SessionCancelled())
    try:
        result = publish(work, status, message, clock)
    except OSError:  # a full disk: the status may still find room
        result = SessionResult(status=status, message=message, seconds=clock.seconds())
    told = None if status in {"passed", "max_iterations"} else message
    with suppress(OSError):
        if status == "time_exhausted":
            cancel_trainings(session)
        session.set_status(status, told)
        emit("session.ended", status=status, message=message, score=result.score)
    return result
