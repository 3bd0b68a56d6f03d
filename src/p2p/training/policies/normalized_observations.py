"""A feature extractor that normalises, pickled by value into the zips that need it.

It uses nothing of this package, so that whoever loads such a zip needs Stable-Baselines3 alone.
"""

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor


class NormalizedObservations(BaseFeaturesExtractor):
    """Observations to zero mean and unit variance, cut at +-clip, as in training."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, space: spaces.Box, mean: list[float], std: list[float], clip: float) -> None:
        super().__init__(space, len(mean))
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))
        self.clip = clip

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        scaled = (observations.flatten(1) - self.mean) / self.std
        return torch.clamp(scaled, -self.clip, self.clip)
