"""Triton kernels of the learner: norms, rotated heads and the gate, both ways; probabilities.

Numbers are float32 between reading and writing, whatever the tensors are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _gate(gate, up, out, count, SIZE: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = place < count
    g = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, (g / (1 + tl.exp(-g)) * u).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gate_backward(gradient, gate, up, to_gate, to_up, count, SIZE: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = place < count
    d = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + place, mask=inside, other=0.0).to(tl.float32)
    share = 1 / (1 + tl.exp(-g))
    slope = share * (1 + g * (1 - share))
    tl.store(to_gate + place, (d * u * slope).to(to_gate.dtype.element_ty), mask=inside)
    tl.store(to_up + place, (d * g * share).to(to_up.dtype.element_ty), mask=inside)


def gate(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    _gate[(triton.cdiv(out.numel(), BLOCK),)](gate, up, out, out.numel(), SIZE=BLOCK)
    return out


def gate_backward(gradient: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    gradient, gate, up = gradient.contiguous(), gate.contiguous(), up.contiguous()
    to_gate, to_up = torch.empty_like(gate), torch.empty_like(up)
    _gate_backward[(triton.cdiv(gate.numel(), BLOCK),)](
        gradient, gate, up, to_gate, to_up, gate.numel(), SIZE=BLOCK
    )
    return to_gate, to_up


@triton.jit
def _norm(x, weight, out, epsilon, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * SIZE
    column = tl.arange(0, WIDTH)
    inside = column < SIZE
    v = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v) / SIZE + epsilon)
    tl.store(out + row + column, (v * scale * w).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(
    gradient, x, weight, to_x, epsilon, SIZE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * SIZE
    column = tl.arange(0, WIDTH)
    inside = column < SIZE
    d = tl.load(gradient + row + column, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v) / SIZE + epsilon)
    d = d * w
    pull = tl.sum(d * v) / SIZE * scale * scale * scale
    tl.store(to_x + row + column, (d * scale - v * pull).to(to_x.dtype.element_ty), mask=inside)


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    size = x.shape[-1]
    width = triton.next_power_of_2(size)
    _norm[(x.numel() // size,)](
        x, weight, out, epsilon, SIZE=size, WIDTH=width, num_warps=8 if width > 2048 else 4
    )
    return out


def norm_backward(gradient: Tensor, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    gradient, x = gradient.contiguous(), x.contiguous()
    to_x = torch.empty_like(x)
    size = x.shape[-1]
    width = triton.next_power_of_2(size)
    _norm_backward[(x.numel() // size,)](
        gradient, x, weight, to_x, epsilon, SIZE=size, WIDTH=width,
        num_warps=8 if width > 2048 else 4,
    )  # fmt: skip
    return to_x


@triton.jit
def _rotate(
    x, weight, cosines, sines, out, epsilon,
    HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    HAS_NORM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_BLOCK)[:, None]
    column = tl.arange(0, WIDTH)
    real = column < SIZE
    inside = (head < HEADS) & real[None, :]
    across = tl.where(column < SIZE // 2, column + SIZE // 2, column - SIZE // 2)
    first = token * HEADS * SIZE
    v = tl.load(x + first + head * SIZE + column[None, :], mask=inside, other=0.0).to(tl.float32)
    o = tl.load(x + first + head * SIZE + across[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(v * v, 1) / SIZE + epsilon)[:, None]
        w = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
        across_w = tl.load(weight + across, mask=real, other=0.0).to(tl.float32)
        v = v * scale * w[None, :]
        o = o * scale * across_w[None, :]
    c = tl.load(cosines + token * SIZE + column, mask=real, other=0.0).to(tl.float32)
    s = tl.load(sines + token * SIZE + column, mask=real, other=0.0).to(tl.float32)
    s = tl.where(column < SIZE // 2, -s, s)
    turned = v * c[None, :] + o * s[None, :]
    tl.store(
        out + first + head * SIZE + column[None, :], turned.to(out.dtype.element_ty), mask=inside
    )


@triton.jit
def _rotate_backward(
    gradient, x, weight, cosines, sines, to_x, epsilon,
    HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    HAS_NORM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_BLOCK)[:, None]
    column = tl.arange(0, WIDTH)
    real = column < SIZE
    inside = (head < HEADS) & real[None, :]
    across = tl.where(column < SIZE // 2, column + SIZE // 2, column - SIZE // 2)
    first = token * HEADS * SIZE
    place = first + head * SIZE + column[None, :]
    d = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    o = tl.load(
        gradient + first + head * SIZE + across[None, :], mask=inside, other=0.0
    ).to(tl.float32)  # fmt: skip
    c = tl.load(cosines + token * SIZE + column, mask=real, other=0.0).to(tl.float32)
    s = tl.load(sines + token * SIZE + across, mask=real, other=0.0).to(tl.float32)
    s = tl.where(column < SIZE // 2, s, -s)
    d = d * c[None, :] + o * s[None, :]
    if HAS_NORM:
        v = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(v * v, 1) / SIZE + epsilon)[:, None]
        d = d * w[None, :]
        pull = (tl.sum(d * v, 1) / SIZE)[:, None] * scale * scale * scale
        d = d * scale - v * pull
    tl.store(to_x + place, d.to(to_x.dtype.element_ty), mask=inside)


def rotate(
    x: Tensor, weight: Tensor | None, epsilon: float, cosines: Tensor, sines: Tensor
) -> Tensor:
    """Rotate heads, (..., tokens, heads, size), by cosines and sines, (..., tokens, size)."""
    x = x.contiguous()
    out = torch.empty_like(x)
    _rotate[(x.numel() // (x.shape[-1] * x.shape[-2]),)](
        x, x if weight is None else weight, cosines.contiguous(), sines.contiguous(), out, epsilon,
        **_shape(x), HAS_NORM=weight is not None,
    )  # fmt: skip
    return out


def rotate_backward(
    gradient: Tensor, x: Tensor, weight: Tensor | None, epsilon: float, cosines: Tensor,
    sines: Tensor,
) -> Tensor:  # fmt: skip
    x, gradient = x.contiguous(), gradient.contiguous()
    to_x = torch.empty_like(x)
    _rotate_backward[(x.numel() // (x.shape[-1] * x.shape[-2]),)](
        gradient, x, x if weight is None else weight, cosines.contiguous(), sines.contiguous(),
        to_x, epsilon, **_shape(x), HAS_NORM=weight is not None,
    )  # fmt: skip
    return to_x


def _shape(x: Tensor) -> dict[str, int]:
    heads, size = x.shape[-2:]
    return {
        "HEADS": heads, "HEADS_BLOCK": triton.next_power_of_2(heads), "SIZE": size,
        "WIDTH": triton.next_power_of_2(size),
    }  # fmt: skip


@triton.jit
def _softmax(
    logits, targets, temperatures, logps, totals, SIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    sharpness = 1.0 / tl.load(temperatures + row)
    target = tl.load(targets + row)
    column = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, SIZE, BLOCK):
        place = start + column
        some = tl.load(logits + row * SIZE + place, mask=place < SIZE, other=float("-inf"))
        most = tl.maximum(most, some.to(tl.float32))
    highest = tl.max(most, 0)
    mass = tl.zeros((BLOCK,), tl.float32)
    chosen = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, SIZE, BLOCK):
        place = start + column
        inside = place < SIZE
        x = tl.load(logits + row * SIZE + place, mask=inside, other=float("-inf")).to(tl.float32)
        # Not loaded by itself: what stands there is overwritten.
        chosen += tl.where(place == target, x, 0.0)
        power = tl.exp((x - highest) * sharpness)
        mass += power
        tl.store(logits + row * SIZE + place, power.to(logits.dtype.element_ty), mask=inside)
    total = tl.sum(mass, 0)
    tl.store(totals + row, total)
    tl.store(logps + row, (tl.sum(chosen, 0) - highest) * sharpness - tl.log(total))


def softmax_(logits: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Replace logits, (rows, vocabulary), by exponentials of their distance to the maximum.

    The distance is divided by the row's temperature.

    Returns:
        Of each row the log-probability of its target, and the sum of the exponentials, float32.
    """
    assert logits.is_contiguous()
    rows, size = logits.shape
    logps, totals = (torch.empty(rows, device=logits.device) for _ in range(2))
    _softmax[(rows,)](
        logits, targets.contiguous(), temperatures.contiguous(), logps, totals,
        SIZE=size, BLOCK=min(4096, triton.next_power_of_2(size)), num_warps=8,
    )  # fmt: skip
    return logps, totals
