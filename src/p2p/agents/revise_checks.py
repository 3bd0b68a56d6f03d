"""What becomes of a proposal: what it may change, what it teaches, and why it will not do."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from p2p.agents.requests import LessonUpdate, RevisionProposal
from p2p.agents.revise_tool_dispatch import lesson_update_problem
from p2p.agents.reward_source import reward_digest, term_names
from p2p.agents.session_text import tunables
from p2p.config import TrainConfig
from p2p.contracts import Lesson, LessonCheck
from p2p.records.lineage import Lineage
from p2p.records.session_view import SessionView


@dataclass(frozen=True)
class Weighed:
    """A proposal as it would be carried out."""

    problems: tuple[str, ...]
    """Why it will not do; empty if it will."""
    hp_changes: dict[str, Any]
    """Those that are allowed, within their bounds."""
    lesson: str
    lessons: tuple[Lesson, ...]
    """All lessons afterwards, the retired among them."""
    notes: tuple[str, ...]
    """What of it was not taken over, and why."""


def weigh(
    view: SessionView,
    iteration: int,
    proposal: RevisionProposal,
    updates: Iterable[LessonUpdate] = (),
) -> Weighed:
    """Hold a proposal after this iteration against the session.

    Args:
        view: the session.
        iteration: the one that was just judged.
        proposal: what the model wants.
        updates: to lessons, noted on the way; those of the proposal come after them.
    """
    iterations = view.iterations
    base = iterations.get(proposal.based_on)
    lineage, notes = _updated(view.lineage, [*updates, *proposal.lesson_updates])
    taught, lesson = _taught(lineage, iteration, proposal, notes)
    problems = [*_code_problems(proposal.reward_code), *_unanswered(view, proposal)]
    changes: dict[str, Any] = {}
    if base is None or not base.reward_code:
        usable = [number for number, each in iterations.items() if each.reward_code]
        problems.append(
            f"based_on={proposal.based_on}: there is no such iteration with reward code; "
            f"there are {', '.join(map(str, usable[-50:]))}"
        )
    else:
        before = tunables(base.config)
        fixed = fixed_hyperparameters(view)
        free = {name: value for name, value in proposal.hp_changes.items() if name not in fixed}
        problems += base.config.tuning_problems(free)
        after = tunables(_changed(view, base.config, proposal.hp_changes, fixed, notes))
        changes = {name: value for name, value in after.items() if value != before[name]}
        digest = reward_digest(proposal.reward_code)
        alike = [
            number
            for number, each in iterations.items()
            if tunables(each.config) == after and reward_digest(each.reward_code) == digest
        ]
        if alike and not proposal.warm_start:  # a policy that is trained on is another one
            same = f"iteration {alike[0]} had the same reward and hyperparameters"
            problems.append("; ".join([same, *notes]))
        movable = {name: value for name, value in after.items() if name not in fixed}
        problems += violations(lineage.active_lessons, proposal.reward_code, movable)
    return Weighed(tuple(problems), changes, lesson, taught.data.lessons, tuple(notes))


def fixed_hyperparameters(view: SessionView) -> tuple[str, ...]:
    """Those that no revision may change."""
    tunable = view.loop.train.tunable
    return tuple(n for n in tunable if n in view.fixed) if view.loop.hp_tuning else tunable


def _changed(
    view: SessionView,
    base: TrainConfig,
    asked: dict[str, Any],
    fixed: tuple[str, ...],
    notes: list[str],
) -> TrainConfig:
    """The configuration with what is allowed of the changes."""
    why = "the person has set it" if view.loop.hp_tuning else "hyperparameters are not to be tuned"
    notes += [f"{n} stays at {getattr(base, n)}: {why}" for n in asked if n in fixed]
    free = {name: value for name, value in asked.items() if name not in fixed}
    config, refused = base.apply_updates(free)
    if moved := [name for name in fixed if getattr(config, name) != getattr(base, name)]:
        # Only the size of a batch has another value follow: the number of minibatches.
        notes.append(f"num_steps stays at {base.num_steps}: it would move {', '.join(moved)}")
        config, refused = base.apply_updates({n: v for n, v in free.items() if n != "num_steps"})
    notes += refused
    return config


def _updated(lineage: Lineage, updates: Iterable[LessonUpdate]) -> tuple[Lineage, list[str]]:
    """The lessons with other tiers; the last word on each counts."""
    lessons, notes = lineage.active_lessons, []
    last = {update.index: update for update in updates}
    # From the end, because a retired lesson moves the numbers of those behind it.
    for index in sorted(last, reverse=True):
        update = last[index]
        if problem := lesson_update_problem(update, len(lessons)):
            notes.append(problem)
            continue
        change = {"tier": update.tier, "reason": update.reason}
        check = update.check or lessons[index].check
        changed = Lesson.model_validate({**lessons[index].model_dump(), **change, "check": check})
        lineage = lineage.replace_lesson(index, changed)
    return lineage, notes


def _taught(
    lineage: Lineage, iteration: int, proposal: RevisionProposal, notes: list[str]
) -> tuple[Lineage, str]:
    """The lessons with the new one; an iteration that nobody judged teaches nothing."""
    text = " ".join(proposal.lesson.split())[:500]
    node = lineage.node(iteration)
    if not text:
        return lineage, ""
    if node is None or node.score is None:
        notes.append(f"no lesson from iteration {iteration}: it was not judged")
        return lineage, ""
    lesson = Lesson(text=text, learned_at=iteration, check=proposal.lesson_check)
    return lineage.learn(lesson), text


def _code_problems(code: str) -> list[str]:
    """Why nothing could be trained with it; the author's own checks go deeper."""
    if not code.strip():
        return ["reward_code is empty; give the whole file, also where it stays as it was"]
    try:
        ast.parse(code)
    except SyntaxError as error:
        return [f"reward_code, line {error.lineno}: {error.msg}"]
    except (ValueError, RecursionError, MemoryError) as error:
        return [f"reward_code cannot be parsed: {error}"]
    return []


def _unanswered(view: SessionView, proposal: RevisionProposal) -> list[str]:
    if not view.remarks or proposal.remarks_taken_up.strip():
        return []
    remarks = "; ".join(view.remarks)
    return [f"remarks_taken_up is empty: follow what the person said, and say how ({remarks})"]


def violations(
    lessons: Sequence[Lesson], code: str, hyperparameters: Mapping[str, Any]
) -> list[str]:
    """What a proposal does against the HARD lessons that code can check, a sentence each."""
    checks = [(lesson, lesson.check) for lesson in lessons if lesson.tier == "HARD"]
    return [
        f"it {broken}, against the HARD lesson: {lesson.text}"
        for lesson, check in checks
        if check is not None and (broken := _broken(check, code, hyperparameters))
    ]


def _broken(check: LessonCheck, code: str, hyperparameters: Mapping[str, Any]) -> str:
    """How the proposal breaks the check; empty if it does not, or if nobody can tell."""
    name, limit = check.name, check.value
    if check.kind == "term_required":
        return "" if name in term_names(code) else f"has no reward term `{name}`"
    if check.kind == "term_forbidden":
        return f"has the reward term `{name}`" if name in term_names(code) else ""
    if check.kind == "code_forbidden":
        return f"has `{name}` in its code" if name and name in code else ""
    value = hyperparameters.get(name)
    if limit is None or isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if check.kind == "hyperparameter_at_most":
        return f"sets {name}={value:g}, over {limit:g}" if value > limit else ""
    return f"sets {name}={value:g}, under {limit:g}" if value < limit else ""
