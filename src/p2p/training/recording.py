"""Episodes for judges: played without any reward code, and recorded with all that is known.

Nothing of what is generated runs here, so it needs no sandbox. The `reward` column is the
environment's own; every info key of the environment becomes a column of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from p2p.training.trajectory import ENV_REWARD, NAMES_KEY, Trajectory, info_columns
from p2p.training.vec_env import make_batched_env

if TYPE_CHECKING:
    from p2p.config import TrainConfig
    from p2p.training.envs.batched_env import BatchedEnv, StepBatch
    from p2p.training.policies.policy import Policy

Behaviour = Literal["zero", "random"]
Act = Callable[[NDArray[np.float64]], NDArray[np.float32]]

ROWS = 8
"""Episodes side by side, however many are asked for: the last bits of an action depend on how many
are computed at once, and a long episode may depend on the last bits."""


def record_episodes(
    config: TrainConfig, act: Policy | Behaviour, *, episodes: int, seed: int
) -> list[Trajectory]:
    """Play and record this many episodes, the i-th of them seeded with seed + i.

    Every step is kept, whatever the configuration's stride. Equal arguments give equal episodes,
    and fewer of them the first of more.
    """
    return list(play_episodes(config, act, episodes=episodes, seed=seed))


def play_episodes(
    config: TrainConfig, act: Policy | Behaviour, *, episodes: int, seed: int
) -> Iterator[Trajectory]:
    """As `record_episodes`, but with only a few of them in memory at a time."""
    env = make_batched_env(
        config.env_id,
        min(ROWS, episodes) if isinstance(act, str) else ROWS,
        max_episode_steps=config.max_episode_steps,
        terminate_when_unhealthy=config.terminate_when_unhealthy,
    )
    try:
        for first in range(0, episodes, env.num_envs):
            yield from _play(env, act, seed + first)[: episodes - first]
    finally:
        env.close()


def acting(act: Policy | Behaviour, env: BatchedEnv, seed: int) -> Act:
    """What acts in one round of episodes; random actions come of each row's own seed."""
    if not isinstance(act, str):
        return act.act
    space = env.single_action_space
    shape = (env.num_envs, *(space.shape or ()))
    if act == "zero":
        still = np.clip(np.zeros(shape), space.low, space.high).astype(np.float32)
        return lambda _: still
    low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
    generators = [np.random.default_rng(seed + row) for row in range(env.num_envs)]
    return lambda _: np.stack([g.uniform(low, high) for g in generators]).astype(np.float32)


def _play(env: BatchedEnv, behaviour: Policy | Behaviour, seed: int) -> list[Trajectory]:
    """One episode of each row; what a row does after its end is left out."""
    act = acting(behaviour, env, seed)
    obs = env.reset_batch(seed)
    lengths = np.zeros(env.num_envs, np.int64)
    active = np.ones(env.num_envs, np.bool_)
    steps: list[dict[str, NDArray[Any]]] = []
    while active.any():
        action = act(obs)
        batch = env.step_batch(action)
        steps.append(_columns(obs, action, batch, env.trajectory_fields()))
        lengths[active] += 1
        active &= ~(batch.terminated | batch.truncated)
        obs = batch.obs
    common = set.intersection(*(set(step) for step in steps))  # a key that comes and goes is none
    arrays = {name: np.stack([step[name] for step in steps]) for name in steps[0] if name in common}
    return [_episode(arrays, row, int(n), env.dt) for row, n in enumerate(lengths)]


def _columns(
    obs: NDArray[Any], action: NDArray[Any], batch: StepBatch, state: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    columns = {
        "obs": obs,
        "action": action,
        "next_obs": batch.next_obs,
        "reward": batch.reward,
        ENV_REWARD: batch.reward,
        "terminated": batch.terminated,
        "truncated": batch.truncated,
        **state,
        **info_columns(batch.info),
    }
    return {
        name: values.astype(np.float32 if values.dtype.kind == "f" else values.dtype)
        for name, values in columns.items()
    }


def _episode(arrays: dict[str, NDArray[Any]], row: int, length: int, dt: float) -> Trajectory:
    steps = np.arange(length)
    columns = {name: values[:length, row].copy() for name, values in arrays.items()}
    return Trajectory.from_arrays(
        {
            "step": steps,
            "timestamp": (steps + 1) * dt,
            "cumulative_reward": np.cumsum(columns["reward"], dtype=np.float64),
            **columns,
            NAMES_KEY: np.array([], dtype=np.str_),
        }
    )
