"""The next games to play, and the games in flight."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unstable.core import (
    UNKNOWN_VERSION,
    AgentSpec,
    EpisodeResult,
    PlaySpec,
    TaskMeta,
    Trajectory,
    derive_seed,
)
from unstable.evaluation import parse_iteration
from unstable.games.players import FIRST_CHECKPOINT
from unstable.model_pool import ModelPool
from unstable.utils.handles import call_within
from unstable.utils.templates import extraction_function, get_template

Episode = asyncio.Task[EpisodeResult]

POLL = 1.0
DROP_TIMEOUT = 10.0
"""Seconds for dropped games to end; one that takes longer is left to itself."""


@dataclass(frozen=True)
class Job:
    spec: PlaySpec
    meta: TaskMeta
    recorded: dict[int, Trajectory] = field(default_factory=dict)
    """What the learner's seats have done so far."""

    @property
    def steps(self) -> int:
        return sum(len(seat.actions) for seat in self.recorded.values())


class GamesInFlight:
    def __init__(self) -> None:
        self._jobs: dict[Episode, Job] = {}
        self._running: defaultdict[str, set[Episode]] = defaultdict(set)
        """By kind."""
        self._finished: deque[Episode] = deque()
        self._news = asyncio.Event()

    def start(self, job: Job, episode: Coroutine[None, None, EpisodeResult]) -> Episode:
        """Start a game; it is put among the finished ones however it ends."""
        task = asyncio.get_running_loop().create_task(episode)
        self._jobs[task] = job
        self._running[job.meta.type].add(task)
        task.add_done_callback(self._on_finished)
        return task

    def __len__(self) -> int:
        return len(self._jobs)

    def count_running(self, kind: str) -> int:
        return len(self._running[kind])

    def models(self) -> set[str]:
        """Return the models that are playing."""
        metas = [job.meta for job in self._jobs.values()]
        return {uid for meta in metas for uid in (meta.ckpt_uid, meta.opponent_uid) if uid}

    async def wait(self, timeout: float) -> None:
        """Wait until a game has finished, or for `timeout` seconds."""
        if not self._finished:
            self._news = asyncio.Event()  # a new one: each call may be in a loop of its own
            try:
                async with asyncio.timeout(timeout):
                    await self._news.wait()
            except TimeoutError:
                return

    def pop_finished(self) -> Iterator[Episode]:
        """Yield and remove finished games, in the order they ended."""
        while self._finished:
            yield self._finished.popleft()

    async def play_in_order(
        self,
        jobs: Sequence[Job],
        play: Callable[[Job], Coroutine[None, None, EpisodeResult]],
        at_once: int,
    ) -> AsyncIterator[Episode]:
        """Play games, `at_once` at a time, and yield them in their order, not as they end.

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
            for episode in self.pop_finished():
                over[numbers.pop(episode)] = episode
            while delivered in over:
                yield over.pop(delivered)
                delivered += 1

    def take(self, episode: Episode) -> Job:
        return self._jobs.pop(episode)

    async def drop(self, kind: str | None = None) -> list[Job]:
        """Cancel the games of a kind, or all, and return them."""
        dropped = [e for e, job in self._jobs.items() if kind in (None, job.meta.type)]
        episodes = [episode for episode in dropped if not episode.done()]
        for episode in episodes:
            episode.cancel()
        if episodes:
            await asyncio.wait(episodes, timeout=DROP_TIMEOUT)
        jobs = [self._jobs.pop(episode) for episode in dropped]
        for episode, job in zip(dropped, jobs, strict=True):
            self._running[job.meta.type].discard(episode)
        self._finished = deque(episode for episode in self._finished if episode in self._jobs)
        return jobs

    def _on_finished(self, episode: Episode) -> None:
        job = self._jobs.get(episode)
        if job is not None:
            self._running[job.meta.type].discard(episode)
            self._finished.append(episode)
            self._news.set()


Env = tuple[str, int, str]

POOL_TIMEOUT = 120.0


class Matchmaker:
    """Draws games. Each depends on its number, the seed, and the pool's choice of opponent.

    Games of a group share environment, seed, seat and opponent; see Collector for the arguments.
    """

    def __init__(
        self,
        pool: ModelPool,
        training_envs: Sequence[Sequence[Any]],
        evaluation_envs: Sequence[Sequence[Any]],
        evaluation_opponent: str | Sequence[str],
        action_extraction: str,
        seed: int,
        group_size: int,
    ) -> None:
        extraction_function(action_extraction)  # says what is wrong, if it is
        if group_size < 1:
            raise ValueError(f"group_size is {group_size}: 1 is a game by itself")
        self.training_envs = _check_envs(training_envs, "training_envs")
        self.evaluation_envs = _check_envs(evaluation_envs, "evaluation_envs")
        named = (
            (evaluation_opponent,) if isinstance(evaluation_opponent, str) else evaluation_opponent
        )
        self.evaluation_opponents = tuple(dict.fromkeys(named))
        self.group_size = group_size
        self.groups = 0
        """Groups drawn so far."""
        self._pool, self._extraction, self._seed = pool, action_extraction, seed
        self._models: dict[str, tuple[str | None, str]] = {}

    async def current(self) -> str:
        """Return the newest checkpoint; raise LookupError if there is none."""
        uid = await call_within(POOL_TIMEOUT, self._pool.current_uid)
        if uid is None:
            raise LookupError("the pool has no checkpoint: call add_checkpoint first")
        return uid

    async def training_group(self, me: str) -> list[Job]:
        """Draw the next training games: of checkpoint `me` against whom the pool chooses."""
        if not self.training_envs:
            raise ValueError("training_envs is empty: there is no game to learn from")
        number, self.groups = self.groups, self.groups + 1
        rng = random.Random(derive_seed(self._seed, "train", number))
        env_id, num_players, template = rng.choice(self.training_envs)
        seat, seed = rng.randrange(num_players), rng.getrandbits(31)
        other = None
        if num_players > 1:
            other = await call_within(POOL_TIMEOUT, self._pool.sample, me)
        mine = await self.agent(me, template)
        opponent = mine if other in (None, me) else await self.agent(other, template)
        agents = tuple(mine if i == seat else opponent for i in range(num_players))
        meta = TaskMeta("train", env_id, seat, seed, me, other)
        spec = PlaySpec(env_id, num_players, seat, agents, seed)
        if self.group_size == 1:
            return [Job(spec, meta)]
        draws = [derive_seed(seed, "member", member) for member in range(self.group_size)]
        return [
            Job(replace(spec, group=f"group-{number}", sampling_seed=draw), meta) for draw in draws
        ]

    async def evaluations(self, ckpt_uid: str) -> list[tuple[Env, str]]:
        """Return the environments and opponents a checkpoint is measured in; alone: no opponent.

        The first checkpoint is not measured against itself.
        """
        others = list(self.evaluation_opponents)
        if FIRST_CHECKPOINT in others and ckpt_uid == await self._first():
            others.remove(FIRST_CHECKPOINT)
        return [
            (env, name) for env in self.evaluation_envs for name in (others if env[1] > 1 else [""])
        ]

    async def evaluation(self, ckpt_uid: str, env: Env, against: str, number: int) -> Job:
        """Return evaluation game `number` of an environment: for every checkpoint the same."""
        env_id, num_players, template = env
        seat = number % num_players
        seed = derive_seed(self._seed, "eval", env_id, number)
        mine = await self.agent(ckpt_uid, template)
        opponent = AgentSpec("fixed", against, template, self._extraction)
        if against == FIRST_CHECKPOINT:
            opponent = await self.agent(await self._first() or ckpt_uid, template)
        agents = tuple(mine if i == seat else opponent for i in range(num_players))
        meta = TaskMeta("eval", env_id, seat, seed, ckpt_uid, against or None)
        return Job(PlaySpec(env_id, num_players, seat, agents, seed), meta)

    async def _first(self) -> str | None:
        return await call_within(POOL_TIMEOUT, self._pool.first_uid)

    async def agent(self, uid: str, template: str) -> AgentSpec:
        if uid not in self._models:
            model = await call_within(POOL_TIMEOUT, self._pool.ckpt_path, uid)
            if model is None:
                raise LookupError(f"the pool does not know {uid!r}")
            self._models[uid] = model
        path_or_name, kind = self._models[uid]
        version = int(max(parse_iteration(uid), UNKNOWN_VERSION))
        return AgentSpec(kind, path_or_name, template, self._extraction, version)


def _check_envs(envs: Sequence[Sequence[Any]], name: str) -> tuple[Env, ...]:
    checked: list[Env] = []
    for env in envs:
        if isinstance(env, str) or len(env) != 3:
            raise ValueError(f"{name} has {env!r}: it should be (env id, players, template)")
        env_id, num_players, template = env
        if not isinstance(num_players, int) or num_players < 1:
            raise ValueError(f"{name}: {env_id} cannot have {num_players!r} players")
        if template != "raw":
            get_template(template)
        checked.append((str(env_id), num_players, str(template)))
    return tuple(checked)
