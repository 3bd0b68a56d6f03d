"""Few ids for many adapters: who has one, and who gets the next."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unstable.engines.adapter_files import fingerprint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@dataclass(frozen=True)
class LoadedAdapter:
    """What a folder had in it when it was loaded."""

    slot: int
    """From 1 to the number of slots; another adapter gets it when this one is no longer used."""
    name: str
    """Another one for other content: what was computed with the old may be kept under its name."""
    folder: str


@dataclass
class _Entry:
    adapter: LoadedAdapter
    users: int = 0


class AdapterSlots:
    """Gives each adapter in use an id from 1 to `slots`, and loads it there.

    The least recently used adapter that nobody uses makes room for a new one; where all are in
    use, a request waits. Requests for adapters get their turn in the order in which they came, so
    that none waits for ever while others keep the slots busy. For one event loop.
    """

    def __init__(self, slots: int, load: Callable[[LoadedAdapter], Awaitable[None]]) -> None:
        self._load = load
        self._free = list(range(slots, 0, -1))
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # the least recently used first
        self._turn = asyncio.Lock()
        self._released = asyncio.Event()

    @asynccontextmanager
    async def hold(self, folder: str) -> AsyncIterator[LoadedAdapter]:
        """The adapter in a folder as it is now; it keeps its slot until the block is left.

        Raises:
            EngineError: there is none, or it cannot be loaded.
        """
        async with self._turn:
            entry = await self._enter(folder)
            entry.users += 1
        try:
            yield entry.adapter
        finally:
            entry.users -= 1
            self._released.set()

    async def _enter(self, folder: str) -> _Entry:
        path = str(Path(folder).absolute())
        name = f"{path}-{fingerprint(path)}"
        if name in self._entries:
            self._entries.move_to_end(name)
            return self._entries[name]
        slot = await self._vacate()
        adapter = LoadedAdapter(slot, name, path)
        try:
            await self._load(adapter)
        except BaseException:
            self._free.append(slot)
            raise
        self._entries[name] = _Entry(adapter)
        return self._entries[name]

    async def _vacate(self) -> int:
        while not self._free:
            idle = next((name for name, entry in self._entries.items() if not entry.users), None)
            if idle is not None:
                return self._entries.pop(idle).adapter.slot
            self._released.clear()
            await self._released.wait()
        return self._free.pop()
