"""Advantages of steps, as plain numbers, and losses over tokens, as pure functions of flat tensors.

Tensors have one entry per trained token; `weight` holds each token's share of the loss, so that all
losses are sums.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from statistics import fmean, pstdev

import torch
from torch import Tensor

EPSILON = 1e-8
"""A spread below is none: rewards that are all alike teach nothing."""


def normalize(values: Sequence[float], *, centre: bool = True, scale: bool = False) -> list[float]:
    """Subtract the mean from values, and divide by their standard deviation if `scale` is set."""
    mean = fmean(values) if centre and values else 0.0
    spread = pstdev(values) if scale and values else 1.0
    divisor = spread if spread > EPSILON else 1.0
    return [(value - mean) / divisor for value in values]


def average_by_game(
    rewards: Sequence[float], games: Sequence[Hashable], groups: Sequence[Hashable]
) -> dict[Hashable, dict[Hashable, float]]:
    """Return by group the reward of each of its games: the mean over the game's steps.

    A group compares games, so a long game must not count more than a short one.
    """
    by_group: dict[Hashable, dict[Hashable, list[float]]] = {}
    for reward, game, group in zip(rewards, games, groups, strict=True):
        by_group.setdefault(group, {}).setdefault(game, []).append(reward)
    return {
        group: {game: fmean(values) for game, values in members.items()}
        for group, members in by_group.items()
    }


def group_relative(
    rewards: Sequence[float],
    games: Sequence[Hashable],
    groups: Sequence[Hashable],
    *,
    scale: bool = True,
) -> list[float]:
    """Return each step's reward less the mean of its group's games, divided by their spread (GRPO).

    Without `scale` the difference stays as it is (Dr. GRPO): dividing would weigh groups whose
    games hardly differ as much as those that do.
    """
    members = average_by_game(rewards, games, groups)
    mean = {group: fmean(values.values()) for group, values in members.items()}
    spread = {group: pstdev(values.values()) if scale else 1.0 for group, values in members.items()}
    return [
        (reward - mean[group]) / (spread[group] if spread[group] > EPSILON else 1.0)
        for reward, group in zip(rewards, groups, strict=True)
    ]


def leave_one_out(
    rewards: Sequence[float], games: Sequence[Hashable], groups: Sequence[Hashable]
) -> list[float]:
    """Return each step's reward less the mean of the other games of its group (RLOO).

    A game that is alone in its group has nothing to be compared with: 0.
    """
    members = average_by_game(rewards, games, groups)
    total = {group: sum(values.values()) for group, values in members.items()}
    advantages = []
    for reward, game, group in zip(rewards, games, groups, strict=True):
        others = len(members[group]) - 1
        baseline = (total[group] - members[group][game]) / others if others else reward
        advantages.append(reward - baseline)
    return advantages


def per_turn_rewards(earned: Sequence[float]) -> list[float]:
    """Turn credits for the rest of the game into rewards of single turns.

    A step's reward is the turn's credit for the whole rest of the game, so the outcome stands in
    every turn. Summing credits would count it once per turn left; these differences sum to the
    credit again: the outcome falls to the last turn, shaping to the turn it was given for.
    """
    return [
        credit - following for credit, following in zip(earned, [*earned[1:], 0.0], strict=True)
    ]


def gae(
    rewards: Sequence[float],
    values: Sequence[float],
    gae_lambda: float,
) -> list[float]:
    """Compute generalised advantage estimates over one player's turns of a finished game.

    Discounting is the rewards' own (`DiscountToEnd`), so there is none here.
    """
    advantages = [0.0] * len(rewards)
    following_value = following = 0.0
    for turn in range(len(rewards) - 1, -1, -1):
        surprise = rewards[turn] + following_value - values[turn]
        following = advantages[turn] = surprise + gae_lambda * following
        following_value = values[turn]
    return advantages


Metrics = dict[str, Tensor]
MAX_LOG_RATIO = 20.0
"""Beyond, a ratio says nothing but that it is huge, and would soon not be finite."""


def token_weights(lengths: list[int], sequences: int, divisor: int | None) -> list[float]:
    """Return each token's share, so that sums over tokens are means over sequences.

    Args:
        lengths: how many tokens of each sequence are trained.
        sequences: how many there are, those without trained tokens included.
        divisor: what the sum over a sequence's tokens is divided by; None: its length.
    """
    return [1.0 / (sequences * (divisor or length)) for length in lengths for _ in range(length)]


def importance(logp: Tensor, old: Tensor, known: Tensor, cap: float) -> Tensor:
    """Return the ratio to the sampling policy, at most `cap`, without a gradient.

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
    """Return `-sum(weight * advantage * logp)`, times the truncated ratio unless `cap` is None."""
    if cap is None:
        return -(weight * advantage * logp).sum(), {}
    ratio = importance(logp, old, known, cap)
    loss = -(weight * ratio * advantage * logp).sum()
    return loss, {"ratio_mean": ratio.mean(), "ratio_capped": (ratio >= cap).float().mean()}


def clipped_loss(
    logp: Tensor,
    old: Tensor,
    advantage: Tensor,
    weight: Tensor,
    *,
    low: float,
    high: float,
) -> tuple[Tensor, Metrics]:
    """Return PPO's clipped loss: no gain from a ratio outside `[1 - low, 1 + high]`."""
    ratio = _clamp(logp - old).exp()
    free = ratio * advantage
    bound = ratio.clamp(1.0 - low, 1.0 + high) * advantage
    loss = -(weight * torch.minimum(free, bound)).sum()
    ratio = ratio.detach()
    return loss, {
        "ratio_mean": ratio.mean(),
        "clip_fraction": (bound < free).float().mean(),
    }


def kl_to_reference(logp: Tensor, reference: Tensor) -> Tensor:
    """Estimate the divergence from the reference per token; it is never negative."""
    difference = _clamp(reference - logp)
    return difference.exp() - difference - 1.0


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (value - target).square().mean()


def _clamp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
