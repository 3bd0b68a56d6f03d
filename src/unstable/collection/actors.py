"""The actors that generate: started, used in turn, and restarted when they die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from unstable.actor import VLLMActor
from unstable.engines.protocol import Completion, EngineError
from unstable.model_pool import ModelPool
from unstable.trackers import Tracker
from unstable.utils.handles import call_within, inside_ray_actor

P = ParamSpec("P")
R = TypeVar("R")
_LOG = logging.getLogger(__name__)
PING_TIMEOUT = 30.0
"""Seconds for an actor to say that it lives, when an answer of it is overdue."""
CLOSE_TIMEOUT = 10.0
"""Seconds for an actor to put away what it has, before it is killed."""


@dataclass(frozen=True)
class Timeouts:
    request: float = 600.0
    """To answer, before they are asked whether they live."""
    start: float = 600.0
    """To start."""


class NoActorLeftError(RuntimeError):
    """Nobody is there to generate, and nobody will be."""


class ActorPool:
    """Gives each game a line to one of the actors, round robin.

    `make` makes the actor of a slot anew after it died, `restarts` times all slots together;
    without it, dead ones stay away.
    """

    def __init__(
        self,
        actors: Sequence[VLLMActor],
        *,
        make: Callable[[int], VLLMActor] | None = None,
        restarts: int = 10,
        timeouts: Timeouts | None = None,
    ) -> None:
        if not actors:
            raise ValueError("no actors: at least one has to generate")
        self.timeouts = timeouts or Timeouts()
        self.deaths = 0
        self._slots: list[VLLMActor | None] = list(actors)
        """By slot; None where nobody lives."""
        self._make = make
        self._restarts_left = restarts if make is not None else 0
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._turn = -1
        self._last_error: BaseException | None = None

    def client(self) -> ActorClient:
        """The way to an actor for one game: the next in turn."""
        self._turn = (self._turn + 1) % len(self._slots)
        return ActorClient(self, self._turn)

    @property
    def alive(self) -> int:
        return sum(actor is not None for actor in self._slots)

    @property
    def first(self) -> VLLMActor | None:
        return self._slots[0]

    async def ready(self) -> None:
        """Return when every actor answers.

        Raises:
            NoActorLeftError: one did not start in time, or failed to.
        """
        for slot, actor in enumerate(self._slots):
            assert actor is not None  # nobody was marked dead before the first game
            try:
                await call_within(self.timeouts.start, actor.ping)
            except dead_errors(TimeoutError) as error:
                late = f"no sign of life in {self.timeouts.start:g} s; is there a GPU free for it?"
                why = late if isinstance(error, TimeoutError) else error
                raise NoActorLeftError(f"actor {slot} did not start: {why}") from error

    async def actor(self, slot: int) -> tuple[int, VLLMActor]:
        """A living actor: that of the slot, or the next one; waits for one that is starting.

        Raises:
            NoActorLeftError: there is none.
        """
        while True:
            for step in range(len(self._slots)):
                index = (slot + step) % len(self._slots)
                if (actor := self._slots[index]) is not None:
                    return index, actor
            if not self._starting:
                raise NoActorLeftError(
                    f"all {len(self._slots)} actors have died; the last one: {self._last_error}"
                )
            await asyncio.wait(
                self._starting.values(), return_when=asyncio.FIRST_COMPLETED
            )  # each ends within timeouts.start

    def mark_dead(self, slot: int, actor: VLLMActor, error: BaseException) -> None:
        """Take out an actor that does not answer any more, and have another started."""
        if self._slots[slot] is not actor:
            return  # another game has noticed before
        self._slots[slot] = None
        self._last_error = error
        self.deaths += 1
        _LOG.error("actor %d died: %s", slot, error)
        if self._make is not None:
            _kill(actor)
        if self._restarts_left > 0:
            self._starting[slot] = asyncio.create_task(self._restart(slot))

    async def is_alive(self, actor: VLLMActor) -> bool:
        try:
            await call_within(PING_TIMEOUT, actor.ping)
        except dead_errors(TimeoutError):
            return False
        return True

    async def close(self) -> None:
        tasks = list(self._starting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for actor in filter(None, self._slots):
            with contextlib.suppress(*dead_errors(TimeoutError)):
                await call_within(CLOSE_TIMEOUT, actor.close)
            _kill(actor)

    async def _restart(self, slot: int) -> None:
        try:
            while self._restarts_left > 0 and self._slots[slot] is None:
                self._restarts_left -= 1
                self._slots[slot] = await self._started(slot)
        finally:
            del self._starting[slot]

    async def _started(self, slot: int) -> VLLMActor | None:
        assert self._make is not None
        actor = self._make(slot)
        try:
            await call_within(self.timeouts.start, actor.ping)
        except dead_errors(TimeoutError, EngineError) as error:
            _LOG.error("actor %d could not be started again: %s", slot, error)
            self._last_error = error
            _kill(actor)
            return None
        _LOG.warning("actor %d was started again", slot)
        return actor


class ActorClient:
    """One game's way to the actors: it keeps to one of them as long as that lives."""

    def __init__(self, pool: ActorPool, slot: int) -> None:
        self._pool, self._slot = pool, slot

    async def generate(
        self, prompt: str | Sequence[int], adapter: str | None, seed: int
    ) -> Completion:
        """An answer; a dead actor's request is put to the next one, with the same seed.

        Raises:
            EngineError: the request cannot be answered.
            NoActorLeftError: nobody is there to answer it.
        """
        return await self._ask(lambda actor: actor.generate, prompt, adapter, seed=seed)

    async def score(self, prompt: str, answers: Sequence[str], adapter: str | None) -> list[float]:
        """How likely each answer is; raises as `generate` does."""
        return await self._ask(lambda actor: actor.score, prompt, answers, adapter)

    async def _ask(
        self,
        method: Callable[[VLLMActor], Callable[P, Awaitable[R]]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        pool = self._pool
        while True:
            self._slot, actor = await pool.actor(self._slot)
            try:
                answer = await call_within(pool.timeouts.request, method(actor), *args, **kwargs)
            except TimeoutError as error:
                if await pool.is_alive(actor):
                    late = f"actor {self._slot}: no answer in {pool.timeouts.request:g} s"
                    raise EngineError(late) from error
                pool.mark_dead(self._slot, actor, error)
            except dead_errors() as error:
                pool.mark_dead(self._slot, actor, error)
            else:
                return answer


def dead_errors(*others: type[BaseException]) -> tuple[type[BaseException], ...]:
    """What calling a dead actor raises, and others; nothing does where Ray is not in use."""
    module = sys.modules.get("ray.exceptions")
    return others if module is None else (module.RayActorError, *others)


def _kill(actor: Any) -> None:
    """End what may still hold a GPU. Objects of this process hold nothing that can be taken."""
    if hasattr(actor, "_actor_id"):
        import ray

        ray.kill(actor)


def start_actors(
    num_actors: int,
    config: Mapping[str, Any],
    tracker: Tracker | None,
    model_pool: ModelPool,
    timeouts: Timeouts,
) -> ActorPool:
    """Ray actors from within a Ray actor, each with a GPU where there are any; else one, here.

    Raises:
        ValueError: there are fewer GPUs than actors.
    """
    if not inside_ray_actor():
        actor = VLLMActor(config, tracker=tracker, name="actor-0", adapters=model_pool)
        return ActorPool([actor], timeouts=timeouts)
    import ray

    import unstable

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus = int(resources.get("GPU", 0))
    if 0 < gpus < num_actors:
        raise ValueError(f"num_actors is {num_actors}, but the cluster has {gpus} GPUs")

    def make(slot: int) -> VLLMActor:
        # No CPU beside the GPU: an engine waits for its GPU, and cores may be fewer than engines.
        actor: VLLMActor = unstable.VLLMActor.options(num_cpus=0, num_gpus=1 if gpus else 0).remote(
            dict(config), tracker=tracker, name=f"actor-{slot}", adapters=model_pool
        )
        return actor

    return ActorPool([make(slot) for slot in range(num_actors)], make=make, timeouts=timeouts)
