"""Triton kernels of the paged decoder.

Sums are float32 whatever the tensors are. Rows of a step that are idle have position -1; what is
computed for them means nothing. The tests have the same functions in plain torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from unstable.engines.pages import PAGE, PagePool

LEAST = 16
"""Of a side of a product of matrices."""
PROGRAMS = 2048
"""Rows are split among programs of attention until there are about so many."""


# --- norms --------------------------------------------------------------------------------------


@triton.jit
def _add_norm(
    hidden, delta, weight, out, delta_stride, epsilon,
    HAS_DELTA: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    x = tl.load(hidden + row * SIZE + column, mask=inside, other=0.0)
    if HAS_DELTA:
        added = tl.load(delta + row * delta_stride + column, mask=inside, other=0.0)
        x = (x.to(tl.float32) + added.to(tl.float32)).to(x.dtype)
        tl.store(hidden + row * SIZE + column, x, mask=inside)
    x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / SIZE + epsilon)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + column, (x * scale * w).to(out.dtype.element_ty), mask=inside)


def add_norm(hidden: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """Return the RMS norm of `hidden`, to which `delta` is added in place before."""
    tokens, size = hidden.shape
    out = torch.empty_like(hidden)
    block = triton.next_power_of_2(size)
    _add_norm[(tokens,)](
        hidden, hidden if delta is None else delta, weight, out,
        size if delta is None else delta.stride(0), epsilon,
        HAS_DELTA=delta is not None, SIZE=size, BLOCK=block,
        num_warps=8 if block > 2048 else 4,
    )  # fmt: skip
    return out


# --- from the projection to queries, and keys and values in their pages ---------------------------


@triton.jit
def _page(anchor, address):
    """Return a pointer to an address, counted from another one: so it is known to be aligned."""
    bytes_each: tl.constexpr = anchor.dtype.element_ty.primitive_bitwidth // 8
    return anchor + tl.multiple_of((address - anchor.to(tl.int64)) // bytes_each, 16)


@triton.jit
def _rotate_heads(
    heads, weight, cosine, sine, epsilon,
    COUNT: tl.constexpr, COUNT_BLOCK: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Normalise heads of a token, (COUNT_BLOCK, BLOCK), and rotate them to its position."""
    head = tl.arange(0, COUNT_BLOCK)[:, None]
    column = tl.arange(0, BLOCK)
    inside = (head < COUNT) & (column < SIZE)[None, :]
    other_half = tl.where(column < SIZE // 2, column + SIZE // 2, column - SIZE // 2)
    x = tl.load(heads + head * SIZE + column[None, :], mask=inside, other=0.0).to(tl.float32)
    y = tl.load(heads + head * SIZE + other_half[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / SIZE + epsilon)[:, None]
        w = tl.load(weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
        u = tl.load(weight + other_half, mask=column < SIZE, other=0.0).to(tl.float32)
        x = x * scale * w[None, :]
        y = y * scale * u[None, :]
    c = tl.load(cosine + column, mask=column < SIZE, other=0.0).to(tl.float32)
    s = tl.load(sine + column, mask=column < SIZE, other=0.0).to(tl.float32)
    s = tl.where(column < SIZE // 2, -s, s)
    return x * c[None, :] + y * s[None, :]


@triton.jit
def _rotate_and_store(
    qkv, queries, keys, table, rows, positions, cosines, sines, q_weight, k_weight,
    stride, table_stride, layer_offset, epsilon,
    Q_HEADS: tl.constexpr, Q_BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, KV_BLOCK: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, PAGE_SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr, KEEP_KEYS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    position = tl.load(positions + token)
    if position >= 0:  # else the row is idle
        base = qkv + token * stride
        cosine = cosines + position.to(tl.int64) * SIZE
        sine = sines + position.to(tl.int64) * SIZE
        column = tl.arange(0, BLOCK)[None, :]
        if part == 0:
            q_head = tl.arange(0, Q_BLOCK)[:, None]
            query = _rotate_heads(
                base, q_weight, cosine, sine, epsilon, Q_HEADS, Q_BLOCK, SIZE, BLOCK, HAS_NORM
            )
            tl.store(
                queries + (token * Q_HEADS + q_head) * SIZE + column,
                query.to(queries.dtype.element_ty),
                mask=(q_head < Q_HEADS) & (column < SIZE),
            )
        else:
            head = tl.arange(0, KV_BLOCK)[:, None]
            inside = (head < KV_HEADS) & (column < SIZE)
            row = tl.load(rows + token).to(tl.int64)
            address = tl.load(table + row * table_stride + position // PAGE_SIZE)
            page = _page(qkv, address)
            place = (head * PAGE_SIZE + position % PAGE_SIZE) * SIZE + column
            if part == 1:
                key = _rotate_heads(
                    base + Q_HEADS * SIZE, k_weight, cosine, sine, epsilon,
                    KV_HEADS, KV_BLOCK, SIZE, BLOCK, HAS_NORM,
                ).to(qkv.dtype.element_ty)  # fmt: skip
                tl.store(page + layer_offset + place, key, mask=inside)
                if KEEP_KEYS:
                    tl.store(keys + (token * KV_HEADS + head) * SIZE + column, key, mask=inside)
            else:
                first = base + (Q_HEADS + KV_HEADS) * SIZE
                value = tl.load(first + head * SIZE + column, mask=inside, other=0.0)
                page += layer_offset + KV_HEADS * PAGE_SIZE * SIZE
                tl.store(page + place, value, mask=inside)


def rotate_and_store(
    qkv: Tensor, heads: tuple[int, int, int], norms: tuple[Tensor, Tensor, float] | None,
    rotary: tuple[Tensor, Tensor], positions: Tensor, rows: Tensor, table: Tensor,
    pool: PagePool, layer: int, keep_keys: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return queries and keys of projected tokens; write keys and values to their pages.

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
    queries = qkv.new_empty(len(qkv), q_heads, size)
    keys = qkv.new_empty(len(qkv), kv_heads, size) if keep_keys else queries
    q_weight, k_weight, epsilon = norms or (rotary[0], rotary[0], 0.0)
    _rotate_and_store[(len(qkv), 3)](
        qkv, queries, keys, table, rows, positions, *rotary, q_weight, k_weight,
        qkv.stride(0), table.stride(0), layer * pool.layer_size, epsilon,
        Q_HEADS=q_heads, Q_BLOCK=triton.next_power_of_2(q_heads),
        KV_HEADS=kv_heads, KV_BLOCK=triton.next_power_of_2(kv_heads),
        SIZE=size, BLOCK=triton.next_power_of_2(size), PAGE_SIZE=PAGE,
        HAS_NORM=norms is not None, KEEP_KEYS=keep_keys, num_warps=2,
    )  # fmt: skip
    return queries, keys


# --- one token of each row against its pages ------------------------------------------------------


@triton.jit
def _attend(
    queries, table, positions, out, parts, logs, table_stride, layer_offset, scale,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, PAGE_SIZE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(positions + row) + 1
    pages = tl.cdiv(length, PAGE_SIZE)
    share = tl.cdiv(pages, SPLITS)
    first = split * share
    last = tl.minimum(first + share, pages)
    member = tl.arange(0, GROUP_BLOCK)
    column = tl.arange(0, BLOCK)
    place = tl.arange(0, PAGE_SIZE)
    own = (member < GROUP)[:, None] & (column < SIZE)[None, :]
    query_head = head * GROUP + member
    q = tl.load(
        queries + (row * Q_HEADS + query_head[:, None]) * SIZE + column[None, :],
        mask=own,
        other=0.0,
    )
    most = tl.full((GROUP_BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_BLOCK,), tl.float32)
    mixed = tl.zeros((GROUP_BLOCK, BLOCK), tl.float32)
    for number in range(first, last):
        address = tl.load(table + row * table_stride + number)
        page = _page(queries, address) + layer_offset + head * PAGE_SIZE * SIZE
        seen = number * PAGE_SIZE + place < length
        k = tl.load(
            page + place[None, :] * SIZE + column[:, None],
            mask=seen[None, :] & (column < SIZE)[:, None], other=0.0,
        )  # fmt: skip
        # What was never written may be no number: it is left out, not multiplied by zero.
        v = tl.load(
            page + KV_HEADS * PAGE_SIZE * SIZE + place[:, None] * SIZE + column[None, :],
            mask=seen[:, None] & (column < SIZE)[None, :], other=0.0,
        )  # fmt: skip
        scores = tl.dot(q, k, input_precision="ieee") * (scale * 1.4426950408889634)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_most = tl.maximum(most, tl.max(scores, 1))
        shrunk = tl.exp2(most - new_most)
        weights = tl.exp2(scores - new_most[:, None])
        total = total * shrunk + tl.sum(weights, 1)
        mixed = mixed * shrunk[:, None]
        mixed = tl.dot(weights.to(v.dtype), v, mixed, input_precision="ieee")
        most = new_most
    if SPLITS == 1:
        total = tl.where(total > 0.0, total, 1.0)
        tl.store(
            out + (row * Q_HEADS + query_head[:, None]) * SIZE + column[None, :],
            (mixed / total[:, None]).to(out.dtype.element_ty), mask=own,
        )  # fmt: skip
    else:
        place_of = (row * SPLITS + split) * Q_HEADS + query_head
        safe = tl.where(total > 0.0, total, 1.0)
        tl.store(
            parts + place_of[:, None] * SIZE + column[None, :], mixed / safe[:, None], mask=own
        )
        tl.store(
            logs + place_of,
            tl.where(total > 0.0, most + tl.log2(safe), float("-inf")), mask=member < GROUP,
        )  # fmt: skip


@triton.jit
def _join_parts(
    parts, logs, out,
    Q_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS)
    column = tl.arange(0, BLOCK)
    place = (row * SPLITS + split) * Q_HEADS + head
    log = tl.load(logs + place)
    most = tl.max(log, 0)
    weight = tl.exp2(log - tl.where(most > float("-inf"), most, 0.0))
    part = tl.load(
        parts + place[:, None] * SIZE + column[None, :], mask=(column < SIZE)[None, :], other=0.0
    )
    total = tl.sum(weight, 0)
    mixed = tl.sum(part * weight[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    tl.store(
        out + (row * Q_HEADS + head) * SIZE + column,
        mixed.to(out.dtype.element_ty), mask=column < SIZE,
    )  # fmt: skip


def attend(
    queries: Tensor, kv_heads: int, positions: Tensor, table: Tensor, pool: PagePool, layer: int,
    scale: float,
) -> Tensor:  # fmt: skip
    """Attend one token of each row to its pages, up to its position."""
    rows, q_heads, size = queries.shape
    splits = triton.next_power_of_2(max(1, min(PROGRAMS // (rows * kv_heads), 32)))
    out = torch.empty_like(queries)
    parts = logs = out
    if splits > 1:
        parts = queries.new_empty(rows, splits, q_heads, size, dtype=torch.float32)
        logs = queries.new_empty(rows, splits, q_heads, dtype=torch.float32)
    group, block = q_heads // kv_heads, max(LEAST, triton.next_power_of_2(size))
    _attend[(rows, kv_heads, splits)](
        queries, table, positions, out, parts, logs, table.stride(0), layer * pool.layer_size,
        scale, Q_HEADS=q_heads, KV_HEADS=kv_heads, GROUP=group,
        GROUP_BLOCK=max(LEAST, triton.next_power_of_2(group)), SIZE=size, BLOCK=block,
        PAGE_SIZE=PAGE, SPLITS=splits, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        _join_parts[(rows, q_heads)](
            parts, logs, out, Q_HEADS=q_heads, SIZE=size, BLOCK=block, SPLITS=splits, num_warps=2
        )
    return out


# --- adapters, and the gate -----------------------------------------------------------------------


@triton.jit
def _adapter_sum(
    ranks, up, whose, tokens, columns, inside, real, stride, WIDTH: tl.constexpr,
    RANKS: tl.constexpr, RANK_BLOCK: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """Sum the adapters' products for some columns and tokens; each token has its own ranks."""
    rank = tl.arange(0, RANK_BLOCK)
    own = tl.load(whose + tokens, mask=inside, other=-1)
    first = tl.load(
        ranks + tokens[:, None] * stride + rank[None, :], mask=inside[:, None], other=0.0
    )
    first = tl.where((rank // RANK)[None, :] == own[:, None], first, 0.0)
    matrix = tl.load(up + rank[:, None] * WIDTH + columns[None, :], mask=real[None, :], other=0.0)
    total = tl.dot(first, matrix, input_precision="ieee")
    for start in range(RANK_BLOCK, RANKS, RANK_BLOCK):
        number = start + rank
        next_ranks = tl.load(
            ranks + tokens[:, None] * stride + number[None, :], mask=inside[:, None], other=0.0
        )
        next_ranks = tl.where((number // RANK)[None, :] == own[:, None], next_ranks, 0.0)
        matrix = tl.load(
            up + number[:, None] * WIDTH + columns[None, :], mask=real[None, :], other=0.0
        )
        total = tl.dot(next_ranks, matrix, total, input_precision="ieee")
    return total


@triton.jit
def _expand(
    out, up, whose, count, stride,
    WIDTH: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, RANKS: tl.constexpr,
    RANK_BLOCK: tl.constexpr, RANK: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    start = tl.program_id(1) * COLUMNS
    columns = start + tl.arange(0, COLUMNS)
    inside = tokens < count
    real = columns < WIDTH
    mask = inside[:, None] & real[None, :]
    segment = (start >= SECOND).to(tl.int32) + (start >= THIRD).to(tl.int32)
    added = _adapter_sum(
        out + WIDTH + segment * RANKS, up, whose, tokens, columns, inside, real, stride,
        WIDTH, RANKS, RANK_BLOCK, RANK,
    )  # fmt: skip
    place = out + tokens[:, None] * stride + columns[None, :]
    base = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    tl.store(place, (base + added).to(out.dtype.element_ty), mask=mask)


def expand(out: Tensor, up: Tensor, whose: Tensor, sizes: Sequence[int], rank: int) -> None:
    """Add to the first columns of `out` the adapters' products of its last ones, their ranks.

    Args:
        out: (tokens, columns of all layers, then ranks of each layer).
        up: (ranks, columns): from ranks to columns, of each layer.
        whose: the adapter of each token by its place among the ranks; -1: none.
        sizes: columns of each layer.
        rank: how many ranks an adapter has.
    """
    width, ranks = sum(sizes), len(up)
    second = sizes[0]
    third = second + sizes[1] if len(sizes) > 2 else width
    tokens = _token_tile(len(out))
    columns = 64 if len(sizes) == 1 else math.gcd(*sizes, 64)  # no tile is of two layers
    _expand[(triton.cdiv(len(out), tokens), triton.cdiv(width, columns))](
        out, up, whose, len(out), out.stride(0), WIDTH=width, SECOND=second, THIRD=third,
        RANKS=ranks, RANK_BLOCK=min(ranks, 64), RANK=rank, TOKENS=tokens, COLUMNS=columns,
        num_warps=4,
    )  # fmt: skip


def _token_tile(tokens: int) -> int:
    return min(64, max(LEAST, int(triton.next_power_of_2(tokens))))


@triton.jit
def _gate(
    both, up, whose, out, count, stride,
    SIZE: tl.constexpr, RANKS: tl.constexpr, RANK_BLOCK: tl.constexpr, RANK: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = tokens < count
    real = columns < SIZE
    mask = inside[:, None] & real[None, :]
    place = both + tokens[:, None] * stride + columns[None, :]
    gate = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(place + SIZE, mask=mask, other=0.0).to(tl.float32)
    if RANKS > 0:
        ranks = both + 2 * SIZE
        gate += _adapter_sum(
            ranks, up, whose, tokens, columns, inside, real, stride,
            2 * SIZE, RANKS, RANK_BLOCK, RANK,
        )  # fmt: skip
        value += _adapter_sum(
            ranks + RANKS, up, whose, tokens, SIZE + columns, inside, real, stride,
            2 * SIZE, RANKS, RANK_BLOCK, RANK,
        )  # fmt: skip
    mixed = gate / (1.0 + tl.exp(-gate)) * value
    tl.store(
        out + tokens[:, None] * SIZE + columns[None, :], mixed.to(out.dtype.element_ty), mask=mask
    )


def gate(both: Tensor, size: int, up: Tensor | None, whose: Tensor | None, rank: int) -> Tensor:
    """Multiply `silu` of the first `size` columns with the next ones, adapters included."""
    out = both.new_empty(len(both), size)
    if up is None or whose is None:
        tokens, columns = 1, min(1024, triton.next_power_of_2(size))
        up = whose = both
        ranks = 0
    else:
        tokens, columns = _token_tile(len(both)), 64
        ranks = len(up)
    _gate[(triton.cdiv(len(both), tokens), triton.cdiv(size, columns))](
        both, up, whose, out, len(both), both.stride(0), SIZE=size, RANKS=ranks,
        RANK_BLOCK=min(max(ranks, 1), 64), RANK=rank, TOKENS=tokens, COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    return out


# --- drawing --------------------------------------------------------------------------------------


@triton.jit
def _sortable(x, BITS: tl.constexpr):
    """Map floating-point numbers to integers of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> (32 - BITS)


@triton.jit
def _load_block(source, start, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    column = start + tl.arange(0, BLOCK)
    return tl.load(source + column, mask=column < VOCABULARY, other=float("-inf")).to(tl.float32)


@triton.jit
def _most_likely(source, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """Return the largest logit, and where it is first."""
    mosts = tl.full((BLOCK,), float("-inf"), tl.float32)
    places = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, VOCABULARY, BLOCK):
        x = _load_block(source, start, VOCABULARY, BLOCK)
        places = tl.where(x > mosts, start + tl.arange(0, BLOCK), places)
        mosts = tl.maximum(mosts, x)
    most = tl.max(mosts, 0)
    return most, tl.min(tl.where(mosts == most, places, VOCABULARY), 0)


@triton.jit
def _nucleus(
    source, most, sharpness, total, top_p,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Return the highest threshold above which there is the mass of top_p, and that mass."""
    goal = top_p * total
    # All tokens together that are less likely than this are less than what top_p leaves out.
    least = most - tl.log(VOCABULARY / (1.0 - top_p)) / sharpness
    first = _sortable(least, BITS).to(tl.int64)
    span = _sortable(most, BITS).to(tl.int64) - first + 1
    step = tl.full((), 1, tl.int64)
    while step * 3 < span:
        step *= 4
    threshold = first - step
    kept = total
    while step > 0:  # two bits at a time
        low = (threshold + step).to(tl.int32)
        middle = (threshold + 2 * step).to(tl.int32)
        high = (threshold + 3 * step).to(tl.int32)
        lows = tl.zeros((BLOCK,), tl.float32)
        middles = tl.zeros((BLOCK,), tl.float32)
        highs = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            x = _load_block(source, start, VOCABULARY, BLOCK)
            order = _sortable(x, BITS)
            mass = tl.exp((x - most) * sharpness)
            lows += tl.where(order >= low, mass, 0.0)
            middles += tl.where(order >= middle, mass, 0.0)
            highs += tl.where(order >= high, mass, 0.0)
        above_low, above_middle, above_high = tl.sum(lows, 0), tl.sum(middles, 0), tl.sum(highs, 0)
        if above_high >= goal:
            threshold += 3 * step
            kept = above_high
        elif above_middle >= goal:
            threshold += 2 * step
            kept = above_middle
        elif above_low >= goal:
            threshold += step
            kept = above_low
        step = step // 4
    return threshold.to(tl.int32), kept


@triton.jit
def _first_beyond(
    source, most, sharpness, threshold, goal,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Return the first token at which the mass of those kept is more than `goal`."""
    before = tl.zeros((), tl.float32)
    start = tl.zeros((), tl.int32)
    chosen = tl.full((), -1, tl.int32)
    last = tl.full((), -1, tl.int32)
    while (start < VOCABULARY) & (chosen < 0):
        x = _load_block(source, start, VOCABULARY, BLOCK)
        column = start + tl.arange(0, BLOCK)
        mass = tl.exp((x - most) * sharpness)
        mass = tl.where(_sortable(x, BITS) >= threshold, mass, 0.0)
        block = tl.sum(mass, 0)
        if before + block > goal:
            beyond = (before + tl.cumsum(mass, 0) > goal) & (mass > 0.0)
            place = tl.min(tl.where(beyond, column, VOCABULARY), 0)
            chosen = tl.where(place < VOCABULARY, place, -1)
        last = tl.maximum(last, tl.max(tl.where(mass > 0.0, column, -1), 0))
        before += block
        start += BLOCK
    return tl.where(chosen >= 0, chosen, last)  # rounding may leave none


@triton.jit
def _draw(
    logits, slots, positions, forced, uniforms, temperatures, top_ps, next_tokens, results,
    stride, count,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if tl.load(positions + row) >= 0:
        source = logits + row * stride
        most, token = _most_likely(source, VOCABULARY, BLOCK)
        temperature = tl.load(temperatures + row)
        sharpness = 1.0 / tl.where(temperature > 0.0, temperature, 1.0)
        masses = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            x = _load_block(source, start, VOCABULARY, BLOCK)
            masses += tl.exp((x - most) * sharpness)
        total = tl.sum(masses, 0)
        if temperature > 0.0:
            kept = total
            threshold = tl.full((), -(2 ** (BITS - 1)), tl.int32)
            top_p = tl.load(top_ps + row)
            if top_p < 1.0:
                threshold, kept = _nucleus(
                    source, most, sharpness, kept, top_p, VOCABULARY, BLOCK, BITS
                )
            goal = tl.load(uniforms + row) * kept
            token = _first_beyond(source, most, sharpness, threshold, goal, VOCABULARY, BLOCK, BITS)
        wanted = tl.load(forced + row)
        token = tl.where(wanted >= 0, wanted, token)
        token = tl.minimum(tl.maximum(token, 0), VOCABULARY - 1)
        logprob = (tl.load(source + token).to(tl.float32) - most) * sharpness - tl.log(total)
        tl.store(results + row, token)
        tl.store(results + count + row, logprob.to(tl.int32, bitcast=True))
        tl.store(next_tokens + tl.load(slots + row), token.to(tl.int64))


def draw_tokens(logits: Tensor, vocabulary: int, numbers: Tensor, next_tokens: Tensor) -> Tensor:
    """Draw a token per row, as `decoder.sample_tokens` does.

    Args:
        logits: (rows, at least the vocabulary).
        vocabulary: its size.
        numbers: int32, (7, rows): slot, position, adapter, forced token or -1, and the bits of
            the uniform number, the temperature and top_p.
        next_tokens: by slot, where the tokens are put.

    Returns:
        int32, (2, rows): tokens, and the bits of their log-probabilities after the temperature.
    """
    slots, positions, _, forced = numbers[:4]
    uniforms, temperatures, top_ps = numbers[4:].view(torch.float32)
    rows = numbers.shape[1]
    results = numbers.new_empty(2, rows)
    _draw[(rows,)](
        logits, slots, positions, forced, uniforms, temperatures, top_ps, next_tokens, results,
        logits.stride(0), rows, VOCABULARY=vocabulary,
        BLOCK=min(8192, triton.next_power_of_2(vocabulary)),
        BITS=16 if logits.dtype == torch.bfloat16 else 32, num_warps=16,
    )  # fmt: skip
    return results
