"""The actor-critic network: its parameters, under Stable-Baselines3's names, and how they start.

Two separate multilayer perceptrons, one for the mean of a diagonal Gaussian and one for the
value; the standard deviation does not depend on the observation. Parameters travel either as a
dict of named tensors in PyTorch's layout (out, in), or as one flat vector in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from numpy.typing import NDArray

    from p2p.config import TrainConfig


Tensors = dict[str, "NDArray[np.float32]"]


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """What fixes the number and the shapes of the parameters."""

    obs_dim: int
    action_dim: int
    net_arch: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    critic: bool = True
    """Whether the value network is kept: one that sees more than the policy does is not."""

    @classmethod
    def from_config(cls, config: TrainConfig, obs_dim: int, action_dim: int) -> NetworkShape:
        if config.algorithm == "sac":  # its squashed mean is one more layer
            return cls(obs_dim, action_dim, (*config.net_arch, action_dim), "tanh")
        critic = config.engine == "mujoco" or config.backend == "sb3"
        return cls(obs_dim, action_dim, config.net_arch, config.activation, critic)

    def hidden(self, net: Literal["policy_net", "value_net"]) -> list[str]:
        """Names of the hidden layers; SB3 counts the activations between them, too."""
        return [f"mlp_extractor.{net}.{2 * i}" for i in range(len(self.net_arch))]

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Every parameter with its shape, in the order of SB3's state_dict."""
        widths = (self.obs_dim, *self.net_arch)
        shapes: dict[str, tuple[int, ...]] = {"log_std": (self.action_dim,)}
        for net in ("policy_net", "value_net") if self.critic else ("policy_net",):
            for i, name in enumerate(self.hidden(net)):
                shapes |= {f"{name}.weight": (widths[i + 1], widths[i])}
                shapes |= {f"{name}.bias": (widths[i + 1],)}
        outputs = {"action_net": self.action_dim} | ({"value_net": 1} if self.critic else {})
        for name, out in outputs.items():
            shapes |= {f"{name}.weight": (out, widths[-1]), f"{name}.bias": (out,)}
        return shapes


def flatten(shape: NetworkShape, tensors: Mapping[str, NDArray[np.float32]]) -> Any:
    return np.concatenate([np.ravel(tensors[name]) for name in shape.parameters()])


def unflatten(shape: NetworkShape, vector: Any) -> dict[str, Any]:
    """The named tensors of a flat vector (numpy or JAX), without copying numpy's."""
    tensors, start = {}, 0
    for name, dims in shape.parameters().items():
        tensors[name] = vector[start : start + prod(dims)].reshape(dims)
        start += prod(dims)
    return tensors


def forward(shape: NetworkShape, tensors: Mapping[str, Any], obs: Any, xp: ModuleType) -> Any:
    """Means (..., A) and values (...) of normalised observations, with numpy or jax.numpy."""
    return action_mean(shape, tensors, obs, xp), value(shape, tensors, obs, xp)


def action_mean(shape: NetworkShape, tensors: Mapping[str, Any], obs: Any, xp: ModuleType) -> Any:
    """The means of the Gaussian that actions are drawn from."""
    return _mlp(tensors, [*shape.hidden("policy_net"), "action_net"], shape.activation, obs, xp)


def value(shape: NetworkShape, tensors: Mapping[str, Any], obs: Any, xp: ModuleType) -> Any:
    """The critic's estimate of the discounted return to come."""
    layers = [*shape.hidden("value_net"), "value_net"]
    return _mlp(tensors, layers, shape.activation, obs, xp)[..., 0]


def _mlp(
    tensors: Mapping[str, Any], layers: list[str], activation: str, x: Any, xp: ModuleType
) -> Any:
    for i, name in enumerate(layers):
        x = x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]
        if i + 1 < len(layers):
            x = _activate(activation, x, xp)
    return x


def _activate(activation: str, x: Any, xp: ModuleType) -> Any:
    if activation == "tanh":
        return xp.tanh(x)
    # Below zero only: the exponential of what is large has no use, and overflows.
    positive = xp.maximum(x, 0)
    return positive if activation == "relu" else positive + xp.expm1(xp.minimum(x, 0))


def initial_parameters(
    shape: NetworkShape, rng: np.random.Generator, *, ortho_init: bool, log_std_init: float
) -> Tensors:
    """Parameters before training: SB3's orthogonal start, or PyTorch's own for linear layers."""
    tensors: Tensors = {"log_std": np.full(shape.action_dim, log_std_init, np.float32)}
    gains = {"action_net": 0.01, "value_net": 1.0}
    dims = shape.parameters()
    for name in dims:
        if not name.endswith(".weight"):
            continue
        layer = name.removesuffix(".weight")
        rows, columns = dims[name]
        if ortho_init:
            weight = _orthogonal(rng, rows, columns, gains.get(layer, 2**0.5))
            bias = np.zeros(rows, np.float32)
        else:
            bound = columns**-0.5
            weight = rng.uniform(-bound, bound, (rows, columns)).astype(np.float32)
            bias = rng.uniform(-bound, bound, rows).astype(np.float32)
        tensors |= {name: weight, f"{layer}.bias": bias}
    return tensors


def _orthogonal(
    rng: np.random.Generator, rows: int, columns: int, gain: float
) -> NDArray[np.float32]:
    normal = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(normal)
    q *= np.sign(np.diagonal(r))
    return np.ascontiguousarray(gain * (q.T if rows < columns else q), np.float32)


def gaussian_shift(
    old_means: Any, old_log_std: Any, new_means: Any, new_log_std: Any, xp: ModuleType
) -> dict[str, Any]:
    """The KL divergence from the old to the new policy, split, and the shift of the means.

    Means are (..., A), log standard deviations (A,). `kl_mean_term + kl_std_term` is the exact
    divergence, summed over action dimensions and averaged over observations.
    `mean_shift_normalized` is the mean absolute shift in units of the old standard deviation.
    """
    shift = new_means - old_means
    log_ratio = new_log_std - old_log_std
    mean_term = 0.5 * xp.mean(xp.sum((shift * xp.exp(-new_log_std)) ** 2, axis=-1))
    std_term = xp.sum(log_ratio + 0.5 * xp.expm1(-2 * log_ratio))
    return {
        "kl_mean_term": mean_term,
        "kl_std_term": std_term,
        "mean_shift_normalized": xp.mean(xp.abs(shift) * xp.exp(-old_log_std)),
    }


def explained_variance(predicted: Any, actual: Any, xp: ModuleType) -> Any:
    """1 - Var(actual - predicted) / Var(actual); NaN when `actual` does not vary."""
    variance = xp.var(actual)
    unexplained = xp.var(actual - predicted) / xp.where(variance > 0, variance, 1)
    return xp.where(variance > 0, 1 - unexplained, xp.nan)
