"""Our policies in Stable-Baselines3's own files.

Both formats hold pickles, so they are made here, outside the sandbox, from checked arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from p2p.training.policies.network import NetworkShape
from p2p.training.policies.policy import Policy

if TYPE_CHECKING:
    from pathlib import Path

    from p2p.config import TrainConfig


def sb3_model(policy: Policy, config: TrainConfig) -> Any:
    """A Stable-Baselines3 PPO with this policy's weights and this configuration's settings.

    Saved, it is a zip that `PPO.load` reads without further arguments. It takes normalised
    observations, as every SB3 policy trained under VecNormalize does; `save_vec_normalize` writes
    the statistics to go with it.
    """
    import torch
    from stable_baselines3 import PPO

    model = PPO(
        "MlpPolicy",
        env=None,  # type: ignore[arg-type]
        **ppo_settings(config),
        device="cpu",
        _init_setup_model=False,
    )
    model.observation_space, model.action_space = _spaces(policy)
    model.n_envs = config.num_envs
    model._setup_model()  # noqa: SLF001 - the only way to build a model without an environment
    weights = {name: torch.from_numpy(np.array(value)) for name, value in policy.tensors.items()}
    model.policy.load_state_dict(weights)
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
    """What SB3's MlpPolicy is built with for this configuration."""
    import torch

    return {
        "net_arch": {"pi": list(config.net_arch), "vf": list(config.net_arch)},
        "activation_fn": torch.nn.Tanh if config.activation == "tanh" else torch.nn.ReLU,
        "ortho_init": config.ortho_init,
        "log_std_init": config.log_std_init,
    }


def save_vec_normalize(policy: Policy, config: TrainConfig, path: Path) -> None:
    """Write the pickle that `VecNormalize.load(path, venv)` reads, set for evaluation."""
    from stable_baselines3.common.running_mean_std import RunningMeanStd
    from stable_baselines3.common.vec_env import VecNormalize

    observation_space, action_space = _spaces(policy)
    statistics = RunningMeanStd(shape=policy.obs_mean.shape)
    statistics.mean, statistics.var = policy.obs_mean.copy(), policy.obs_var.copy()
    statistics.count = float(config.total_timesteps)
    wrapper = VecNormalize.__new__(VecNormalize)
    wrapper.__dict__.update(
        observation_space=observation_space,
        action_space=action_space,
        num_envs=config.num_envs,
        render_mode=None,
        norm_obs=policy.normalize_obs,
        norm_obs_keys=None,
        obs_rms=statistics,
        ret_rms=RunningMeanStd(shape=()),
        clip_obs=policy.obs_clip,
        clip_reward=config.reward_clip,
        gamma=config.gamma,
        epsilon=policy.obs_epsilon,
        training=False,
        norm_reward=False,
        old_reward=np.array([]),
        # VecNormalize leaves these three out of the pickle itself.
        venv=None,
        class_attributes={},
        returns=np.zeros(config.num_envs),
    )
    wrapper.save(str(path))


def policy_from_sb3(model: Any, obs_rms: Any | None, config: TrainConfig) -> Policy:
    """The policy of a Stable-Baselines3 PPO model, with VecNormalize's statistics if it has any."""
    obs_dim = int(np.prod(model.observation_space.shape))
    action_dim = int(np.prod(model.action_space.shape))
    tensors = model.policy.state_dict()
    return Policy(
        shape=NetworkShape.from_config(config, obs_dim, action_dim),
        tensors={name: value.detach().cpu().numpy().copy() for name, value in tensors.items()},
        obs_mean=np.zeros(obs_dim) if obs_rms is None else obs_rms.mean.copy(),
        obs_var=np.ones(obs_dim) if obs_rms is None else obs_rms.var.copy(),
        action_low=model.action_space.low.astype(np.float32),
        action_high=model.action_space.high.astype(np.float32),
        obs_clip=config.obs_clip,
        normalize_obs=obs_rms is not None,
        env_id=config.env_id,
    )


def _spaces(policy: Policy) -> tuple[Any, Any]:
    from gymnasium import spaces

    observation = spaces.Box(-np.inf, np.inf, (policy.shape.obs_dim,), np.float64)
    return observation, spaces.Box(policy.action_low, policy.action_high, dtype=np.float32)
