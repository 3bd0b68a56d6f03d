"""The phases of a session up to training: rubric, orders, reward and judge, plan.

Each leaves a file. A phase whose valid file is there is not done again, so that a session that was
killed goes on with the phase it was in.
"""

from __future__ import annotations

import ast
import contextvars
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from p2p.config import TrainConfig
from p2p.contracts import AuthoredCode, Intent, RewardSpec
from p2p.event_log import emit, span
from p2p.files import read_model, save_model, write_text
from p2p.records.loop_files import IterationPlan, SteeringTaken
from p2p.records.session_view import IterationView
from p2p.session.endings import SessionPaused
from p2p.session.steering import asks_to_pause, merge, not_taken
from p2p.session.stopping import StopSwitch
from p2p.session.thinking import RewardTask
from p2p.training.reward.docstring import best_docstring, parse_docstring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from p2p.config import LoopConfig
    from p2p.records.iteration_record import IterationRecord, SessionRecord
    from p2p.records.loop_files import SessionConfig
    from p2p.session.thinking import Thinking
    from p2p.training.trainer import Trainer

Model = TypeVar("Model", bound=BaseModel)


def as_is(intent: Intent) -> Intent:
    """Take the criteria as they were proposed."""
    return intent


@dataclass(frozen=True)
class Work:
    """A session, and who works on it."""

    session: SessionRecord
    config: SessionConfig
    thinking: Thinking
    switch: StopSwitch = field(default_factory=StopSwitch)
    review_intent: Callable[[Intent], Intent] = as_is
    """Shown the criteria before anything is written for them; gives those that count."""
    trainer: Callable[[LoopConfig, StopSwitch], Trainer] | None = None
    """Who trains; None: this machine."""
    judge_waits_s: tuple[float, ...] = (5.0, 30.0, 60.0)
    """How long to wait before each new attempt when no judge could judge."""

    @property
    def loop(self) -> LoopConfig:
        """How the session is to go."""
        return self.config.loop

    def iteration(self, number: int) -> IterationView:
        """An iteration as its files are now."""
        return IterationView(self.session.iteration(number), number, self.loop.train)

    def taken(self, iteration: int) -> SteeringTaken:
        """The orders taken after this iteration; 0: before the first."""
        owner = self.session.iteration(iteration) if iteration else self.session
        return owner.steering.read() or SteeringTaken()


def done_or(
    path: Path,
    model: type[Model],
    produce: Callable[[], Model],
    *,
    event: str,
    iteration: int | None = None,
    **data: Any,
) -> Model:
    """The record in the file; where there is none that is valid, it is made and saved."""
    found = read_model(path, model)
    if found is not None:
        return found
    with span(event, iteration=iteration, **data):
        made = produce()
        save_model(path, made)
    return made


# --- what is asked for ----------------------------------------------------------------------------


def propose_intent(work: Work) -> Intent:
    """The rubric: the person's own criteria, or what the model reads off the prompt."""

    def produce() -> Intent:
        config = work.config
        if config.criteria is not None:
            return Intent(
                prompt=config.prompt, env_id=config.env_id, criteria=config.criteria, author="user"
            )
        return work.review_intent(work.thinking.elicit(config.prompt, config.env_id))

    return done_or(work.session.intent.path, Intent, produce, event="intent")


def intent_for(work: Work, number: int) -> Intent:
    """The rubric of an iteration, with what the person has changed before it."""
    intent = propose_intent(work)
    for before in range(number):
        criteria = work.taken(before).criteria
        if criteria is not None and criteria != intent.criteria:
            intent = intent.model_copy(update={"criteria": criteria, "author": "user"})
    if intent != work.session.intent.read():
        work.session.intent.save(intent)
    return intent


def rubric_since(work: Work, number: int) -> int:
    """The first iteration that was judged by the rubric of this one."""
    changed = (k + 1 for k in range(number - 1, 0, -1) if work.taken(k).criteria is not None)
    return next(changed, 1)


def take_orders(work: Work, number: int) -> SteeringTaken:
    """Take up what the person has ordered since; raises SessionPaused where that is to pause.

    Once the next iteration is decided on, new orders wait for the one after it.
    """
    owner = work.session.iteration(number) if number else work.session
    before = owner.steering.read() or SteeringTaken()
    following = work.session.iteration(number + 1)
    decided = following.reward.path if number == 0 else work.session.iteration(number).revision.path
    if decided.exists():
        return before
    all_taken = [work.taken(k) for k in range(number + 1)]
    new = not_taken(work.session.steering_dir, all_taken)
    if not new:
        return before
    pauses = asks_to_pause(new) and not before.paused
    after = merge(before, new).model_copy(update={"paused": before.paused or pauses})
    owner.steering.save(after)
    emit("steering.taken", iteration=number or None, orders=list(new), paused=pauses)
    if pauses:
        where = f"after iteration {number}" if number else "before the first iteration"
        raise SessionPaused(f"paused {where}, as ordered; `p2p resume` goes on")
    return after


# --- reward and judge -----------------------------------------------------------------------------


def author(work: Work, number: int) -> tuple[AuthoredCode, AuthoredCode | None]:
    """The reward and the judge of an iteration, written side by side where both are missing."""
    intent = intent_for(work, number)
    plan = make_plan(work, number)
    iteration = work.session.iteration(number)
    written = _Awaited(work.switch)
    results = side_by_side(
        {
            "judge": lambda: written.by(lambda: _judge(work, number, intent, plan.train)),
            "reward": lambda: _reward(work, number, intent, plan, written.code),
        }
    )
    reward, judge = results["reward"], results["judge"]
    assert reward is not None
    _publish(iteration.reward_fn_path, reward.code)
    iteration.save_reward_spec(described(reward.code))
    if judge is not None:
        if judge != work.session.judge.read():
            work.session.judge.save(judge)
        _publish(work.session.judge_fn_path, judge.code)
    return reward, judge


def _publish(path: Path, code: str) -> None:
    if not path.exists() or path.read_text("utf-8") != code:
        write_text(path, code)


def described(code: str) -> RewardSpec:
    """What the docstrings of a reward say, read off its source; nothing of it is run."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return RewardSpec()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    return parse_docstring(best_docstring(*docs))


class _Awaited:
    """The judge's code, for those who need it while it is being written."""

    def __init__(self, switch: StopSwitch) -> None:
        self._switch = switch
        self._ended = threading.Event()
        self._code: str | None = None

    def by(self, write: Callable[[], AuthoredCode | None]) -> AuthoredCode | None:
        """Write it."""
        try:
            judge = write()
            self._code = judge.code if judge and judge.valid else None
            return judge
        finally:
            self._ended.set()

    def code(self) -> str | None:
        """Wait for it; None if there is none that runs."""
        while not self._ended.wait(0.2):
            self._switch.check()
        return self._code


def _reward(
    work: Work,
    number: int,
    intent: Intent,
    plan: IterationPlan,
    judge: Callable[[], str | None],
) -> AuthoredCode:
    def produce() -> AuthoredCode:
        code, by = _given_code(work, number)
        task = RewardTask(
            intent=intent,
            config=plan.train,
            judge=judge,
            code=code,
            author=by,
            previous_best=_best_policy(work, number),
        )
        return work.thinking.reward(task)

    path = work.session.iteration(number).reward.path
    return done_or(path, AuthoredCode, produce, event="reward", iteration=number)


def _given_code(work: Work, number: int) -> tuple[str | None, str]:
    """The reward that the person or the revision before this iteration has given, and who."""
    ordered = work.taken(number - 1).reward_code
    if ordered is not None:
        return ordered, "user"
    revision = work.session.iteration(number - 1).revision.read() if number > 1 else None
    return (revision.reward_code, revision.author) if revision else (None, "")


def _best_policy(work: Work, number: int) -> Path | None:
    found: list[tuple[float, Path]] = []
    for earlier in range(1, number):
        iteration = work.session.iteration(earlier)
        best = iteration.best_run.read()
        if best is not None and best.score is not None:
            found.append((best.score, best.policy(iteration.path)))
    return max(found)[1] if found else None


def _judge(work: Work, number: int, intent: Intent, config: TrainConfig) -> AuthoredCode | None:
    if not work.loop.use_code_judge:
        return None
    since = rubric_since(work, number)
    path = work.session.judge.path if since == 1 else work.session.iteration(since).judge.path
    return done_or(
        path,
        AuthoredCode,
        lambda: work.thinking.write_judge(intent, config),
        event="judge_code",
        iteration=number,
    )


def side_by_side(tasks: Mapping[str, Callable[[], Model | None]]) -> dict[str, Model | None]:
    """Do all tasks in threads of their own, and raise the first error when all have ended.

    Waiting for the others lets answers that are already paid for reach the disk. The threads do not
    outlive the process: an interruption leaves them behind.
    """
    results: dict[str, Model | None] = {}
    errors: dict[str, BaseException] = {}

    def run(name: str, task: Callable[[], Model | None]) -> None:
        try:
            results[name] = task()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            errors[name] = error

    threads = [
        threading.Thread(
            target=contextvars.copy_context().run, args=(run, *item), name=item[0], daemon=True
        )
        for item in tasks.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in tasks:
        if name in errors:
            raise errors[name]
    return results


# --- plan -----------------------------------------------------------------------------------------


def make_plan(work: Work, number: int) -> IterationPlan:
    """What this iteration trains: the configuration of the one it is based on, changed."""
    path = work.session.iteration(number).plan.path
    return done_or(
        path, IterationPlan, lambda: _planned(work, number), event="plan", iteration=number
    )


def _planned(work: Work, number: int) -> IterationPlan:
    loop = work.loop
    base, parent, notes = loop.train, None, []
    before = base
    revision = work.session.iteration(number - 1).revision.read() if number > 1 else None
    if revision is not None:
        parent = revision.based_on
        before = _base_of(work.session.iteration(parent), loop)
        fixed = {*loop.fixed, *ordered_hyperparameters(work, number)}
        wanted = revision.hp_changes if loop.hp_tuning else {}
        notes += [f"{name} is fixed" for name in wanted if name in fixed]
        base, more = before.apply_updates({k: v for k, v in wanted.items() if k not in fixed})
        notes += more
    base, more = _as_ordered(base, ordered_hyperparameters(work, number))
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
        hp_changes=changed,
        notes=(*notes, *more),
    )


def _base_of(iteration: IterationRecord, loop: LoopConfig) -> TrainConfig:
    plan = iteration.plan.read()
    return plan.train if plan else loop.train


def ordered_hyperparameters(work: Work, number: int) -> dict[str, Any]:
    """What the person has set on the way, up to this iteration; no revision moves it any more."""
    merged: dict[str, Any] = {}
    for before in range(number):
        merged |= work.taken(before).hp_changes
    return merged


def _as_ordered(base: TrainConfig, changes: Mapping[str, Any]) -> tuple[TrainConfig, list[str]]:
    """The configuration as the person wants it: outside of a revision's bounds, too."""
    notes: list[str] = []
    for name, value in changes.items():
        if name not in TrainConfig.model_fields or name in {"env_id", "seed", "iteration_id"}:
            notes.append(f"{name} cannot be ordered")
            continue
        try:
            base = base.with_updates(**{name: value})
        except ValidationError as error:
            notes.append(f"{name}={value!r} refused: {error.errors()[0]['msg']}")
    return base, notes
