"""Decoding steps on a GPU, recorded and replayed, for models that `fused_model` does not know.

A step of one token per row is a thousand small kernels, and a host takes longer to launch them than
the GPU to run them. Recorded as a CUDA graph, they are launched at once. A graph has its sizes and
addresses fixed, so rows and columns are rounded up to few sizes, and all graphs are dropped when
the cache or the adapters move.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unstable.engines.adapters import AdapterMixture

FEWEST_ROWS, FEWEST_COLUMNS = 8, 128

Run = Callable[[Tensor, int], Tensor]
"""The model over (tokens, positions, rows), one token each, that look at so many columns."""


def rounded_up(wanted: int, fewest: int) -> int:
    """The next of 1, 1.5, 2, 3, 4, 6, 8, ... times `fewest`: at most a third is idle."""
    size = fewest
    while size < wanted:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


@contextmanager
def recording(graph: Any, pool: Any) -> Iterator[None]:
    """Record what is launched; other threads, such as a learner's, may keep using the GPU."""
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
        """None: it was run once, which readies what must not be readied while recording."""
        self._adapters: object = None
        self._pool: Any = None

    def rows(self, wanted: int) -> int:
        return min(rounded_up(wanted, FEWEST_ROWS), self._max_rows)

    def forget(self) -> None:
        """The cache is another one now."""
        self._recorded.clear()
        self._pool = None

    def step(self, inputs: Tensor, columns: int) -> Tensor:
        """Logits of a step.

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
        with recording(graph, self._pool):
            logits = self._run(self._inputs[:, :rows], columns)
        return _Recorded(graph, fixed, logits)
