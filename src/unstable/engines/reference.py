"""Pages of keys and values, and what the kernels of the paged decoder compute, in plain torch.

For any device, and to test the kernels. Rows of a step that are idle have position -1; what is
computed for them means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

PAGE = 64
"""Tokens of a page."""
SLAB_BYTES, SLAB_PAGES = 2**30, 256
"""Memory is taken by slabs of at most so much."""


class PagePool:
    """Pages of PAGE tokens for all layers, known by their addresses.

    A kernel finds them by address alone, so that recorded steps stay valid when the memory is given
    back and other memory is taken later.
    """

    def __init__(
        self, layers: int, kv_heads: int, size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = (layers, 2, kv_heads, PAGE, size)
        self.layer_size = 2 * kv_heads * PAGE * size
        """Numbers of a layer: its keys, (kv_heads, PAGE, size), and then its values."""
        self._dtype, self._device = dtype, device
        self._pages: dict[int, Tensor] = {}
        self._free: list[int] = []
        self._users: dict[int, int] = {}
        """Of pages that have more than one."""

    def take(self) -> int:
        """The address of a page that nobody uses; what it holds is anything."""
        if not self._free:
            self._grow()
        return self._free.pop()

    def share(self, address: int) -> int:
        self._users[address] = self._users.get(address, 1) + 1
        return address

    def give_back(self, addresses: list[int]) -> None:
        for address in addresses:
            users = self._users.pop(address, 1) - 1
            if users == 0:
                self._free.append(address)
            elif users > 1:
                self._users[address] = users

    def page(self, address: int) -> Tensor:
        """Its numbers, (layers, 2, kv_heads, PAGE, size)."""
        return self._pages[address]

    def copy(self, address: int) -> int:
        """A page with the same content."""
        new = self.take()
        self._pages[new].copy_(self._pages[address])
        return new

    def clear(self) -> None:
        """Give all memory back; whoever has a page has it no more."""
        self._pages, self._free, self._users = {}, [], {}

    @property
    def used(self) -> int:
        return len(self._pages) - len(self._free)

    def _grow(self) -> None:
        numbers = self.shape[0] * self.layer_size
        count = max(1, min(SLAB_PAGES, SLAB_BYTES // (numbers * self._dtype.itemsize)))
        slab = torch.empty((count, *self.shape), dtype=self._dtype, device=self._device)
        pages = {page.data_ptr(): page for page in slab}
        self._pages.update(pages)
        self._free.extend(reversed(pages))


def add_norm(hidden: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """The RMS norm of `hidden`, to which `delta` is added in place before."""
    if delta is not None:
        hidden.add_(delta)
    return functional.rms_norm(hidden.float(), weight.shape, weight.float(), epsilon).to(
        hidden.dtype
    )


def rotate_and_store(
    qkv: Tensor, heads: tuple[int, int, int], norms: tuple[Tensor, Tensor, float] | None,
    rotary: tuple[Tensor, Tensor], positions: Tensor, rows: Tensor, table: Tensor,
    pool: PagePool, layer: int, keep_keys: bool,  # noqa: ARG001 - a kernel may leave them out
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Queries and keys of projected tokens; keys and values are written to the rows' pages.

    Args:
        qkv: (tokens, at least all heads of all three), one after the other.
        heads: how many of queries, how many of keys, and their size.
        norms: weights and epsilon of the norms of queries and keys.
        rotary: cosines and sines, (positions, size).
        positions: of the tokens.
        rows: whose tokens they are.
        table: (rows, pages): addresses.
        pool: where the pages are.
        layer: its number.
        keep_keys: whether the keys that are returned matter.
    """
    q_heads, kv_heads, size = heads
    width = (q_heads + 2 * kv_heads) * size
    parts = qkv[:, :width].float().view(len(qkv), -1, size)
    queries, keys, values = torch.split(parts, [q_heads, kv_heads, kv_heads], 1)
    if norms is not None:
        queries = functional.rms_norm(queries, (size,), norms[0].float(), norms[2])
        keys = functional.rms_norm(keys, (size,), norms[1].float(), norms[2])
    cosine, sine = (states[positions.long()].float()[:, None] for states in rotary)
    queries, keys, values = (
        states.to(qkv.dtype)
        for states in (_turned(queries, cosine, sine), _turned(keys, cosine, sine), values)
    )
    pages = table[rows.long(), (positions // PAGE).clamp(min=0).long()]
    for address in set(pages[positions >= 0].tolist()):
        some = (pages == address) & (positions >= 0)
        places = positions[some].long() % PAGE
        page = pool.page(address)[layer]
        page[0, :, places] = keys[some].transpose(0, 1)
        page[1, :, places] = values[some].transpose(0, 1)
    return queries, keys


def _turned(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = states.chunk(2, -1)
    return states * cosine + torch.cat([-second, first], -1) * sine


def attend(
    queries: Tensor, kv_heads: int, positions: Tensor, table: Tensor, pool: PagePool, layer: int,
    scale: float,
) -> Tensor:  # fmt: skip
    """One token of each row against all that its pages hold up to its position."""
    out = torch.zeros_like(queries)
    for row, position in enumerate(positions.tolist()):
        if position < 0:
            continue
        addresses = table[row, : position // PAGE + 1].tolist()
        both = torch.cat([pool.page(address)[layer] for address in addresses], 2)
        keys, values = both[:, :, : position + 1].float()
        query = queries[row].float().view(kv_heads, -1, queries.shape[-1])
        weights = (query @ keys.transpose(1, 2) * scale).softmax(-1)
        out[row] = (weights @ values).flatten(0, 1).to(out.dtype)
    return out


def expand(out: Tensor, up: Tensor, whose: Tensor, sizes: Sequence[int], rank: int) -> None:
    """Add to the first columns of `out` what adapters make of its last ones, their ranks.

    Args:
        out: (tokens, columns of all layers, then ranks of each layer).
        up: (ranks, columns): from ranks to columns, of each layer.
        whose: the adapter of each token by its place among the ranks; -1: none.
        sizes: columns of each layer.
        rank: how many ranks an adapter has.
    """
    width, ranks = sum(sizes), len(up)
    own = torch.arange(ranks, device=out.device) // rank == whose[:, None]
    start = 0
    for number, size in enumerate(sizes):
        some = slice(start, start + size)
        first = width + number * ranks
        out[:, some] += (out[:, first : first + ranks] * own) @ up[:, some]
        start += size


def gate(both: Tensor, size: int, up: Tensor | None, whose: Tensor | None, rank: int) -> Tensor:
    """`silu` of the first `size` columns times the next ones, with what adapters add to both."""
    if up is not None and whose is not None:
        expand(both, up, whose, (size, size), rank)
    return functional.silu(both[:, :size]) * both[:, size : 2 * size]


def draw(
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


def draw_tokens(logits: Tensor, vocabulary: int, numbers: Tensor, next_tokens: Tensor) -> Tensor:
    """Draw a token per row, as `draw` does.

    Args:
        logits: (rows, at least the vocabulary).
        vocabulary: its size.
        numbers: int32, (7, rows): slot, position, adapter, forced token or -1, and the bits of
            the uniform number, the temperature and top_p.
        next_tokens: by slot, where the tokens are put.

    Returns:
        int32, (2, rows): tokens, and the bits of their log-probabilities after the temperature.
    """
    slots, _, _, forced = numbers[:4].long()
    uniform, temperature, top_p = numbers[4:].view(torch.float32)
    tokens, logprobs = draw(logits[:, :vocabulary].float(), uniform, temperature, top_p, forced)
    next_tokens[slots] = tokens
    return torch.stack([tokens.int(), logprobs.view(torch.int32)])
