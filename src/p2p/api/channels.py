"""One look for all who watch the same: what changes is found once and told to each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Protocol

Message = dict[str, str]
MOST_UNREAD = 5000
"""A client that is so far behind is cut off: it comes back and hears how things stand."""


class Gone(Exception):
    """What was watched is not there any more."""


class View(Protocol):
    """Something that changes; used in threads, by one caller at a time."""

    def look(self) -> list[Message]:
        """What is new since the last look; raises Gone when there will be nothing more."""
        ...

    def standing(self, after: int) -> list[Message]:
        """How it stood at the last look, for whom heard all up to a number before."""
        ...


class _Channel:
    """A view and those who watch it; lives in the event loop, as long as somebody does."""

    def __init__(self, view: View, pause_s: float) -> None:
        self.members = 0
        self._view = view
        self._pause_s = pause_s
        self._queues: set[asyncio.Queue[Message | None]] = set()
        self._looked = asyncio.Event()
        self._turn = asyncio.Lock()
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        try:
            while True:
                async with self._turn:
                    messages = await asyncio.to_thread(self._view.look)
                    for queue in list(self._queues):
                        self._tell(queue, messages)
                self._looked.set()
                await asyncio.sleep(self._pause_s)
        except Gone:
            pass
        finally:
            self._looked.set()
            for queue in self._queues:
                queue.put_nowait(None)

    def _tell(self, queue: asyncio.Queue[Message | None], messages: list[Message]) -> None:
        if queue.qsize() > MOST_UNREAD:
            self._queues.discard(queue)
            queue.put_nowait(None)
            return
        for message in messages:
            queue.put_nowait(message)

    async def hear(self, after: int) -> AsyncIterator[Message]:
        """How it stands, and then what changes."""
        queue: asyncio.Queue[Message | None] = asyncio.Queue()
        await self._looked.wait()
        async with self._turn:  # between two looks nothing is missed, and nothing told twice
            first = await asyncio.to_thread(self._view.standing, after)
            self._queues.add(queue)
        try:
            for message in first:
                yield message
            if self._task.done():
                return
            while (message_or_end := await queue.get()) is not None:
                yield message_or_end
        finally:
            self._queues.discard(queue)

    def end(self) -> None:
        """Nobody listens any more."""
        self._task.cancel()


class Channels:
    """The channels that somebody listens to, by what they are about."""

    def __init__(self) -> None:
        self._open: dict[Hashable, _Channel] = {}

    async def listen(
        self, key: Hashable, make: Callable[[], View], pause_s: float, after: int = 0
    ) -> AsyncIterator[Message]:
        """How it stands, and then what changes, until it is gone."""
        channel = self._open.get(key)
        if channel is None:
            channel = self._open[key] = _Channel(make(), pause_s)
        channel.members += 1
        try:
            async for message in channel.hear(after):
                yield message
        finally:
            channel.members -= 1
            if not channel.members:
                channel.end()
                if self._open.get(key) is channel:
                    del self._open[key]
