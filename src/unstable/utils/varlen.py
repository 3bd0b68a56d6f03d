"""Causal attention over sequences of any lengths, by the kernel that torch has for a GPU."""

from __future__ import annotations

import logging
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor

_LOG = logging.getLogger(__name__)
APART = 2e-2
"""Of two results in bfloat16 that should be the same, the distance relative to their norm."""


def causal_varlen(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, scale: float | None
) -> Tensor:
    """Each sequence against itself.

    Args:
        query: (tokens, heads, size), in half precision.
        key: the same, of as many heads or fewer, each for several of the query's.
        value: as the keys.
        ends: 0 and the end of each sequence, int32.
        longest: tokens of the longest sequence.
        scale: of the products; None: the usual one.
    """
    shared = query.shape[1] // key.shape[1]
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if shared > 1 and not _shares_heads(query.device, learns):
        key, value = (states.repeat_interleave(shared, dim=1) for states in (key, value))
        shared = 1
    return _attend(query, key, value, ends, longest, shared, scale=scale)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, shared: int,
    **options: Any,
) -> Tensor:  # fmt: skip
    from torch.nn.attention.varlen import varlen_attn

    if shared > 1 and "enable_gqa" in signature(varlen_attn).parameters:
        options["enable_gqa"] = True
    out = varlen_attn(
        query, key, value, ends, ends, longest, longest, window_size=(-1, 0), **options
    )
    assert isinstance(out, Tensor)
    return out


@cache
def _shares_heads(device: torch.device, learns: bool) -> bool:
    """Whether the kernel is right for heads that share keys and values; `learns`: its gradient."""
    reason = _why_not_shared(device, learns)
    if reason:
        what = "its gradient" if learns else "attention"
        _LOG.warning("keys and values are repeated for %s on %s: %s", what, device, reason)
    return not reason


def _why_not_shared(device: torch.device, learns: bool) -> str:
    with torch.inference_mode(False), torch.enable_grad():
        numbers = torch.linspace(-1.0, 1.0, 8 * 4 * 64, device=device).sin_().view(8, 4, 64)
        queries = numbers.bfloat16().requires_grad_()
        keys = numbers[:, 1::2].cos().bfloat16().requires_grad_()
        bounds = torch.tensor([0, 3, 8], dtype=torch.int32, device=device)
        one_each = keys.repeat_interleave(2, dim=1)
        expected = _attend(queries, one_each, one_each, bounds, 5, 1)
        try:
            shared = _attend(queries, keys, keys, bounds, 5, 2)
            pairs = {"the output": (shared, expected)}
            if learns:
                slopes = (
                    torch.autograd.grad(out.float().square().sum(), [queries, keys])
                    for out in (shared, expected)
                )
                names = ("the queries' gradient", "the keys' gradient")
                pairs |= dict(zip(names, zip(*slopes, strict=True), strict=True))
        except (RuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    # By the norm: single numbers are as far apart as one rounding of sums in half precision.
    for name, (ours, theirs) in pairs.items():
        apart = (ours.float() - theirs.float()).norm() / theirs.float().norm()
        if not apart <= APART:
            return f"{name} is {apart:.2g} off"
    return ""
