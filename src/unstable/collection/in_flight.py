"""The games that are under way."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass

from unstable.core import EpisodeResult, PlaySpec, TaskMeta

Episode = asyncio.Task[EpisodeResult]

POLL = 1.0
DROP_TIMEOUT = 10.0
"""Seconds for dropped games to end; one that takes longer is left to itself."""


@dataclass(frozen=True)
class Job:
    """A game to be played, and what it is for."""

    spec: PlaySpec
    meta: TaskMeta


class GamesInFlight:
    """Which games are under way, and which have landed."""

    def __init__(self) -> None:
        self._jobs: dict[Episode, Job] = {}
        self._running: defaultdict[str, set[Episode]] = defaultdict(set)
        """By kind."""
        self._finished: deque[Episode] = deque()
        self._news = asyncio.Event()

    def start(self, job: Job, episode: Coroutine[None, None, EpisodeResult]) -> Episode:
        """Have a game played; it lands when it is over, however it ended."""
        task = asyncio.get_running_loop().create_task(episode)
        self._jobs[task] = job
        self._running[job.meta.type].add(task)
        task.add_done_callback(self._on_finished)
        return task

    def __len__(self) -> int:
        return len(self._jobs)

    def under_way(self, kind: str) -> int:
        return len(self._running[kind])

    def metas(self) -> list[TaskMeta]:
        return [job.meta for job in self._jobs.values()]

    async def wait(self, timeout: float) -> None:
        """Return when some game has landed, or after `timeout` seconds."""
        if not self._finished:
            self._news = asyncio.Event()  # a new one: each call may be in a loop of its own
            try:
                async with asyncio.timeout(timeout):
                    await self._news.wait()
            except TimeoutError:
                return

    def finished(self) -> Iterator[Episode]:
        """Games that are over, in the order they ended; each is to be taken out."""
        while self._finished:
            yield self._finished.popleft()

    async def in_order(
        self,
        jobs: Sequence[Job],
        play: Callable[[Job], Coroutine[None, None, EpisodeResult]],
        at_once: int,
    ) -> AsyncIterator[Episode]:
        """Have games played, `at_once` of them, and give them in their order, not as they end.

        What is done with them then depends on the games alone and not on who was faster.
        """
        numbers: dict[Episode, int] = {}
        over: dict[int, Episode] = {}
        delivered = 0
        while delivered < len(jobs):
            while len(numbers) < at_once and len(numbers) + len(over) + delivered < len(jobs):
                number = len(numbers) + len(over) + delivered
                numbers[self.start(jobs[number], play(jobs[number]))] = number
            await self.wait(POLL)
            for episode in self.finished():
                over[numbers.pop(episode)] = episode
            while delivered in over:
                yield over.pop(delivered)
                delivered += 1

    def take(self, episode: Episode) -> Job:
        return self._jobs.pop(episode)

    async def drop(self, kind: str | None = None) -> int:
        """End the games of a kind, or all, without results; how many were under way."""
        dropped = [e for e, job in self._jobs.items() if kind in (None, job.meta.type)]
        episodes = [episode for episode in dropped if not episode.done()]
        for episode in episodes:
            episode.cancel()
        if episodes:
            await asyncio.wait(episodes, timeout=DROP_TIMEOUT)
        for episode in dropped:
            self._running[self._jobs.pop(episode).meta.type].discard(episode)
        self._finished = deque(episode for episode in self._finished if episode in self._jobs)
        return len(episodes)

    def _on_finished(self, episode: Episode) -> None:
        job = self._jobs.get(episode)
        if job is not None:
            self._running[job.meta.type].discard(episode)
            self._finished.append(episode)
            self._news.set()
