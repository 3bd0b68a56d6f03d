"""An engine with a name: prompts in, answers out, throughput to the tracker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from unstable.engines import Completion, Sampling, make_engine
from unstable.engines.adapter_files import AdapterCache
from unstable.model_pool import ModelPool
from unstable.trackers import Tracker
from unstable.utils.handles import send

REPORT_SECONDS = 5.0
SAMPLING = ("temperature", "top_p", "max_tokens")


class VLLMActor:
    """Answers prompts, each with a LoRA adapter of its own; one actor has one engine.

    The engine batches what is under way and has the loop that steps; here is no queue before it.

    Args:
        cfg: `model_name`, how to sample (`temperature`, `top_p`, `max_tokens`), and what
            `make_engine` takes.
        tracker: gets `queued`, `running` and `tok_s` every five seconds.
        name: for logs and dashboards.
        adapters: the model pool; asked for adapters that are not on this machine.
    """

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {"max_concurrency": 4096}
    """Hundreds of games wait here at the same time."""

    def __init__(
        self,
        cfg: Mapping[str, Any],
        tracker: Tracker | None = None,
        name: str = "actor",
        adapters: ModelPool | None = None,
    ) -> None:
        self.name = name
        self.tracker = tracker
        self.sampling_params = Sampling(**{key: cfg[key] for key in SAMPLING if key in cfg})
        self.engine = make_engine(cfg)
        self.tokenizer = _tokenizer(self.engine, cfg)
        self._adapters = AdapterCache(adapters)
        self._counts: deque[tuple[float, float]] = deque(maxlen=256)
        self._gpu_ids = _gpu_ids()
        self._report_task: asyncio.Task[None] | None = None

    async def submit_prompt(self, prompt: str, lora_path: str | None = None) -> str:
        return (await self.generate(prompt, lora_path)).text

    async def generate(
        self,
        prompt: str,
        lora_path: str | None = None,
        *,
        seed: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
    ) -> Completion:
        """Answer a prompt, with all tokens and their log-probabilities.

        Markup stands in the prompt: no token is added to it. What is not given is as configured.

        Raises:
            EngineError: the prompt is too long, or the adapter cannot be had.
        """
        if self._report_task is None or self._report_task.done():
            self._report_task = asyncio.create_task(self._report_loop())
        given = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        wanted: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        sampling = replace(self.sampling_params, seed=seed, **wanted)
        ids = tuple(self.tokenizer.encode(prompt, add_special_tokens=False))
        adapter = None if lora_path is None else await self._adapters.local(lora_path)
        completion = await self.engine.generate(ids, sampling, adapter)
        return completion if completion.prompt_ids else replace(completion, prompt_ids=ids)

    async def ping(self) -> str:
        return self.name

    def stats(self) -> dict[str, float]:
        """`queued`, `running`, `tokens` generated so far, and `tok_s`."""
        return {**self.engine.stats(), "tok_s": self._tok_rate()}

    async def close(self) -> None:
        """Report once more, free the engine and what it fetched."""
        if self._report_task is not None:
            self._report()  # a run may be over before the first report was due
            self._report_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._report_task
        await self.engine.close()
        self._adapters.close()

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
