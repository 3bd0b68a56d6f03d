"""The reference backend: Stable-Baselines3's own PPO, for any Gymnasium environment.

Same configuration, metrics, files and kind of policy as the fast backend. The environments are
Gymnasium's, stepped in a loop; rewards are checked and called as on the fast backend.

A killed run continues with its weights, optimiser, statistics and random states, but Gymnasium
environments cannot be saved: they begin new episodes, so the result is not bit for bit that of an
uninterrupted run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from p2p.config import TrainConfig
from p2p.training.base_trainer import BaseTrainer, Heartbeat, TrainContext, part, prefixed
from p2p.training.envs.batched_env import BatchedEnv, StepBatch
from p2p.training.policies.policy import Policy
from p2p.training.policies.sb3_export import policy_from_sb3, ppo_settings
from p2p.training.reward.calls import Transition
from p2p.training.reward.runner import RewardRunner
from p2p.training.sb3_ppo import MeasuredPPO, load_learner, save_learner

Terms = dict[str, NDArray[np.float64]]
OnStep = Callable[[NDArray[np.float64], Terms, StepBatch], None]


def train(ctx: TrainContext) -> None:
    """Train to the end, continuing from a state in ctx.folder."""
    torch.set_num_threads(1)  # small networks: a second thread costs more than it brings
    torch.use_deterministic_algorithms(ctx.config.torch_deterministic, warn_only=True)
    trainer = SB3Trainer(ctx)
    try:
        trainer.run()
    finally:
        trainer.close()


class SB3Trainer(BaseTrainer):
    backend = "sb3"
    env_backend = "gym"

    def __init__(self, ctx: TrainContext) -> None:
        super().__init__(ctx)
        config = ctx.config
        self.began = time.perf_counter()
        seed = self.later_seed() if self.iteration else config.seed
        self.steps: list[tuple[NDArray[np.float64], Terms, NDArray[np.bool_]]] = []
        self.normalize = VecNormalize(
            RewardedVecEnv(self.env, self.reward, seed, self._note_step),
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

    def run(self) -> None:
        self.send_started()
        left = self.config.num_iterations * self.config.batch_size - self.step
        if left > 0:
            self.began = time.perf_counter()
            self.model.learn(left, _Beats(self.alive), reset_num_timesteps=False)
        self.send_finished()

    def _note_step(self, rewards: NDArray[np.float64], terms: Terms, step: StepBatch) -> None:
        self.steps.append((rewards, terms, step.terminated | step.truncated))

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

    def policy(self) -> Policy:
        statistics = self.normalize.obs_rms if self.config.normalize_obs else None
        return policy_from_sb3(self.model, statistics, self.config)

    def state(self) -> dict[str, NDArray[Any]]:
        return prefixed("learner", save_learner(self.model, self.normalize))


class RewardedVecEnv(VecEnv):
    """Steps the environments, computes the reward, and reports both in Stable-Baselines3's form.

    Args:
        env: the environments.
        reward: what to train on.
        seed: row i of the first reset is seeded with seed + i.
        on_step: told of every step's rewards, terms and transition, for bookkeeping.
    """

    def __init__(
        self,
        env: BatchedEnv,
        reward: RewardRunner,
        seed: int,
        on_step: OnStep,
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
        total, terms = self.reward(
            Transition(self._obs, self._actions, step.next_obs, step.info, self._episode_start)
        )
        done = step.terminated | step.truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row in np.flatnonzero(done):
            infos[row] = {
                "terminal_observation": step.next_obs[row],
                "TimeLimit.truncated": bool(step.truncated[row] and not step.terminated[row]),
            }
        self._obs = step.obs
        self._episode_start = done
        self.on_step(total, terms, step)
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
) -> PPO:
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
