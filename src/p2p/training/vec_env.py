"""Many environments stepped together: the fast path on ``mujoco.batch``, and any Gymnasium one."""

from __future__ import annotations

from typing import Literal

from p2p.training.envs.batched_env import BatchedEnv, StepBatch
from p2p.training.envs.gym_vec_env import GymVecEnv
from p2p.training.envs.mujoco_kernels import find_kernel
from p2p.training.envs.mujoco_vec_env import MujocoVecEnv
from p2p.training.envs.registry import UnknownEnvironmentError, registered

__all__ = [
    "BatchedEnv",
    "GymVecEnv",
    "MujocoVecEnv",
    "StepBatch",
    "UnknownEnvironmentError",
    "is_fast",
    "make_batched_env",
]


def is_fast(env_id: str) -> bool:
    """Whether MujocoVecEnv has this environment.

    It goes by the class that is registered, so a Gymnasium environment that a user registers
    anew with other arguments is fast, too.

    Raises:
        UnknownEnvironmentError: It is not registered; the message names close matches.
    """
    return find_kernel(registered(env_id)) is not None


def make_batched_env(
    env_id: str,
    num_envs: int,
    *,
    backend: Literal["auto", "fast", "gym"] = "auto",
    num_threads: int = 1,
    max_episode_steps: int | None = None,
    terminate_when_unhealthy: bool | None = None,
    side_info: bool = False,
) -> BatchedEnv:
    """Make num_envs copies of an environment.

    Args:
        env_id: A registered Gymnasium environment.
        num_envs: How many.
        backend: "fast" for MujocoVecEnv, "gym" for GymVecEnv, "auto" for the fast one if it can.
        num_threads: Threads that step; GymVecEnv always takes one.
        max_episode_steps: Steps until truncation; None for the registered number.
        terminate_when_unhealthy: Whether bad states end an episode; None as registered.
        side_info: Whether side information will be asked for in every step.

    Raises:
        UnknownEnvironmentError: It is not registered; the message names close matches.
        ValueError: It has no batched form (backend "fast"), its spaces are not vectors, or a
            setting does not apply.
    """
    if backend == "gym" or (backend == "auto" and not is_fast(env_id)):
        return GymVecEnv(
            env_id,
            num_envs,
            max_episode_steps=max_episode_steps,
            terminate_when_unhealthy=terminate_when_unhealthy,
        )
    return MujocoVecEnv(
        env_id,
        num_envs,
        num_threads=num_threads,
        max_episode_steps=max_episode_steps,
        terminate_when_unhealthy=terminate_when_unhealthy,
        side_info=side_info,
    )
