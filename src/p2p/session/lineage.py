"""The tree of iterations: which came from which, which is best, and what was learnt.

Any iteration can be the base of the next one. One that nobody could judge has its place in the
tree, but is never the best and teaches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from p2p.contracts import Lesson, LineageData, LineageNode
from p2p.files import UnreadableError, load_model, save_model
from p2p.session.lessons import active, replaced, violations, with_lesson
from p2p.session.lineage_text import lineage_text

if TYPE_CHECKING:
    from p2p.agents.session_view import LineageView


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
        """This iteration's node."""
        return next((node for node in self.data.nodes if node.iteration == iteration), None)

    def children(self, iteration: int) -> tuple[LineageNode, ...]:
        """The iterations that were based on this one."""
        return tuple(node for node in self.data.nodes if node.parent == iteration)

    def add(self, node: LineageNode) -> Self:
        """With this node, in the place of one of the same iteration; ValueError if it cannot be.

        What an iteration that was not judged would teach is left out.
        """
        if node.score is None and (node.lesson or node.passed):
            node = node.model_copy(update={"lesson": "", "passed": False})
        others = [other for other in self.data.nodes if other.iteration != node.iteration]
        nodes = tuple(sorted([*others, node], key=lambda node: node.iteration))
        data = self.data.model_copy(update={"nodes": nodes})
        if problems := _problems(data):
            raise ValueError("; ".join(problems))
        return type(self)(data)

    def text(self) -> str:
        """The tree and the lessons in words, of bounded length."""
        return lineage_text(self.data.nodes, self.best, self.active_lessons)

    # --- lessons ----------------------------------------------------------------------------------

    @property
    def active_lessons(self) -> tuple[Lesson, ...]:
        """All but the retired."""
        return active(self.data.lessons)

    def learn(self, lesson: Lesson) -> Self:
        """With one lesson more; see `lessons.with_lesson`."""
        return self._with_lessons(with_lesson(self.data.lessons, lesson))

    def replace_lesson(self, index: int, lesson: Lesson) -> Self:
        """With another lesson at this place of `active_lessons`; IndexError if there is none."""
        return self._with_lessons(replaced(self.data.lessons, index, lesson))

    def violations(self, code: str, hyperparameters: Mapping[str, Any]) -> list[str]:
        """Which HARD lessons a proposal breaks, as far as code can tell."""
        return violations(self.data.lessons, code, hyperparameters)

    def _with_lessons(self, lessons: tuple[Lesson, ...]) -> Self:
        return type(self)(self.data.model_copy(update={"lessons": lessons}))

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
        if problems := _problems(data):
            raise UnreadableError(f"{path}: {'; '.join(problems)}")
        return cls(data)

    def save(self, path: Path) -> None:
        """Replace the file."""
        save_model(path, self.data)


def _problems(data: LineageData) -> list[str]:
    """Why these nodes are no tree in which parents come before their children."""
    numbers = [node.iteration for node in data.nodes]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    problems = [f"iteration {number} twice" for number in twice]
    for node in data.nodes:
        if node.parent is not None and node.parent not in numbers:
            problems.append(f"iteration {node.iteration} comes from {node.parent}, which is none")
        elif node.parent is not None and node.parent >= node.iteration:
            problems.append(f"iteration {node.iteration} cannot come from {node.parent}")
    return problems


if TYPE_CHECKING:

    def _is_a_lineage_view(lineage: Lineage) -> LineageView:
        """The type checker holds the tree and what agents ask of it together."""
        return lineage
