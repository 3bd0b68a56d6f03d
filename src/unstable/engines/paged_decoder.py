"""Decoding on a GPU: steps are recorded, and launched before the last one's tokens are read.

A step of one token per row is hundreds of small kernels, and a host takes longer to launch them
than the GPU to run them. Recorded as a CUDA graph, they are launched at once. Tokens go from one
step to the next on the GPU; the host reads them one step later, while the GPU goes on. So a row
that a stop token ends is in one step too many, whose token is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstable.engines.adapters import Adapter
from unstable.engines.decoder import (
    FEWEST_ROWS,
    DecodingRow,
    record_graph,
    round_up_size,
    split_prompts,
)
from unstable.engines.fused_model import FusedModel, TokenBatch, fuse_model, send_to_device
from unstable.engines.pages import PAGE

CHUNK_TOKENS = 16384
"""How much of prompts is read at once."""


def make_paged_decoder(
    model: Any, max_rows: int, max_length: int, stop: frozenset[int]
) -> PagedDecoder | None:
    """Make a decoder with GPU kernels; None without Triton, or for an unknown model."""
    try:
        from unstable.engines import kernels
    except ModuleNotFoundError:  # no Triton
        return None
    network = fuse_model(model, max_length, kernels)
    if network is None:
        return None
    return PagedDecoder(model, network, max_rows, max_length, stop)


@dataclass(eq=False)
class _Seat:
    """The slot and pages of a row while it is decoded."""

    row: DecodingRow
    slot: int
    pages: list[int]
    asked: int = 0
    """Tokens that steps were launched for."""


@dataclass(frozen=True, eq=False)
class _Launch:
    """A step whose tokens have not been read yet."""

    seats: list[_Seat]
    results: Tensor
    """int32, (2, at least the seats), on the host."""
    done: Any
    """The event after which they are there; None: they are."""


@dataclass(eq=False)
class _Recorded:
    graph: Any
    results: Tensor


@dataclass(eq=False)
class PagedDecoder:
    """Decodes many rows at once, as `Decoder` does, with a model in few operations."""

    model: Any
    """Of `transformers`; its weights are those that `fused` works with."""
    fused: FusedModel
    max_rows: int
    max_length: int
    stop: frozenset[int]
    generated: int = 0
    """Tokens, of all rows so far."""
    _seats: list[_Seat] = field(default_factory=list)
    _launched: list[_Launch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device, self.dtype = self.fused.device, self.fused.dtype
        self.chunk_tokens = CHUNK_TOKENS
        self._pool = self.fused.pool()
        self._free = list(range(self.max_rows))
        most, width = round_up_size(self.max_rows, FEWEST_ROWS), -(-self.max_length // PAGE)
        self._addresses = np.zeros((self.max_rows, width), np.int64)
        """By slot."""
        self._table_is_old = True
        self._slots_in_table: list[int] = []
        self._numbers = torch.zeros(7 * most, dtype=torch.int32, device=self.device)
        self._table = torch.zeros(most, width, dtype=torch.int64, device=self.device)
        self._places = torch.arange(most, dtype=torch.int32, device=self.device)
        # Idle rows put their tokens behind all others.
        self._next_tokens = torch.zeros(self.max_rows + 1, dtype=torch.long, device=self.device)
        self._recorded: dict[tuple[int, bool], _Recorded | None] = {}
        """None: it was run once, which readies what must not be readied while record_graph."""
        self._memory: Any = None

    @property
    def rows(self) -> list[DecodingRow]:
        return [seat.row for seat in self._seats]

    @torch.inference_mode()
    def step(self, joining: Sequence[DecodingRow] = ()) -> list[DecodingRow]:
        """Launch the next token of every row and of those that join; read the last ones.

        Returns:
            The rows that are done; they have left.
        """
        launched, self._launched = self._launched, []
        self._hold_adapters(joining)
        going = [seat for seat in self._seats if self._continues(seat)]
        if going:
            self._launch(going)
        if joining:
            self._read(joining)
        for launch in launched:
            self._take(launch)
        return self._leave()

    def clear(self) -> None:
        """Drop all rows and give their memory back; recorded steps stay."""
        self._seats, self._launched = [], []
        self._free = list(range(self.max_rows))
        self._pool.clear()
        self._table_is_old = True

    # --- one token of each row ------------------------------------------------------------------

    @staticmethod
    def _continues(seat: _Seat) -> bool:
        return seat.asked < seat.row.max_tokens and not seat.row.done

    def _launch(self, seats: list[_Seat]) -> None:
        count = round_up_size(len(seats), FEWEST_ROWS)
        positions = [len(seat.row.prompt) + seat.asked - 1 for seat in seats]
        for seat, position in zip(seats, positions, strict=True):
            if position // PAGE == len(seat.pages):
                self._give_pages(seat, [self._pool.take()])
        numbers = self._describe_rows(seats, positions, count)
        self._numbers[: 7 * count].copy_(
            send_to_device(numbers.view(-1), self.device), non_blocking=True
        )
        # Who sits where changes whenever the rows do.
        slots = [seat.slot for seat in seats]
        if self._table_is_old or slots != self._slots_in_table:
            table = torch.from_numpy(self._addresses[slots])
            self._table[: len(seats)].copy_(send_to_device(table, self.device), non_blocking=True)
            self._table_is_old, self._slots_in_table = False, slots
        adapted = any(seat.row.adapter is not None for seat in seats)
        self._keep(seats, self._replay_step(count, adapted))

    def _describe_rows(self, seats: list[_Seat], positions: list[int], count: int) -> Tensor:
        """Pack each row's numbers for `draw_tokens`, idle rows at the end."""
        numbers = torch.empty(7, count, dtype=torch.int32)
        n = len(seats)
        whole, real = numbers.numpy(), numbers.view(torch.float32).numpy()
        whole[:, n:] = 0
        whole[0, n:], whole[1, n:], whole[2, n:] = self.max_rows, -1, -1
        bank = self.fused.bank
        slot_of: dict[Adapter | None, int] = {}
        for seat in seats:
            adapter = seat.row.adapter
            if adapter not in slot_of:
                slot_of[adapter] = bank.slot(adapter)
        whole[0, :n] = [seat.slot for seat in seats]
        whole[1, :n] = positions
        whole[2, :n] = [slot_of[seat.row.adapter] for seat in seats]
        whole[3, :n] = [
            seat.row.sampling.forced[seat.asked] if seat.row.sampling.forced else -1
            for seat in seats
        ]
        real[4, :n] = [seat.row.random.random() for seat in seats]
        real[5, :n] = [seat.row.sampling.temperature for seat in seats]
        real[6, :n] = [seat.row.sampling.top_p for seat in seats]
        for seat in seats:
            seat.asked += 1
        return numbers

    def _replay_step(self, rows: int, adapted: bool) -> Tensor:
        """Return the results of a step over the first rows; they are valid until the next one."""
        key = (rows, adapted)
        if self.device.type != "cuda" or key not in self._recorded:
            self._recorded[key] = None
            return self._run(rows, adapted)
        recorded = self._recorded[key]
        if recorded is None:
            recorded = self._recorded[key] = self._record(rows, adapted)
        recorded.graph.replay()
        return recorded.results

    def _record(self, rows: int, adapted: bool) -> _Recorded:
        graph = torch.cuda.CUDAGraph()
        if self._memory is None:
            self._memory = torch.cuda.graph_pool_handle()
        with record_graph(graph, self._memory):
            results = self._run(rows, adapted)
        return _Recorded(graph, results)

    def _run(self, rows: int, adapted: bool) -> Tensor:
        numbers = self._numbers[: 7 * rows].view(7, rows)
        slots, positions, whose = numbers[:3]
        tokens = self._next_tokens.index_select(0, slots)
        batch = TokenBatch(
            positions, self._places[:rows], self._table[:rows], whose if adapted else None
        )
        logits = self.fused(tokens, batch, self._pool)
        return self._draw(logits, numbers)

    def _draw(self, logits: Tensor, numbers: Tensor) -> Tensor:
        drawn: Tensor = self.fused.ops.draw_tokens(
            logits, self.fused.vocabulary, numbers, self._next_tokens
        )
        return drawn

    def _keep(self, seats: list[_Seat], results: Tensor) -> None:
        """Copy results to the host, to be read later."""
        if self.device.type == "cpu":
            self._launched.append(_Launch(seats, results, None))
            return
        there = torch.empty(results.shape, dtype=torch.int32, pin_memory=True)
        there.copy_(results, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        self._launched.append(_Launch(seats, there, done))

    # --- prompts --------------------------------------------------------------------------------

    def _hold_adapters(self, joining: Sequence[DecodingRow]) -> None:
        needed = [row.adapter for row in (*self.rows, *joining) if row.adapter is not None]
        if self.fused.bank.hold(needed):
            self._recorded.clear()
            self._memory = None

    def _read(self, joining: Sequence[DecodingRow]) -> None:
        """Read prompts in chunks; equal ones are read once."""
        alike: dict[tuple[Adapter | None, tuple[int, ...]], list[DecodingRow]] = {}
        for row in joining:
            alike.setdefault((row.adapter, row.prompt), []).append(row)
        groups = list(alike.values())
        for chunk in split_prompts([len(g[0].prompt) for g in groups], self.chunk_tokens):
            self._read_chunk([groups[number] for number in chunk])

    def _read_chunk(self, groups: list[list[DecodingRow]]) -> None:
        readers = [self._seat(rows[0]) for rows in groups]
        lengths = [len(seat.row.prompt) for seat in readers]
        for seat, length in zip(readers, lengths, strict=True):
            self._give_pages(seat, [self._pool.take() for _ in range(-(-length // PAGE))])
        bank = self.fused.bank
        adapted = any(seat.row.adapter is not None for seat in readers)
        counts = np.array(lengths)
        ends = counts.cumsum()
        numbers = np.empty((4, ends[-1]), np.int32)
        numbers[0] = [token for seat in readers for token in seat.row.prompt]
        numbers[1] = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        numbers[2] = np.repeat(np.arange(len(readers)), counts)
        numbers[3] = np.repeat([bank.slot(seat.row.adapter) for seat in readers], counts)
        there = send_to_device(torch.from_numpy(numbers), self.device)
        table = send_to_device(
            torch.from_numpy(self._addresses[[seat.slot for seat in readers]]), self.device
        )
        batch = TokenBatch(there[1], there[2], table, there[3] if adapted else None, lengths)
        keep = send_to_device(torch.from_numpy(ends - 1), self.device)
        logits = self.fused(there[0].long(), batch, self._pool, keep)
        seats, sources = [], []
        for place, (reader, rows) in enumerate(zip(readers, groups, strict=True)):
            for row in rows:
                seats.append(reader if row is reader.row else self._seat_like(row, reader))
                sources.append(place)
        if len(seats) > len(readers):
            logits = logits[send_to_device(torch.tensor(sources), self.device)]
        positions = [len(seat.row.prompt) - 1 for seat in seats]
        described = send_to_device(self._describe_rows(seats, positions, len(seats)), self.device)
        self._keep(seats, self._draw(logits, described))
        self._table_is_old = True

    def _seat(self, row: DecodingRow) -> _Seat:
        seat = _Seat(row, self._free.pop(), [])
        self._seats.append(seat)
        return seat

    def _seat_like(self, row: DecodingRow, reader: _Seat) -> _Seat:
        """Seat a row with another's prompt: full pages are shared, the last one is copied."""
        seat = self._seat(row)
        full = len(row.prompt) // PAGE
        pages = [self._pool.share(page) for page in reader.pages[:full]]
        pages += [self._pool.copy(page) for page in reader.pages[full:]]
        self._give_pages(seat, pages)
        return seat

    def _give_pages(self, seat: _Seat, pages: list[int]) -> None:
        start = len(seat.pages)
        seat.pages += pages
        self._addresses[seat.slot, start : len(seat.pages)] = pages
        self._table_is_old = True

    # --- reading what was drawn -----------------------------------------------------------------

    def _take(self, launch: _Launch) -> None:
        if launch.done is not None:
            launch.done.synchronize()
        tokens = launch.results[0].tolist()
        logprobs = launch.results[1].view(torch.float32).tolist()
        for seat, token, logprob in zip(launch.seats, tokens, logprobs, strict=False):
            row = seat.row
            if row.stopped or row.broken or row.left:
                continue  # the step was launched before that was known
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.stopped = token in self.stop
            row.broken = not logprob > float("-inf")
            self.generated += 1

    def _leave(self) -> list[DecodingRow]:
        """Remove the rows that are done.

        Steps already launched may still write to their pages; whoever gets those writes later.
        """
        staying, gone = [], []
        for seat in self._seats:
            if seat.row.done:  # asked once: callers may give up at any moment
                gone.append(seat.row)
                self._free.append(seat.slot)
                self._pool.give_back(seat.pages)
            else:
                staying.append(seat)
        self._seats = staying
        return gone
