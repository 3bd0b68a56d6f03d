"""What the kernels of the paged decoder compute, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from unstable.engines.decoder import sample_tokens
from unstable.engines.pages import PAGE, PagePool


def add_norm(hidden: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    if delta is not None:
        hidden.add_(delta)
    return functional.rms_norm(hidden.float(), weight.shape, weight.float(), epsilon).to(
        hidden.dtype
    )


def rotate_and_store(
    qkv: Tensor, heads: tuple[int, int, int], norms: tuple[Tensor, Tensor, float] | None,
    rotary: tuple[Tensor, Tensor], positions: Tensor, rows: Tensor, table: Tensor,
    pool: PagePool, layer: int, keep_keys: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
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
    width, ranks = sum(sizes), len(up)
    own = torch.arange(ranks, device=out.device) // rank == whose[:, None]
    start = 0
    for number, size in enumerate(sizes):
        some = slice(start, start + size)
        first = width + number * ranks
        out[:, some] += (out[:, first : first + ranks] * own) @ up[:, some]
        start += size


def gate(both: Tensor, size: int, up: Tensor | None, whose: Tensor | None, rank: int) -> Tensor:
    if up is not None and whose is not None:
        expand(both, up, whose, (size, size), rank)
    return functional.silu(both[:, :size]) * both[:, size : 2 * size]


def draw_tokens(logits: Tensor, vocabulary: int, numbers: Tensor, next_tokens: Tensor) -> Tensor:
    slots, _, _, forced = numbers[:4].long()
    uniform, temperature, top_p = numbers[4:].view(torch.float32)
    tokens, logprobs = sample_tokens(
        logits[:, :vocabulary].float(), uniform, temperature, top_p, forced
    )
    next_tokens[slots] = tokens
    return torch.stack([tokens.int(), logprobs.view(torch.int32)])
