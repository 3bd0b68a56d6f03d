"""Stable-Baselines3's PPO, measured, and its learner as plain arrays and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecNormalize

from p2p.training.base_trainer import ADVICE, TrainingDivergedError
from p2p.training.policies.network import gaussian_shift

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


Arrays = dict[str, NDArray[Any]]
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_learner(model: PPO, normalize: VecNormalize) -> Arrays:
    """Weights, Adam's moments, normalisation statistics and random states."""
    arrays = {f"weight/{name}": _array(value) for name, value in model.policy.state_dict().items()}
    for index, moments in model.policy.optimizer.state_dict()["state"].items():
        arrays |= {f"adam/{index}/{name}": _array(moments[name]) for name in MOMENTS}
    for name, statistics in _statistics(normalize).items():
        arrays[f"{name}/mean"] = np.asarray(statistics.mean, np.float64)
        arrays[f"{name}/var"] = np.asarray(statistics.var, np.float64)
        arrays[f"{name}/count"] = np.asarray(statistics.count, np.float64)
    arrays["random/torch"] = torch.get_rng_state().numpy().copy()
    # Stable-Baselines3 shuffles with numpy's global generator.
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    arrays["random/numpy_key"] = state["state"]["key"]
    arrays["random/numpy_pos"] = np.asarray(state["state"]["pos"], np.int64)
    return arrays


def load_learner(arrays: Mapping[str, NDArray[Any]], model: PPO, normalize: VecNormalize) -> None:
    """Continue where `save_learner` was called."""
    names = model.policy.state_dict().keys()
    model.policy.load_state_dict(
        {name: torch.from_numpy(arrays[f"weight/{name}"].copy()) for name in names}
    )
    optimizer = model.policy.optimizer.state_dict()
    optimizer["state"] = {
        index: {name: torch.from_numpy(arrays[f"adam/{index}/{name}"].copy()) for name in MOMENTS}
        for index in optimizer["param_groups"][0]["params"]
        if f"adam/{index}/step" in arrays  # Adam has no moments before its first step
    }
    model.policy.optimizer.load_state_dict(optimizer)
    for name, statistics in _statistics(normalize).items():
        statistics.mean = arrays[f"{name}/mean"].copy()
        statistics.var = arrays[f"{name}/var"].copy()
        statistics.count = float(arrays[f"{name}/count"])
    torch.set_rng_state(torch.from_numpy(arrays["random/torch"].copy()))
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    state["state"] = {
        "key": arrays["random/numpy_key"].copy(),
        "pos": int(arrays["random/numpy_pos"]),
    }
    np.random.set_state(state)  # noqa: NPY002


def _statistics(normalize: VecNormalize) -> dict[str, Any]:
    statistics: dict[str, Any] = {"returns": normalize.ret_rms}
    if normalize.norm_obs:
        statistics["observations"] = normalize.obs_rms
    return statistics


def _array(value: torch.Tensor) -> NDArray[Any]:
    return value.detach().cpu().numpy().copy()
