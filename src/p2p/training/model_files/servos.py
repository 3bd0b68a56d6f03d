"""Servos for models without actuators, such as most URDF files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import mujoco
import numpy as np

from p2p.training.model_files.record import Servo
from p2p.training.model_files.start import place_on_ground, within_ranges
from p2p.training.specs.quantities import Robot, of_state

if TYPE_CHECKING:
    from p2p.training.model_files.record import RobotOptions

GIVES_WAY = 0.5
"""Radians from its target at which a servo pulls with all its effort."""
SAG = 0.1
"""Radians that a limb may hang below its target by its own weight."""
BEND = 0.2
"""Radians that it may bend where the robot stands on it."""
FIRMNESS = 4.0
"""Times the stiffness that just keeps the robot from tipping over one joint."""
QUICKNESS = 2 * math.pi * 4
"""rad/s of a servo that moves its limb alone."""
DAMPING_SECONDS = 2 / QUICKNESS
WHEEL_SPEED = 10.0
"""rad/s of joints that turn without end."""
OFF_AXIS = 0.1
"""Of its size, that the middle of a wheel may lie beside its axis."""
STIFFEST = 0.25
"""Of the stiffness at which a time step makes a servo swing."""


def choose_servos(model: mujoco.MjModel, options: RobotOptions) -> tuple[Servo, ...]:
    """A servo for every joint of one number that does not carry the robot as a whole."""
    qpos = place_on_ground(model, within_ranges(model, np.array(model.qpos0)))
    robot = Robot(model, qpos, 1.0)
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    inertia = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, inertia)
    carried = [j for j in range(model.njnt) if model.jnt_bodyid[j] != robot.root]
    single = (mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_HINGE)
    joints = [j for j in carried if model.jnt_type[j] in tuple(map(int, single))]
    return tuple(_servo(robot, data, j, inertia, options) for j in joints)


def _servo(
    robot: Robot, data: mujoco.MjData, joint: int, inertia: np.ndarray, options: RobotOptions
) -> Servo:
    model, dof = robot.model, int(robot.model.jnt_dofadr[joint])
    own, name = float(inertia[dof, dof]), model.joint(joint).name
    given = options.servo_of(name)
    effort = given.effort
    if effort is None and model.jnt_actfrclimited[joint]:
        effort = float(np.abs(model.jnt_actfrcrange[joint]).max())
    if effort == 0:
        effort = None
    turns = _is_wheel(model, data, joint)
    if turns:
        stiffness = given.stiffness or (effort / WHEEL_SPEED if effort else 10 * QUICKNESS * own)
        low, high = -WHEEL_SPEED, WHEEL_SPEED
    else:
        by_load = max(own * QUICKNESS**2, _load(robot, data, joint))
        stiffness = given.stiffness or (effort / GIVES_WAY if effort else by_load)
        reach = 1.0 if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE else math.pi
        low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (-reach, reach)
    least = 0.0 if turns else stiffness * model.opt.timestep**2 / STIFFEST
    return Servo(
        joint=name,
        kind="velocity" if turns else "position",
        stiffness=stiffness,
        damping=given.damping or (0.0 if turns else stiffness * DAMPING_SECONDS),
        armature=max(float(model.dof_armature[dof]), least, 0.01 * own),
        effort=effort,
        low=float(low),
        high=float(high),
    )


def _is_wheel(model: mujoco.MjModel, data: mujoco.MjData, joint: int) -> bool:
    """Return whether it turns without end, moves no other joint, and is balanced about its axis."""
    if model.jnt_limited[joint] or model.jnt_type[joint] != mujoco.mjtJoint.mjJNT_HINGE:
        return False
    body = int(model.jnt_bodyid[joint])
    # Bodies are numbered depth first.
    later = (b for b in range(body + 1, model.nbody) if model.body_parentid[b] < body)
    limb = range(body, next(later, model.nbody))
    if model.body_jntnum[limb[1:]].any():
        return False
    geoms = np.isin(model.geom_bodyid, limb)
    places = data.geom_xpos[geoms] - data.xanchor[joint]
    middles = [data.subtree_com[body] - data.xanchor[joint]]
    middles += [places.mean(axis=0)] if geoms.any() else []
    off_axis = np.linalg.norm(np.cross(data.xaxis[joint], middles), axis=1).max()
    reach = (np.linalg.norm(places, axis=1) + model.geom_rbound[geoms]).max(initial=0.0)
    return bool(off_axis <= OFF_AXIS * reach)


def _load(robot: Robot, data: mujoco.MjData, joint: int) -> float:
    """The stiffness that carries the limb's weight, and on what stands the whole robot's."""
    model, body = robot.model, int(robot.model.jnt_bodyid[joint])
    gravity = float(np.linalg.norm(model.opt.gravity))
    reach = float(np.linalg.norm(data.subtree_com[body] - data.xanchor[joint]))
    load = float(model.body_subtreemass[body]) * gravity * reach / SAG
    stands = [i for i, foot in enumerate(robot.feet) if body in _line(model, foot)]
    if stands and robot.root is not None:
        above = max(0.1, float(data.subtree_com[robot.root, 2] - data.xanchor[joint, 2]))
        weight = float(model.body_subtreemass[robot.root]) * gravity
        points = of_state(robot, data)["foot_lowest_point"][stands]
        lever = float(np.linalg.norm(points - data.xanchor[joint], axis=1).max())
        load = max(load, FIRMNESS * weight * above / len(robot.feet))
        load = max(load, weight * lever / len(robot.feet) / BEND)
    return load


def _line(model: mujoco.MjModel, body: int) -> list[int]:
    """A body and those that it hangs on."""
    line = []
    while body:
        line.append(body)
        body = int(model.body_parentid[body])
    return line


def add_servos(spec: mujoco.MjSpec, servos: tuple[Servo, ...]) -> None:
    """Add them; damping in actuators needs an integrator that takes it implicitly."""
    if servos and spec.option.integrator == mujoco.mjtIntegrator.mjINT_EULER:
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    for servo in servos:
        spec.joint(servo.joint).armature = servo.armature
        actuator = spec.add_actuator(
            name=servo.joint, target=servo.joint, trntype=mujoco.mjtTrn.mjTRN_JOINT
        )
        if servo.kind == "velocity":
            actuator.set_to_velocity(kv=servo.stiffness)
        else:
            actuator.set_to_position(kp=servo.stiffness, kv=servo.damping)
        actuator.ctrllimited, actuator.ctrlrange = True, [servo.low, servo.high]
        if servo.effort is not None:
            actuator.forcelimited, actuator.forcerange = True, [-servo.effort, servo.effort]
