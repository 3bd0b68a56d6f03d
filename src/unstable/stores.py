"""What a buffer keeps together: single steps, whole games, or groups of games."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

from unstable.core import Step

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping


_FIELDS = tuple(field.name for field in fields(Step))
MAX_WAITING = 4096
"""Groups that may wait for games: some never come, and their group must not stay for ever."""


class BufferStore(Protocol):
    """Steps that come as trajectories and leave at random."""

    @property
    def size(self) -> int:
        """Steps that can be drawn."""
        ...

    def add(self, trajectory: list[Step]) -> None:
        """Take the steps of one trajectory."""
        ...

    def evict(self, steps: int, rng: random.Random) -> int:
        """Drop at least so many steps, uniformly; how many were dropped."""
        ...

    def draw(self, steps: int, rng: random.Random) -> list[Step]:
        """Take at least so many steps out, uniformly, without replacement."""
        ...

    def clear(self) -> None:
        """Drop all."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        ...


def take(items: list[Any], rng: random.Random) -> Any:
    """Remove a random item: the last one moves into its place, so nothing is searched or shifted.

    The order in the list has no meaning for what is drawn from it.
    """
    index = int(rng.random() * len(items))
    last = items.pop()
    if index == len(items):
        return last
    chosen, items[index] = items[index], last
    return chosen


class StepStore:
    """Single steps: games are mixed, and eviction may take a part of one."""

    def __init__(self, group_size: int = 1) -> None:
        del group_size
        self.steps: list[Step] = []

    @property
    def size(self) -> int:
        """Steps that can be drawn."""
        return len(self.steps)

    def add(self, trajectory: list[Step]) -> None:
        """Take the steps of one trajectory."""
        self.steps += trajectory

    def evict(self, steps: int, rng: random.Random) -> int:
        """Drop so many steps."""
        for _ in range(steps):
            take(self.steps, rng)
        return steps

    def draw(self, steps: int, rng: random.Random) -> list[Step]:
        """Take so many steps out."""
        return [take(self.steps, rng) for _ in range(steps)]

    def clear(self) -> None:
        """Drop all."""
        self.steps.clear()

    def state_dict(self) -> dict[str, Any]:
        """All steps."""
        return {"steps": _plain(self.steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.steps = _steps(state["steps"])


class EpisodeStore:
    """Whole games, or groups of `group_size` games that share `Step.group`.

    A group can be drawn when its last game is in. Eviction takes whole groups; of those that wait
    for games it takes none, since a group without its first game would never be complete.
    """

    def __init__(self, group_size: int = 1) -> None:
        if group_size < 1:
            raise ValueError(f"group_size is {group_size}")
        self.group_size = group_size
        self._size = 0
        self._whole: list[list[Step]] = []
        self._waiting: dict[str, list[list[Step]]] = {}

    @property
    def size(self) -> int:
        """Steps that can be drawn."""
        return self._size

    def add(self, trajectory: list[Step]) -> None:
        """Take the steps of one trajectory."""
        if not trajectory:
            return
        if self.group_size > 1:
            name = trajectory[0].group
            group = self._waiting.setdefault(name, [])
            group.append(trajectory)
            if len(group) < self.group_size:
                if len(self._waiting) > MAX_WAITING:
                    del self._waiting[next(iter(self._waiting))]  # the oldest
                return
            del self._waiting[name]
            trajectory = [step for game in group for step in game]
        self._whole.append(trajectory)
        self._size += len(trajectory)

    def evict(self, steps: int, rng: random.Random) -> int:
        """Drop whole units until at least so many steps are gone."""
        return len(self.draw(steps, rng))

    def draw(self, steps: int, rng: random.Random) -> list[Step]:
        """Take whole units out until at least so many steps are there."""
        drawn: list[Step] = []
        while len(drawn) < steps and self._whole:
            drawn += take(self._whole, rng)
        self._size -= len(drawn)
        return drawn

    def clear(self) -> None:
        """Drop all, incomplete groups too."""
        self._whole.clear()
        self._waiting.clear()
        self._size = 0

    def state_dict(self) -> dict[str, Any]:
        """All games."""
        return {
            "whole": [_plain(unit) for unit in self._whole],
            "waiting": {
                name: [_plain(game) for game in group] for name, group in self._waiting.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._whole = [_steps(unit) for unit in state["whole"]]
        self._waiting = {
            name: [_steps(game) for game in group] for name, group in state["waiting"].items()
        }
        self._size = sum(len(unit) for unit in self._whole)


def _plain(steps: Iterable[Step]) -> list[dict[str, Any]]:
    # Not `asdict`: it would copy every token id by itself.
    return [{name: getattr(step, name) for name in _FIELDS} for step in steps]


def _steps(plain: Iterable[Mapping[str, Any]]) -> list[Step]:
    steps = [Step(**step) for step in plain]
    for step in steps:  # JSON has no tuples: what was empty is again as it was
        step.prompt_ids = step.prompt_ids or ()
        step.completion_ids = step.completion_ids or ()
        step.logprobs = step.logprobs or ()
    return steps


STORES: dict[str, Callable[[int], BufferStore]] = {
    "random": StepStore,
    "episodes": lambda _: EpisodeStore(1),
    "groups": EpisodeStore,
}
"""By the buffer's strategy: a function of the size of a group."""
