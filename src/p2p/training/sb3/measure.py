"""Stable-Baselines3's PPO, measured: what its own log leaves out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO

from p2p.training.context import ADVICE, TrainingDivergedError
from p2p.training.policies.health import gaussian_shift

Array = NDArray[np.float32]

LOGGED = {
    "policy_loss": "train/policy_gradient_loss",
    "value_loss": "train/value_loss",
    "approx_kl": "train/approx_kl",
    "clip_fraction": "train/clip_fraction",
    "explained_variance": "train/explained_variance",
}
"""Our names of what Stable-Baselines3 logs."""


class MeasuredPPO(PPO):
    """PPO that reports each update: losses, gradient norms, and what moved the policy how far.

    Args:
        after_update: called with the metrics and the seconds of every update.
    """

    def __init__(
        self,
        *args: Any,
        max_grad_norm: float,
        after_update: Callable[[dict[str, float], float], None],
        **kwargs: Any,
    ) -> None:
        # Clipping moves into a hook on the optimiser, the one place where the norm before
        # clipping can be seen. An infinite bound makes the library's own clipping do nothing.
        kwargs["max_grad_norm"] = float("inf")
        super().__init__(*args, **kwargs)
        self._after_update = after_update
        self._grad_norms: list[float] = []
        parameters = list(self.policy.parameters())

        def clip(*_: Any) -> None:
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
            self._grad_norms.append(float(norm))

        self.policy.optimizer.register_step_pre_hook(clip)

    def train(self) -> None:
        """One update; raises TrainingDivergedError if it leaves no numbers."""
        began = time.perf_counter()
        buffer: Any = self.rollout_buffer
        flat = buffer.observations.reshape(-1, *buffer.obs_shape)
        observations = torch.as_tensor(flat, device=self.device)
        old = self._gaussian(observations)
        self._grad_norms.clear()
        try:
            super().train()
            new = self._gaussian(observations)
        except ValueError as error:
            if "of distribution" not in str(error):  # torch's words for a Gaussian with NaN in it
                raise
            raise TrainingDivergedError(
                f"after {self.num_timesteps} steps the policy is no longer finite; {ADVICE}"
            ) from error
        metrics = {name: float(x) for name, x in gaussian_shift(*old, *new, np).items()}
        logged = self.logger.name_to_value
        metrics |= {name: float(logged[key]) for name, key in LOGGED.items()}
        # The true differential entropy: Stable-Baselines3 logs it with the sign of a loss.
        metrics["entropy"] = -float(logged["train/entropy_loss"])
        metrics["policy_std"] = float(np.exp(new[1]).mean())
        metrics["learning_rate"] = float(logged["train/learning_rate"])
        metrics["grad_norm"] = float(np.mean(self._grad_norms)) if self._grad_norms else 0.0
        self._after_update(metrics, time.perf_counter() - began)

    @torch.no_grad()
    def _gaussian(self, observations: torch.Tensor) -> tuple[Array, Array]:
        """Means (B, A) and logarithms of the standard deviations (A,) of the policy."""
        distribution: Any = self.policy.get_distribution(observations).distribution
        log_std: Any = self.policy.log_std
        return distribution.mean.cpu().numpy(), log_std.detach().cpu().numpy().copy()
