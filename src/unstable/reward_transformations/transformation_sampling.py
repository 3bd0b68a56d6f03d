"""Transforms of the rewards of a batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from unstable.core import RewardTransform, Stack, Step

_TINY = 1e-8


class SamplingRewardTransform(RewardTransform, ABC):
    """Changes the rewards of a batch, in place."""

    @abstractmethod
    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the same steps with new rewards."""


class ComposeSamplingRewardTransforms(Stack[SamplingRewardTransform]):
    def __call__(self, steps: list[Step]) -> list[Step]:
        for transform in self.transforms:
            steps = transform(steps)
        return steps


class NormalizeRewards(SamplingRewardTransform):
    """Subtracts the batch's mean; with `z_score` divides by the standard deviation too."""

    def __init__(self, z_score: bool = False) -> None:
        self.z_score = z_score

    def __call__(self, steps: list[Step]) -> list[Step]:
        _normalize(steps, z_score=self.z_score)
        return steps


class NormalizeRewardsByEnv(SamplingRewardTransform):
    """The same for each environment by itself."""

    def __init__(self, z_score: bool = False) -> None:
        self.z_score = z_score

    def __call__(self, steps: list[Step]) -> list[Step]:
        by_env: dict[str, list[Step]] = {}
        for step in steps:
            by_env.setdefault(step.env_id, []).append(step)
        for group in by_env.values():
            _normalize(group, z_score=self.z_score)
        return steps


def _normalize(steps: list[Step], *, z_score: bool) -> None:
    """Normalise in place; equal rewards become 0: there is nothing to learn from them."""
    if not steps:
        return
    mean = math.fsum(step.reward for step in steps) / len(steps)
    scale = 1.0
    if z_score:
        variance = math.fsum((step.reward - mean) ** 2 for step in steps) / len(steps)
        scale = math.sqrt(variance) + _TINY
    for step in steps:
        step.reward = (step.reward - mean) / scale
