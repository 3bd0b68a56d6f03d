"""Many watch the same: each hears how it stands and everything after that, and it is read once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from p2p.api.channels import MOST_UNREAD, Channels, Gone, Message


@dataclass
class Counting:
    """Counts its looks up to a number; each is news, and the last one is how it stands."""

    most: int = 1_000_000
    looks: int = 0

    def look(self) -> list[Message]:
        if self.looks == self.most:
            raise Gone
        self.looks += 1
        return [{"data": str(self.looks)}]

    def standing(self, after: int) -> list[Message]:
        return [{"data": str(n)} for n in range(after + 1, self.looks + 1)]


async def heard(messages: AsyncIterator[Message], count: int) -> list[int]:
    found: list[int] = []
    async for message in messages:
        found.append(int(message["data"]))
        if len(found) == count:
            break
    return found


def test_nobody_misses_anything_or_hears_it_twice_whenever_they_come() -> None:
    view, made = Counting(looks=30), []

    def make() -> Counting:
        made.append(1)
        return view

    async def client(channels: Channels, delay: float, after: int) -> list[int]:
        await asyncio.sleep(delay)
        async with aclosing(channels.listen("x", make, 0.001, after)) as messages:
            return await heard(messages, 50)

    async def many() -> list[list[int]]:
        channels = Channels()
        return await asyncio.gather(*(client(channels, n / 1000, n) for n in range(20)))

    for after, numbers in enumerate(asyncio.run(many())):
        assert numbers == list(range(after + 1, after + 51))
    assert len(made) == 1


def test_it_is_looked_at_only_while_somebody_listens() -> None:
    view = Counting()

    async def twice() -> tuple[int, int]:
        channels = Channels()
        async with aclosing(channels.listen("x", lambda: view, 0.001)) as messages:
            await heard(messages, 3)
        before = view.looks
        await asyncio.sleep(0.1)
        return before, view.looks

    before, after = asyncio.run(twice())
    assert after - before <= 1


def test_streams_end_when_there_is_nothing_more() -> None:
    async def both() -> list[list[int]]:
        channels = Channels()

        async def client() -> list[int]:
            return await heard(channels.listen("x", lambda: Counting(most=5), 0.001), 100)

        return await asyncio.wait_for(asyncio.gather(client(), client()), 10)

    assert asyncio.run(both()) == [[1, 2, 3, 4, 5]] * 2


def test_who_does_not_read_is_cut_off_and_does_not_fill_the_memory() -> None:
    class Talkative(Counting):
        def look(self) -> list[Message]:
            return super().look() * 2000

    async def slow() -> int:
        channels = Channels()
        messages = channels.listen("x", Talkative, 0.001)
        async with aclosing(messages):
            await anext(messages)
            await asyncio.sleep(0.5)
            return len(await heard(messages, 10_000_000))

    assert asyncio.run(asyncio.wait_for(slow(), 30)) < MOST_UNREAD + 3 * 2000
