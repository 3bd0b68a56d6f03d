"""An engine with a name: prompts in, answers out, throughput to the tracker."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from unstable.engines import Completion, Sampling, make_engine
from unstable.engines.protocol import EngineError
from unstable.model_pool import ModelPool
from unstable.trackers import Tracker
from unstable.utils.handles import call_within, inside_ray_actor, send
from unstable.utils.logging import setup_logger

REPORT_SECONDS = 5.0
FETCH_TIMEOUT = 120.0
KEPT_ADAPTERS = 32
"""Fetched adapters on disk; engines have those they use in memory."""


class VLLMActor:
    """Answers prompts, each with a LoRA adapter of its own; one actor has one engine.

    What is submitted goes into a queue that `_batch_loop` hands on; the engine batches and steps.

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
        self._gpu_ids = _gpu_ids()
        self._report_task: asyncio.Task[None] | None = None
        self._batch_task: asyncio.Task[None] | None = None
        self._queue: deque[_Request] = deque()
        self._arrived = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()
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
        self._start_loops()
        overrides = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        wanted: dict[str, Any] = {
            key: value for key, value in overrides.items() if value is not None
        }
        sampling = replace(self.sampling_params, seed=seed, **wanted)
        request = _Request(prompt, lora_path, sampling, asyncio.get_running_loop().create_future())
        self._queue.append(request)
        self._arrived.set()
        return await request.answer

    async def score(
        self, prompt: str, answers: Sequence[str], lora_path: str | None = None
    ) -> list[float]:
        """How likely each answer is at temperature 1, as a whole and with nothing after it: 0 to 1.

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
        """`queued`, `running`, `tokens` generated so far, and `tok_s`."""
        stats = self.engine.stats()
        queued = stats["queued"] + len(self._queue)
        return {**stats, "queued": queued, "tok_s": self._tok_rate()}

    async def close(self) -> None:
        if self._report_task is not None:
            self._report()  # a run may be over before the first report was due
        for task in (self._report_task, self._batch_task):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        for request in self._queue:  # nobody hands them on any more
            request.answer.cancel()
        self._queue.clear()
        await self.engine.close()
        self._adapters.close()

    def _encode(self, text: str | Sequence[int]) -> tuple[int, ...]:
        if not isinstance(text, str):
            return tuple(text)
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _tok_rate(self, window: float = 2.0) -> float:
        """Tokens per second over the last `window` seconds; 0 when asked for the first time."""
        now, tokens = time.monotonic(), self.engine.stats()["tokens"]
        self._counts.append((now, tokens))
        # Of what is older than the window the newest: a report every five seconds is enough.
        then, before = self._counts[0]
        for moment, count in self._counts:
            if now - moment >= window:
                then, before = moment, count
        return (tokens - before) / (now - then) if now > then else 0.0

    def _start_loops(self) -> None:
        if self._report_task is None or self._report_task.done():
            self._report_task = asyncio.create_task(self._report_loop())
        if self._batch_task is None or self._batch_task.done():
            self._arrived = asyncio.Event()  # an event belongs to the loop that it is waited in
            self._batch_task = asyncio.create_task(self._batch_loop())

    async def _batch_loop(self) -> None:
        """Hand on what was submitted, in its order and as soon as it comes."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._queue:
                request = self._queue.popleft()
                if request.answer.done():  # nobody waits for it any more
                    continue
                answering = asyncio.create_task(self._answer(request))
                self._answering.add(answering)
                answering.add_done_callback(self._answering.discard)
                request.answer.add_done_callback(partial(_give_up, answering))

    async def _answer(self, request: _Request) -> None:
        try:
            ids = self._encode(request.prompt)
            path = request.lora_path
            adapter = None if path is None else await self._adapters.local(path)
            completion = await self.engine.generate(ids, request.sampling, adapter)
        # Whatever it is, it is for who asked.
        except Exception as error:  # noqa: BLE001
            if not request.answer.done():
                request.answer.set_exception(error)
        else:
            if not request.answer.done():
                request.answer.set_result(
                    replace(completion, prompt_ids=ids, sampling=request.sampling)
                )

    async def _report_loop(self) -> None:
        """Tell the tracker how it goes, for as long as the event loop runs."""
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


@dataclass(eq=False)
class _Request:
    prompt: str | Sequence[int]
    lora_path: str | None
    sampling: Sampling
    answer: asyncio.Future[Completion]


def _give_up(answering: asyncio.Task[None], answer: asyncio.Future[Completion]) -> None:
    if answer.cancelled():
        answering.cancel()


class AdapterCache:
    """Finds adapters here, or fetches them from the model pool into a folder of its own."""

    def __init__(self, pool: ModelPool | None) -> None:
        self._pool = pool
        self._folder: Path | None = None
        self._fetched: dict[str, asyncio.Future[str]] = {}

    async def local(self, path: str) -> str:
        """The folder of an adapter on this machine.

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


def _gpu_ids() -> list[int | str]:
    """The GPUs Ray gave this actor, or all that are to be seen."""
    import torch

    if not torch.cuda.is_available():
        return []
    import sys

    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized() and (given := ray.get_gpu_ids()):
        return list(given)
    return list(range(torch.cuda.device_count()))
