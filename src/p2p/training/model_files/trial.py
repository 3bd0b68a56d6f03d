"""A trial of a model before anyone trains on it: what is doubtful, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mujoco
import numpy as np

from p2p.training.specs.quantities import Robot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from p2p.training.envs.model_env import ModelEnv

SECONDS = 3.0
THROUGH_FLOOR = 0.05
"""Metres below the floor at which a part has gone through it."""
FASTEST = 1e3
"""rad/s and m/s that nothing real moves at."""
DEEP = 2e-3
"""Metres that parts may overlap at the start."""
ALONG = 0.9
"""Of an axle's direction."""
LEAN = 0.3
"""Of the cosine of its lean, that a robot which still stands may lose."""


def try_model(env: ModelEnv) -> tuple[str, ...]:
    """A line for everything doubtful, with what to change."""
    return tuple(
        line
        for check in (falls_through, explodes, rolls_aside, stands,
                      find_weak, find_rangeless, find_colliding)
        for line in check(env)
    )  # fmt: skip


def _play(env: ModelEnv, *, random: bool) -> Iterator[mujoco.MjData]:
    """The states of some seconds of random or zero actions."""
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(int(SECONDS / env.dt)):
        action = env.action_space.sample()
        env.step(action if random else 0 * action)
        yield env.data


def falls_through(env: ModelEnv) -> Iterator[str]:
    """Parts that are below the floor after some seconds."""
    robot = Robot.of(env)
    if robot.root is None or robot.ground is None or not robot.falls:
        return
    *_, data = _play(env, random=False)
    low = [b for b in robot.bodies if data.xipos[b, 2] < robot.ground_height - THROUGH_FLOOR]
    if low:
        yield (
            f"falls through the floor ({robot.body_name(low[0])}): give its geoms and the floor "
            "contype and conaffinity that meet, or the model collision shapes"
        )


def explodes(env: ModelEnv) -> Iterator[str]:
    """Yield a warning if random actions make the simulation unstable."""
    for data in _play(env, random=True):
        fastest = float(np.abs(data.qvel).max(initial=0.0))
        warned = any(
            data.warning[int(kind)].number
            for kind in (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQACC)
        )
        if warned or not np.isfinite(data.qpos).all() or fastest > FASTEST:
            yield (
                "explodes under random actions: use a smaller <option timestep>, more damping or "
                "armature in its joints, or weaker actuators"
            )
            return


def rolls_aside(env: ModelEnv) -> Iterator[str]:
    """Whether its wheels roll across the way it faces."""
    model, robot = env.model, Robot.of(env)
    data = mujoco.MjData(model)
    data.qpos[:] = env.init_qpos
    mujoco.mj_forward(model, data)
    axles = [
        data.xaxis[j]
        for j in range(model.njnt)
        if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_HINGE
        and not model.jnt_limited[j]
        and model.jnt_bodyid[j] in robot.feet
    ]
    if axles and all(abs(axis[0]) > ALONG for axis in axles):
        yield 'its wheels roll along y, but it faces +x: forward = "+y" or "-y" in the TOML says so'


def stands(env: ModelEnv) -> Iterator[str]:
    """Whether it keeps upright without effort."""
    robot = Robot.of(env)
    if robot.root is None or robot.ground is None or not robot.falls:
        return
    env.reset(seed=0)
    up, height = env.data.xmat[robot.root, 8], _height(robot, env.data)
    *_, data = _play(env, random=False)
    lost = (height - _height(robot, data)) / max(height, 1e-6)
    if abs(data.xmat[robot.root, 8] - up) > LEAN or lost > LEAN:
        servos = env.record.observe_action
        advice = (
            "give another [start.joints] or stiffer [servos] in the TOML"
            if servos
            else "its actuators give forces, so this is as expected"
        )
        yield f"does not stand under actions of zero: {advice}"


def find_weak(env: ModelEnv) -> Iterator[str]:
    """Find the actuators that cannot hold the limb that they move."""
    model = env.model
    data = mujoco.MjData(model)
    data.qpos[:] = env.init_qpos
    mujoco.mj_forward(model, data)
    gravity = float(np.linalg.norm(model.opt.gravity))
    for i in range(model.nu):
        if int(model.actuator_trntype[i]) != mujoco.mjtTrn.mjTRN_JOINT:
            continue
        joint = int(model.actuator_trnid[i, 0])
        if int(model.jnt_type[joint]) != mujoco.mjtJoint.mjJNT_HINGE:
            continue
        body = int(model.jnt_bodyid[joint])
        reach = data.subtree_com[body] - data.xanchor[joint]
        lever = float(np.linalg.norm(np.cross(data.xaxis[joint], reach)))
        load = float(model.body_subtreemass[body]) * gravity * lever
        if (effort := _effort(model, i)) is not None and effort < load:
            yield (
                f"actuator {model.actuator(i).name or i} is too weak to lift what it moves "
                f"({effort:.3g} of {load:.3g} N m): raise its gear, forcerange or ctrlrange"
            )


def _height(robot: Robot, data: mujoco.MjData) -> float:
    """Of its centre of mass: the origin of a car's frame may lie on the ground."""
    return float(data.subtree_com[robot.root, 2] - robot.ground_height)


def _effort(model: mujoco.MjModel, i: int) -> float | None:
    """Return the largest torque of an actuator, or None if it has no limit."""
    gear = abs(float(model.actuator_gear[i, 0]))
    if model.actuator_forcelimited[i]:
        return gear * float(np.abs(model.actuator_forcerange[i]).max())
    if model.actuator_biastype[i] == mujoco.mjtBias.mjBIAS_NONE and model.actuator_ctrllimited[i]:
        strength = abs(float(model.actuator_gainprm[i, 0]))
        return gear * strength * float(np.abs(model.actuator_ctrlrange[i]).max())
    return None


def find_rangeless(env: ModelEnv) -> Iterator[str]:
    """Find driven joints without a range, which may turn through the robot."""
    model, root = env.model, Robot.of(env).root
    driven = {
        int(model.actuator_trnid[i, 0])
        for i in range(model.nu)
        if int(model.actuator_trntype[i]) == mujoco.mjtTrn.mjTRN_JOINT
    }
    wheels = {servo.joint for servo in env.record.servos if servo.kind == "velocity"}
    names = [
        model.joint(j).name or f"joint {j}"
        for j in sorted(driven)
        if int(model.jnt_type[j]) >= int(mujoco.mjtJoint.mjJNT_SLIDE)
        and not model.jnt_limited[j]
        and model.jnt_bodyid[j] != root
        and model.joint(j).name not in wheels
    ]
    if names:
        listed = ", ".join(names[:8])
        yield f"joints without a range: {listed}; give them range, unless they turn without end"


def find_colliding(env: ModelEnv) -> Iterator[str]:
    """Find the parts of the robot that overlap in the initial pose."""
    env.reset(seed=0)
    model, data = env.model, mujoco.MjData(env.model)
    data.qpos[:] = env.init_qpos
    mujoco.mj_forward(model, data)
    robot = Robot.of(env)
    pairs = {
        tuple(sorted(int(model.geom_bodyid[g]) for g in contact.geom))
        for contact in data.contact
        if contact.dist < -DEEP and min(contact.geom) >= 0
    }
    own = [pair for pair in sorted(pairs) if pair[0] and set(pair) <= set(robot.bodies)]
    for first, second in own[:8]:
        yield (
            f"{robot.body_name(first)} and {robot.body_name(second)} overlap at the start: "
            "<exclude> the pair in <contact>, or begin in another pose"
        )
