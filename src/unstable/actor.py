"""Actors, each with an inference engine, and the pool that restarts actors that die."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar

from unstable.engines import Completion, EngineError, Sampling, make_engine
from unstable.model_pool import ModelPool
from unstable.trackers import Tracker
from unstable.utils.handles import call_within, inside_ray_actor, make_actor_class, send
from unstable.utils.logging import setup_logger

REPORT_SECONDS = 5.0
FETCH_TIMEOUT = 120.0
KEPT_ADAPTERS = 32
"""Fetched adapters on disk; engines have those they use in memory."""


class VLLMActor:
    """Answers prompts, each with a LoRA adapter of its own; one actor has one engine.

    Requests go straight to the engine, which queues and batches them.

    Args:
        cfg: `model_name`, how to sample (`temperature`, `top_p`, `max_tokens`), and what
            `make_engine` takes; `log_dir`: where a Ray actor logs.
        tracker: gets `queued`, `running` and `tok_s` every five seconds.
        name: for logs and dashboards.
        adapters: the model pool; asked for adapters that are not on this machine.
        loaded: a model and its tokenizer that are in memory already; see `make_engine`.
    """

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {"max_concurrency": 4096, "num_cpus": 0}
    """Hundreds of games wait here at the same time. It waits for its GPU alone."""

    def __init__(
        self,
        cfg: Mapping[str, Any],
        tracker: Tracker | None = None,
        name: str = "actor",
        adapters: ModelPool | None = None,
        loaded: tuple[Any, Any] | None = None,
    ) -> None:
        self.name = name
        self.tracker = tracker
        self.sampling_params = Sampling.of(cfg)
        self.engine = make_engine(cfg, loaded)
        self.tokenizer = _tokenizer(self.engine, cfg)
        self._adapters = AdapterCache(adapters)
        self._counts: deque[tuple[float, float]] = deque(maxlen=256)
        self._gpu_ids = _list_gpus()
        self._report_task: asyncio.Task[None] | None = None
        if cfg.get("log_dir") and inside_ray_actor():
            setup_logger(name, cfg["log_dir"])

    async def submit_prompt(self, prompt: str, lora_path: str | None = None) -> str:
        return (await self.generate(prompt, lora_path)).text

    async def generate(
        self,
        prompt: str | Sequence[int],
        lora_path: str | None = None,
        *,
        seed: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
    ) -> Completion:
        """Answer a prompt, text or tokens, with all tokens and their log-probabilities.

        Markup stands in the prompt: no token is added to it. What is not given is as configured.

        Raises:
            EngineError: the prompt is too long, or the adapter cannot be had.
        """
        self._start_reports()
        overrides = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        wanted: dict[str, Any] = {
            key: value for key, value in overrides.items() if value is not None
        }
        sampling = replace(self.sampling_params, seed=seed, **wanted)
        ids = self._encode(prompt)
        adapter = None if lora_path is None else await self._adapters.local(lora_path)
        completion = await self.engine.generate(ids, sampling, adapter)
        return replace(completion, prompt_ids=ids, sampling=sampling)

    async def score(
        self, prompt: str, answers: Sequence[str], lora_path: str | None = None
    ) -> list[float]:
        """Return the probability of each answer at temperature 1, as a whole answer.

        Raises:
            EngineError: the engine cannot say, or the adapter cannot be had.
        """
        ids = self._encode(prompt)
        adapter = None if lora_path is None else await self._adapters.local(lora_path)

        async def likelihood(answer: str) -> float:
            forced = (*self._encode(answer), self.tokenizer.eos_token_id)
            completion = await self.engine.generate(ids, Sampling(forced=forced), adapter)
            return math.exp(math.fsum(completion.logprobs))

        return list(await asyncio.gather(*map(likelihood, answers)))

    async def ping(self) -> str:
        return self.name

    def stats(self) -> dict[str, float]:
        """Return `queued`, `running`, `tokens` generated so far, and `tok_s`."""
        return {**self.engine.stats(), "tok_s": self._tok_rate()}

    async def close(self) -> None:
        if self._report_task is not None:
            self._report()  # a run may be over before the first report was due
            self._report_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._report_task
        await self.engine.close()
        self._adapters.close()

    def _encode(self, text: str | Sequence[int]) -> tuple[int, ...]:
        if not isinstance(text, str):
            return tuple(text)
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _tok_rate(self, window: float = 2.0) -> float:
        """Return tokens per second over the last `window` seconds; 0 at the first call."""
        now, tokens = time.monotonic(), self.engine.stats()["tokens"]
        self._counts.append((now, tokens))
        # Of what is older than the window the newest: a report every five seconds is enough.
        then, before = self._counts[0]
        for moment, count in self._counts:
            if now - moment >= window:
                then, before = moment, count
        return (tokens - before) / (now - then) if now > then else 0.0

    def _start_reports(self) -> None:
        if self._report_task is None or self._report_task.done():
            self._report_task = asyncio.create_task(self._report_loop())

    async def _report_loop(self) -> None:
        """Report to the tracker every few seconds, for as long as the event loop runs."""
        self._tok_rate()  # counting begins; a rate needs a second look
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self._report()

    def _report(self) -> None:
        if self.tracker is None:
            return
        stats = self.stats()
        reported = {key: stats[key] for key in ("queued", "running", "tok_s")}
        send(self.tracker.log_inference, self.name, self._gpu_ids, reported)


class AdapterCache:
    """Finds adapters on this machine, or fetches them from the model pool."""

    def __init__(self, pool: ModelPool | None) -> None:
        self._pool = pool
        self._folder: Path | None = None
        self._fetched: dict[str, asyncio.Future[str]] = {}

    async def local(self, path: str) -> str:
        """Return the folder of an adapter on this machine, fetching it if needed.

        Raises:
            EngineError: it is neither here nor to be had.
        """
        if Path(path).exists() or self._pool is None:
            return path  # the engine says what is wrong with it
        waiting = self._fetched.get(path)
        if waiting is None or waiting.cancelled() or (waiting.done() and waiting.exception()):
            waiting = self._fetched[path] = asyncio.ensure_future(self._fetch(self._pool, path))
            self._forget_old()
        # One caller that gives up must not stop what others wait for.
        return await asyncio.shield(waiting)

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
        self._fetched.clear()

    async def _fetch(self, pool: ModelPool, path: str) -> str:
        try:
            files = await call_within(FETCH_TIMEOUT, pool.adapter_files, path)
        except TimeoutError as error:
            raise EngineError(
                f"the model pool did not send {path} in {FETCH_TIMEOUT:g} s"
            ) from error
        if not files:
            raise EngineError(f"{path} is not on this machine, and the model pool does not have it")
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="unstable-adapters-"))
        folder = self._place(path)
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / Path(name).name).write_bytes(content)
        return str(folder)

    def _place(self, path: str) -> Path:
        assert self._folder is not None
        return self._folder / hashlib.sha256(path.encode()).hexdigest()[:16]

    def _forget_old(self) -> None:
        while len(self._fetched) > KEPT_ADAPTERS:
            oldest = next(iter(self._fetched))
            del self._fetched[oldest]
            if self._folder is not None:
                shutil.rmtree(self._place(oldest), ignore_errors=True)


def _tokenizer(engine: Any, cfg: Mapping[str, Any]) -> Any:
    own = getattr(engine, "tokenizer", None)
    if own is not None:
        return own
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(cfg["model_name"])


def _list_gpus() -> list[int | str]:
    """Return the GPUs that Ray gave this actor, or all visible ones."""
    import torch

    if not torch.cuda.is_available():
        return []
    import sys

    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized() and (given := ray.get_gpu_ids()):
        return list(given)
    return list(range(torch.cuda.device_count()))


P = ParamSpec("P")
R = TypeVar("R")
_LOG = logging.getLogger(__name__)
PING_TIMEOUT = 30.0
"""Seconds for an actor to answer a ping, when an answer of it is overdue."""
CLOSE_TIMEOUT = 10.0
"""Seconds for an actor to close, before it is killed."""


@dataclass(frozen=True)
class Timeouts:
    request: float = 600.0
    """To answer, before they are asked whether they live."""
    start: float = 600.0
    """To start."""


class NoActorLeftError(RuntimeError):
    """All actors have died and no restarts are left."""


class ActorPool:
    """Assigns games to actors, round robin.

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
            raise ValueError("num_actors: at least 1 is needed to generate")
        self.timeouts = timeouts or Timeouts()
        self.deaths = 0
        self._slots: list[VLLMActor | None] = list(actors)
        """By slot; None where the actor has died."""
        self._make = make
        self._restarts_left = restarts if make is not None else 0
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._turn = -1
        self._last_error: BaseException | None = None

    def client(self) -> ActorClient:
        """Return the client of one game; games are assigned to actors round robin."""
        self._turn = (self._turn + 1) % len(self._slots)
        return ActorClient(self, self._turn)

    @property
    def alive(self) -> int:
        return sum(actor is not None for actor in self._slots)

    @property
    def first(self) -> VLLMActor | None:
        return self._slots[0]

    async def ready(self) -> None:
        """Wait until every actor answers.

        Raises:
            NoActorLeftError: one did not start in time, or failed to.
        """
        for slot, actor in enumerate(self._slots):
            assert actor is not None  # none is marked dead before the first game
            try:
                await call_within(self.timeouts.start, actor.ping)
            except list_dead_errors(TimeoutError) as error:
                late = f"no answer in {self.timeouts.start:g} s; is there a GPU free for it?"
                why = late if isinstance(error, TimeoutError) else error
                raise NoActorLeftError(f"actor {slot} did not start: {why}") from error

    async def actor(self, slot: int) -> tuple[int, VLLMActor]:
        """Return a living actor: of the slot, or the next one; wait for one that is starting.

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
        """Remove an actor that does not answer any more, and start another."""
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
        except list_dead_errors(TimeoutError):
            return False
        return True

    async def close(self) -> None:
        tasks = list(self._starting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for actor in filter(None, self._slots):
            with contextlib.suppress(*list_dead_errors(TimeoutError)):
                await call_within(CLOSE_TIMEOUT, actor.close)
            _kill(actor)

    async def _restart(self, slot: int) -> None:
        try:
            while self._restarts_left > 0 and self._slots[slot] is None:
                self._restarts_left -= 1
                self._slots[slot] = await self._start_actor(slot)
        finally:
            del self._starting[slot]

    async def _start_actor(self, slot: int) -> VLLMActor | None:
        assert self._make is not None
        actor = self._make(slot)
        try:
            await call_within(self.timeouts.start, actor.ping)
        except list_dead_errors(TimeoutError, EngineError) as error:
            _LOG.error("actor %d could not be started again: %s", slot, error)
            self._last_error = error
            _kill(actor)
            return None
        _LOG.warning("actor %d was started again", slot)
        return actor


class ActorClient:
    """Sends one game's requests to an actor, and to another one if it dies."""

    def __init__(self, pool: ActorPool, slot: int) -> None:
        self._pool, self._slot = pool, slot

    async def generate(
        self, prompt: str | Sequence[int], adapter: str | None, seed: int
    ) -> Completion:
        """Return an answer; if the actor dies, ask the next one with the same seed.

        Raises:
            EngineError: the request cannot be answered.
            NoActorLeftError: no actor is left to answer it.
        """
        return await self._ask(lambda actor: actor.generate, prompt, adapter, seed=seed)

    async def score(self, prompt: str, answers: Sequence[str], adapter: str | None) -> list[float]:
        """Return the probability of each answer at temperature 1, as a whole answer."""
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
            except list_dead_errors() as error:
                pool.mark_dead(self._slot, actor, error)
            else:
                return answer


def list_dead_errors(*others: type[BaseException]) -> tuple[type[BaseException], ...]:
    """Return the errors that calling a dead actor raises, and `others`."""
    module = sys.modules.get("ray.exceptions")
    return others if module is None else (module.RayActorError, *others)


def _kill(actor: Any) -> None:
    """Kill a Ray actor, which may hold a GPU; an object of this process is left alone."""
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
    """Start Ray actors from within a Ray actor, each with a GPU if there are any; else one here.

    Raises:
        ValueError: there are fewer GPUs than actors.
    """
    if not inside_ray_actor():
        actor = VLLMActor(config, tracker=tracker, name="actor-0", adapters=model_pool)
        return ActorPool([actor], timeouts=timeouts)
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus = int(resources.get("GPU", 0))
    if 0 < gpus < num_actors:
        raise ValueError(f"num_actors is {num_actors}, but the cluster has {gpus} GPUs")

    actor_class = make_actor_class(VLLMActor)

    def make(slot: int) -> VLLMActor:
        # No CPU beside the GPU: an engine waits for its GPU, and cores may be fewer than engines.
        actor: VLLMActor = actor_class.options(num_cpus=0, num_gpus=1 if gpus else 0).remote(
            dict(config), tracker=tracker, name=f"actor-{slot}", adapters=model_pool
        )
        return actor

    return ActorPool([make(slot) for slot in range(num_actors)], make=make, timeouts=timeouts)
