"""Our policies in Stable-Baselines3's own file, which takes raw observations.

The statistics of the observations are folded into the first layers, so the zip is a plain MlpPolicy
that any Stable-Baselines3 loads. Layers cannot clip: where that mattered in the evaluation, the zip
carries a feature extractor that normalises, and loads only on the Python that it was made with.
The file holds pickles, so it is made here, outside the sandbox, from checked arrays.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from p2p.training.policies.network import NetworkShape, Tensors, action_mean
from p2p.training.policies.policy import Policy

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from p2p.config import TrainConfig

EQUAL_ACTIONS = 1e-3
"""How far an action of the folded network may be from the evaluated one, in units of its range."""


def save_sb3_zip(
    policy: Policy, config: TrainConfig, path: Path, evaluated: NDArray[np.floating[Any]]
) -> None:
    """Write a zip whose `PPO.load(path).predict(obs)` takes raw observations.

    `evaluated` are observations (N, D) of the episodes that the policy was evaluated on.
    """
    sb3_model(policy, config, folded=folding_is_exact(policy, evaluated)).save(path)


def folding_is_exact(policy: Policy, evaluated: NDArray[np.floating[Any]]) -> bool:
    """Return whether the folded network acts as the policy does on these observations.

    It does not where clipping was active, or where the layers would have to subtract large numbers
    in float32.
    """
    obs = np.asarray(evaluated, np.float64)
    if policy.normalize_obs:
        reach = policy.obs_clip * np.sqrt(policy.obs_var + policy.obs_epsilon)
        if (np.abs(obs - policy.obs_mean) > reach).any():
            return False
    means = action_mean(policy.shape, fold(policy), obs.astype(np.float32), np)
    actions = np.clip(means, policy.action_low, policy.action_high)
    scale = np.where(np.isfinite(policy.action_high), policy.action_high - policy.action_low, 2.0)
    return bool((np.abs(actions - policy.act(obs)) <= EQUAL_ACTIONS * scale).all())


def fold(policy: Policy) -> Tensors:
    """The parameters of the network that normalises in its first layers, but does not clip."""
    tensors = dict(policy.tensors)
    if not policy.normalize_obs:
        return tensors
    scale = 1 / np.sqrt(policy.obs_var + policy.obs_epsilon)
    # What never varied is always normalised to 0; as a large number times a large weight minus the
    # same, it would be noise.
    scale[policy.obs_var <= (1e-6 * policy.obs_mean) ** 2] = 0
    hidden = policy.shape.hidden
    firsts = {[*hidden("policy_net"), "action_net"][0]}
    if policy.shape.critic:
        firsts.add([*hidden("value_net"), "value_net"][0])
    for first in firsts:
        weight = tensors[f"{first}.weight"].astype(np.float64) * scale
        bias = tensors[f"{first}.bias"] - weight @ policy.obs_mean
        tensors[f"{first}.weight"] = weight.astype(np.float32)
        tensors[f"{first}.bias"] = bias.astype(np.float32)
    return tensors


def sb3_model(policy: Policy, config: TrainConfig, *, folded: bool = True) -> Any:
    """A Stable-Baselines3 PPO of raw observations with this policy's weights."""
    import torch
    from stable_baselines3 import PPO

    settings = ppo_settings(config)
    settings["policy_kwargs"] |= network_kwargs(policy.shape)
    tensors = fold(policy)
    if not folded:
        tensors = policy.tensors
        std = np.sqrt(policy.obs_var + policy.obs_epsilon)
        settings["policy_kwargs"] |= {
            "features_extractor_class": _make_extractor_class(),
            "features_extractor_kwargs": {
                "mean": policy.obs_mean.tolist(),
                "std": std.tolist(),
                "clip": policy.obs_clip,
            },
        }
    model = PPO(
        "MlpPolicy",
        env=None,  # type: ignore[arg-type]
        **settings,
        device="cpu",
        _init_setup_model=False,
    )
    model.observation_space, model.action_space = _spaces(policy)
    model.n_envs = config.num_envs
    _skip_compiler_import()
    model._setup_model()  # noqa: SLF001 - the only way to build a model without an environment
    weights = {name: torch.from_numpy(np.array(value)) for name, value in tensors.items()}
    model.policy.load_state_dict(model.policy.state_dict() | weights)
    return model


def ppo_settings(config: TrainConfig) -> dict[str, Any]:
    """The arguments of Stable-Baselines3's PPO for this configuration."""
    return {
        "learning_rate": config.learning_rate,
        "n_steps": config.num_steps,
        "batch_size": config.minibatch_size,
        "n_epochs": config.update_epochs,
        "gamma": config.gamma,
        "gae_lambda": config.gae_lambda,
        "clip_range": config.clip_coef,
        "clip_range_vf": config.clip_coef if config.clip_vloss else None,
        # Of one sample there is no spread; SB3 refuses to build what it would not do anyway.
        "normalize_advantage": config.norm_adv and config.minibatch_size > 1,
        "ent_coef": config.ent_coef,
        "vf_coef": config.vf_coef,
        "max_grad_norm": config.max_grad_norm,
        "target_kl": config.target_kl,
        "policy_kwargs": policy_kwargs(config),
    }


def policy_kwargs(config: TrainConfig) -> dict[str, Any]:
    """Return what SB3's MlpPolicy is built with for this configuration."""
    return {
        **network_kwargs(config),
        "ortho_init": config.ortho_init,
        "log_std_init": config.log_std_init,
    }


def network_kwargs(shape: NetworkShape | TrainConfig) -> dict[str, Any]:
    import torch

    return {
        "net_arch": {"pi": list(shape.net_arch), "vf": list(shape.net_arch)},
        "activation_fn": {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU, "elu": torch.nn.ELU}[
            shape.activation
        ],
    }


def policy_from_sb3(model: Any, obs_rms: Any | None, config: TrainConfig) -> Policy:
    """The policy of a Stable-Baselines3 PPO model, with VecNormalize's statistics if it has any."""
    weights = model.policy.state_dict()
    tensors = {name: value.detach().cpu().numpy().copy() for name, value in weights.items()}
    space = model.action_space
    bounds = space.low.astype(np.float32), space.high.astype(np.float32)
    return Policy.from_training(config, tensors, obs_rms, bounds, normalize_obs=obs_rms is not None)


def _skip_compiler_import() -> None:
    """Let optimizers be made and saved without importing torch's compiler, which is slow.

    Torch imports it for nothing but to mark these methods as not to be compiled. Where a version
    of torch does it otherwise, the import is only not spared.
    """
    from torch.optim import Optimizer

    if "torch._dynamo" in sys.modules:
        return
    for method in (Optimizer.add_param_group, Optimizer.state_dict):
        if (function := getattr(method, "__wrapped__", None)) is not None:
            function.__dynamo_disable = function  # noqa: SLF001


def _make_extractor_class() -> Any:
    """A feature extractor that normalises.

    Of a class that is made in a function, a zip holds the code and not where to import it from: who
    loads it needs Stable-Baselines3 alone.
    """
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class NormalizedObservations(BaseFeaturesExtractor):
        """Observations to zero mean and unit variance, cut at +-clip, as in training."""

        mean: torch.Tensor
        std: torch.Tensor

        def __init__(self, space: Any, mean: list[float], std: list[float], clip: float) -> None:
            super().__init__(space, len(mean))
            self.register_buffer("mean", torch.tensor(mean))
            self.register_buffer("std", torch.tensor(std))
            self.clip = clip

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            scaled = (observations.flatten(1) - self.mean) / self.std
            return torch.clamp(scaled, -self.clip, self.clip)

    return NormalizedObservations


def _spaces(policy: Policy) -> tuple[Any, Any]:
    from gymnasium import spaces

    observation = spaces.Box(-np.inf, np.inf, (policy.shape.obs_dim,), np.float64)
    return observation, spaces.Box(policy.action_low, policy.action_high, dtype=np.float32)
