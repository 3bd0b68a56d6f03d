"""What a judge finds in a trajectory, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p2p.training.specs.records import EnvSpec


def trajectory_columns(spec: EnvSpec) -> dict[str, str]:
    """Each column that a judge may use: its shape over T steps, and its meaning.

    `reward` is left out on purpose: in some recordings it is the one that was trained on.
    """
    joints = spec.joints
    qpos = sum(joint.qpos_size for joint in joints)
    qvel = sum(joint.qvel_size for joint in joints)
    bodies = len(spec.bodies)
    columns = {
        "step": "(T,) 0, 1, 2, ...",
        "timestamp": "(T,) seconds since the start, at the end of the step",
        "obs": f"(T, {spec.obs_dim}) observation before the step",
        "action": f"(T, {spec.action_dim}) the action",
        "next_obs": f"(T, {spec.obs_dim}) observation after the step",
        "qpos": f"(T, {qpos}) joint positions after the step",
        "qvel": f"(T, {qvel}) joint velocities after the step",
        "ctrl": f"(T, {spec.action_dim}) actuator inputs",
        "xpos": f"(T, {bodies}, 3) world position of each body (m)",
        "xquat": f"(T, {bodies}, 4) orientation of each body (w, x, y, z)",
        "cvel": f"(T, {bodies}, 6) angular, then linear velocity of each body",
        "cfrc_ext": f"(T, {bodies}, 6) contact torque, then force on each body",
        "env_reward": "(T,) the environment's own reward, which is not what was asked for",
        "terminated": "(T,) true at the last step if the environment ended the episode early",
        "truncated": "(T,) true at the last step if the time limit ended it",
    }
    info = {name: f"(T,) {text}" for name, text in spec.info_keys.items() if name not in columns}
    return columns | info
