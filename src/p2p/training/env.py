"""Environments that are rewarded by a RewardFunction: a single Gymnasium one, or an engine's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium as gym
import numpy as np

from p2p.config import EnvOptions
from p2p.training.envs.registry import make_single
from p2p.training.reward_function import RewardFunction, parse_docstring
from p2p.training.reward_loader import Compute, FunctionReward
from p2p.training.reward_runner import CheckedReward
from p2p.training.sb3_trainer import IsaacLabRewardVecWrapper
from p2p.training.simulator import get_simulator
from p2p.training.specs.quantities import Robot, of_state

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["REWARD_TERMS", "CustomRewardWrapper", "IsaacLabRewardVecWrapper", "make_env"]

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
