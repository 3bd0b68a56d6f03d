"""Which kernel computes which environment, by the class that Gymnasium registers for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2p.training.envs.mujoco_fixed import InvertedDoublePendulum, InvertedPendulum, Pusher, Reacher
from p2p.training.envs.mujoco_planar import HalfCheetah, Hopper, Swimmer, Walker2d
from p2p.training.envs.mujoco_spatial import Ant, Humanoid, HumanoidStandup

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

    from p2p.training.envs.mujoco_kernel import Kernel

KERNELS: dict[str, type[Kernel]] = {
    "ant_v5:AntEnv": Ant,
    "half_cheetah_v5:HalfCheetahEnv": HalfCheetah,
    "hopper_v5:HopperEnv": Hopper,
    "humanoid_v5:HumanoidEnv": Humanoid,
    "humanoidstandup_v5:HumanoidStandupEnv": HumanoidStandup,
    "inverted_double_pendulum_v5:InvertedDoublePendulumEnv": InvertedDoublePendulum,
    "inverted_pendulum_v5:InvertedPendulumEnv": InvertedPendulum,
    "pusher_v5:PusherEnv": Pusher,
    "reacher_v5:ReacherEnv": Reacher,
    "swimmer_v5:SwimmerEnv": Swimmer,
    "walker2d_v5:Walker2dEnv": Walker2d,
}


def find_kernel(spec: EnvSpec) -> type[Kernel] | None:
    """The kernel of a registered environment; None if it has none or wrappers of its own."""
    entry = spec.entry_point
    if not isinstance(entry, str) or spec.additional_wrappers:
        return None
    return KERNELS.get(entry.removeprefix("gymnasium.envs.mujoco."))
