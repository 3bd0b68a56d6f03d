"""From a model file to a RobotModel and a compiled model, in the sandbox."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from p2p.training.model_files.record import Ends, RobotModel, Servo
from p2p.training.model_files.sources import ModelFileError
from p2p.training.specs.quantities import Robot

Vector = NDArray[np.float64]
STEP_SECONDS = 0.02
EPISODE_SECONDS = 10.0
DROP_SECONDS = 1.0
THICK_FLUID = 100.0
"""kg/m^3: in what is as dense a robot swims, and has no floor to stand on."""
STILL_LEAN = 0.1
"""Radians that a robot may lean while it settles: one that leans more falls."""
CLEARANCE = 1e-3


@dataclass(frozen=True)
class Compiled:
    """A model with its record."""

    model: mujoco.MjModel
    record: RobotModel


def compile_model(main: Path, source: Path, name: str) -> Compiled:
    """Read the model, add what it lacks, and decide what is left open."""
    spec, model = read_model(main)
    floor = False
    servos: tuple[Servo, ...] = ()
    if spec is not None:
        robot = Robot(model, np.array(model.qpos0), STEP_SECONDS)
        if needs_floor(model, robot):
            add_floor(spec)
            floor, model = True, compile_spec(spec, main)
        if model.nu == 0 and model.njnt:
            raise ModelFileError(f"{main.name} has no actuators")
    if model.nu == 0:
        raise ModelFileError(f"{main.name} has nothing to move: no joints and no actuators")
    start, how = start_pose(model)
    offset, scale, servo = action_map(model, start)
    robot = Robot(model, start, STEP_SECONDS)
    skip = max(1, round(STEP_SECONDS / model.opt.timestep))
    seconds = skip * model.opt.timestep
    record = RobotModel(
        name=name,
        main=str(main.relative_to(source)),
        frame_skip=skip,
        max_episode_steps=max(1, round(EPISODE_SECONDS / seconds)),
        trunk=None if robot.root is None else robot.body_name(robot.root),
        ends=Ends(),
        start=how,
        start_qpos=tuple(float(x) for x in start),
        floor=floor,
        servos=servos,
        action_offset=tuple(float(x) for x in offset),
        action_scale=tuple(float(x) for x in scale),
        observe_action=servo,
    )
    return Compiled(model, record)


def read_model(main: Path) -> tuple[mujoco.MjSpec | None, mujoco.MjModel]:
    """The model as its file has it; a compiled one cannot be changed, so it has no spec."""
    if main.suffix.lower() == ".mjb":
        try:
            return None, mujoco.MjModel.from_binary_path(str(main))
        except ValueError as error:
            raise ModelFileError(
                f"{main.name} is no compiled model of MuJoCo {mujoco.__version__}: {error}; give "
                "the XML that it was made from"
            ) from None
    try:
        with warnings.catch_warnings(action="ignore"):
            spec = mujoco.MjSpec.from_file(str(main))
    except ValueError as error:
        raise ModelFileError(f"{main.name}: {_one_line(error)}") from None
    return spec, compile_spec(spec, main)


def compile_spec(spec: mujoco.MjSpec, main: Path) -> mujoco.MjModel:
    try:
        return spec.compile()
    except ValueError as error:
        raise ModelFileError(f"{main.name}: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


def needs_floor(model: mujoco.MjModel, robot: Robot) -> bool:
    """Whether it would fall for ever: it can fall, and there is neither floor nor water."""
    swims = model.opt.density >= THICK_FLUID
    weightless = not model.opt.gravity.any() or bool(
        model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_GRAVITY
    )
    return robot.falls and robot.ground is None and not swims and not weightless


def add_floor(spec: mujoco.MjSpec) -> None:
    """A level plane, with the friction of MuJoCo's own default."""
    spec.worldbody.add_geom(
        name="p2p_floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[0, 0, 0.05],
        rgba=[0.5, 0.55, 0.6, 1],
        contype=1,
        conaffinity=1,
        condim=3,
    )


def start_pose(model: mujoco.MjModel) -> tuple[Vector, Any]:
    """The key frame `home`, else the first, else the model's own pose; put on the floor."""
    keys = [model.key(i).name for i in range(model.nkey)]
    if keys:
        chosen = keys.index("home") if "home" in keys else 0
        qpos, how = np.array(model.key_qpos[chosen]), "key frame"
    else:
        qpos, how = np.array(model.qpos0), "model"
    qpos = put_down(model, within_ranges(model, qpos))
    settled = drop(model, qpos)
    return (qpos, how) if settled is None else (settled, "settled")


def within_ranges(model: mujoco.MjModel, qpos: Vector) -> Vector:
    """With every limited joint inside its range."""
    qpos = qpos.copy()
    for joint in range(model.njnt):
        if model.jnt_limited[joint] and model.jnt_type[joint] >= int(mujoco.mjtJoint.mjJNT_SLIDE):
            q = model.jnt_qposadr[joint]
            qpos[q] = np.clip(qpos[q], *model.jnt_range[joint])
    return qpos


def height_address(model: mujoco.MjModel, root: int | None) -> int | None:
    """Where qpos holds the height of the body that carries the robot."""
    if root is None:
        return None
    start = int(model.body_jntadr[root])
    for joint in range(start, start + int(model.body_jntnum[root])):
        kind = int(model.jnt_type[joint])
        if kind == mujoco.mjtJoint.mjJNT_FREE:
            return int(model.jnt_qposadr[joint]) + 2
        if kind == mujoco.mjtJoint.mjJNT_SLIDE and model.jnt_axis[joint, 2] > 0.99:
            return int(model.jnt_qposadr[joint])
    return None


def put_down(model: mujoco.MjModel, qpos: Vector) -> Vector:
    """With the robot's lowest point on the ground."""
    robot = Robot(model, qpos, STEP_SECONDS)
    address = height_address(model, robot.root)
    if address is None or robot.ground is None or not robot.falls:
        return qpos
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    if not len(robot.shapes.ids):
        return qpos
    gaps = robot.shapes.gaps(lambda name: np.asarray(getattr(data, name)), robot.ground_height)
    qpos = qpos.copy()
    qpos[address] += CLEARANCE - float(gaps.min())
    return qpos


def drop(model: mujoco.MjModel, qpos: Vector) -> Vector | None:
    """Where it comes to rest without effort from here; None where it falls, or has no floor."""
    robot = Robot(model, qpos, STEP_SECONDS)
    address = height_address(model, robot.root)
    if address is None or robot.ground is None or robot.root is None or not robot.falls:
        return None
    offset, _, _ = action_map(model, qpos)
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    data.ctrl[:] = offset
    mujoco.mj_forward(model, data)
    before, height = data.xmat[robot.root].reshape(3, 3).copy(), float(data.qpos[address])
    place = data.xpos[robot.root, :2].copy()
    mujoco.mj_step(model, data, nstep=max(1, round(DROP_SECONDS / model.opt.timestep)))
    after = data.xmat[robot.root].reshape(3, 3)
    lean = math.acos(float(np.clip((before[:, 2] * after[:, 2]).sum(), -1, 1)))
    sunk = height - float(data.qpos[address])
    if not np.isfinite(data.qpos).all() or lean > STILL_LEAN or sunk > 0.05:
        return None
    settled = np.array(data.qpos)
    settled[address - 2 : address] = (
        qpos[address - 2 : address]
        if len(place)
        and model.jnt_type[int(model.body_jntadr[robot.root])] == mujoco.mjtJoint.mjJNT_FREE
        else settled[address - 2 : address]
    )
    return settled


def is_servo(model: mujoco.MjModel, actuator: int) -> bool:
    """Whether its control is a position to go to."""
    gain, bias = model.actuator_gainprm[actuator, 0], model.actuator_biasprm[actuator, 1]
    return bool(bias) and float(bias) == -float(gain)


def action_map(model: mujoco.MjModel, start: Vector) -> tuple[Vector, Vector, bool]:
    """Offset and scale of every actuator, and whether one of them is a position servo.

    An action of 0 holds a servo's start; of others it is the middle of the range.
    """
    data = mujoco.MjData(model)
    data.qpos[:] = start
    mujoco.mj_fwdPosition(model, data)
    ranges = np.where(
        model.actuator_ctrllimited.astype(bool)[:, None], model.actuator_ctrlrange, [[-1.0, 1.0]]
    )
    low, high = ranges.T
    offset = (low + high) / 2
    servos = np.array([is_servo(model, i) for i in range(model.nu)], dtype=bool)
    home = np.clip(data.actuator_length, low, high)
    offset = np.where(servos, home, offset)
    scale = np.maximum(high - offset, offset - low)
    return offset, scale, bool(servos.any())
