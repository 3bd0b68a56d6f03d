"""Stable-Baselines3's own PPO as a learner: the reference, for any environment.

Same configuration, metrics, files and kind of policy as our PPO. A killed run continues with its
weights, optimiser, statistics and random states, in new episodes.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecNormalize

from p2p.training import torch_states
from p2p.training.checkpoints import Arrays, add_prefix, part
from p2p.training.engines.table import is_engine
from p2p.training.env import IsaacLabRewardVecWrapper, RewardedVecEnv
from p2p.training.envs.batched_env import row_seeds
from p2p.training.policies.network import gaussian_shift
from p2p.training.policies.policy import Policy
from p2p.training.policies.sb3_export import policy_from_sb3, ppo_settings
from p2p.training.training_loop import ADVICE, Metrics, TrainingDivergedError, TrainingLoop

LOGGED = ("value_loss", "approx_kl", "clip_fraction", "explained_variance", "learning_rate")
"""What Stable-Baselines3 logs under our names."""


class SB3Learner:
    """PPO of Stable-Baselines3: the loop calls its `collect_rollouts` and `train` in turn."""

    backend: Literal["sb3"] = "sb3"

    def __init__(self, loop: TrainingLoop) -> None:
        self.loop, config = loop, loop.config
        torch.set_num_threads(1)  # small networks: a second thread costs more than it brings
        torch.use_deterministic_algorithms(config.torch_deterministic, warn_only=True)
        kind = IsaacLabRewardVecWrapper if is_engine(config.engine) else RewardedVecEnv
        self.env = kind(loop.env, loop.reward)
        self.normalize = VecNormalize(
            self.env,
            norm_obs=config.normalize_obs,
            norm_reward=config.normalize_reward,
            clip_obs=config.obs_clip,
            clip_reward=config.reward_clip,
            gamma=config.gamma,
        )
        settings = {**ppo_settings(config), "seed": config.seed, "device": config.device}
        self.model = MeasuredPPO("MlpPolicy", self.normalize, **settings)
        self.model.set_logger(Logger(folder=None, output_formats=[]))
        if loop.saved is not None:
            self._load(part("learner", loop.saved[0]))
            loop.episodes.restart()  # the environments were not saved, new episodes begin
            self.model.num_timesteps = loop.step
        self.restart(loop.restart_seed())
        self.callback = ConvertCallback(self._report)
        self.callback.init_callback(self.model)

    def act(self, steps: int) -> tuple[int, int]:
        model, taken = self.model, self.env.steps
        model.collect_rollouts(self.normalize, self.callback, model.rollout_buffer, steps)
        rewards, terms, dones = zip(*taken, strict=True)
        taken.clear()
        stacked = {name: np.stack([row[name] for row in terms]) for name in terms[0]}
        return steps, self.loop.episodes.add(np.stack(rewards), stacked, np.stack(dones))

    def _report(self, *_: Any) -> bool:
        self.loop.alive("rollout")
        return True

    def update(self) -> list[Metrics]:
        self.model.train()
        return [self.model.metrics]

    def restart(self, seed: int | None = None) -> None:
        one = seed is None or is_engine(self.loop.config.engine)
        self.env.seeds = seed if one else row_seeds(seed or 0, self.env.num_envs)
        self.model.set_env(self.normalize)
        self.model.learn(0, reset_num_timesteps=False)  # resets the environments, no more

    def policy(self) -> Policy:
        statistics = self.normalize.obs_rms if self.normalize.norm_obs else None
        return policy_from_sb3(self.model, statistics, self.loop.config)

    def state(self) -> Arrays:
        parts: dict[str, Arrays] = {
            "weight": torch_states.save_weights(self.model.policy),
            "adam": torch_states.save_adam(self.model.policy.optimizer),
            "random": torch_states.save_generators(),
        }
        for name, moments in self._statistics().items():
            parts[name] = {f: np.array(getattr(moments, f)) for f in ("mean", "var", "count")}
        arrays = [add_prefix(f"learner/{name}", each) for name, each in parts.items()]
        return {name: array for each in arrays for name, array in each.items()}

    def _load(self, arrays: Arrays) -> None:
        torch_states.load_weights(self.model.policy, part("weight", arrays))
        torch_states.load_adam(self.model.policy.optimizer, part("adam", arrays))
        torch_states.load_generators(part("random", arrays))
        for name, moments in self._statistics().items():
            moments.mean, moments.var = (arrays[f"{name}/{f}"].copy() for f in ("mean", "var"))
            moments.count = float(arrays[f"{name}/count"])

    def _statistics(self) -> dict[str, Any]:
        observations = {"observations": self.normalize.obs_rms} if self.normalize.norm_obs else {}
        return {"returns": self.normalize.ret_rms, **observations}


class MeasuredPPO(PPO):
    """PPO with the metrics of its last update: losses, norms, and how far the policy moved."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Clipping moves into a hook on the optimiser, the one place where the norm before
        # clipping can be seen. An infinite bound makes the library's own clipping do nothing.
        max_grad_norm, self.max_grad_norm = self.max_grad_norm, float("inf")
        self.metrics: Metrics = {}
        self._grad_norms: list[float] = []
        parameters = list(self.policy.parameters())

        def clip(*_: Any) -> None:
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
            self._grad_norms.append(float(norm))

        self.policy.optimizer.register_step_pre_hook(clip)

    def train(self) -> None:
        """One update; raises TrainingDivergedError if it leaves no numbers."""
        seen: Any = self.rollout_buffer.observations
        observations = torch.as_tensor(seen.reshape(-1, seen.shape[-1]), device=self.device)
        old = self._gaussian(observations)
        self._grad_norms.clear()
        try:
            super().train()
            new = self._gaussian(observations)
        except ValueError as error:
            if "of distribution" not in str(error):  # torch's words for a Gaussian with NaN in it
                raise
            message = f"after {self.num_timesteps} steps the policy is no longer finite; {ADVICE}"
            raise TrainingDivergedError(message) from error
        logged = self.logger.name_to_value
        self.metrics = {
            **gaussian_shift(*old, *new, np),
            **{name: logged[f"train/{name}"] for name in LOGGED},
            "policy_loss": logged["train/policy_gradient_loss"],
            # The true differential entropy: Stable-Baselines3 logs it with the sign of a loss.
            "entropy": -logged["train/entropy_loss"],
            "policy_std": np.exp(new[1]).mean(),
            "grad_norm": np.mean(self._grad_norms) if self._grad_norms else 0.0,
        }

    @torch.no_grad()
    def _gaussian(self, observations: torch.Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
        """Means (B, A) and logarithms of the standard deviations (A,) of the policy."""
        policy: Any = self.policy
        means = policy.get_distribution(observations).distribution.mean
        return torch_states.to_array(means), torch_states.to_array(policy.log_std)
