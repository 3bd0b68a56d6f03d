"""The inference engine for models of `transformers`, in continuous batches."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unstable.engines import Completion, EngineError, Sampling
from unstable.engines.adapters import CONFIG, Adapter, fingerprint_adapter, load_adapter
from unstable.engines.decoder import Decoder, DecodingRow
from unstable.engines.paged_decoder import PagedDecoder, make_paged_decoder
from unstable.utils.logging import quiet_transformers

AnyDecoder = Decoder | PagedDecoder
Key = tuple[str, str]
WHOLE_MODEL = "config.json"
HANDED = "in memory"
"""The version of an adapter that a learner handed over: it is written once."""


@dataclass(eq=False)
class LoadedPolicy:
    decoder: AnyDecoder
    adapter: Adapter | None = None
    users: int = 0
    """Requests that are being answered with it."""


class Policies:
    """Loads adapters and models that requests name, and keeps the `limit` used last."""

    def __init__(
        self, base: AnyDecoder, limit: int, load_model: Callable[[str], AnyDecoder]
    ) -> None:
        if limit < 1:
            raise ValueError(f"max_loras is {limit}: at least 1")
        self.base = LoadedPolicy(base)
        self.limit = limit
        self._load_model = load_model
        self._loaded: OrderedDict[Key, LoadedPolicy] = OrderedDict()
        self._handed: OrderedDict[str, Adapter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._loaded)

    def put(self, folder: str, adapter: Adapter) -> None:
        """Add an adapter from memory; the newest stay until they are used."""
        self._handed[folder] = adapter
        while len(self._handed) > self.limit:
            self._handed.popitem(last=False)

    def get(self, folder: str | None) -> LoadedPolicy | None:
        """Return the policy of a folder as it is now; None: no slot is free.

        Raises:
            EngineError: the folder has no adapter or model that can be served.
        """
        if folder is None:
            return self.base
        handed = self._handed.get(folder)
        key = (folder, HANDED if handed is not None else _fingerprint_folder(folder))
        if key in self._loaded:
            self._loaded.move_to_end(key)
            return self._loaded[key]
        if not self._make_room():
            return None
        if handed is not None:
            self._loaded[key] = LoadedPolicy(self.base.decoder, handed)
        else:
            self._loaded[key] = self._load(folder)
        return self._loaded[key]

    def decoders(self) -> list[AnyDecoder]:
        policies = (self.base, *self._loaded.values())
        return list(dict.fromkeys(policy.decoder for policy in policies))

    def _make_room(self) -> bool:
        if len(self._loaded) < self.limit:
            return True
        unused = next((key for key, policy in self._loaded.items() if not policy.users), None)
        if unused is None:
            return False
        del self._loaded[unused]
        return True

    def _load(self, folder: str) -> LoadedPolicy:
        base = self.base.decoder
        if (Path(folder) / CONFIG).exists():
            adapter = load_adapter(folder, base.model, base.dtype, base.device)
            return LoadedPolicy(base, adapter)
        try:
            return LoadedPolicy(self._load_model(folder))
        except (OSError, ValueError, RuntimeError) as error:
            raise EngineError(f"cannot load the model at {folder}: {error}") from error


def _fingerprint_folder(folder: str) -> str:
    """Return a text that changes with a folder's content; raise EngineError if it is empty."""
    whole = Path(folder) / WHOLE_MODEL
    if (Path(folder) / CONFIG).exists() or not whole.exists():
        return fingerprint_adapter(folder)
    stat = whole.stat()
    return f"{stat.st_ctime_ns:x}-{stat.st_ino:x}"


PREFILL_TOKENS = {True: 16_384, False: 65_536}
"""On a CPU, and elsewhere."""
GATHERING_STEPS = 8
"""On a GPU prompts are read beside the replayed step, so those that come in gather that long."""


class TransformersEngine:
    """Answers requests with a causal language model, in a batch that they join and leave.

    Steps run in the event loop between its turns on a CPU, so that equal requests in an equal order
    give equal answers to the last bit; on a GPU they run in a thread beside it.

    Args:
        model: a folder or name for `from_pretrained`, or a model, which is then the engine's own.
        tokenizer: that of the model's folder if not given. Without one, answers have no text.
        device: `auto`, `cpu`, `cuda`, `cuda:1`, ...
        dtype: `auto` (float32 on a CPU, else as the model was saved), `float32`, `bfloat16`, ...
        max_parallel_seq: how many requests are answered at once; the others wait.
        max_model_len: of prompt and answer together.
        max_loras: how many adapters, or whole models, are kept in memory.
        prefill_tokens: how many tokens of prompts are read in one step, if there are several;
            None: 16,384 on a CPU, and 65,536 elsewhere.
        beside_learner: a learner uses the same GPU, and maybe the same weights, at the same time:
            steps go before its work, and `reserve` keeps weights where they are.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_parallel_seq: int = 128,
        max_model_len: int = 8192,
        max_loras: int = 8,
        prefill_tokens: int | None = None,
        beside_learner: bool = False,
    ) -> None:
        if max_parallel_seq < 1:
            raise ValueError(f"max_parallel_seq is {max_parallel_seq}: at least 1")
        self.device, self.dtype = _choose_device(device), dtype
        self.max_parallel_seq = max_parallel_seq
        self.prefill_tokens = prefill_tokens or PREFILL_TOKENS[self.device.type == "cpu"]
        if isinstance(model, str):
            from transformers import AutoTokenizer

            self.tokenizer = tokenizer or AutoTokenizer.from_pretrained(model)
            self.name = model
            model = self._load(model)
        else:
            self.tokenizer = tokenizer
            self.name = type(model).__name__
            model.to(self.device)
        self.stop = find_stop_tokens(model, self.tokenizer)
        self.vocabulary = int(model.get_input_embeddings().num_embeddings)
        longest = getattr(model.config, "max_position_embeddings", None)
        self.max_model_len = min(max_model_len, longest or max_model_len)
        self._policies = Policies(self._decoder(model), max_loras, self._load_decoder)
        self._stream = _make_stream(self.device) if beside_learner else None
        self._queue: deque[_Request] = deque()
        self._running: set[DecodingRow] = set()
        self._tokens = 0
        self._gathered = 0
        """Steps since a request has been waiting."""
        self._task: asyncio.Task[None] | None = None
        # Always the same one: what a step must not make while it is recorded is made per thread.
        self._thread = ThreadPoolExecutor(1, "engine")
        self._stepping = threading.Lock()
        """A step that runs in a thread goes on after whoever waited for it was cancelled."""
        self._closed = False

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, adapter: str | None = None
    ) -> Completion:
        """Answer one request; see `Engine.generate`.

        `adapter` may also be the folder of a whole model with the same vocabulary.
        """
        prompt = tuple(prompt_ids)
        if sampling.forced:
            sampling = replace(sampling, max_tokens=len(sampling.forced))
        self._check(prompt, sampling)
        request = _Request(prompt, sampling, adapter, asyncio.get_running_loop().create_future())
        self._queue.append(request)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._batch_loop())
        return await request.answer

    def put_adapter(self, folder: str, adapter: Adapter) -> None:
        """Add an adapter from memory; requests name it by the folder where it will be."""
        self._policies.put(folder, adapter)

    def reserve(self, like: Adapter) -> None:
        """Make room for as many such adapters as are kept, before the first request.

        A learner that uses the same weights must not see them move while it computes.
        """
        decoder = self._policies.base.decoder
        if isinstance(decoder, PagedDecoder):
            decoder.fused.bank.reserve(like, self._policies.limit)
            _wait_for(self.device)

    def stats(self) -> dict[str, float]:
        return {"queued": len(self._queue), "running": len(self._running), "tokens": self._tokens}

    async def close(self) -> None:
        self._closed = True
        if self._task is not None and not self._task.done():
            await self._task  # it ends after the step it is in
        self._fail_all(EngineError(f"{self.name}: the engine was closed"))
        self._thread.shutdown(wait=False)

    def _check(self, prompt: tuple[int, ...], sampling: Sampling) -> None:
        if self._closed:
            raise EngineError(f"{self.name}: the engine was closed")
        if sampling.max_tokens < 1:
            raise EngineError(f"{self.name}: max_tokens is {sampling.max_tokens}: at least 1")
        if not prompt:
            raise EngineError(f"{self.name}: an empty prompt")
        if len(prompt) > self.max_model_len - 1:
            raise EngineError(
                f"{self.name}: a prompt of {len(prompt)} tokens leaves no room for an answer"
                f" (max_model_len is {self.max_model_len})"
            )
        tokens = (*prompt, *sampling.forced)
        if not (min(tokens) >= 0 and max(tokens) < self.vocabulary):
            raise EngineError(f"{self.name}: the prompt has tokens outside of the vocabulary")

    # --- the loop -----------------------------------------------------------------------------

    async def _batch_loop(self) -> None:
        """Step until there is nothing to do; the next request starts it again."""
        try:
            while (self._queue or self._running) and not self._closed:
                joining = self._admit() if self._should_join() else {}
                if self.device.type == "cpu":
                    done = self._step(joining)
                else:
                    loop = asyncio.get_running_loop()
                    done = await loop.run_in_executor(self._thread, self._step, joining)
                for row in done:
                    self._finish(row)
                await asyncio.sleep(0)
        except asyncio.CancelledError:  # the event loop ends
            self._fail_all(EngineError(f"{self.name}: the event loop was stopped"))
            raise
        # No request may wait for ever: whatever happened, all of them fail.
        except Exception as error:  # noqa: BLE001
            failure = EngineError(f"{self.name}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail_all(failure)
        if self.device.type != "cpu":  # a learner may want the GPU's memory now
            self._forget_rows()

    def _should_join(self) -> bool:
        """Return whether queued requests should join now."""
        if self.device.type == "cpu" or len(self._queue) >= len(self._running) / 4:
            return True
        self._gathered = self._gathered + 1 if self._queue else 0
        return self._gathered >= GATHERING_STEPS

    def _admit(self) -> dict[AnyDecoder, list[DecodingRow]]:
        """Take requests from the queue while there is room, in their order."""
        self._gathered = 0
        joining: dict[AnyDecoder, list[DecodingRow]] = {}
        waiting: list[_Request] = []
        room, tokens = self.max_parallel_seq - len(self._running), 0
        while self._queue and room > 0:
            request = self._queue[0]
            if tokens and tokens + len(request.prompt) > self.prefill_tokens:
                break
            self._queue.popleft()
            if request.answer.done():  # it was cancelled
                continue
            try:
                policy = self._policies.get(request.adapter)
            except EngineError as error:
                request.answer.set_exception(error)
                continue
            if policy is None:
                waiting.append(request)
                continue
            policy.users += 1
            limit = min(request.sampling.max_tokens, self.max_model_len - len(request.prompt))
            row = DecodingRow(
                request.prompt, request.sampling, limit, policy.adapter, (request, policy)
            )
            request.answer.add_done_callback(row.mark_answered)
            joining.setdefault(policy.decoder, []).append(row)
            self._running.add(row)
            room, tokens = room - 1, tokens + len(request.prompt)
        self._queue.extendleft(reversed(waiting))
        return joining

    def _step(self, joining: dict[AnyDecoder, list[DecodingRow]]) -> list[DecodingRow]:
        done: list[DecodingRow] = []
        with self._stepping, _use_stream(self._stream):
            for decoder in self._policies.decoders():
                new = joining.get(decoder, ())
                if new or decoder.rows:
                    before = decoder.generated
                    done.extend(decoder.step(new))
                    self._tokens += decoder.generated - before
        return done

    def _finish(self, row: DecodingRow) -> None:
        request: _Request
        request, policy = row.ticket
        policy.users -= 1
        self._running.remove(row)
        if request.answer.done():
            return
        if row.broken:
            request.answer.set_exception(
                EngineError(f"{self.name}: the model's output is not finite ({request.adapter})")
            )
            return
        words = row.tokens[:-1] if row.stopped else row.tokens
        request.answer.set_result(
            Completion(
                token_ids=tuple(row.tokens),
                logprobs=tuple(row.logprobs),
                finish_reason="stop" if row.stopped else "length",
                text=self._text(words),
                prompt_ids=request.prompt,
            )
        )

    def _text(self, tokens: list[int]) -> str:
        if self.tokenizer is None:
            return ""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def _fail_all(self, error: EngineError) -> None:
        self._forget_rows()
        for row in self._running:
            request, policy = row.ticket
            policy.users -= 1
            self._queue.append(request)
        self._running.clear()
        while self._queue:
            request = self._queue.popleft()
            if not request.answer.done():
                request.answer.set_exception(error)

    def _forget_rows(self) -> None:
        with self._stepping:
            for decoder in self._policies.decoders():
                decoder.clear()

    # --- models -------------------------------------------------------------------------------

    def _load(self, folder: str) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        dtype: Any = self.dtype
        if dtype == "auto" and self.device.type == "cpu":
            dtype = torch.float32
        quiet_transformers()
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(self.device)

    def _decoder(self, model: Any) -> AnyDecoder:
        limits = (self.max_parallel_seq, self.max_model_len)
        paged = (
            make_paged_decoder(model, *limits, self.stop) if self.device.type == "cuda" else None
        )
        return paged or Decoder(model, self.max_parallel_seq, self.stop)

    def _load_decoder(self, folder: str) -> AnyDecoder:
        return self._decoder(self._load(folder))


@dataclass(eq=False)
class _Request:
    prompt: tuple[int, ...]
    sampling: Sampling
    adapter: str | None
    answer: asyncio.Future[Completion]


def find_stop_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return every token that ends an answer, by the model, its generation or its tokenizer."""
    tokens: set[int] = set()
    for source in (model.config, getattr(model, "generation_config", None), tokenizer):
        stop: int | Iterable[int] | None = getattr(source, "eos_token_id", None)
        if stop is not None:
            tokens.update([stop] if isinstance(stop, int) else stop)
    return frozenset(tokens)


def _make_stream(device: Any) -> Any:
    """Return a stream whose work goes before that of others; None where there are none."""
    import torch

    if device.type != "cuda":
        return None
    _wait_for(device)  # the weights were made elsewhere
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def _wait_for(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _use_stream(stream: Any) -> AbstractContextManager[Any]:
    import torch

    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _choose_device(name: str) -> Any:
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
