"""What judges get of an episode: the columns of its trajectory, and its summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p2p.training.env_spec import spec_for
from p2p.training.trajectory import (
    ENGINE_COLUMNS,
    SCALAR_COLUMNS,
    VECTOR_COLUMNS,
    RecordedEpisode,
    is_reward,
)

if TYPE_CHECKING:
    from p2p.config import TrainConfig
    from p2p.contracts import TrainSummary
    from p2p.training.env_spec import EnvSpec

SUMMARY_KEYS: dict[str, str] = {
    "env_id": "the environment",
    "dt": "seconds between two steps",
    "length": "number of steps",
    "seconds": "length * dt",
    "max_episode_steps": "steps after which an episode is cut off",
    "terminated": "whether the environment ended it early (in most: fell or became unhealthy)",
    "truncated": "whether it was cut off at its time limit",
    "final": "dict: every scalar of the environment's info at the last step",
    "seed": "of the episode's start; None if it is not known",
    "step": "the training step of the policy; None if it is no trained one",
    "training": "dict: total_timesteps and final_return of the training run; empty if none",
}
"""What stands in a summary, in words."""


def trajectory_columns(spec: EnvSpec) -> dict[str, str]:
    """Each column that a judge may use: its shape over T steps, and its meaning.

    No reward is among them, neither the environment's nor ours: it is not what was asked for.
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
        "terminated": "(T,) true at the last step if the environment ended the episode early",
        "truncated": "(T,) true at the last step if the time limit ended it",
    }
    info = {
        name: f"(T,) {text}"
        for name, text in spec.info_keys.items()
        if name not in columns and not is_reward(name)
    }
    measured = {
        name: f"({', '.join(['T', *map(str, entry.shape)])}{'' if entry.shape else ','}) quantity"
        for name, entry in spec.quantities.items()
    }
    return columns | info | measured


def episode_summary(
    config: TrainConfig,
    trajectory: RecordedEpisode,
    *,
    seed: int | None = None,
    step: int | None = None,
    training: TrainSummary | None = None,
) -> dict[str, Any]:
    """The summary of an episode that `record_episodes` recorded, as plain JSON."""
    spec = spec_for(config)
    known = {*SCALAR_COLUMNS, *VECTOR_COLUMNS, *ENGINE_COLUMNS}
    length = int(trajectory["step"][-1]) + 1
    return {
        "env_id": config.env_id,
        "dt": spec.dt,
        "length": length,
        "seconds": length * spec.dt,
        "max_episode_steps": config.max_episode_steps or spec.max_episode_steps,
        "terminated": bool(trajectory["terminated"][-1]),
        "truncated": bool(trajectory["truncated"][-1]),
        "final": {
            name: column[-1].item()
            for name, column in trajectory.columns.items()
            if name not in known and column.ndim == 1 and not is_reward(name)
        },
        "seed": seed,
        "step": step,
        "training": {}
        if training is None
        else {
            "total_timesteps": training.total_timesteps,
            "final_return": training.final_episodic_return,
        },
    }
