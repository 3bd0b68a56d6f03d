"""Where episodes of a model file's environment begin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import mujoco
import numpy as np
from numpy.typing import NDArray

from p2p.training.model_files.sources import ModelFileError
from p2p.training.specs.quantities import Robot

if TYPE_CHECKING:
    from collections.abc import Callable

    from p2p.training.model_files.record import RobotOptions

Vector = NDArray[np.float64]
DROP_SECONDS = 4
AT_REST = 0.1
"""rad/s and m/s that a robot at rest may have."""
THICK_FLUID = 100.0
"""kg/m^3: in what is as dense a robot swims, and has no floor to stand on."""
STILL_LEAN = 0.15
"""Radians that a robot may lean while it settles: one that leans more falls."""
MOST_SINKING = 0.2
"""Of its height, that it may sink meanwhile."""
CLEARANCE = 1e-3
BALANCE_ROUNDS = 30
TURNS = {"+x": 0.0, "+y": -math.pi / 2, "-x": math.pi, "-y": math.pi / 2}
"""By what a robot that faces there is turned to face +x."""


@dataclass(frozen=True)
class Start:
    """A start, and how it came about."""

    qpos: Vector
    ctrl: Vector
    """What holds servos there; zero of other actuators."""
    source: Literal["key frame", "model", "given", "settled"]


def choose_start(model: mujoco.MjModel, options: RobotOptions) -> Start:
    """The given start, else the key frame `home`, else the first, else the model's own pose.

    It stands on the floor, and where it does not fall from there, as it has settled.
    """
    wished = options.start
    keys = [model.key(i).name for i in range(model.nkey)]
    if wished.key is not None and wished.key not in keys:
        raise ModelFileError(
            f"the TOML's start.key: no key frame {wished.key!r}; the model has {keys or 'none'}"
        )
    base, how = np.array(model.qpos0), "model"
    if keys:
        name = wished.key or ("home" if "home" in keys else keys[0])
        base, how = np.array(model.key_qpos[keys.index(name)]), "key frame"
    elif not wished.joints:
        base = balance(model, within_ranges(model, base))
    for name, value in wished.joints.items():
        base[int(model.joint(name).qposadr[0])] = value
        how = "given"
    root = Robot(model, base, 1.0).root
    free = free_address(model, root)
    if wished.orientation is not None:
        if free is None:
            raise ModelFileError("the TOML's start.orientation: the model has no free base")
        size = np.linalg.norm(wished.orientation)
        base[free + 3 : free + 7] = np.array(wished.orientation) / max(size, 1e-9)
    base = within_ranges(model, base)
    qpos = place_on_ground(model, base)
    if wished.height is not None and (address := height_address(model, root)) is not None:
        qpos[address] = wished.height
        how = "given"
    ctrl = holding(model, qpos)
    if wished.height is None and wished.drop and (settled := drop(model, qpos, ctrl)) is not None:
        qpos, how = settled, "settled"
    if free is not None and (angle := TURNS[options.forward]):
        turn(qpos, free, angle)
    return Start(qpos, ctrl, how)  # type: ignore[arg-type]


def turn(qpos: Vector, free: int, angle: float) -> None:
    """Turn a free body about the vertical."""
    turned, about = np.zeros(4), np.zeros(4)
    mujoco.mju_axisAngle2Quat(about, np.array([0.0, 0.0, 1.0]), angle)
    mujoco.mju_mulQuat(turned, about, qpos[free + 3 : free + 7])
    qpos[free + 3 : free + 7] = turned


def within_ranges(model: mujoco.MjModel, qpos: Vector) -> Vector:
    """Return the pose with every limited joint inside its range."""
    qpos = qpos.copy()
    single = tuple(map(int, (mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_HINGE)))
    for joint in range(model.njnt):
        if model.jnt_limited[joint] and model.jnt_type[joint] in single:
            q = model.jnt_qposadr[joint]
            qpos[q] = np.clip(qpos[q], *model.jnt_range[joint])
    return qpos


def free_address(model: mujoco.MjModel, root: int | None) -> int | None:
    """Return where qpos holds the robot's free joint."""
    if root is None:
        return None
    joint = int(model.body_jntadr[root])
    free = int(model.jnt_type[joint]) == mujoco.mjtJoint.mjJNT_FREE
    return int(model.jnt_qposadr[joint]) if free else None


def height_address(model: mujoco.MjModel, root: int | None) -> int | None:
    """Return where qpos holds the height of the body that carries the robot."""
    if root is None:
        return None
    if (free := free_address(model, root)) is not None:
        return free + 2
    start = int(model.body_jntadr[root])
    for joint in range(start, start + int(model.body_jntnum[root])):
        slides = int(model.jnt_type[joint]) == mujoco.mjtJoint.mjJNT_SLIDE
        if slides and model.jnt_axis[joint, 2] > 0.99:
            return int(model.jnt_qposadr[joint])
    return None


def _standing(model: mujoco.MjModel, qpos: Vector) -> tuple[Robot, int] | None:
    """Return the robot and the address of its height, or None without a floor."""
    if floats(model):
        return None
    robot = Robot(model, qpos, 1.0)
    address = height_address(model, robot.root)
    if address is None or robot.ground is None or not robot.falls or not len(robot.shapes.ids):
        return None
    return robot, address


def floats(model: mujoco.MjModel) -> bool:
    """Return whether it needs no floor: it has no weight, or swims."""
    weightless = bool(model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_GRAVITY)
    return weightless or not model.opt.gravity.any() or bool(model.opt.density >= THICK_FLUID)


def _make_data(model: mujoco.MjModel, qpos: Vector) -> mujoco.MjData:
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    return data


def field_of(data: mujoco.MjData) -> Callable[[str], Vector]:
    """MjData's fields by name."""
    return lambda name: np.asarray(getattr(data, name))


def place_on_ground(model: mujoco.MjModel, qpos: Vector) -> Vector:
    """Shift the pose so that the robot's lowest point is on the ground."""
    qpos = qpos.copy()
    if (standing := _standing(model, qpos)) is not None:
        robot, address = standing
        data = _make_data(model, qpos)
        gaps = robot.shapes.gaps(field_of(data), robot.ground_height)
        qpos[address] += CLEARANCE - float(gaps.min())
    return qpos


def balance(model: mujoco.MjModel, qpos: Vector) -> Vector:
    """Return the pose with each foot below its limb's start, by the smallest joint changes.

    Only where the model's own pose breaks the ranges of its joints: nobody meant it to stand so.
    """
    standing = _standing(model, qpos)
    if standing is None or np.array_equal(qpos, model.qpos0):
        return qpos
    robot, _ = standing
    for _ in range(BALANCE_ROUNDS):
        data = _make_data(model, qpos)
        change = np.zeros(model.nv)
        for shape, point in zip(
            robot.foot_shapes.ids, robot.foot_shapes.lowest(field_of(data)), strict=True
        ):
            body = int(model.geom_bodyid[shape])
            limb = limb_of(model, body)
            places = np.zeros((3, model.nv))
            mujoco.mj_jac(model, data, places, None, point, body)
            row = np.where(model.body_rootid[model.dof_bodyid] == robot.root, places[0], 0.0)
            row[model.dof_bodyid == robot.root] = 0.0
            error = float(data.xpos[limb, 0] - point[0])
            change += 0.5 * row * error / (float(row @ row) + 1e-4) / len(robot.foot_shapes.ids)
        if np.abs(change).max() < 1e-4:
            break
        mujoco.mj_integratePos(model, qpos, change * len(robot.feet), 1.0)
        qpos = within_ranges(model, qpos)
    return qpos


def limb_of(model: mujoco.MjModel, body: int) -> int:
    """The body next to the root that this one hangs on."""
    while model.body_parentid[model.body_parentid[body]]:
        body = int(model.body_parentid[body])
    return body


def drop(model: mujoco.MjModel, qpos: Vector, ctrl: Vector) -> Vector | None:
    """Return the rest pose under these controls, or None on a fall or without a floor."""
    standing = _standing(model, qpos)
    if standing is None:
        return None
    robot, _ = standing
    root = robot.root or 0
    data = mujoco.MjData(model)
    data.qpos[:], data.ctrl[:] = qpos, ctrl
    mujoco.mj_forward(model, data)
    up, height = data.xmat[root, 2::3].copy(), float(data.xpos[root, 2]) - robot.ground_height
    for _ in range(DROP_SECONDS):
        mujoco.mj_step(model, data, nstep=max(1, round(1 / model.opt.timestep)))
        if np.abs(data.qvel).max() < AT_REST:
            break
    else:
        return None
    mujoco.mj_kinematics(model, data)
    lean = math.acos(float(np.clip((up * data.xmat[root, 2::3]).sum(), -1.0, 1.0)))
    sunk = height - (float(data.xpos[root, 2]) - robot.ground_height)
    if not np.isfinite(data.qpos).all() or lean > STILL_LEAN or sunk > MOST_SINKING * height:
        return None
    settled = np.array(data.qpos)
    for place in level_addresses(model, root):  # it may have drifted
        settled[place] = qpos[place]
    return settled


def level_addresses(model: mujoco.MjModel, root: int) -> list[int]:
    """Return where qpos holds x and y of the robot."""
    if (free := free_address(model, root)) is not None:
        return [free, free + 1]
    first, slide = int(model.body_jntadr[root]), int(mujoco.mjtJoint.mjJNT_SLIDE)
    joints = range(first, first + int(model.body_jntnum[root]))
    level = [j for j in joints if model.jnt_type[j] == slide and abs(model.jnt_axis[j, 2]) < 0.5]
    return [int(model.jnt_qposadr[j]) for j in level]


def is_servo(model: mujoco.MjModel, actuator: int) -> bool:
    """Return whether its control is a position to go to."""
    gain, bias = model.actuator_gainprm[actuator, 0], model.actuator_biasprm[actuator, 1]
    return bool(bias) and float(bias) == -float(gain)


def holding(model: mujoco.MjModel, qpos: Vector) -> Vector:
    """The controls that hold servos in this pose; zero of other actuators."""
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_fwdPosition(model, data)
    servos = np.array([is_servo(model, i) for i in range(model.nu)], dtype=bool)
    limited = model.actuator_ctrllimited.astype(bool)
    low, high = np.where(limited, model.actuator_ctrlrange.T, [[-np.inf], [np.inf]])
    return np.asarray(np.where(servos, np.clip(data.actuator_length, low, high), 0.0))
