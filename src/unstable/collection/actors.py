"""The actors that generate: started, used in turn, and restarted when they die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unstable.engines.protocol import Completion, EngineError
from unstable.utils.handles import request

_LOG = logging.getLogger(__name__)
PING_TIMEOUT = 30.0
"""Seconds for an actor to say that it lives, when an answer of it is overdue."""
CLOSE_TIMEOUT = 10.0
"""Seconds for an actor to put away what it has, before it is killed."""


@dataclass(frozen=True)
class Patience:
    """How long actors may take, in seconds."""

    request: float = 600.0
    """To answer, before they are asked whether they live."""
    start: float = 600.0
    """To start."""


class NoActorLeft(RuntimeError):
    """Nobody is there to generate, and nobody will be."""


class ActorRotation:
    """Gives each game a line to one of the actors, round robin.

    Args:
        actors: VLLMActor objects, or handles of Ray actors.
        make: makes the actor of a slot anew after it died; without it, dead ones stay away.
        restarts: how often an actor is made anew, all slots together.
        patience: how long actors may take.
    """

    def __init__(
        self,
        actors: Sequence[Any],
        *,
        make: Callable[[int], Any] | None = None,
        restarts: int = 10,
        patience: Patience | None = None,
    ) -> None:
        if not actors:
            raise ValueError("no actors: at least one has to generate")
        self.patience = patience or Patience()
        self.deaths = 0
        self._slots: list[Any] = list(actors)
        """By slot; None where nobody lives."""
        self._make = make
        self._restarts_left = restarts if make is not None else 0
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._turn = -1
        self._last_error: BaseException | None = None

    def line(self) -> Line:
        """The way to an actor for one game: the next in turn."""
        self._turn = (self._turn + 1) % len(self._slots)
        return Line(self, self._turn)

    @property
    def living(self) -> int:
        return sum(actor is not None for actor in self._slots)

    @property
    def first(self) -> Any:
        return self._slots[0]

    async def ready(self) -> None:
        """Return when every actor answers.

        Raises:
            NoActorLeft: one did not start in time, or failed to.
        """
        for slot, actor in enumerate(self._slots):
            try:
                await request(actor, "ping", timeout=self.patience.start)
            except dead_errors(TimeoutError) as error:
                late = f"no sign of life in {self.patience.start:g} s; is there a GPU free for it?"
                why = late if isinstance(error, TimeoutError) else error
                raise NoActorLeft(f"actor {slot} did not start: {why}") from error

    async def actor(self, slot: int) -> tuple[int, Any]:
        """A living actor: that of the slot, or the next one; waits for one that is starting.

        Raises:
            NoActorLeft: there is none.
        """
        while True:
            for step in range(len(self._slots)):
                index = (slot + step) % len(self._slots)
                if self._slots[index] is not None:
                    return index, self._slots[index]
            if not self._starting:
                raise NoActorLeft(
                    f"all {len(self._slots)} actors have died; the last one: {self._last_error}"
                )
            await asyncio.wait(
                self._starting.values(), return_when=asyncio.FIRST_COMPLETED
            )  # each ends within patience.start

    def bury(self, slot: int, actor: Any, error: BaseException) -> None:
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

    async def lives(self, actor: Any) -> bool:
        """Whether an actor still answers."""
        try:
            await request(actor, "ping", timeout=PING_TIMEOUT)
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
                await request(actor, "close", timeout=CLOSE_TIMEOUT)
            _kill(actor)

    async def _restart(self, slot: int) -> None:
        try:
            while self._restarts_left > 0 and self._slots[slot] is None:
                self._restarts_left -= 1
                self._slots[slot] = await self._started(slot)
        finally:
            del self._starting[slot]

    async def _started(self, slot: int) -> Any:
        """A new actor that answers; None if it does not."""
        assert self._make is not None
        actor = self._make(slot)
        try:
            await request(actor, "ping", timeout=self.patience.start)
        except dead_errors(TimeoutError, EngineError) as error:
            _LOG.error("actor %d could not be started again: %s", slot, error)
            self._last_error = error
            _kill(actor)
            return None
        _LOG.warning("actor %d was started again", slot)
        return actor


class Line:
    """One game's way to the actors: it keeps to one of them as long as that lives."""

    def __init__(self, rotation: ActorRotation, slot: int) -> None:
        self._rotation, self._slot = rotation, slot

    async def generate(self, prompt: str, adapter: str | None, seed: int) -> Completion:
        """An answer; a dead actor's request is put to the next one, with the same seed.

        Raises:
            EngineError: the request cannot be answered.
            NoActorLeft: nobody is there to answer it.
        """
        rotation = self._rotation
        while True:
            self._slot, actor = await rotation.actor(self._slot)
            try:
                completion: Completion = await request(
                    actor, "generate", prompt, adapter, seed=seed,
                    timeout=rotation.patience.request,
                )  # fmt: skip
            except TimeoutError as error:
                if await rotation.lives(actor):
                    late = f"actor {self._slot}: no answer in {rotation.patience.request:g} s"
                    raise EngineError(late) from error
                rotation.bury(self._slot, actor, error)
            except dead_errors() as error:
                rotation.bury(self._slot, actor, error)
            else:
                return completion


def dead_errors(*others: type[BaseException]) -> tuple[type[BaseException], ...]:
    """What calling a dead actor raises, and others; nothing does where Ray is not in use."""
    module = sys.modules.get("ray.exceptions")
    return others if module is None else (module.RayActorError, *others)


def _kill(actor: Any) -> None:
    """End what may still hold a GPU. Objects of this process hold nothing that can be taken."""
    if _is_handle(actor):
        import ray

        ray.kill(actor)


def _is_handle(actor: Any) -> bool:
    return hasattr(actor, "_actor_id")


def start_actors(
    num_actors: int,
    config: Mapping[str, Any],
    tracker: Any,
    model_pool: Any,
    patience: Patience,
) -> ActorRotation:
    """Ray actors from within a Ray actor, each with a GPU where there are any; else one, here.

    Raises:
        ValueError: there are fewer GPUs than actors.
    """
    if not _inside_ray():
        from unstable.actor import VLLMActor

        actor = VLLMActor(config, tracker=tracker, name="actor-0", adapters=model_pool)
        return ActorRotation([actor], patience=patience)
    import ray

    import unstable

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus = int(resources.get("GPU", 0))
    if 0 < gpus < num_actors:
        raise ValueError(f"num_actors is {num_actors}, but the cluster has {gpus} GPUs")

    def make(slot: int) -> Any:
        return unstable.VLLMActor.options(num_gpus=1 if gpus else 0).remote(
            dict(config), tracker=tracker, name=f"actor-{slot}", adapters=model_pool
        )

    return ActorRotation([make(slot) for slot in range(num_actors)], make=make, patience=patience)


def _inside_ray() -> bool:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None
