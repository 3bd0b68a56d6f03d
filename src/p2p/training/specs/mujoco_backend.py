"""MuJoCo through Gymnasium: an environment's facts, read off the live MjModel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym
import mujoco
import numpy as np

from p2p.training.env_spec import (
    ActionEntry,
    BodyEntry,
    CameraEntry,
    EnvSpec,
    FootEntry,
    GeomEntry,
    JointEntry,
    ObservationEntry,
    OpenRange,
    Vec3,
)
from p2p.training.envs.registry import quiet_loading
from p2p.training.model_files.facts import read_facts
from p2p.training.model_files.store import is_model
from p2p.training.simulator import UnsupportedEnvironmentError
from p2p.training.specs.observation_layout import (
    StateLibrary,
    made_up_samples,
    read_layout,
    real_samples,
)
from p2p.training.specs.quantities import Robot, entries_of, of_state, pulled_dofs
from p2p.training.specs.spec_text import direction, info_meaning, summary, termination_text, turn
from p2p.training.video.scene import choose_camera

if TYPE_CHECKING:
    from numpy.typing import NDArray

JointType = Literal["free", "ball", "slide", "hinge"]
JOINT_TYPES: tuple[JointType, ...] = ("free", "ball", "slide", "hinge")
QPOS_SIZE: Mapping[JointType, int] = {"free": 7, "ball": 4, "slide": 1, "hinge": 1}
QVEL_SIZE: Mapping[JointType, int] = {"free": 6, "ball": 3, "slide": 1, "hinge": 1}
_GEOM_SIZES = {"sphere": 1, "capsule": 2, "cylinder": 2, "ellipsoid": 3, "box": 3}
_JOINT_TRANSMISSIONS = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)
_SMALL_LEVER = 1e-3
_SLANT = 0.3
"""A part whose lever is closer to the joint's axis than this share turns rather than swings."""


class MujocoBackend:
    """Reads any registered MuJoCo environment with flat observations and actions."""

    engine_name = "mujoco"

    def read_spec(self, env_id: str) -> EnvSpec:
        if is_model(env_id):
            return read_facts(env_id).spec
        with ExitStack() as opened:
            with quiet_loading():
                env: Any = opened.enter_context(closing(gym.make(env_id)))
                # The state of this one is written over.
                scratch: Any = opened.enter_context(closing(gym.make(env_id)))
            _check(env_id, env)
            return _read(env_id, env, scratch)

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

    def reward_namespace(self) -> dict[str, Any]:
        return {"mujoco": mujoco}


def _check(env_id: str, env: Any) -> None:
    if not isinstance(getattr(env.unwrapped, "model", None), mujoco.MjModel):
        raise UnsupportedEnvironmentError(
            f"{env_id} is not a MuJoCo environment: it has no MjModel"
        )
    for space, words in ((env.observation_space, "observation"), (env.action_space, "action")):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise UnsupportedEnvironmentError(
                f"{env_id}: the {words} space is {space}, not a flat Box"
            )


def _read(env_id: str, env: Any, scratch: Any) -> EnvSpec:
    base, space = env.unwrapped, env.action_space
    robot = Robot.of(env)
    facts = ModelDescription(robot)
    scratch.reset(seed=0)
    made_up = made_up_samples(scratch, facts.library, np.random.default_rng(0))
    name = env.spec.name
    switch = getattr(base, "_terminate_when_unhealthy", None)
    ranges = _healthy_ranges(base)
    renderer = getattr(base, "mujoco_renderer", None)
    return facts.spec(
        env_id=env_id,
        name=name,
        engine=MujocoBackend.engine_name,
        observation=read_layout(made_up, real_samples(env, facts.library, seed=0), facts.library),
        actions=tuple(
            read_action(base.model, i, facts.joints, _open(space.low[i], space.high[i]))
            for i in range(space.shape[0])
        ),
        camera=getattr(renderer, "default_cam_config", None) or {},
        info_keys=_info_keys(env),
        frame_skip=int(base.frame_skip),
        max_episode_steps=env.spec.max_episode_steps,
        terminate_when_unhealthy=switch,
        healthy_ranges=ranges,
        termination=termination_text(name, switch, ranges),
    )


class ModelDescription:
    """The joints, bodies and geoms of a robot, read from its MuJoCo model alone."""

    def __init__(self, robot: Robot) -> None:
        model = robot.model
        self.robot = robot
        self.rest = mujoco.MjData(model)
        mujoco.mj_forward(model, self.rest)
        self.joints = tuple(_read_joint(model, self.rest, robot.qpos, i) for i in range(model.njnt))
        self.bodies, self.geoms = _read_bodies(model, self.rest), _read_geoms(model)
        self.library = StateLibrary(model, self.joints, self.bodies, self.geoms)

    def spec(
        self,
        *,
        env_id: str,
        name: str,
        engine: str,
        observation: tuple[ObservationEntry, ...],
        actions: tuple[ActionEntry, ...],
        camera: Mapping[str, Any],
        info_keys: dict[str, str],
        frame_skip: int,
        max_episode_steps: int | None,
        terminate_when_unhealthy: bool | None,
        healthy_ranges: dict[str, OpenRange],
        termination: str,
    ) -> EnvSpec:
        """These and the model's own facts as one record."""
        model, joints = self.robot.model, self.joints
        torso = _torso_joints(joints)
        free = next((j for j in torso if j.type == "free"), None)
        height = next((j for j in torso if j.height_offset is not None), None)
        angle = None if free else next((j for j in torso if j.type == "hinge"), None)
        return EnvSpec(
            env_id=env_id,
            name=name,
            engine=engine,
            description=summary(name, joints, self.bodies, len(actions)),
            observation=observation,
            actions=actions,
            joints=joints,
            bodies=self.bodies,
            geoms=self.geoms,
            camera=_read_camera(model, self.rest, camera),
            info_keys=info_keys,
            feet=_read_feet(self.robot, self.rest),
            supports=self.robot.supports,
            quantities=entries_of(self.robot),
            dt=self.robot.dt,
            frame_skip=frame_skip,
            max_episode_steps=max_episode_steps,
            terminate_when_unhealthy=terminate_when_unhealthy,
            healthy_ranges=healthy_ranges,
            termination=termination,
            total_mass=float(model.body_mass.sum()),
            gravity=_vec3(model.opt.gravity * self.robot.has_weight),
            fluid=(float(model.opt.density), float(model.opt.viscosity)),
            uses_quaternion_orientation=free is not None,
            z_height_qpos_idx=free.qpos_address + 2
            if free
            else (height.qpos_address if height else None),
            torso_angle_qpos_idx=angle.qpos_address if angle else None,
            torso_angvel_qvel_idx=angle.qvel_address if angle else None,
        )


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
        if attribute == f"_healthy_{key}_range" and _open(*value) != (None, None):
            ranges[key] = _open(*value)
    return ranges


def _vec3(values: Any) -> Vec3:
    """Three plain floats, rounded where binary noise would show."""
    x, y, z = (round(float(v), 9) + 0.0 for v in values)
    return (x, y, z)


def _body_name(model: mujoco.MjModel, i: int) -> str:
    return model.body(i).name or f"body{i}"


def _read_bodies(model: mujoco.MjModel, rest: mujoco.MjData) -> tuple[BodyEntry, ...]:
    return tuple(
        BodyEntry(
            id=i,
            name=_body_name(model, i),
            parent=int(model.body_parentid[i]),
            mass=float(model.body_mass[i]),
            rest_position=_vec3(rest.xpos[i]),
            offset=_vec3(model.body_pos[i]),
            centre=_vec3(model.body_ipos[i]),
        )
        for i in range(model.nbody)
    )


def _read_feet(robot: Robot, rest: mujoco.MjData) -> tuple[FootEntry, ...]:
    if not robot.feet:
        return ()
    points = of_state(robot, rest)["foot_lowest_point"]
    return tuple(
        FootEntry(name=robot.body_name(body), body=body, lowest_point=_vec3(point))
        for body, point in zip(robot.feet, points, strict=True)
    )


def _hinge_sign(axis: Vec3, lever: NDArray[np.float64], body: str, *, root: bool) -> str:
    """A limb swings to a side; a root, or what turns about its own length, only turns."""
    swing = np.cross(np.asarray(axis), lever)
    reach, arm = float(np.linalg.norm(swing)), float(np.linalg.norm(lever))
    if root or reach < max(_SMALL_LEVER, _SLANT * arm):
        return f"positive turns {body} {turn(axis)}"
    return f"positive swings {body} towards {direction(swing.tolist())}"


def _read_joint(
    model: mujoco.MjModel, rest: mujoco.MjData, start: NDArray[np.float64], i: int
) -> JointEntry:
    kind = JOINT_TYPES[int(model.jnt_type[i])]
    owner = int(model.jnt_bodyid[i])
    parent = int(model.body_parentid[owner])
    body = _body_name(model, owner)
    qpos, qvel = int(model.jnt_qposadr[i]), int(model.jnt_dofadr[i])
    axis = _vec3(rest.xaxis[i]) if kind in ("slide", "hinge") else None
    height_offset: float | None = None
    lever = rest.subtree_com[owner] - rest.xanchor[i]
    if kind == "free":
        sign = f"moves {body} freely in the world; quaternion (w, x, y, z) is (1, 0, 0, 0) unturned"
    elif axis is None:
        sign = f"turns {body} freely; quaternion (w, x, y, z) is (1, 0, 0, 0) unturned"
    elif kind == "slide":
        sign = f"positive moves {body} towards {direction(axis)}"
        if axis == (0.0, 0.0, 1.0):
            height_offset = round(float(rest.xpos[owner, 2] - rest.qpos[qpos]), 9)
    else:
        with_slides = int(model.body_jntnum[owner]) > 1 and parent == 0
        sign = _hinge_sign(axis, lever, body, root=with_slides)
    low, high = (float(v) for v in model.jnt_range[i])
    return JointEntry(
        id=i,
        name=model.joint(i).name or f"joint{i}",
        type=kind,
        body=body,
        parent=_body_name(model, parent),
        axis=axis,
        anchor=_vec3(rest.xanchor[i]),
        range=(low, high) if model.jnt_limited[i] else None,
        unit={"slide": "m", "hinge": "rad"}.get(kind, ""),
        rest=tuple(float(v) for v in rest.qpos[qpos : qpos + QPOS_SIZE[kind]]),
        start=tuple(float(v) for v in start[qpos : qpos + QPOS_SIZE[kind]]),
        lever=_vec3(lever),
        qpos_address=qpos,
        qpos_size=QPOS_SIZE[kind],
        qvel_address=qvel,
        qvel_size=QVEL_SIZE[kind],
        sign=sign,
        rotation=turn(axis) if axis and kind == "hinge" else "",
        height_offset=height_offset,
        stiffness=float(model.jnt_stiffness[i]),
        spring_rest=float(model.qpos_spring[qpos]),
        damping=float(model.dof_damping[qvel]),
        armature=float(model.dof_armature[qvel]),
    )


def _read_geoms(model: mujoco.MjModel) -> tuple[GeomEntry, ...]:
    entries = []
    for i in range(model.ngeom):
        kind = mujoco.mjtGeom(int(model.geom_type[i])).name.removeprefix("mjGEOM_").lower()
        size = model.geom_size[i][: _GEOM_SIZES.get(kind, 0)]
        entries.append(
            GeomEntry(
                id=i,
                name=model.geom(i).name or f"geom{i}",
                type=kind,
                size=tuple(float(v) for v in size),
                body=_body_name(model, int(model.geom_bodyid[i])),
                position=_vec3(model.geom_pos[i]),
                axis=_geom_axis(model.geom_quat[i]),
                collides=bool(model.geom_contype[i] or model.geom_conaffinity[i]),
            )
        )
    return tuple(entries)


def _geom_axis(quat: NDArray[np.float64]) -> Vec3:
    axis = np.zeros(3)
    mujoco.mju_rotVecQuat(axis, np.array([0.0, 0.0, 1.0]), quat)
    return _vec3(axis)


def _actuator_kind(model: mujoco.MjModel, i: int, joint: JointEntry | None) -> str:
    gain, _, velocity = (float(v) for v in model.actuator_gainprm[i][:3])
    _, position_bias, velocity_bias = (float(v) for v in model.actuator_biasprm[i][:3])
    if position_bias and position_bias == -gain:
        return "position servo"
    if velocity_bias and velocity_bias == -gain and not velocity:
        return "velocity servo"
    return "torque" if joint is not None and joint.type == "hinge" else "force"


def read_action(
    model: mujoco.MjModel, i: int, joints: tuple[JointEntry, ...], bounds: OpenRange
) -> ActionEntry:
    """One actuator, with the bounds that the action space gives it."""
    on_joint = int(model.actuator_trntype[i]) in _JOINT_TRANSMISSIONS
    joint = joints[int(model.actuator_trnid[i, 0])] if on_joint else None
    kind = _actuator_kind(model, i, joint)
    gear = float(model.actuator_gear[i, 0])
    target = joint.name if joint else "its tendon, site or body"
    unit = {"torque": "N m", "force": "N"}.get(kind, joint.unit if joint else "")
    if kind in ("torque", "force"):
        strength = gear * float(model.actuator_gainprm[i, 0])
        way = "positive" if strength > 0 else "negative"
        text = f"{kind} on {target}: {abs(strength):g} {unit} per 1.0, in its {way} direction"
    else:
        text = f"{kind} on {target}: the action is the target ({unit})"
    return ActionEntry(
        index=i,
        name=model.actuator(i).name or (joint.name if joint else f"actuator{i}"),
        joint=joint.name if joint else None,
        moves=tuple(
            dict.fromkeys(joints[model.dof_jntid[dof]].name for dof in pulled_dofs(model)[i])
        ),
        kind=kind,
        low=bounds[0],
        high=bounds[1],
        gear=gear,
        unit=unit,
        description=f"{text}; {joint.sign}" if joint else text,
    )


def _torso_joints(joints: tuple[JointEntry, ...]) -> tuple[JointEntry, ...]:
    """The joints that move the whole robot through the world; none for a fixed base.

    A root either has a free joint or, in the plane, slides and turns.
    """
    roots: dict[str, list[JointEntry]] = {}
    for joint in joints:
        if joint.parent == "world":
            roots.setdefault(joint.body, []).append(joint)
    for group in roots.values():
        kinds = {joint.type for joint in group}
        if "free" in kinds or {"slide", "hinge"} <= kinds:
            return tuple(group)
    return ()


def _read_camera(
    model: mujoco.MjModel, rest: mujoco.MjData, config: Mapping[str, Any]
) -> CameraEntry:
    """The camera that videos are drawn with, at the reference pose."""
    camera = choose_camera(model, rest, config)
    return CameraEntry(
        azimuth=camera.azimuth,
        elevation=camera.elevation,
        distance=camera.distance,
        lookat=_vec3(camera.lookat),
        track_body=None if camera.tracked_body is None else _body_name(model, camera.tracked_body),
    )
