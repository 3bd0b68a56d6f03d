"""Real transitions to try a reward on: random and zero actions, with episodes that begin anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from p2p.training.envs.batched_env import BatchedEnv
    from p2p.training.reward.calls import Floats
    from p2p.training.reward_function import Rows

RESTART_EVERY = 11
ZERO_ACTIONS = (8, 16)
"""Of every `ZERO_ACTIONS[1]` steps the last `ZERO_ACTIONS[0]` are made with zero actions."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of N environments, as a reward sees it."""

    obs: Floats
    action: NDArray[np.float32]
    next_obs: Floats
    info: dict[str, NDArray[Any]]
    episode_start: Rows
    reward: Floats
    """The environment's own."""
    zero_action: bool

    def first(self, n: int) -> Transition:
        """The same of the first n environments only."""
        return Transition(
            obs=self.obs[:n],
            action=self.action[:n],
            next_obs=self.next_obs[:n],
            info={key: value[:n] for key, value in self.info.items()},
            episode_start=self.episode_start[:n],
            reward=self.reward[:n],
            zero_action=self.zero_action,
        )


def transitions(env: BatchedEnv, steps: int, seed: int = 0) -> Iterator[Transition]:
    """Step `env` (which is reset first) and restart some of its rows now and then.

    While a transition is looked at, the environment's side information is that of it.
    """
    rng = np.random.default_rng(seed)
    space = env.single_action_space
    low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
    shape = (env.num_envs, *(space.shape or ()))
    obs = env.reset_batch(seed)
    start = np.ones(env.num_envs, np.bool_)
    for step in range(steps):
        zero = step % ZERO_ACTIONS[1] >= ZERO_ACTIONS[1] - ZERO_ACTIONS[0]
        action = (np.zeros(shape) if zero else rng.uniform(low, high, shape)).astype(np.float32)
        batch = env.step_batch(action)
        yield Transition(obs, action, batch.next_obs, batch.info, start, batch.reward, zero)
        obs, start = batch.obs, batch.terminated | batch.truncated
        if step % RESTART_EVERY == RESTART_EVERY - 1:
            rows = rng.random(env.num_envs) < 0.5
            obs, start = env.restart(rows), start | rows
