"""Reads joints, bodies, shapes, actuators and the camera off a live MjModel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from p2p.training.specs.env_text import direction, turn
from p2p.training.specs.records import (
    ActionEntry,
    BodyEntry,
    CameraEntry,
    GeomEntry,
    JointEntry,
    OpenRange,
    Vec3,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import mujoco
    from numpy.typing import NDArray

JointType = Literal["free", "ball", "slide", "hinge"]
JOINT_TYPES: tuple[JointType, ...] = ("free", "ball", "slide", "hinge")
QPOS_SIZE: Mapping[JointType, int] = {"free": 7, "ball": 4, "slide": 1, "hinge": 1}
QVEL_SIZE: Mapping[JointType, int] = {"free": 6, "ball": 3, "slide": 1, "hinge": 1}
_GEOM_SIZES = {"sphere": 1, "capsule": 2, "cylinder": 2, "ellipsoid": 3, "box": 3}
_SMALL_LEVER = 1e-3
_SLANT = 0.3
"""A part whose lever is closer to the joint's axis than this share turns rather than swings."""


def vec3(values: Any) -> Vec3:
    """Three plain floats, rounded where binary noise would show."""
    x, y, z = (round(float(v), 9) + 0.0 for v in values)
    return (x, y, z)


def resting(model: mujoco.MjModel) -> mujoco.MjData:
    """The model in its reference pose."""
    import mujoco

    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return data


def body_name(model: mujoco.MjModel, i: int) -> str:
    """Its name, or `body4` where the model gives none."""
    return model.body(i).name or f"body{i}"


def joint_name(model: mujoco.MjModel, i: int) -> str:
    """Its name, or `joint4` where the model gives none."""
    return model.joint(i).name or f"joint{i}"


def read_bodies(model: mujoco.MjModel, rest: mujoco.MjData) -> tuple[BodyEntry, ...]:
    """Every body, the world first."""
    return tuple(
        BodyEntry(
            id=i,
            name=body_name(model, i),
            parent=int(model.body_parentid[i]),
            mass=float(model.body_mass[i]),
            rest_position=vec3(rest.xpos[i]),
            offset=vec3(model.body_pos[i]),
        )
        for i in range(model.nbody)
    )


def _hinge_sign(axis: Vec3, lever: NDArray[np.float64], body: str, *, root: bool) -> str:
    """A limb swings to a side; a root, or what turns about its own length, only turns."""
    swing = np.cross(np.asarray(axis), lever)
    reach, arm = float(np.linalg.norm(swing)), float(np.linalg.norm(lever))
    if root or reach < max(_SMALL_LEVER, _SLANT * arm):
        return f"positive turns {body} {turn(axis)}"
    return f"positive swings {body} towards {direction(swing.tolist())}"


def read_joint(model: mujoco.MjModel, rest: mujoco.MjData, i: int) -> JointEntry:
    """One joint."""
    kind = JOINT_TYPES[int(model.jnt_type[i])]
    owner = int(model.jnt_bodyid[i])
    parent = int(model.body_parentid[owner])
    body = body_name(model, owner)
    qpos, qvel = int(model.jnt_qposadr[i]), int(model.jnt_dofadr[i])
    axis = vec3(rest.xaxis[i]) if kind in ("slide", "hinge") else None
    height_offset: float | None = None
    if kind == "free":
        sign = f"moves {body} freely in the world; quaternion (w, x, y, z) is (1, 0, 0, 0) unturned"
    elif axis is None:
        sign = f"turns {body} freely; quaternion (w, x, y, z) is (1, 0, 0, 0) unturned"
    elif kind == "slide":
        sign = f"positive moves {body} towards {direction(axis)}"
        if axis == (0.0, 0.0, 1.0):
            height_offset = round(float(rest.xpos[owner, 2] - rest.qpos[qpos]), 9)
    else:
        lever = rest.subtree_com[owner] - rest.xanchor[i]
        with_slides = int(model.body_jntnum[owner]) > 1 and parent == 0
        sign = _hinge_sign(axis, lever, body, root=with_slides)
    low, high = (float(v) for v in model.jnt_range[i])
    return JointEntry(
        id=i,
        name=joint_name(model, i),
        type=kind,
        body=body,
        parent=body_name(model, parent),
        axis=axis,
        anchor=vec3(rest.xanchor[i]),
        range=(low, high) if model.jnt_limited[i] else None,
        unit={"slide": "m", "hinge": "rad"}.get(kind, ""),
        rest=tuple(float(v) for v in rest.qpos[qpos : qpos + QPOS_SIZE[kind]]),
        qpos_address=qpos,
        qpos_size=QPOS_SIZE[kind],
        qvel_address=qvel,
        qvel_size=QVEL_SIZE[kind],
        sign=sign,
        rotation=turn(axis) if axis and kind == "hinge" else "",
        height_offset=height_offset,
    )


def read_joints(model: mujoco.MjModel, rest: mujoco.MjData) -> tuple[JointEntry, ...]:
    """Every joint, in the order of qpos."""
    return tuple(read_joint(model, rest, i) for i in range(model.njnt))


def read_geoms(model: mujoco.MjModel) -> tuple[GeomEntry, ...]:
    """Every shape."""
    import mujoco

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
                body=body_name(model, int(model.geom_bodyid[i])),
                position=vec3(model.geom_pos[i]),
                collides=bool(model.geom_contype[i] or model.geom_conaffinity[i]),
            )
        )
    return tuple(entries)


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
    import mujoco

    on_joint = int(model.actuator_trntype[i]) in (
        mujoco.mjtTrn.mjTRN_JOINT,
        mujoco.mjtTrn.mjTRN_JOINTINPARENT,
    )
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
        kind=kind,
        low=bounds[0],
        high=bounds[1],
        gear=gear,
        unit=unit,
        description=f"{text}; {joint.sign}" if joint else text,
    )


def torso_joints(joints: tuple[JointEntry, ...]) -> tuple[JointEntry, ...]:
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


def read_camera(
    model: mujoco.MjModel, rest: mujoco.MjData, config: Mapping[str, Any]
) -> CameraEntry:
    """The camera that videos are drawn with, at the reference pose."""
    from p2p.training.video.camera import choose_camera

    camera = choose_camera(model, rest, config)
    return CameraEntry(
        azimuth=camera.azimuth,
        elevation=camera.elevation,
        distance=camera.distance,
        lookat=vec3(camera.lookat),
        track_body=None if camera.tracked_body is None else body_name(model, camera.tracked_body),
    )
