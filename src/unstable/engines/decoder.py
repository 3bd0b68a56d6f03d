"""Decode many rows at once with one model; rows join and leave between steps.

On a GPU steps are recorded and replayed: a step of one token per row is a thousand small kernels,
and a host takes longer to launch them than the GPU to run them. A CUDA graph has its sizes and
addresses fixed, so rows and columns are rounded up to few sizes, and all graphs are dropped when
the cache or the adapters move.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unstable.engines import Sampling
from unstable.engines.adapters import Adapter, AdapterMixture, LoraLinear, assign_adapters
from unstable.engines.attention import AttentionPlan, SlotCache, use_slots

FEWEST_ROWS, FEWEST_COLUMNS = 8, 128

Run = Callable[[Tensor, int], Tensor]
"""The model over (tokens, positions, rows), one token each, that look at so many columns."""


def round_up_size(wanted: int, fewest: int) -> int:
    """Round up to 1, 1.5, 2, 3, 4, 6, 8, ... times `fewest`: at most a third is idle."""
    size = fewest
    while size < wanted:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


@contextmanager
def record_graph(graph: Any, pool: Any) -> Iterator[None]:
    """Record kernel launches; other threads may keep using the GPU."""
    # A graph of an engine that is gone must not be freed now: CUDA would refuse this one then.
    enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield
    finally:
        if enabled:
            gc.enable()


@dataclass
class _Recorded:
    graph: Any
    others: Tensor | None
    logits: Tensor


class GraphReplay:
    """Runs steps by replaying them; `mixture` is set before every step."""

    def __init__(
        self, run: Run, mixture: AdapterMixture, max_rows: int, device: torch.device
    ) -> None:
        self._run = run
        self._mixture = mixture
        self._max_rows = max_rows
        self._inputs = torch.zeros(3, max_rows, dtype=torch.long, device=device)
        self._recorded: dict[tuple[int, int, bool], _Recorded | None] = {}
        """None: it was run once, which readies what must not be readied while record_graph."""
        self._adapters: object = None
        self._pool: Any = None

    def rows(self, wanted: int) -> int:
        return min(round_up_size(wanted, FEWEST_ROWS), self._max_rows)

    def forget(self) -> None:
        """Drop all recorded steps: the cache has moved."""
        self._recorded.clear()
        self._pool = None

    def step(self, inputs: Tensor, columns: int) -> Tensor:
        """Run a step and return its logits.

        Args:
            inputs: (3, rows) as for `Run`, `rows` as that of `self.rows`.
            columns: a size of `rounded_up`.
        """
        if self._adapters is not self._mixture.adapters:
            self.forget()
            self._adapters = self._mixture.adapters
        others = self._mixture.tokens
        key = (inputs.shape[1], columns, others is None)
        if key not in self._recorded:
            self._recorded[key] = None
            return self._run(inputs, columns)
        recorded = self._recorded[key]
        if recorded is None:
            recorded = self._recorded[key] = self._record(inputs.shape[1], columns, others)
        self._inputs[:, : inputs.shape[1]] = inputs
        if recorded.others is not None and others is not None:
            recorded.others.copy_(others)
        recorded.graph.replay()
        return recorded.logits

    def _record(self, rows: int, columns: int, others: Tensor | None) -> _Recorded:
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        fixed = None if others is None else others.clone()
        self._mixture.tokens = self._mixture.outputs = fixed
        with record_graph(graph, self._pool):
            logits = self._run(self._inputs[:, :rows], columns)
        return _Recorded(graph, fixed, logits)


def sample_tokens(
    logits: Tensor, uniform: Tensor, temperature: Tensor, top_p: Tensor, forced: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw a token per row by inverting its cumulative distribution at its uniform number.

    Tokens lie in the order of the vocabulary, and of top_p all are kept that are as likely as the
    last one: that takes no sorting in a kernel.

    Args:
        logits: (rows, vocabulary), float32.
        uniform: per row, in [0, 1).
        temperature: per row; 0: the most likely token.
        top_p: per row; below 1 the least likely tokens beyond that mass are left out.
        forced: per row, a token that is not drawn but given, or -1.

    Returns:
        The tokens, and their log-probabilities after the temperature. A row whose logits are not
        numbers gets a log-probability that is none either.
    """
    uniform, top_p = uniform[:, None], top_p[:, None]
    logits = logits / temperature.where(temperature > 0, 1)[:, None]
    mass = logits.softmax(-1)
    if bool((top_p < 1).any()):
        ordered, _ = mass.sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        last = (before < top_p * mass.sum(-1, keepdim=True)).sum(-1, keepdim=True) - 1
        least = ordered.gather(1, last.clamp_(min=0))
        mass = torch.where((mass >= least) | (top_p >= 1), mass, 0.0)
    sums = mass.cumsum(-1)
    tokens = torch.searchsorted(sums, uniform * sums[:, -1:], right=True)[:, 0]
    if bool((tokens == sums.shape[1]).any()):  # by rounding
        tokens = torch.minimum(tokens, sums.argmax(-1))
    if bool((temperature <= 0).any()):
        tokens = torch.where(temperature > 0, tokens, logits.argmax(-1))
    tokens = torch.where(forced >= 0, forced, tokens)
    return tokens, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]


CHUNK_TOKENS = {True: 1024, False: 16384}
"""How much of prompts is read at once, on a CPU and elsewhere; a CPU's caches hold no more."""


@dataclass(eq=False)
class DecodingRow:
    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    adapter: Adapter | None = None
    ticket: Any = None
    """The caller's own."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False
    """By a stop token."""
    broken: bool = False
    """The model gave no probabilities."""
    left: bool = False
    """Set by the caller when the request was cancelled."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.sampling.seed)

    def mark_answered(self, _: Any) -> None:
        self.left = True

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.tokens)

    @property
    def done(self) -> bool:
        return self.stopped or self.broken or self.left or len(self.tokens) >= self.max_tokens


class Decoder:
    """Decodes with a causal language model of `transformers`, whose layers it replaces."""

    def __init__(self, model: Any, max_rows: int, stop: frozenset[int]) -> None:
        self.model = model.eval()
        self.max_rows = max_rows
        self.stop = stop
        self.rows: list[DecodingRow] = []
        self.generated = 0
        """Tokens, of all rows so far."""
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.chunk_tokens = CHUNK_TOKENS[self.device.type == "cpu"]
        self._cache = SlotCache(max_rows)
        self._mixture = AdapterMixture()
        self._replay = (
            GraphReplay(self._decode_step, self._mixture, max_rows, self.device)
            if self.device.type == "cuda"
            else None
        )
        use_slots(model)
        _take_adapters(model, self._mixture)

    @torch.inference_mode()
    def step(self, joining: Sequence[DecodingRow] = ()) -> list[DecodingRow]:
        """Draw the next token of every row, and the first one of those that join.

        Returns:
            The rows that are done; they have left.
        """
        logits = self._logits(joining)
        self.rows.extend(joining)
        numbers = [(r.random.random(), r.sampling.temperature, r.sampling.top_p) for r in self.rows]
        ways = torch.tensor(numbers, dtype=torch.float64).to(self.device, torch.float32)
        forced = [r.sampling.forced[len(r.tokens)] if r.sampling.forced else -1 for r in self.rows]
        uniform, temperature, top_p = ways.T
        tokens, logprobs = sample_tokens(
            logits, uniform, temperature, top_p, torch.tensor(forced, device=self.device)
        )
        drawn = zip(tokens.tolist(), logprobs.tolist(), strict=True)
        for row, (token, logprob) in zip(self.rows, drawn, strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.stopped = token in self.stop
            row.broken = not logprob > float("-inf")
        self.generated += len(self.rows)
        return self._leave()

    def clear(self) -> None:
        self.rows = []
        self._cache = SlotCache(self.max_rows)
        if self._replay:
            self._replay.forget()

    def _logits(self, joining: Sequence[DecodingRow]) -> Tensor:
        """Compute the logits of every row's last token, joining ones at the end.

        A prompt that several join with is read once, for all of them.
        """
        n = len(self.rows)
        longest = max((len(row.prompt) for row in joining), default=0)
        self._reserve(n + len(joining), longest)
        first: dict[tuple[Adapter | None, tuple[int, ...]], int] = {}
        sources = [first.setdefault((row.adapter, row.prompt), i) for i, row in enumerate(joining)]
        readers = sorted(first.values())
        chunks = split_prompts([len(joining[i].prompt) for i in readers], self.chunk_tokens)
        parts: list[Tensor] = []
        running: Sequence[DecodingRow] = self.rows
        if running and (self._replay or not chunks):
            parts.append(self._next(running))
            running = ()
        for chunk in chunks:
            parts.append(
                self._forward(running, [(n + readers[i], joining[readers[i]]) for i in chunk])
            )
            running = ()
        logits = parts[0] if len(parts) == 1 else torch.cat(parts)
        if len(readers) == len(joining):
            return logits
        copies = [i for i, source in enumerate(sources) if source != i]
        self._cache.copy([n + sources[i] for i in copies], [n + i for i in copies], longest)
        places = {reader: place for place, reader in enumerate(readers, n)}
        return logits[[*range(n), *(places[source] for source in sources)]]

    def _forward(
        self, running: Sequence[DecodingRow], joining: Sequence[tuple[int, DecodingRow]]
    ) -> Tensor:
        """Run the model over the next tokens of `running` and the prompts of `joining`.

        Args:
            running: all rows that run, or none of them.
            joining: each with its row of the cache.
        """
        n = len(running)
        tokens = [row.tokens[-1] for row in running]
        positions = [row.length - 1 for row in running]
        places = list(range(n))
        reach = max(positions, default=-1) + 1
        for place, row in joining:
            tokens.extend(row.prompt)
            positions.extend(range(len(row.prompt)))
            places.extend([place] * len(row.prompt))
        counts = [1] * n + [len(row.prompt) for _, row in joining]
        owners = [row.adapter for row in running] + [row.adapter for _, row in joining]
        assign_adapters(self._mixture, owners, counts, self.device, stay=self._replay is not None)
        whole = torch.tensor([tokens, positions, places]).to(self.device)
        return self._run(whole, counts[n:], reach, whole.new_tensor(counts).cumsum(0) - 1)

    def _next(self, rows: Sequence[DecodingRow]) -> Tensor:
        """Run the model over the next tokens alone; on a GPU with idle rows behind them."""
        n = self._replay.rows(len(rows)) if self._replay else len(rows)
        idle = [0] * (n - len(rows))  # what they write is overwritten by whoever gets the row
        tokens = [row.tokens[-1] for row in rows] + idle
        positions = [row.length - 1 for row in rows] + idle
        owners = [row.adapter for row in rows] + [rows[-1].adapter] * len(idle)
        assign_adapters(self._mixture, owners, [1] * n, self.device, stay=self._replay is not None)
        inputs = torch.tensor([tokens, positions, range(n)]).to(self.device)
        reach = max(positions) + 1
        if self._replay is None:
            return self._decode_step(inputs, reach)
        return self._replay.step(inputs, round_up_size(reach, FEWEST_COLUMNS))[: len(rows)]

    def _decode_step(self, inputs: Tensor, reach: int) -> Tensor:
        return self._run(inputs, [], reach, 0)

    def _run(
        self, inputs: Tensor, prompts: Sequence[int], reach: int, keep: Tensor | int
    ) -> Tensor:
        """Compute logits of the tokens in `keep`, or of all.

        Args:
            inputs: tokens, positions and rows of the cache.
            prompts: how many tokens those at the end have.
            reach: columns that all others look at.
            keep: which tokens; 0: all.
        """
        output = self.model(
            input_ids=inputs[:1],
            position_ids=inputs[1:2],
            use_cache=False,
            logits_to_keep=keep,
            plan=AttentionPlan(self._cache, inputs[2], inputs[1], reach, prompts),
        )
        logits: Tensor = output.logits[0].float()
        return logits

    def _reserve(self, rows: int, longest: int) -> None:
        """Make room in the cache for so many rows, and for prompts of that length."""
        columns = max((row.length for row in self.rows), default=0)
        if self._replay:
            rows = max(rows, self._replay.rows(len(self.rows)))
            columns = round_up_size(columns, FEWEST_COLUMNS)
        if self._cache.reserve(rows, max(columns, longest)) and self._replay:
            self._replay.forget()

    def _leave(self) -> list[DecodingRow]:
        """Remove the rows that are done, and close the gaps with rows from the end."""
        done = [row.done for row in self.rows]  # asked once: callers may give up at any moment
        gone = [row for row, is_done in zip(self.rows, done, strict=True) if is_done]
        if not gone:
            return []
        broken = [place for place, row in enumerate(self.rows) if row.broken]
        if broken:
            # Not even multiplied by zero may what they left reach a row that comes after them.
            self._cache.wipe(broken)
        kept = len(self.rows) - len(gone)
        holes = [place for place in range(kept) if done[place]]
        movers = [place for place in range(kept, len(self.rows)) if not done[place]]
        if movers:
            self._cache.copy(movers, holes, max(row.length for row in self.rows))
            for source, target in zip(movers, holes, strict=True):
                self.rows[target] = self.rows[source]
        del self.rows[kept:]
        return gone


def split_prompts(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Split prompts in their order into chunks of about so many tokens."""
    chunks: list[list[int]] = []
    total = tokens
    for number, length in enumerate(lengths):
        if total >= tokens:
            chunks.append([])
            total = 0
        chunks[-1].append(number)
        total += length
    return chunks


def _take_adapters(model: Any, mixture: AdapterMixture) -> None:
    """Put a LoraLinear around every linear layer."""
    output = model.get_output_embeddings()
    for parent_name, parent in list(model.named_modules()):
        for child_name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear):
                name = f"{parent_name}.{child_name}" if parent_name else child_name
                setattr(parent, child_name, LoraLinear(child, name, mixture, child is output))
