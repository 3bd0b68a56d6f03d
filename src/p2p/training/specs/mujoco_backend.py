"""MuJoCo through Gymnasium."""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from p2p.training.envs.quiet_loading import quiet_loading
from p2p.training.simulator import UnsupportedEnvironmentError
from p2p.training.specs import spec_text
from p2p.training.specs.env_text import info_meaning, termination_text
from p2p.training.specs.mujoco_model import (
    read_action,
    read_bodies,
    read_camera,
    read_geoms,
    read_joints,
    resting,
    torso_joints,
    vec3,
)
from p2p.training.specs.observation_layout import made_up_samples, read_layout, real_samples
from p2p.training.specs.records import EnvSpec, OpenRange
from p2p.training.specs.state_fields import Library

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from numpy.typing import NDArray

TRAJECTORY_FIELDS = ("qpos", "qvel", "ctrl", "xpos", "xquat", "cvel", "cfrc_ext")


def _check(env_id: str, env: Any) -> None:
    import gymnasium as gym
    import mujoco

    base = env.unwrapped
    if not isinstance(getattr(base, "model", None), mujoco.MjModel):
        raise UnsupportedEnvironmentError(
            f"{env_id} is not a MuJoCo environment: it has no MjModel"
        )
    for space, words in ((env.observation_space, "observation"), (env.action_space, "action")):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise UnsupportedEnvironmentError(
                f"{env_id}: the {words} space is {space}, not a flat Box"
            )


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _info_keys(env: Any) -> dict[str, str]:
    env.reset(seed=0)
    info = env.step(env.action_space.sample())[4]
    return {key: info_meaning(key, int(np.size(value))) for key, value in info.items()}


def _open(low: Any, high: Any) -> OpenRange:
    """A range as JSON can hold it: no infinities."""
    a, b = (float(v) if math.isfinite(v) else None for v in (low, high))
    return (a, b)


def _healthy_ranges(base: Any) -> dict[str, OpenRange]:
    """Gymnasium keeps them as `_healthy_z_range` and the like."""
    ranges: dict[str, OpenRange] = {}
    for attribute, value in vars(base).items():
        key = attribute.removeprefix("_healthy_").removesuffix("_range")
        if attribute == f"_healthy_{key}_range":
            bounds = _open(*value)
            if bounds != (None, None):
                ranges[key] = bounds
    return ranges


class MujocoBackend:
    """Reads any registered MuJoCo environment with flat observations and actions."""

    engine_name = "mujoco"
    display_name = "MuJoCo"
    has_physics_state = True
    trajectory_fields: ClassVar[tuple[str, ...]] = TRAJECTORY_FIELDS

    def is_registered(self, env_id: str) -> bool:
        """Whether Gymnasium knows the id; imports the package of an id such as `package:Env-v0`."""
        import gymnasium as gym

        module, _, name = env_id.rpartition(":")
        if module:
            if not _exists(module):
                return False
            import_module(module)  # what goes wrong inside it is for the caller to see
        try:
            gym.spec(name)
        except gym.error.Error:
            return False
        return True

    def read_spec(self, env_id: str) -> EnvSpec:
        """Read everything off a live environment."""
        import gymnasium as gym

        with quiet_loading():
            env: Any = gym.make(env_id)
            scratch: Any = gym.make(env_id)  # its state is written over
        try:
            _check(env_id, env)
            return self._read(env_id, env, scratch)
        finally:
            env.close()
            scratch.close()

    def _read(self, env_id: str, env: Any, scratch: Any) -> EnvSpec:
        base, model = env.unwrapped, env.unwrapped.model
        rest = resting(model)
        joints, bodies, geoms = (
            read_joints(model, rest),
            read_bodies(model, rest),
            read_geoms(model),
        )
        library = Library(model, joints, bodies, geoms)
        scratch.reset(seed=0)
        made_up = made_up_samples(scratch, library, np.random.default_rng(0))
        name = env.spec.name
        switch = getattr(base, "_terminate_when_unhealthy", None)
        ranges = _healthy_ranges(base)
        torso = torso_joints(joints)
        free = next((j for j in torso if j.type == "free"), None)
        height = next((j for j in torso if j.height_offset is not None), None)
        angle = None if free else next((j for j in torso if j.type == "hinge"), None)
        renderer = getattr(base, "mujoco_renderer", None)
        space = env.action_space
        return EnvSpec(
            env_id=env_id,
            name=name,
            engine=self.engine_name,
            description=spec_text.summary(name, joints, bodies, space.shape[0]),
            observation=read_layout(made_up, real_samples(env, library, seed=0), library),
            actions=tuple(
                read_action(model, i, joints, _open(space.low[i], space.high[i]))
                for i in range(space.shape[0])
            ),
            joints=joints,
            bodies=bodies,
            geoms=geoms,
            camera=read_camera(model, rest, getattr(renderer, "default_cam_config", None) or {}),
            info_keys=_info_keys(env),
            dt=float(base.dt),
            frame_skip=int(base.frame_skip),
            max_episode_steps=env.spec.max_episode_steps,
            terminate_when_unhealthy=switch,
            healthy_ranges=ranges,
            termination=termination_text(name, switch, ranges),
            total_mass=float(model.body_mass.sum()),
            gravity=vec3(model.opt.gravity),
            uses_quaternion_orientation=free is not None,
            z_height_qpos_idx=free.qpos_address + 2
            if free
            else (height.qpos_address if height else None),
            torso_angle_qpos_idx=angle.qpos_address if angle else None,
            torso_angvel_qvel_idx=angle.qvel_address if angle else None,
        )

    def extract_side_info(self, env: Any) -> dict[str, Any]:
        """`mj_model` and `mj_data`, live: they change with the next step.

        Raises UnsupportedEnvironmentError for an environment that has none.
        """
        base = env.unwrapped
        model, data = getattr(base, "model", None), getattr(base, "data", None)
        if model is None or data is None:
            raise UnsupportedEnvironmentError(
                f"side_info: {type(base).__name__} has no MuJoCo model and data"
            )
        return {"mj_model": model, "mj_data": data}

    def build_trajectory_fields(self, env: Any) -> dict[str, NDArray[np.float64]]:
        """Copies of the state arrays that a recorded trajectory keeps for each step."""
        data = env.unwrapped.data
        return {field: np.array(getattr(data, field)) for field in TRAJECTORY_FIELDS}

    def inject_reward_namespace(self, namespace: MutableMapping[str, Any]) -> None:
        """Reward code may use `mujoco` without importing it."""
        import mujoco

        namespace["mujoco"] = mujoco

    def extract_body_info(self, spec: EnvSpec) -> str:
        """Text: how the state arrays are indexed, and the bodies."""
        return spec_text.body_info(spec)

    def extract_body_geometry(self, spec: EnvSpec) -> str:
        """Text: the tree of bodies with masses, joints and shapes."""
        return spec_text.body_geometry(spec)

    def extract_joint_semantics(self, spec: EnvSpec) -> str:
        """Text: what a positive value of each joint means."""
        return spec_text.joint_semantics(spec)

    def describe_observation(self, spec: EnvSpec) -> str:
        """Text: the observation, index by index."""
        return spec_text.observation_table(spec)

    def describe_actions(self, spec: EnvSpec) -> str:
        """Text: the action, index by index."""
        return spec_text.action_table(spec)

    def get_camera_description(self, spec: EnvSpec) -> str:
        """Text: where the world's axes point in a rendered image."""
        return spec_text.camera_text(spec)
