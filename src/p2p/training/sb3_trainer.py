"""The reference backend: Stable-Baselines3's own PPO, for any Gymnasium environment.

Same configuration, metrics, files and kind of policy as the fast backend. The environments are
Gymnasium's, stepped in a loop; rewards are checked and called as on the fast backend.

A killed run continues with its weights, optimiser, statistics and random states, but Gymnasium
environments cannot be saved: they begin new episodes, so the result is not bit for bit that of an
uninterrupted run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from p2p.config import TrainConfig
from p2p.training.base_trainer import (
    ADVICE,
    BaseTrainer,
    Heartbeat,
    TrainContext,
    TrainingDivergedError,
    part,
    prefixed,
)
from p2p.training.engines.table import is_engine
from p2p.training.envs.batched_env import BatchedEnv
from p2p.training.policies.network import gaussian_shift
from p2p.training.policies.policy import Policy
from p2p.training.policies.sb3_export import policy_from_sb3, ppo_settings
from p2p.training.reward_runner import RewardRunner, Transition, end_failures

Array = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]
Terms = dict[str, NDArray[np.float64]]
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
LOGGED = {
    "policy_loss": "train/policy_gradient_loss",
    "value_loss": "train/value_loss",
    "approx_kl": "train/approx_kl",
    "clip_fraction": "train/clip_fraction",
    "explained_variance": "train/explained_variance",
}
"""Our names of what Stable-Baselines3 logs."""
ACTION_BOUND = 100.0
"""Far beyond what an engine's own terms clip."""
Step = tuple[NDArray[np.float64], Terms, NDArray[np.bool_]]
"""Rewards, terms and ended rows of one step."""


def train(ctx: TrainContext) -> None:
    """Train to the end, continuing from a state in ctx.folder."""
    torch.set_num_threads(1)  # small networks: a second thread costs more than it brings
    torch.use_deterministic_algorithms(ctx.config.torch_deterministic, warn_only=True)
    SB3Trainer(ctx).run()


class SB3Trainer(BaseTrainer):
    backend = "sb3"
    env_backend = "gym"

    def __init__(self, ctx: TrainContext) -> None:
        super().__init__(ctx)
        config = ctx.config
        self.began = time.perf_counter()
        seed = self.later_seed() if self.iteration else config.seed
        self.steps: list[Step] = []
        kind = IsaacLabRewardVecWrapper if is_engine(config.engine) else RewardedVecEnv
        self.normalize = VecNormalize(
            kind(self.env, self.reward, seed, self.steps.append),
            norm_obs=config.normalize_obs,
            norm_reward=config.normalize_reward,
            clip_obs=config.obs_clip,
            clip_reward=config.reward_clip,
            gamma=config.gamma,
        )
        self.model = make_model(config, self.normalize, self._after_update)
        if self.saved is not None:
            load_learner(part("learner", self.saved[0]), self.model, self.normalize)
            self.episodes.restart()  # the environments could not be saved, new episodes begin
            self.model.num_timesteps = self.step

    def learn(self) -> None:
        left = self.last_iteration * self.config.batch_size - self.step
        if left > 0:
            self.began = time.perf_counter()
            self.model.learn(left, _Beats(self.alive), reset_num_timesteps=False)

    def _after_update(self, metrics: dict[str, float], train_time: float) -> None:
        rewards, terms, dones = zip(*self.steps, strict=True)
        self.steps.clear()
        ended = self.episodes.add(
            np.stack(rewards),
            {name: np.stack([row[name] for row in terms]) for name in terms[0]},
            np.stack(dones),
        )
        spent = time.perf_counter() - self.began
        self.finish_iteration(metrics, ended, spent - train_time, train_time)
        self.began = time.perf_counter()

    def _evaluate(self, policy: Policy) -> None:
        super()._evaluate(policy)
        if getattr(self.env, "shares_simulation", False):
            self.model.begin_episodes()
            self.episodes.restart()

    def policy(self) -> Policy:
        statistics = self.normalize.obs_rms if self.config.normalize_obs else None
        return policy_from_sb3(self.model, statistics, self.config)

    def state(self) -> dict[str, NDArray[Any]]:
        return prefixed("learner", save_learner(self.model, self.normalize))


class RewardedVecEnv(VecEnv):
    """Steps the environments, computes the reward, and reports both in Stable-Baselines3's form.

    Row i of the first reset is seeded with seed + i. `on_step` is told of every step.
    """

    def __init__(
        self, env: BatchedEnv, reward: RewardRunner, seed: int, on_step: Callable[[Step], None]
    ) -> None:
        self.env = env
        self.reward = reward
        self.on_step = on_step
        self.first_seed: int | None = seed
        self.render_mode = None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self._actions = np.zeros((env.num_envs, *env.single_action_space.shape), np.float32)
        self._obs = np.zeros((env.num_envs, *env.single_observation_space.shape))
        self._episode_start = np.ones(env.num_envs, bool)

    def reset(self) -> NDArray[np.float64]:
        """New episodes everywhere; the first time with the seed, later by each row's own chance."""
        self._obs = self.env.reset_batch(self.first_seed)
        self.first_seed = None
        self._episode_start = np.ones(self.num_envs, bool)
        return self._obs

    def step_async(self, actions: NDArray[np.float32]) -> None:
        self._actions = actions

    def step_wait(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_], list[dict[str, Any]]]:
        step = self.env.step_batch(self._actions)
        transition = Transition(
            self._obs, self._actions, step.next_obs, step.info, self._episode_start
        )
        total, terms = self.reward(transition)
        if self.reward.ends_episodes:
            step = end_failures(self.env, self.reward, transition, step)
        done = step.terminated | step.truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row in np.flatnonzero(done):
            infos[row] = {
                "terminal_observation": step.next_obs[row],
                "TimeLimit.truncated": bool(step.truncated[row] and not step.terminated[row]),
            }
        self._obs = step.obs
        self._episode_start = done
        self.on_step((total, terms, done))
        return step.obs, total, done, infos

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        # Stable-Baselines3 asks every environment for its render mode; there is nothing to see.
        value = None if attr_name == "render_mode" else getattr(self.env, attr_name)
        return [value] * len(self._rows(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("environments of a batch have no attributes of their own")

    def env_method(
        self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any
    ) -> list[Any]:
        raise NotImplementedError("environments of a batch have no methods of their own")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:  # noqa: ARG002
        return [False] * len(self._rows(indices))

    def _rows(self, indices: int | Sequence[int] | None) -> list[int]:
        if indices is None:
            return list(range(self.num_envs))
        return [indices] if isinstance(indices, int) else list(indices)


class IsaacLabRewardVecWrapper(RewardedVecEnv):
    """The environments of a GPU simulator, whose actions have no bounds, which PPO asks for."""

    def __init__(
        self, env: BatchedEnv, reward: RewardRunner, seed: int, on_step: Callable[[Step], None]
    ) -> None:
        super().__init__(env, reward, seed, on_step)
        shape = env.single_action_space.shape
        self.action_space = Box(-ACTION_BOUND, ACTION_BOUND, shape, np.float32)


class _Beats(BaseCallback):
    """The heartbeat of rollouts."""

    def __init__(self, alive: Heartbeat) -> None:
        super().__init__()
        self.alive = alive

    def _on_step(self) -> bool:
        self.alive("rollout")
        return True


def make_model(
    config: TrainConfig,
    env: VecNormalize,
    after_update: Callable[[dict[str, float], float], None] = lambda *_: None,
) -> MeasuredPPO:
    model = MeasuredPPO(
        "MlpPolicy",
        env,
        after_update=after_update,
        **ppo_settings(config),
        seed=config.seed,
        device=config.device,
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


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

    def begin_episodes(self) -> None:
        """Start every environment anew; between two rollouts only."""
        assert self.env is not None
        self._last_obs = self.env.reset()  # type: ignore[assignment]
        self._last_episode_starts = np.ones(self.n_envs, bool)

    @torch.no_grad()
    def _gaussian(self, observations: torch.Tensor) -> tuple[Array, Array]:
        """Means (B, A) and logarithms of the standard deviations (A,) of the policy."""
        distribution: Any = self.policy.get_distribution(observations).distribution
        log_std: Any = self.policy.log_std
        return distribution.mean.cpu().numpy(), log_std.detach().cpu().numpy().copy()


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
