"""Reading a model's facts off its live environment, in the sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import mujoco
import numpy as np

from p2p.contracts import PolicyMetadata
from p2p.training.env_spec import ActionEntry, EnvSpec, ObservationEntry
from p2p.training.envs.model_env import ModelEnv
from p2p.training.model_files.facts import ModelFacts
from p2p.training.model_files.start import is_servo
from p2p.training.specs.mujoco_backend import ModelDescription as SpecReader
from p2p.training.specs.mujoco_backend import MujocoBackend, read_action
from p2p.training.specs.quantities import Robot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from p2p.training.envs.batched_env import F64
    from p2p.training.envs.model_env import ModelEnv, ObservationLayout
    from p2p.training.model_files.record import RobotModel
    from p2p.training.specs.observation_layout import StateLibrary


SETTLE_SECONDS = 3.0


def observe_facts(folder: Path) -> ModelFacts:
    """Read everything off the model in this folder."""
    env = ModelEnv(str(folder))
    try:
        spec = read_spec(env)
        xpos, xquat, stands = settle(env)
        ends_early = ends_episodes(env)
        doubts = try_model(env)
    finally:
        env.close()  # type: ignore[no-untyped-call]
    return ModelFacts(
        mujoco=mujoco.__version__,
        spec=spec,
        policy_metadata=read_policy_metadata(env, spec),
        settled_xpos=tuple(map(tuple, xpos.tolist())),
        settled_xquat=tuple(map(tuple, xquat.tolist())),
        ends_early=ends_early,
        doubts=doubts,
        stands=stands,
    )


def settle(env: ModelEnv) -> tuple[F64, F64, bool]:
    """Return the body poses after some seconds of zero actions, or the initial ones on a fall."""
    env.reset(seed=0)
    root = Robot.of(env).root
    data = env.data
    first = data.xpos.copy(), data.xquat.copy()
    up = data.xmat[root, 8] if root else 1.0
    still = 0 * env.action_space.sample()
    for _ in range(int(SETTLE_SECONDS / env.dt)):
        env.step(still)
    fell = root is not None and bool(abs(data.xmat[root, 8] - up) > 0.3)
    return (*first, False) if fell else (data.xpos.copy(), data.xquat.copy(), True)


def ends_episodes(env: ModelEnv) -> bool:
    """Return whether random actions end an episode within some seconds."""
    env.reset(seed=0)
    env.action_space.seed(0)
    steps = range(int(SETTLE_SECONDS / env.dt))
    return any(env.step(env.action_space.sample())[2] for _ in steps)


def read_spec(env: ModelEnv) -> EnvSpec:
    """The environment's EnvSpec, without its id."""
    record, reader = env.record, SpecReader(Robot.of(env))
    actions = tuple(
        _scale_action(read_action(env.model, i, reader.joints, (-1.0, 1.0)), record, i)
        for i in range(env.model.nu)
    )
    return reader.spec(
        env_id="",
        name=record.name,
        engine=MujocoBackend.engine_name,
        observation=_observation(env.layout, reader.library),
        actions=actions,
        camera={},
        info_keys={},
        frame_skip=record.frame_skip,
        max_episode_steps=record.max_episode_steps,
        terminate_when_unhealthy=None,
        healthy_ranges={},
        termination=termination(record),
    )


def read_policy_metadata(env: ModelEnv, spec: EnvSpec) -> PolicyMetadata:
    """Joint order, start pose, gains, scales and time steps."""
    model, record = env.model, env.record
    joints = [j for j in spec.joints if j.type in ("slide", "hinge")]
    gains = dict.fromkeys((j.name for j in joints), (0.0, 0.0))
    driven = []
    for i, action in enumerate(spec.actions):
        driven.append(action.joint or action.name)
        if is_servo(model, i) and action.joint in gains:
            stiffness, damping = -model.actuator_biasprm[i, 1], -model.actuator_biasprm[i, 2]
            gains[action.joint] = (float(stiffness), float(damping))
    names = tuple(entry.name for entry in spec.observation)
    return PolicyMetadata(
        env_id="",
        engine=spec.engine,
        engine_version=mujoco.__version__,
        step_dt=spec.dt,
        physics_dt=float(model.opt.timestep),
        quaternion_order="wxyz",
        joint_names=tuple(j.name for j in joints),
        default_joint_pos=tuple(record.start_qpos[j.qpos_address] for j in joints),
        joint_stiffness=tuple(gains[j.name][0] for j in joints),
        joint_damping=tuple(gains[j.name][1] for j in joints),
        observation_names=names,
        observation_dims=(1,) * len(names),
        observation_elements=(("",),) * len(names),
        observation_terms_scale=(1.0,) * len(names),
        observation_terms_clip=(None,) * len(names),
        observation_terms_history_length=(0,) * len(names),
        action_names=tuple(action.name for action in spec.actions),
        action_types=tuple(action.kind for action in spec.actions),
        action_joint_names=tuple(driven),
        action_scale=record.action_scale,
        action_offset=record.action_offset,
        action_clip=tuple(
            (float(low), float(high)) if limited else None
            for (low, high), limited in zip(
                model.actuator_ctrlrange, model.actuator_ctrllimited, strict=True
            )
        ),
    )


def termination(record: RobotModel) -> str:
    """Describe what ends an episode."""
    rules = []
    low, high = record.ends.height or (None, None)
    if low is not None:
        rules.append(f"the height of {record.trunk} is {low:g} m or less")
    if high is not None:
        rules.append(f"the height of {record.trunk} is {high:g} m or more")
    if record.ends.tilt is not None:
        rules.append(f"{record.trunk} leans {record.ends.tilt:g} rad from its start")
    return f"ends when {' or '.join(rules)}" if rules else "never ends before its horizon"


def _scale_action(entry: ActionEntry, record: RobotModel, i: int) -> ActionEntry:
    """Scale an action entry to [-1, 1] from the actuator's own control range."""
    offset, scale = record.action_offset[i], record.action_scale[i]
    if (offset, scale) == (0.0, 1.0):
        return entry
    if entry.kind in ("torque", "force"):
        text = entry.description.replace(" per 1.0", " per 1.0 of control")
        text += f"; control = {offset:.4g} + {scale:.4g} * action"
    else:
        text = f"{entry.description}; target = {offset:.4g} + {scale:.4g} * action"
    return entry.model_copy(update={"gear": entry.gear * scale, "description": text})


def _observation(layout: ObservationLayout, library: StateLibrary) -> tuple[ObservationEntry, ...]:
    known = {number.source: number for number in library.quantities}
    entries = []
    for i, (source, words) in enumerate(layout.sources()):
        if source in known:
            entries.append(ObservationEntry(index=i, **known[source]._asdict()))
            continue
        name, unit, text = _describe(source, words)
        entries.append(
            ObservationEntry(index=i, name=name, source=source, unit=unit, description=text)
        )
    return tuple(entries)


def _describe(source: str, words: str) -> tuple[str, str, str]:
    """Return name, unit and description of a quantity that is not a field of MjData."""
    kind, _, axis = words.rpartition(" ")
    match kind:
        case "up":
            return f"up_{axis}", "", f"the world's upward direction in the trunk's frame, {axis}"
        case "velocity":
            text = f"the trunk's velocity along its own {axis} axis"
            return f"own_velocity_{axis}", "m/s", text
        case "heading":
            return f"heading_{axis}", "", f"the trunk's own x axis in the world, {axis}"
        case "object place":
            return f"{source}", "m", f"where the object is from the trunk, along its own {axis}"
        case "object velocity":
            return f"{source}", "m/s", f"the object's velocity along the trunk's own {axis}"
    return source, "", "the action before, clipped to [-1, 1]"


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
