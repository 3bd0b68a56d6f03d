"""A session from its prompt to its end: a sequence of phases over its folder.

`intent -> (reward | judge) -> [train -> judge -> confirm -> feedback -> revise -> reward]*`

Every phase leaves a file, and one whose file is there is not done again. So a session that was
killed, paused, cancelled or ran out of money or time is resumed by the same call.
"""

from __future__ import annotations

import importlib
import traceback
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from p2p.agents.requests import CriteriaTooEasy
from p2p.contracts import AuthoredCode, Revision, SessionResult, StatusLiteral
from p2p.event_log import EventLog, emit, last_event, use_log
from p2p.files import hold_lock
from p2p.inference.question import NotUnderstood
from p2p.records.formatting import count
from p2p.records.session_view import SessionView
from p2p.records.statuses import FINAL, STATUS
from p2p.session.context import SessionContext, accept_criteria, load_or_run
from p2p.session.iteration_runner import IterationRunner, apply_user_score
from p2p.session.phases import (
    author,
    begin_iteration,
    choose_environment,
    propose_intent,
    rewrite_criteria,
)
from p2p.session.plan import forget_states
from p2p.session.publishing import best_iteration, deliver, publish
from p2p.session.steering import take_feedback
from p2p.session.stopping import (
    Clock,
    InvalidCode,
    NoEnvironment,
    SessionBusy,
    SessionCancelled,
    cancel_trainings,
    caused_by_interrupt,
    heartbeat,
    is_expected,
    make_time_exhausted,
    message_of,
    resume_command,
    status_of,
)
from p2p.session.verdict import words_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from p2p.contracts import Intent
    from p2p.records.iteration_record import SessionRecord
    from p2p.records.loop_files import SteeringTaken
    from p2p.records.session_view import IterationView
    from p2p.session.context import IterationState

MOST_UNTRAINED_IN_A_ROW = 3
"""So many rewards that cannot be trained, one after the other, and the session gives up."""
LOCK_PATIENCE_S = 1.0
MEETS = "meets the criteria"


def run_loop(
    context: SessionContext, *, resume: bool = False, delivers: bool = True
) -> SessionResult:
    """Work on a session until it ends, and record its status.

    Without `delivers`, the best policy's file and video are left to who asks for them.
    A session that was cancelled before it began is left alone unless it is to `resume`. What ends a
    session early and is nobody's mistake here is a status; anything else is raised, too.

    Raises:
        SessionBusy: another process works on it; nothing was touched.
    """
    session = context.session
    # Authors and judges work in threads, and two that import Gymnasium at once can break it.
    importlib.import_module("p2p.training.vec_env")
    with (
        one_process(session),
        use_log(EventLog(session.events_path)),
        context.switch.handle_signals(),
    ):
        stated = session.read_status()
        gave_up = resume and stated is not None and stated.status == "invalid_code"
        if not _begin(session, resume=resume):
            return session.result.read() or SessionResult(status="cancelled")
        clock = Clock.of(session, context.config)
        review = context.review_intent

        def review_untimed(intent: Intent) -> Intent:
            """Do not count the time that a user takes to look at the criteria, which then stand."""
            with clock.pause():
                return review(intent).model_copy(update={"final": True})

        if review is not accept_criteria:
            context = replace(context, review_intent=review_untimed)
        with heartbeat(session, context.switch, clock):
            try:
                emit("session.started", resumed=last_event(session.events_path) is not None)
                check_time_limit(context, clock)
                context = choose_environment(context)
                forgiven = rewrite_invalid_judges(context) if gave_up else 0
                status, message = _phases(context, clock, forgiven)
            except BaseException as error:
                with context.switch.suspend_interrupts():
                    ended = resolve_end_cause(context, error)
                    result = _end(context, status_of(ended), message_of(ended), clock, ended)
                if not is_expected(ended):
                    raise
                return result
            with context.switch.suspend_interrupts():
                result = _end(context, status, message, clock)
        return _deliver(context, clock, result) if delivers else result


def check_time_limit(context: SessionContext, clock: Clock) -> None:
    """Raise TimeExhausted if the session has no time left."""
    if clock.is_over():
        raise make_time_exhausted(context.session, context.config)


def resolve_end_cause(context: SessionContext, error: BaseException) -> BaseException:
    """What ended the session: an interrupted phase may raise any error, or a cancel for a limit."""
    interrupted = context.switch.is_cancelled() and caused_by_interrupt(error)
    if status_of(error) != "cancelled" and not interrupted:
        return error
    if context.switch.out_of_time:
        return make_time_exhausted(context.session, context.config)
    return SessionCancelled() if interrupted else error


@contextmanager
def one_process(session: SessionRecord) -> Iterator[None]:
    """Hold the session's lock; raise SessionBusy if another process has it."""
    with ExitStack() as held:
        try:
            held.enter_context(hold_lock(session.lock_path, patience_s=LOCK_PATIENCE_S))
        except TimeoutError:
            status = session.read_status()
            who = f"process {status.pid}" if status and status.pid else "another process"
            raise SessionBusy(f"{session.session_id} is being worked on by {who}") from None
        yield


def _begin(session: SessionRecord, *, resume: bool) -> bool:
    """Say that work begins; False if it was cancelled before."""
    if resume and session.set_status_if("running", {"cancelled"}):
        return True
    session.set_status("running")
    status = session.read_status()
    return status is not None and status.status == "running"


def rewrite_invalid_judges(context: SessionContext) -> int:
    """After a session gave up on its code, let judges that do not run be written again.

    The old ones stay beside them. Returns the last iteration: untrained rewards up to it are not
    counted again.
    """
    iterations = context.session.iteration_records()
    for file in (context.session.judge, *(record.judge for record in iterations)):
        judge = file.read()
        if judge is not None and not judge.valid:
            file.path.replace(file.path.with_name("judge_invalid.json"))
            context.agents.forget("judge_author", "judge_reviewer")
    return max((record.number or 0 for record in iterations), default=0)


def _phases(context: SessionContext, clock: Clock, forgiven: int) -> tuple[StatusLiteral, str]:
    propose_intent(context)
    take_feedback(context, 0)
    number, untrained = 1, 0
    while True:
        state = begin_iteration(context, number)
        try:
            reward, judge = author(context, state)
        except CriteriaTooEasy as error:
            rewrite_criteria(context, state, error.rejected)
            take_feedback(context, 0)
            continue
        judge = _require_judge(context, judge)
        context.switch.check()
        if reward.valid:
            IterationRunner(context, state, judge).run()
        publish(context, "running", "", clock)
        feedback = take_feedback(context, number)
        if apply_user_score(context, state, feedback):
            publish(context, "running", "", clock)
        outcome = context.iteration(number)
        if outcome.passed and not feedback.wants_more:
            return _status_of_pass(context, number)
        untrained = untrained + 1 if outcome.training_error and number > forgiven else 0
        _give_up_on_rewards(number, untrained, outcome)
        if number >= context.loop.max_iterations:
            return "max_iterations", _describe_no_pass(context, outcome)
        context.switch.check()
        _revise(context, state, feedback)
        publish(context, "running", "", clock)
        number += 1


def _status_of_pass(context: SessionContext, number: int) -> tuple[StatusLiteral, str]:
    """Return how a session ends whose iteration meets every hard criterion."""
    message, view = f"iteration {number} {MEETS}", SessionView(context.session)
    if view.outcome_of(context.iteration(number)) == "passed":
        return "passed", message
    return "unverified", f"{message}; no criterion measures: {words_text(view.unchecked_words)}"


def _require_judge(context: SessionContext, judge: AuthoredCode | None) -> AuthoredCode | None:
    """Return the code judge if it runs; raise InvalidCode if no other judge can replace it."""
    if judge is None or judge.valid:
        return judge
    if context.loop.vlm_model:
        return None
    raise InvalidCode(f"no judge could be used: {judge.last_problem}")


def _give_up_on_rewards(number: int, untrained: int, outcome: IterationView) -> None:
    if untrained and (number == 1 or untrained >= MOST_UNTRAINED_IN_A_ROW):
        how_often = f"{untrained} rewards in a row" if untrained > 1 else "the first reward"
        raise InvalidCode(f"{how_often} could not be trained: {outcome.training_error}")


def _describe_no_pass(context: SessionContext, outcome: IterationView) -> str:
    if outcome.passed:
        most = context.loop.max_iterations
        return f"no iteration is left of {most} for the feedback: {resume_command(context.session)}"
    return f"no pass within {count(context.loop.max_iterations, 'iteration')}"


def _revise(context: SessionContext, state: IterationState, feedback: SteeringTaken) -> Revision:
    """Return what the next iteration does differently: the user's own reward, or the agent's."""
    own_reward, number, record = feedback.reward_code, state.number, state.record

    def produce() -> Revision:
        if own_reward is None:
            return context.agents.revise(SessionView(context.session), number)
        lineage = context.session.lineage.read()
        return Revision(
            based_on=number,
            diagnosis="",
            changes="the reward as the user wrote it",
            reward_code=own_reward,
            lessons=lineage.lessons if lineage else (),
            author="user",
        )

    revision = load_or_run(record.revision, produce, event="revise", iteration=number)
    if not record.revised_reward_path.exists():
        record.save_revised_reward(revision.reward_code)
    return revision


def _deliver(context: SessionContext, clock: Clock, result: SessionResult) -> SessionResult:
    """Make the best policy's file and video; a cancel ends that, and the verdict stays."""
    with (
        suppress(KeyboardInterrupt, SessionCancelled, OSError),
        context.switch.suspend_interrupts(),
    ):
        if deliver(SessionView(context.session)):
            result = publish(context, result.status, result.message, clock)
    return result


def _end(
    context: SessionContext,
    status: StatusLiteral,
    message: str,
    clock: Clock,
    error: BaseException | None = None,
) -> SessionResult:
    """Say how the session ended. A cancel stands, whoever said it and however late."""
    session = context.session
    if error is not None and not is_expected(error):
        emit("session.traceback", text="".join(traceback.format_exception(error))[-20_000:])
    stated = session.read_status()
    if stated is not None and stated.status == "cancelled" and status != "cancelled":
        status, message = "cancelled", message_of(SessionCancelled())
    if status == "time_exhausted":
        with suppress(OSError):
            cancel_trainings(session)
    if STATUS[status].outcome == "not_passed":
        best = best_iteration(context)
        if best is not None and best.passed:  # a pass stands, whatever came of the feedback
            status, met = _status_of_pass(context, best.number)
            message = f"{met}; {message}"
    try:
        refused = isinstance(error, NotUnderstood | NoEnvironment)
        result = publish(context, status, message, clock, refused=refused)
    except OSError:  # a full disk: the status may still find room
        result = SessionResult(status=status, message=message, seconds=clock.seconds())
    error_text = None if status in FINAL | {"max_iterations"} else message
    if error_text is None:
        forget_states(session)
    with suppress(OSError):
        session.set_status(status, error_text)
        emit("session.ended", status=status, message=message, score=result.score)
    return result
