"""The tree of iterations: which came from which, which is best, and what was learnt.

Any iteration can be the base of the next one. One that nobody could judge has its place in the
tree, but is never the best and teaches nothing. Lessons are few, and each stands once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from p2p.contracts import Lesson, LineageData, LineageNode
from p2p.files import UnreadableError, load_model, save_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_ACTIVE_LESSONS = 25
_STRENGTH = {"RETIRED": 0, "SOFT": 1, "STRONG": 2, "HARD": 3}


@dataclass(frozen=True)
class Lineage:
    """A lineage.json. It does not change: what changes something gives a new one."""

    data: LineageData = field(default_factory=LineageData)

    # --- the tree ---------------------------------------------------------------------------------

    @property
    def best(self) -> LineageNode | None:
        """The highest score, the earlier of equals; None while nothing is judged."""
        judged = [node for node in self.data.nodes if node.score is not None]
        return max(judged, key=lambda node: (node.score or 0.0, -node.iteration), default=None)

    @property
    def since_best(self) -> int:
        """How many judged iterations came after the best one."""
        best = self.best
        later = (n for n in self.data.nodes if best is not None and n.iteration > best.iteration)
        return sum(node.score is not None for node in later)

    def node(self, iteration: int) -> LineageNode | None:
        return next((node for node in self.data.nodes if node.iteration == iteration), None)

    def add(self, node: LineageNode) -> Self:
        """Return a copy with this node; raises ValueError if it does not fit.

        What an iteration that was not judged would teach is left out.
        """
        if node.score is None and (node.lesson or node.passed):
            node = node.model_copy(update={"lesson": "", "passed": False})
        others = [other for other in self.data.nodes if other.iteration != node.iteration]
        nodes = tuple(sorted([*others, node], key=lambda node: node.iteration))
        data = self.data.model_copy(update={"nodes": nodes})
        if problems := _tree_problems(data):
            raise ValueError("; ".join(problems))
        return type(self)(data)

    # --- lessons ----------------------------------------------------------------------------------

    @property
    def active_lessons(self) -> tuple[Lesson, ...]:
        """All but the retired; a lesson is called by its place in here."""
        return tuple(lesson for lesson in self.data.lessons if lesson.tier != "RETIRED")

    def learn(self, lesson: Lesson) -> Self:
        """Return the lineage with one lesson more, merged with one of the same words.

        Over MAX_ACTIVE_LESSONS, the oldest of the weakest tier is retired, be it the new one.
        """
        lessons = list(self.data.lessons)
        same = [index for index, old in enumerate(lessons) if _normalize(old) == _normalize(lesson)]
        if same:
            lessons[same[0]] = _merge_lessons(lessons[same[0]], lesson)
        else:
            lessons.append(lesson)
        while len(active := _active_places(lessons)) > MAX_ACTIVE_LESSONS:
            weakest = min(
                active, key=lambda i: (_STRENGTH[lessons[i].tier], lessons[i].learned_at, i)
            )
            reason = f"over the bound of {MAX_ACTIVE_LESSONS} lessons"
            lessons[weakest] = lessons[weakest].model_copy(
                update={"tier": "RETIRED", "reason": reason}
            )
        return self._replace_lessons(lessons)

    def replace_lesson(self, index: int, lesson: Lesson) -> Self:
        """Replace a lesson by its index in `active_lessons`; raises IndexError if there is none."""
        lessons, places = list(self.data.lessons), _active_places(self.data.lessons)
        if not 0 <= index < len(places):
            raise IndexError(f"there is no lesson {index}; there are {len(places)}, from 0")
        lessons[places[index]] = lesson
        return self._replace_lessons(lessons)

    def _replace_lessons(self, lessons: Sequence[Lesson]) -> Self:
        return type(self)(self.data.model_copy(update={"lessons": tuple(lessons)}))

    # --- the file ---------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: Path) -> Self:
        """The lineage in the file, empty if there is none.

        Raises UnreadableError, with the file's name and what is wrong, if it is torn, is from
        another program or is no tree: to go on without it would mean to repeat what was tried.
        """
        try:
            data = load_model(path, LineageData) or LineageData()
        except UnreadableError as error:
            raise UnreadableError(f"{path}: {error}") from None
        if problems := _tree_problems(data):
            raise UnreadableError(f"{path}: {'; '.join(problems)}")
        return cls(data)

    def save(self, path: Path) -> None:
        save_model(path, self.data)


def _tree_problems(data: LineageData) -> list[str]:
    """Return why these nodes are no tree in which parents come before their children."""
    numbers = [node.iteration for node in data.nodes]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    problems = [f"iteration {number} twice" for number in twice]
    for node in data.nodes:
        if node.parent is not None and node.parent not in numbers:
            problems.append(f"iteration {node.iteration} comes from {node.parent}, which is none")
        elif node.parent is not None and node.parent >= node.iteration:
            problems.append(f"iteration {node.iteration} cannot come from {node.parent}")
    return problems


def _active_places(lessons: Sequence[Lesson]) -> list[int]:
    return [index for index, lesson in enumerate(lessons) if lesson.tier != "RETIRED"]


def _normalize(lesson: Lesson) -> str:
    """Normalise a lesson's text, so that the same words and numbers compare equal."""
    return " ".join(re.findall(r"[\w.+-]*\w", lesson.text.casefold()))


def _merge_lessons(old: Lesson, new: Lesson) -> Lesson:
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
