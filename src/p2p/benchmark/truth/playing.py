"""A policy played in plain Gymnasium, from starts of its own, and measured.

Only the policy's safetensors file is read, whose every value is checked; no code of a session runs.
The environment is the one that is registered, whatever the session trained with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from p2p.benchmark.truth.episode import Episode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Act = Callable[[NDArray[np.float64]], NDArray[Any]]

EPISODES = 10
FIRST_SEED = 70_000
"""Far from the seeds of training, judging and confirming."""
SEEDS = tuple(range(FIRST_SEED, FIRST_SEED + EPISODES))


class NotPlayable(Exception):
    """A policy that cannot be measured; the message says why."""


def play_policy(env_id: str, policy_file: Path, seeds: Sequence[int] = SEEDS) -> list[Episode]:
    """Deterministic episodes of a saved policy; raises NotPlayable."""
    from p2p.training.policies.policy import Policy, PolicyFileError

    if policy_file.is_symlink() or not policy_file.is_file():
        raise NotPlayable(f"{policy_file} is not there")
    try:
        policy = Policy.load(policy_file)
    except (PolicyFileError, OSError) as error:
        raise NotPlayable(f"{policy_file}: {error}") from error
    return list(play(env_id, lambda obs: policy.act(obs[None])[0], seeds))


def play(env_id: str, act: Act, seeds: Sequence[int]) -> Iterator[Episode]:
    """One episode for each seed, in the environment as it is registered; raises NotPlayable."""
    from gymnasium.error import Error

    from p2p.training.envs.registry import make_single

    try:
        env = make_single(env_id, None, None)
    except (ValueError, Error) as error:
        raise NotPlayable(f"{env_id} cannot be made: {error}") from error
    try:
        for seed in seeds:
            yield _episode(env, act, seed)
    finally:
        env.close()


def _episode(env: Any, act: Act, seed: int) -> Episode:
    obs, _ = env.reset(seed=seed)
    model, data = env.unwrapped.model, env.unwrapped.data
    states = [_state(data)]
    over = False
    while not over:
        try:
            obs, _, terminated, truncated, _ = env.step(act(obs))
        except ValueError as error:
            raise NotPlayable(f"the policy does not fit the environment: {error}") from error
        states.append(_state(data))
        over = terminated or truncated
    qpos, xpos, rotation = (np.stack(part) for part in zip(*states, strict=True))
    names = tuple(model.body(number).name for number in range(model.nbody))
    horizon = env.spec.max_episode_steps or len(states) - 1
    return Episode(qpos, xpos, rotation, names, float(env.unwrapped.dt), horizon)


def _state(data: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    return data.qpos.copy(), data.xpos.copy(), data.xmat[1].reshape(3, 3).copy()
