"""Environments that are rewarded by a RewardFunction: a single Gymnasium one, or an engine's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from stable_baselines3.common.vec_env import VecEnv

from p2p.config import EnvOptions
from p2p.training.envs.registry import make_single
from p2p.training.reward_function import RewardFunction, parse_docstring
from p2p.training.reward_loader import Compute, FunctionReward
from p2p.training.reward_runner import (
    CheckedReward,
    Floats,
    RewardRunner,
    Transition,
    end_failures,
)
from p2p.training.simulator import get_simulator
from p2p.training.specs.quantities import Robot, of_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from p2p.training.envs.batched_env import BatchedEnv, Seeds

__all__ = [
    "REWARD_TERMS",
    "CustomRewardWrapper",
    "IsaacLabRewardVecWrapper",
    "RewardedVecEnv",
    "make_env",
]

ACTION_BOUND = 100.0
"""Far beyond what an engine's own terms clip."""

REWARD_TERMS = "reward_terms"


class CustomRewardWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Replaces the environment's reward by `reward_fn(obs, action, next_obs, info)`.

    The reward sees the observation before the step, and in its own copy of info
    `_episode_start` and, with `side_info`, `mj_model`, `mj_data` and every named quantity. The
    info that is handed on has the terms as `reward_terms` and none of these. A reward that raises,
    or returns anything but finite numbers, ends the step with a RewardError.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        reward_fn: RewardFunction | Compute,
        side_info: bool = False,
        engine: str = "mujoco",
    ) -> None:
        super().__init__(env)
        simulator = get_simulator(engine)
        if not isinstance(reward_fn, RewardFunction):
            reward_fn = FunctionReward(reward_fn, parse_docstring(reward_fn.__doc__))
        self.reward_fn = reward_fn
        self._reward = CheckedReward(reward_fn)
        self._side_info = simulator.extract_side_info(env) if side_info else {}
        self._robot = Robot.of(env) if side_info else None
        self._obs: NDArray[Any] | None = None
        self._start = True

    @property
    def term_names(self) -> tuple[str, ...]:
        return self._reward.names or ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the reward is told before the first step."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._obs, self._start = np.array(obs), True
        return obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, with the reward of `reward_fn`; raises RewardError."""
        if self._obs is None:
            raise gym.error.ResetNeeded("call reset() before step()")
        next_obs, _, terminated, truncated, info = self.env.step(action)
        reward_info = {**info, **self._side_info}
        if self._robot is not None:
            reward_info = {**of_state(self._robot, self._side_info["mj_data"]), **reward_info}
        values = self._reward.single(self._obs, action, next_obs, reward_info, self._start)
        self._obs, self._start = np.array(next_obs), False
        terms = dict(zip(self.term_names, values[1:], strict=True))
        return next_obs, values[0], terminated, truncated, {**info, REWARD_TERMS: terms}


def make_env(
    env_id: str,
    reward_fn: RewardFunction | Compute,
    *,
    side_info: bool = False,
    engine: str = "mujoco",
    max_episode_steps: int | None = None,
    terminate_when_unhealthy: bool | None = None,
    render_mode: str | None = None,
) -> CustomRewardWrapper:
    """Make the environment `env_id`, rewarded by `reward_fn`; None leaves a setting as registered.

    Raises:
        UnknownEnvironmentError: it is not registered.
        ValueError: it has no such setting, or no time limit and none is given.
    """
    options = EnvOptions(env_id, max_episode_steps, terminate_when_unhealthy)
    env = make_single(options, render_mode)
    try:
        return CustomRewardWrapper(env, reward_fn, side_info, engine)
    except BaseException:
        env.close()
        raise


class RewardedVecEnv(VecEnv):
    """Steps the environments, computes the reward, and reports both in Stable-Baselines3's form.

    `seeds` are those of the next reset. `steps` gathers rewards, terms and ended rows.
    """

    def __init__(self, env: BatchedEnv, reward: RewardRunner) -> None:
        self.env, self.reward = env, reward
        self.seeds: Seeds = None
        self.steps: list[tuple[Floats, dict[str, Floats], NDArray[np.bool_]]] = []
        self.render_mode = None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self._actions = np.zeros((env.num_envs, *env.single_action_space.shape), np.float32)
        self._obs = np.zeros((env.num_envs, *env.single_observation_space.shape))
        self._episode_start = np.ones(env.num_envs, bool)

    def reset(self) -> NDArray[np.float64]:
        """New episodes everywhere, with the seeds or by each row's own chance."""
        self._obs = self.env.reset_batch(self.seeds)
        self.seeds = None
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
        self.steps.append((total, terms, done))
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

    def __init__(self, env: BatchedEnv, reward: RewardRunner) -> None:
        super().__init__(env, reward)
        shape = env.single_action_space.shape
        self.action_space = Box(-ACTION_BOUND, ACTION_BOUND, shape, np.float32)
