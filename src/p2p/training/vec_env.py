"""Many environments stepped together: the fast path on ``mujoco.batch``, and any Gymnasium one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from p2p.training.envs.batched_env import BatchedEnv, StepBatch
from p2p.training.envs.gym_vec_env import GymVecEnv
from p2p.training.envs.mujoco_kernels import find_kernel
from p2p.training.envs.mujoco_vec_env import MujocoVecEnv
from p2p.training.envs.registry import UnknownEnvironmentError, registered

if TYPE_CHECKING:
    from collections.abc import Collection

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
    """Whether MujocoVecEnv has this environment; UnknownEnvironmentError if it is not registered.

    It goes by the class that is registered, so a Gymnasium environment that a user registers
    anew with other arguments is fast, too.
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
    observe_time: bool = False,
    side_info: bool = False,
    quantities: Collection[str] = (),
) -> BatchedEnv:
    """Make num_envs copies of an environment, with the fast backend if it can ("auto").

    None leaves a setting as registered. GymVecEnv always takes one thread. With `observe_time` the
    share of the episode that has passed stands last in the observation. `side_info` says whether
    side information will be asked for in every step. `quantities` names those of `QUANTITIES` that
    stand in the info of every step, as far as the environment has them.

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
            observe_time=observe_time,
            quantities=quantities,
        )
    return MujocoVecEnv(
        env_id,
        num_envs,
        num_threads=num_threads,
        max_episode_steps=max_episode_steps,
        terminate_when_unhealthy=terminate_when_unhealthy,
        observe_time=observe_time,
        side_info=side_info,
        quantities=quantities,
    )
