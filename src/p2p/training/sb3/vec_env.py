"""A BatchedEnv and a reward as one Stable-Baselines3 VecEnv."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from p2p.training.reward.runner import RewardRunner
from p2p.training.vec_env import BatchedEnv, StepBatch

Terms = dict[str, NDArray[np.float64]]
OnStep = Callable[[NDArray[np.float64], Terms, StepBatch], None]


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
        *,
        side_info: bool = False,
    ) -> None:
        self.env = env
        self.reward = reward
        self.on_step = on_step
        self.side_info = side_info
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
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_], list[dict[str, Any]]]:
        """Step, reward, and start ended rows anew."""
        step = self.env.step_batch(self._actions)
        total, terms = self.reward(
            self._obs,
            self._actions,
            step.next_obs,
            step.info,
            episode_start=self._episode_start,
            side_info=self.env if self.side_info else None,
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
        """Free the environments."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The attribute of the batch, once per row that is asked for."""
        # Stable-Baselines3 asks every environment for its render mode; there is nothing to see.
        value = None if attr_name == "render_mode" else getattr(self.env, attr_name)
        return [value] * len(self._rows(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Rows share one batch, so there is nothing to set on one of them."""
        raise NotImplementedError("environments of a batch have no attributes of their own")

    def env_method(
        self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any
    ) -> list[Any]:
        """Rows share one batch, so there is no method of one of them."""
        raise NotImplementedError("environments of a batch have no methods of their own")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:  # noqa: ARG002
        """No row is wrapped in anything."""
        return [False] * len(self._rows(indices))

    def _rows(self, indices: int | Sequence[int] | None) -> list[int]:
        if indices is None:
            return list(range(self.num_envs))
        return [indices] if isinstance(indices, int) else list(indices)
