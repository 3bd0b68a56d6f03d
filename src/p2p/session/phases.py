"""The phases of a session up to training: environment, rubric, feedback, reward and judge, plan.

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

from pydantic import ValidationError

from p2p.agents.builtin.criteria import settings_for
from p2p.agents.intent_elicitor import with_criteria, with_visual_criteria
from p2p.config import TrainConfig
from p2p.contracts import AuthoredCode, Intent, RewardSpec, describe_errors
from p2p.event_log import emit, span
from p2p.files import read_text, write_text
from p2p.records.loop_files import IterationPlan, RewardCandidates, SteeringTaken
from p2p.session.context import SessionContext, load_or_run
from p2p.session.endings import NoEnvironment, SessionPaused
from p2p.session.request import with_environment
from p2p.session.search import candidate_count, screened
from p2p.session.steering import asks_to_pause, merge, not_taken, taking
from p2p.session.warm_start import start_of
from p2p.training.hp_presets import quick_config
from p2p.training.reward_function import best_docstring, parse_docstring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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
            raise NoEnvironment(
                f"no environment fits: {reason.rstrip('.')}. Or name one with --env"
            )
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
                training=settings_for(config.prompt, config.env_id),
                author="user",
            )
            return with_visual_criteria(own, texts)
        proposed = context.agents.elicit(config.prompt, config.env_id)
        return context.review_intent(with_visual_criteria(proposed, texts))

    return load_or_run(context.session.intent, produce, event="intent")


def intent_for(context: SessionContext, number: int) -> Intent:
    """The rubric of an iteration, with what the user has changed before it."""
    intent = propose_intent(context)
    for before in range(number):
        criteria = context.feedback(before).criteria
        if criteria is not None:
            intent = with_criteria(intent, criteria)
    if intent != context.session.intent.read():
        context.session.intent.save(intent)
    return intent


def rubric_since(context: SessionContext, number: int) -> int:
    """The first iteration that was judged by the rubric of this one."""
    changed = (k + 1 for k in range(number - 1, 0, -1) if context.feedback(k).criteria is not None)
    return next(changed, 1)


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
    with taking(session.steering_dir):
        new = not_taken(session.steering_dir, [context.feedback(k) for k in range(number + 1)])
        if not new:
            return before
        pauses = asks_to_pause(new) and not before.paused
        after = merge(before, new, number)
        after = after.model_copy(update={"paused": before.paused or pauses})
        owner.steering.save(after)
    emit("steering.taken", iteration=number or None, orders=list(new), paused=pauses)
    if pauses:
        where = f"after iteration {number}" if number else "before the first iteration"
        raise SessionPaused(f"paused {where}, as asked; `p2p resume` resumes it")
    return after


# --- reward and judge -----------------------------------------------------------------------------


def author(context: SessionContext, number: int) -> tuple[AuthoredCode, AuthoredCode | None]:
    """The reward and the judge of an iteration, written side by side where both are missing.

    Both end before an error of one is raised, so that answers that are paid for reach the disk.
    """
    session, intent, plan = context.session, intent_for(context, number), make_plan(context, number)
    judging = _in_background("judge", lambda: _judge(context, number, intent, plan.train))

    def judge_code() -> str | None:
        """Wait for the judge; None if there is none that runs."""
        while not judging.done():
            context.switch.check()
            wait([judging], 0.2)
        judge = None if judging.exception() else judging.result()
        return judge.code if judge and judge.valid else None

    rewarding = _in_background(
        "reward", lambda: _reward(context, number, intent, plan.train, judge_code)
    )
    wait([judging, rewarding])
    judge, reward = judging.result(), rewarding.result()
    assert reward is not None
    iteration = session.iteration(number)
    _publish(iteration.prompt_path, f"{context.config.prompt}\n")
    publish_reward(iteration, reward.code)
    if judge is not None:
        if judge != session.judge.read():
            session.judge.save(judge)
        _publish(session.judge_fn_path, judge.code)
    return reward, judge


def _in_background(
    name: str, write: Callable[[], AuthoredCode | None]
) -> Future[AuthoredCode | None]:
    """Write code in a thread of its own, which does not outlive the process."""
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
    """Let this be the reward that the iteration shows."""
    _publish(iteration.reward_fn_path, code)
    iteration.save_reward_spec(described(code))


def _publish(path: Path, text: str) -> None:
    if read_text(path) != text:
        write_text(path, text)


def described(code: str) -> RewardSpec:
    """What the docstrings of a reward say, read off its source; nothing of it is run."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return RewardSpec()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    return parse_docstring(best_docstring(*docs))


def _reward(
    context: SessionContext,
    number: int,
    intent: Intent,
    config: TrainConfig,
    judge_code: Callable[[], str | None],
) -> AuthoredCode:
    def produce() -> AuthoredCode:
        code, by = _proposed_code(context, number)
        best = _best_policy(context, number, config)
        return context.agents.write_reward(intent, config, judge_code, code, by, best)

    iteration = context.session.iteration(number)
    count = make_plan(context, number).candidates
    if count == 1:
        return load_or_run(iteration.reward, produce, event="reward", iteration=number)

    def produce_all() -> RewardCandidates:
        code, by = _proposed_code(context, number)
        best = _best_policy(context, number, config)
        return screened(
            context.agents.write_candidates(intent, config, judge_code, count, code, by, best)
        )

    written = load_or_run(iteration.candidates, produce_all, event="candidates", iteration=number)
    first = written.candidates[0].reward
    return load_or_run(iteration.reward, lambda: first, event="reward", iteration=number)


def _proposed_code(context: SessionContext, number: int) -> tuple[str | None, str]:
    """The reward of the user or the revision before this iteration, and its author."""
    own = context.feedback(number - 1).reward_code
    if own is not None:
        return own, "user"
    revision = context.session.iteration(number - 1).revision.read() if number > 1 else None
    return (revision.reward_code, revision.author) if revision else (None, "")


def _is_own_reward(context: SessionContext, number: int) -> bool:
    """Whether the user gave the reward of this iteration: that is then the only one."""
    return context.feedback(number - 1).reward_code is not None


def _best_policy(context: SessionContext, number: int, config: TrainConfig) -> Path | None:
    """Of the iterations before this one whose policies observe the same."""
    policies: list[tuple[float, Path]] = []
    for earlier in range(1, number):
        iteration = context.session.iteration(earlier)
        best = iteration.best_run.read()
        plan = iteration.plan.read()
        same = plan is None or plan.train.observe_time == config.observe_time
        if same and best is not None and best.score is not None:
            policies.append((best.score, best.policy(iteration.path)))
    return max(policies)[1] if policies else None


def _judge(
    context: SessionContext, number: int, intent: Intent, config: TrainConfig
) -> AuthoredCode | None:
    if not context.loop.use_code_judge or not intent.measured:
        return None
    first = rubric_since(context, number)
    since = max((k + 1 for k in range(first, number) if _findings(context, k)), default=first)

    def produce() -> AuthoredCode:
        if since == first:
            return context.agents.write_judge(intent, config)
        before = _judge(context, since - 1, intent, config)
        code = before.code if before else ""
        amended = context.agents.write_judge(intent, config, code, amendments(context, since))
        return amended if amended.valid or before is None else before

    owner = context.session if since == 1 else context.session.iteration(since)
    return load_or_run(owner.judge, produce, event="judge_code", iteration=number)


def _findings(context: SessionContext, iteration: int) -> tuple[str, ...]:
    amendment = context.session.iteration(iteration).amendment.read()
    return amendment.findings if amendment else ()


def amendments(context: SessionContext, number: int) -> tuple[str, ...]:
    """What judging has got wrong by these criteria before this iteration."""
    earlier = range(rubric_since(context, number), number)
    return tuple(dict.fromkeys(text for k in earlier for text in _findings(context, k)))


# --- plan -----------------------------------------------------------------------------------------


def make_plan(context: SessionContext, number: int) -> IterationPlan:
    """What this iteration trains: the configuration of the one it is based on, changed."""
    plan = context.session.iteration(number).plan
    return load_or_run(plan, lambda: _planned(context, number), event="plan", iteration=number)


def _planned(context: SessionContext, number: int) -> IterationPlan:
    loop = context.loop
    before, parent = loop.train, None
    intent = context.session.intent.read()
    wanted = intent.training if intent else {}
    revision = context.session.iteration(number - 1).revision.read() if number > 1 else None
    if revision is not None:
        parent = revision.based_on
        before = context.iteration(parent).config
        wanted = revision.hp_changes if loop.hp_tuning else {}
    fixed = {*loop.fixed, *requested_hyperparameters(context, number)}
    if revision is None:  # what is not as usual somebody has chosen
        usual = quick_config(before.env_id, algorithm=before.algorithm, device=before.device)
        fixed |= {name for name in wanted if getattr(before, name) != getattr(usual, name)}
    base, notes = before.apply_updates({k: v for k, v in wanted.items() if k not in fixed})
    notes += [f"{name} is fixed" for name in wanted if name in fixed]
    base, more = _with_requested(base, requested_hyperparameters(context, number))
    start = ""
    if revision is not None and revision.warm_start:
        try:
            start = start_of(context, revision.based_on, base, revision.reward_code)
        except ValueError as error:
            notes.append(f"warm_start: {error}")
    changed = {
        name: value
        for name, value in base.model_dump(mode="json").items()
        if value != before.model_dump(mode="json")[name]
    }
    return IterationPlan(
        iteration=number,
        parent=parent,
        train=base,
        configs=loop.configs,
        seeds=loop.seeds,
        candidates=1 if _is_own_reward(context, number) else candidate_count(loop, base),
        start_policy=start,
        hp_changes=changed,
        notes=(*notes, *more),
    )


def requested_hyperparameters(context: SessionContext, number: int) -> dict[str, Any]:
    """What the user has set on the way, up to this iteration; no revision moves it any more."""
    merged: dict[str, Any] = {}
    for before in range(number):
        merged |= context.feedback(before).hp_changes
    return merged


def _with_requested(base: TrainConfig, changes: Mapping[str, Any]) -> tuple[TrainConfig, list[str]]:
    """The configuration as the user wants it: outside of a revision's bounds, too."""
    notes: list[str] = []
    for name, value in changes.items():
        if name not in TrainConfig.model_fields or name in {"env_id", "seed", "iteration_id"}:
            notes.append(f"{name} cannot be changed")
            continue
        try:
            base = base.with_updates(**{name: value})
        except ValidationError as error:
            notes.append(f"{name}={value!r} refused: {error.errors()[0]['msg']}")
    return base, notes
