"""The phases of a session up to training: environment, criteria, state, reward and judge.

Each leaves a file. A phase whose valid file is there is not done again, so that a session that was
killed resumes with the phase it was in.
"""

from __future__ import annotations

import ast
import contextvars
import threading
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from p2p.agents.intent_elicitor import with_criteria, with_visual_criteria
from p2p.agents.requests import CriteriaTooEasy, RejectedCriteria
from p2p.contracts import AuthoredCode, Intent, RewardSpec, describe_errors
from p2p.event_log import span
from p2p.files import read_text, write_text
from p2p.inference.question import BadReply, NotUnderstood
from p2p.records.loop_files import RewardCandidates
from p2p.session.context import IterationState, SessionContext, load_or_run
from p2p.session.plan import plan_iteration
from p2p.session.request import with_environment
from p2p.session.search import screen
from p2p.session.stopping import NoEnvironment
from p2p.training.reward_function import best_docstring, parse_docstring
from p2p.utils.utils import parse_python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from p2p.records.iteration_record import IterationRecord


# --- what is asked for ----------------------------------------------------------------------------


def choose_environment(context: SessionContext) -> SessionContext:
    """The context with an environment, where none was named; raises NoEnvironment if none fits.

    The question is one of the session's own: with its budget, in its events and in its llm/.
    """
    config = context.config
    if config.options is None:
        return context
    with span("environment") as outcome:
        choice = context.agents.choose_environment(config.prompt)
        reason = choice.reason.strip()
        if choice.env_id is None:
            raise NoEnvironment(f"no environment fits: {reason}")
        try:
            config = with_environment(config, choice.env_id, reason)
        except ValueError as error:
            raise NoEnvironment(
                f"{choice.env_id} fits best, but not with these options: {describe_errors(error)}"
            ) from error
        context.session.config.save(config)
        outcome |= {"env_id": choice.env_id, "reason": reason}
    return replace(context, config=config)


def propose_intent(context: SessionContext) -> Intent:
    """The rubric: the user's own criteria, or what the model reads off the prompt."""

    def produce() -> Intent:
        config, texts = context.config, context.loop.visual_criteria
        if config.criteria is not None:
            own = Intent(
                prompt=config.prompt,
                env_id=config.env_id,
                criteria=config.criteria,
                training=context.agents.default_training(config.prompt, config.env_id),
                author="user",
            )
            return with_visual_criteria(own, texts)
        proposed = context.agents.elicit(config.prompt, config.env_id)
        return context.review_intent(with_visual_criteria(proposed, texts))

    return load_or_run(context.session.intent, produce, event="intent")


def rewrite_criteria(
    context: SessionContext, state: IterationState, rejected: RejectedCriteria
) -> None:
    """Ask once for other criteria, and drop what was written for those that take no skill.

    They are saved last: a session that is killed before finds its answers in llm/, and gets here
    again. Where no usable ones come, the first ones stay.
    """
    config, record = context.config, state.record
    with span("intent", met_by=rejected.met_by):
        try:
            intent = context.agents.elicit(config.prompt, config.env_id, rejected)
            intent = with_visual_criteria(intent, context.loop.visual_criteria)
        except (BadReply, NotUnderstood):
            intent = state.intent
        what = f"criteria rewritten: {rejected.met_by} met the first ones"
        if intent.criteria == state.intent.criteria:
            what = f"criteria kept, though {rejected.met_by} meet them"
        final = {"final": True, "note": f"{what}. {intent.note}".strip()}
        for file in (record.plan, record.candidates, record.reward):
            file.path.unlink(missing_ok=True)
        context.session.intent.save(intent.model_copy(update=final))


def begin_iteration(context: SessionContext, number: int) -> IterationState:
    """Read what an iteration begins with, and plan it where it is not planned yet."""
    session, record = context.session, context.session.iteration(number)
    feedback = tuple(context.feedback(before) for before in range(number))
    intent, since = propose_intent(context), 1
    for before, taken in enumerate(feedback):
        if taken.criteria is not None:
            intent, since = with_criteria(intent, taken.criteria), before + 1
    if intent != session.intent.read():
        session.intent.save(intent)
    revision = session.iteration(number - 1).revision.read() if number > 1 else None
    amended = {k: session.iteration(k).amendment.read() for k in range(since, number)}
    plan = load_or_run(
        record.plan,
        lambda: plan_iteration(context, number, intent, feedback, revision),
        event="plan",
        iteration=number,
    )
    return IterationState(
        record=record,
        number=number,
        intent=intent,
        feedback=feedback,
        revision=revision,
        rubric_since=since,
        findings={k: amendment.findings for k, amendment in amended.items() if amendment},
        plan=plan,
    )


# --- reward and judge -----------------------------------------------------------------------------


def author(
    context: SessionContext, state: IterationState
) -> tuple[AuthoredCode, AuthoredCode | None]:
    """The reward and the judge of an iteration, written side by side where both are missing.

    Both end before an error of one is raised, so that answers that are paid for reach the disk.
    Raises CriteriaTooEasy where nothing written for these criteria is of use.
    """
    session = context.session
    judging = _start_thread("judge", lambda: _write_judge(context, state, state.number))

    def judge_code() -> str | None:
        """Wait for the judge; None if there is none that runs."""
        while not judging.done():
            context.switch.check()
            wait([judging], 0.2)
        error = judging.exception()
        if isinstance(error, CriteriaTooEasy):
            raise error
        judge = None if error else judging.result()
        return judge.code if judge and judge.valid else None

    rewarding = _start_thread("reward", lambda: _write_reward(context, state, judge_code))
    wait([judging, rewarding])
    judge, reward = judging.result(), rewarding.result()
    assert reward is not None
    _publish(state.record.prompt_path, f"{context.config.prompt}\n")
    publish_reward(state.record, reward.code)
    if judge is not None:
        if judge != session.judge.read():
            session.judge.save(judge)
        _publish(session.judge_fn_path, judge.code)
    return reward, judge


def _start_thread(
    name: str, write: Callable[[], AuthoredCode | None]
) -> Future[AuthoredCode | None]:
    """Write code in a daemon thread, and return its future."""
    future: Future[AuthoredCode | None] = Future()

    def run() -> None:
        try:
            future.set_result(write())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            future.set_exception(error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
    return future


def publish_reward(iteration: IterationRecord, code: str) -> None:
    """Publish a reward as the iteration's own."""
    _publish(iteration.reward_fn_path, code)
    iteration.save_reward_spec(describe_reward(code))


def _publish(path: Path, text: str) -> None:
    if read_text(path) != text:
        write_text(path, text)


def describe_reward(code: str) -> RewardSpec:
    """The terms and formula in a reward's docstrings, read off its source without running it."""
    try:
        tree = parse_python(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return RewardSpec()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    return parse_docstring(best_docstring(*docs))


def _write_reward(
    context: SessionContext, state: IterationState, judge_code: Callable[[], str | None]
) -> AuthoredCode:
    record, plan, agents = state.record, state.plan, context.agents

    def arguments() -> tuple[Any, ...]:
        return *state.proposed_reward, _best_policy(context, state)

    def produce() -> AuthoredCode:
        return agents.write_reward(state.intent, plan.train, judge_code, *arguments())

    if plan.candidates == 1:
        return load_or_run(record.reward, produce, event="reward", iteration=state.number)

    def produce_all() -> RewardCandidates:
        count = plan.candidates
        return screen(
            agents.write_candidates(state.intent, plan.train, judge_code, count, *arguments())
        )

    written = load_or_run(
        record.candidates, produce_all, event="candidates", iteration=state.number
    )
    first = written.candidates[0].reward
    return load_or_run(record.reward, lambda: first, event="reward", iteration=state.number)


def _best_policy(context: SessionContext, state: IterationState) -> Path | None:
    """The best policy of the iterations before this one that observes the same."""
    policies: list[tuple[float, Path]] = []
    for earlier in range(1, state.number):
        iteration = context.session.iteration(earlier)
        best = iteration.best_run.read()
        plan = iteration.plan.read()
        same = plan is None or plan.train.observe_time == state.plan.train.observe_time
        if same and best is not None and best.score is not None:
            policies.append((best.score, best.policy(iteration.path)))
    return max(policies)[1] if policies else None


def _write_judge(
    context: SessionContext, state: IterationState, number: int
) -> AuthoredCode | None:
    """The judge of iteration `number`; None where only frames are looked at."""
    intent, config = state.intent, state.plan.train
    if not context.loop.use_code_judge or not intent.measured:
        return None
    if state.number > 1 or state.record.runs():  # criteria that were trained for stand
        intent = intent.model_copy(update={"final": True})
    since = state.judge_since(number)

    def produce() -> AuthoredCode:
        if since == state.rubric_since:
            return context.agents.write_judge(intent, config)
        before = _write_judge(context, state, since - 1)
        code = before.code if before else ""
        amended = context.agents.write_judge(intent, config, code, state.amendments(since))
        return amended if amended.valid or before is None else before

    owner = context.session if since == 1 else context.session.iteration(since)
    return load_or_run(owner.judge, produce, event="judge_code", iteration=number)
