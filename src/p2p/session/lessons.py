"""What iterations taught: few, each once, and the HARD ones held against proposals by code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from p2p.agents.reward_source import term_names
from p2p.contracts import Lesson, LessonCheck

MAX_ACTIVE = 25
_STRENGTH = {"RETIRED": 0, "SOFT": 1, "STRONG": 2, "HARD": 3}


def active(lessons: Sequence[Lesson]) -> tuple[Lesson, ...]:
    """Those that still count."""
    return tuple(lesson for lesson in lessons if lesson.tier != "RETIRED")


def with_lesson(lessons: Sequence[Lesson], new: Lesson) -> tuple[Lesson, ...]:
    """The lessons and a new one: merged with one of the same words, and within MAX_ACTIVE.

    Over the bound, the oldest of the weakest tier is retired, be it the new one.
    """
    result = list(lessons)
    same = [index for index, old in enumerate(lessons) if _key(old) == _key(new)]
    if same:
        result[same[0]] = _merged(lessons[same[0]], new)
    else:
        result.append(new)
    while len(active(result)) > MAX_ACTIVE:
        index = min(
            (i for i, lesson in enumerate(result) if lesson.tier != "RETIRED"),
            key=lambda i: (_STRENGTH[result[i].tier], result[i].learned_at, i),
        )
        result[index] = result[index].model_copy(
            update={"tier": "RETIRED", "reason": f"over the bound of {MAX_ACTIVE} lessons"}
        )
    return tuple(result)


def replaced(lessons: Sequence[Lesson], index: int, new: Lesson) -> tuple[Lesson, ...]:
    """With another lesson in the place of an active one, counted among the active."""
    places = [i for i, lesson in enumerate(lessons) if lesson.tier != "RETIRED"]
    if not 0 <= index < len(places):
        raise IndexError(f"there is no lesson {index}; there are {len(places)}, from 0")
    return (*lessons[: places[index]], new, *lessons[places[index] + 1 :])


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


def _key(lesson: Lesson) -> str:
    """Two lessons with the same words and numbers are one."""
    return " ".join(re.findall(r"[\w.+-]*\w", lesson.text.casefold()))


def _merged(old: Lesson, new: Lesson) -> Lesson:
    stronger = max(old, new, key=lambda lesson: _STRENGTH[lesson.tier])
    again = f"learnt again in iteration {new.learned_at}" if old.tier == "RETIRED" else ""
    return old.model_copy(
        update={
            "tier": stronger.tier,
            "reason": again or stronger.reason,
            "check": new.check or old.check,
            "learned_at": min(old.learned_at, new.learned_at),
        }
    )
