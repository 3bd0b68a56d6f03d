"""Generation by vLLM, on a GPU or, with its CPU build, without one."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable.engines import Completion, EngineError, Sampling
from unstable.engines.adapters import check_adapter, fingerprint_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class LoadedAdapter:
    """An adapter as it was when it was loaded."""

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

    The least recently used idle adapter makes room for a new one; where all are in
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
        """Yield the adapter in a folder; it keeps its slot until the block ends.

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
        name = f"{path}-{fingerprint_adapter(path)}"
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


RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM reserves room for."""
CPU_CACHE_BYTES = 1 << 30
CPU_ENVIRONMENT = {
    # Threads bound to cores would share them with ours, whatever else is free.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The engine's own process does the work: a second one below it would only bind threads.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""What vLLM reads from the environment on a CPU, unless it is set."""
_REPORT_EVERY = 32  # tokens of an answer between two looks at it: for the counts only
_ALIVE_EVERY = 1.0  # seconds


class VLLMEngine:
    """An engine whose model is in a process of its own, started here and ended by `close`.

    All requests come from one event loop. A script that makes one does so below
    `if __name__ == "__main__":`, since the process may import it again. vLLM's build decides
    whether there is a GPU. Without one, the weights are float32, nothing is compiled, and the cache
    has 1 GiB unless VLLM_CPU_KVCACHE_SPACE says otherwise.

    Args:
        model: a folder in Hugging Face's format, or the name of one on its hub.
        tokenizer: the same; None: the model's own.
        device: "auto", or "cpu" or "cuda" to be sure of it.
        dtype: of the weights, as vLLM names it.
        max_parallel_seq: how many requests are decoded at the same time; others wait.
        max_model_len: tokens of a prompt and its answer; no more than the model has positions.
        max_loras: how many adapters are loaded at the same time; requests for others wait.
        max_lora_rank: the highest rank of an adapter.
        gpu_memory_utilization: the share of the GPU's memory to take; None: as vLLM does.

    Raises:
        EngineError: vLLM is not installed, or cannot serve the model.
    """

    def __init__(
        self,
        model: str,
        tokenizer: str | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_parallel_seq: int = 128,
        max_model_len: int = 8192,
        max_loras: int = 8,
        max_lora_rank: int = 32,
        gpu_memory_utilization: float | None = None,
    ) -> None:
        # vLLM would report each start to its makers, and reads this when it is imported.
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        try:
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.exceptions import VLLMError
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise EngineError(f"vLLM cannot be imported ({error}); use another engine") from error
        on_cpu = current_platform.is_cpu()
        if device != "auto" and device.startswith("cuda") == on_cpu:
            raise EngineError(f"device {device!r}: this vLLM is built for the other kind")
        options: dict[str, Any] = {}
        if on_cpu:
            for name, value in CPU_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            options |= {"enforce_eager": True, "kv_cache_memory_bytes": CPU_CACHE_BYTES}
            dtype = "float32" if dtype == "auto" else dtype
        elif gpu_memory_utilization is not None:
            options["gpu_memory_utilization"] = gpu_memory_utilization
        self._shape = _load_shape(model)
        positions = getattr(self._shape.config, "max_position_embeddings", max_model_len)
        self.max_model_len = min(max_model_len, positions)
        try:
            self._llm = AsyncLLM.from_engine_args(
                AsyncEngineArgs(
                    model=model,
                    tokenizer=tokenizer,
                    dtype=dtype,
                    max_num_seqs=max_parallel_seq,
                    max_model_len=self.max_model_len,
                    enable_lora=True,
                    max_loras=max_loras,
                    max_cpu_loras=max_loras,
                    max_lora_rank=choose_max_rank(max_lora_rank),
                    logprobs_mode="processed_logprobs",
                    disable_log_stats=True,  # they grow with every adapter that there ever was
                    **options,
                )
            )
        except (VLLMError, ValueError, RuntimeError, OSError) as error:
            raise EngineError(f"vLLM cannot serve {model}: {error}") from error
        self.tokenizer = self._llm.get_tokenizer()
        self._slots = AdapterSlots(max_loras, self._load)
        self._numbers = itertools.count()
        self._requests: set[str] = set()
        self._asked = 0
        self._running = 0
        self._tokens = 0
        self._greeted = False
        self._closed = False

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, adapter: str | None = None
    ) -> Completion:
        """Answer one request; see `Engine`. A cancelled one makes room at once."""
        if sampling.forced:
            raise EngineError("vLLM: how likely given answers are cannot be asked of it")
        room = self.max_model_len - len(prompt_ids)
        if room < 1:
            raise EngineError(
                f"vLLM: a prompt of {len(prompt_ids)} tokens leaves no room for an answer:"
                f" max_model_len is {self.max_model_len}"
            )
        self._asked += 1
        try:
            if adapter is None:
                return await self._answer(prompt_ids, sampling, room, None)
            async with self._slots.hold(adapter) as loaded:
                return await self._answer(prompt_ids, sampling, room, loaded)
        finally:
            self._asked -= 1

    def stats(self) -> dict[str, float]:
        """Return counts; `running` requests have a first token."""
        return {
            "queued": self._asked - self._running,
            "running": self._running,
            "tokens": self._tokens,
        }

    async def close(self) -> None:
        """End vLLM's process; requests in flight fail with EngineError."""
        if self._closed:
            return
        self._closed = True
        if self._llm.output_handler is not None:
            self._llm.output_handler.cancel()  # or it would report the end as an error
        await asyncio.to_thread(self._llm.shutdown)
        await self._llm.abort(self._requests)  # after it, so that none slips in between

    async def _answer(
        self,
        prompt_ids: tuple[int, ...],
        sampling: Sampling,
        room: int,
        adapter: LoadedAdapter | None,
    ) -> Completion:
        from vllm.exceptions import VLLMError
        from vllm.inputs import tokens_input

        self._check_alive()
        if not self._greeted:
            await self._call(self._llm.get_supported_tasks())  # vLLM asks once, and would wait
            self._greeted = True
        request_id = str(next(self._numbers))
        self._requests.add(request_id)
        seen = 0
        answer: Any = None
        try:
            async for output in self._llm.generate(
                tokens_input(list(prompt_ids)),
                _make_parameters(sampling, room),
                request_id,
                lora_request=None if adapter is None else _make_lora_request(adapter),
            ):
                answer = output.outputs[0]
                length = len(answer.token_ids)
                self._running += bool(length) - bool(seen)
                self._tokens += length - seen
                seen = length
        except VLLMError as error:
            raise EngineError(f"vLLM: {error.__cause__ or error}") from error
        finally:
            self._requests.discard(request_id)
            self._running -= bool(seen)
        if answer is None or answer.finish_reason not in ("stop", "length"):
            self._check_alive()
            raise EngineError(f"vLLM ended a request: {answer and answer.finish_reason}")
        if not all(map(math.isfinite, answer.logprobs.logprobs)):
            raise EngineError("vLLM: the model gave probabilities that are not finite numbers")
        return Completion(
            token_ids=tuple(answer.token_ids),
            logprobs=tuple(answer.logprobs.logprobs),
            finish_reason=answer.finish_reason,
            text=self.tokenizer.decode(answer.token_ids, skip_special_tokens=True),
            prompt_ids=tuple(prompt_ids),
        )

    async def _load(self, adapter: LoadedAdapter) -> None:
        self._check_alive()
        # vLLM would serve what fits of it, and let what is not finite spread to other requests.
        await asyncio.to_thread(check_adapter, adapter.folder, self._shape)
        try:
            await self._call(self._llm.add_lora(_make_lora_request(adapter, load_inplace=True)))
        except EngineError as error:
            raise EngineError(f"cannot load the adapter at {adapter.folder}: {error}") from error

    async def _call(self, question: Coroutine[Any, Any, Any]) -> None:
        """Await a call that vLLM's process would never answer if it died."""
        task = asyncio.ensure_future(question)
        try:
            while not (await asyncio.wait({task}, timeout=_ALIVE_EVERY))[0]:
                self._check_alive()
        finally:
            task.cancel()
        if (error := task.exception()) is not None:
            self._check_alive()
            raise EngineError(str(error)) from error

    def _check_alive(self) -> None:
        if self._closed:
            raise EngineError("vLLM: the engine is closed")
        if self._llm.errored:
            raise EngineError("vLLM: its process has ended, or the event loop that it was used in")


def _make_parameters(sampling: Sampling, room: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=min(sampling.max_tokens, room),
        seed=None if sampling.seed is None else sampling.seed % 2**63,  # -1 would mean none
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        stream_interval=_REPORT_EVERY,
        skip_clone=True,
    )


def _make_lora_request(adapter: LoadedAdapter, *, load_inplace: bool = False) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(adapter.name, adapter.slot, adapter.folder, load_inplace=load_inplace)


def choose_max_rank(rank: int) -> int:
    """Return the lowest rank that vLLM can reserve and that is enough."""
    fitting = [known for known in RANKS if known >= rank]
    if not fitting:
        raise EngineError(f"max_lora_rank {rank}: vLLM serves adapters up to rank {RANKS[-1]}")
    return fitting[0]


def _load_shape(model: str) -> PreTrainedModel:
    """Return the model's layers and settings, which take no memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(model).get_text_config()
        with torch.device("meta"):
            layers: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError) as error:
        raise EngineError(f"model {model}: {error}") from error
    return layers
