"""Requests that come close together and are best made as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass
class _Group(Generic[V]):
    values: list[V] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class Together(Generic[K, V]):
    """Waits a moment for more of the same kind.

    Args:
        act: makes the request for a kind and all that came.
        wait_s: how long the first one waits for others.
        most: how many go into one request.
    """

    def __init__(
        self, act: Callable[[K, list[V]], Awaitable[None]], *, wait_s: float, most: int
    ) -> None:
        self._act = act
        self._wait_s = wait_s
        self._most = most
        self._open: dict[K, _Group[V]] = {}

    async def add(self, kind: K, value: V) -> None:
        """Returns when the request that this one is part of was made; raises what that raised."""
        group = self._open.get(kind)
        if group is None:
            group = self._open[kind] = _Group()
            group.task = asyncio.create_task(self._later(kind, group))
        group.values.append(value)
        if len(group.values) == self._most:
            del self._open[kind]
        assert group.task is not None
        await asyncio.shield(group.task)  # one that gives up does not stop the others

    async def _later(self, kind: K, group: _Group[V]) -> None:
        await asyncio.sleep(self._wait_s)
        if self._open.get(kind) is group:
            del self._open[kind]
        await self._act(kind, group.values)
