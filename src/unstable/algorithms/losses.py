"""Losses over tokens: pure functions of flat tensors, one entry per trained token.

`weight` holds each token's share of the loss, so that all of them are sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

Metrics = dict[str, Tensor]
MAX_LOG_RATIO = 20.0
"""Beyond, a ratio says nothing but that it is huge, and would soon not be finite."""


def token_weights(lengths: list[int], sequences: int, divisor: int | None) -> list[float]:
    """Each token's share, so that sums over tokens are means over sequences.

    Args:
        lengths: how many tokens of each sequence are trained.
        sequences: how many there are, those without trained tokens included.
        divisor: what the sum over a sequence's tokens is divided by; None: its length.
    """
    return [1.0 / (sequences * (divisor or length)) for length in lengths for _ in range(length)]


def importance(logp: Tensor, old: Tensor, known: Tensor, cap: float) -> Tensor:
    """How much likelier a token is now than when it was sampled, at most `cap`; no gradient.

    Where nothing was stored (`known` false) it is 1.
    """
    ratio = (logp.detach() - old).exp().clamp(max=cap)
    return torch.where(known, ratio, torch.ones_like(ratio))


def policy_gradient(
    logp: Tensor,
    old: Tensor,
    known: Tensor,
    advantage: Tensor,
    weight: Tensor,
    *,
    cap: float | None,
) -> tuple[Tensor, Metrics]:
    """`-sum(weight * advantage * logp)`, times the truncated ratio unless `cap` is None."""
    if cap is None:
        return -(weight * advantage * logp).sum(), {}
    ratio = importance(logp, old, known, cap)
    loss = -(weight * ratio * advantage * logp).sum()
    return loss, {"ratio_mean": ratio.mean(), "ratio_capped": (ratio >= cap).float().mean()}


def clipped(
    logp: Tensor,
    old: Tensor,
    advantage: Tensor,
    weight: Tensor,
    *,
    low: float,
    high: float,
) -> tuple[Tensor, Metrics]:
    """PPO's pessimistic loss: no gain from a ratio outside `[1 - low, 1 + high]`."""
    ratio = _bounded(logp - old).exp()
    free = ratio * advantage
    bound = ratio.clamp(1.0 - low, 1.0 + high) * advantage
    loss = -(weight * torch.minimum(free, bound)).sum()
    ratio = ratio.detach()
    return loss, {
        "ratio_mean": ratio.mean(),
        "clip_fraction": (bound < free).float().mean(),
    }


def kl_to_reference(logp: Tensor, reference: Tensor) -> Tensor:
    """Per token, an estimate of the divergence from the reference that is never negative."""
    difference = _bounded(reference - logp)
    return difference.exp() - difference - 1.0


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (value - target).square().mean()


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
