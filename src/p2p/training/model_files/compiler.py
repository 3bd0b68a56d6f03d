"""From a model file to a RobotModel and a compiled model, in the sandbox."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mujoco
import numpy as np

from p2p.training.model_files.record import RobotModel, RobotOptions, Servo
from p2p.training.model_files.sources import ModelFileError
from p2p.training.model_files.start import (
    Start,
    choose_start,
    floats,
    is_servo,
    place_on_ground,
    within_ranges,
)
from p2p.training.specs.quantities import Robot, of_state

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from p2p.training.model_files.record import RobotOptions
    from p2p.training.model_files.start import Vector


STEP_SECONDS = 0.02
EPISODE_SECONDS = 10.0
MAX_MODEL_BYTES = 1 << 30
MAX_SIZES = {"nq": 2_000, "nbody": 5_000, "ngeom": 20_000, "nu": 1_000, "nmeshvert": 20_000_000}
MAX_ARENA = 512 << 20
MIN_INERTIA = 1e-15
"""MuJoCo takes no less."""
MIN_MASS = 1e-3
"""Kilograms of a link without mass that a joint moves."""


@dataclass(frozen=True)
class Compiled:
    """A model with its record."""

    model: mujoco.MjModel
    record: RobotModel


def compile_model(main: Path, source: Path, name: str, options: RobotOptions) -> Compiled:
    """Read the model, add what it lacks, and decide what the options leave open."""
    spec = read_spec(main)
    floor = free = False
    servos: tuple[Servo, ...] = ()
    rounded: tuple[str, ...] = ()
    if spec is None:
        model = read_compiled(main)
        if options.fixed or options.base or options.servos:
            raise ModelFileError(
                f"{main.name} is compiled: fixed, base and servos in the TOML need the XML"
            )
    else:
        free = free_base(spec, main, options)
        remove_joints(spec, options.fixed)
        if main.suffix.lower() == ".urdf":
            rounded = impossible_inertias(spec)
            round_inertias(spec, rounded)
        model = compile_spec(spec, main)
        if needs_floor(model):
            add_floor(spec)
            floor, model = True, compile_spec(spec, main)
        if model.nu == 0 and model.njnt:
            servos = choose_servos(model, options)
            add_servos(spec, servos)
            model = compile_spec(spec, main)
    check_model(model, main)
    check_names(model, options)
    start = choose_start(model, options)
    offset, scale = action_map(model, start)
    skip = max(1, round((options.control_step or STEP_SECONDS) / model.opt.timestep))
    seconds = skip * model.opt.timestep
    robot = Robot(model, start.qpos, seconds)
    record = RobotModel(
        name=name,
        main=str(main.relative_to(source)),
        frame_skip=skip,
        max_episode_steps=max(1, round((options.episode or EPISODE_SECONDS) / seconds)),
        trunk=options.trunk or (None if robot.root is None else robot.body_name(robot.root)),
        forward=options.forward,
        parts=options.parts,
        fixed=options.fixed,
        ends=options.ends,
        start=start.source,
        start_qpos=tuple(float(x) for x in start.qpos),
        start_noise=options.start_noise,
        start_ranges=options.start.ranges,
        floor=floor,
        free_base=free,
        rounded=rounded,
        servos=servos,
        action_offset=tuple(float(x) for x in offset),
        action_scale=tuple(float(x) for x in scale),
        observe_action=any(is_servo(model, i) for i in range(model.nu)),
        observe_heading=options.observe_heading,
    )
    return Compiled(model, record)


def compile_record(main: Path, record: RobotModel) -> mujoco.MjModel:
    """The model as a record says, whatever would be inferred today."""
    spec = read_spec(main)
    if spec is None:
        return read_compiled(main)
    if record.free_base:
        spec.worldbody.first_body().add_freejoint(name="base")
    remove_joints(spec, record.fixed)
    round_inertias(spec, record.rounded)
    if record.floor:
        add_floor(spec)
    add_servos(spec, record.servos)
    model = compile_spec(spec, main)
    check_model(model, main)
    if len(record.start_qpos) != model.nq or len(record.action_scale) != model.nu:
        raise ModelFileError(f"{main.name} does not fit its record: another number of joints")
    return model


def read_spec(main: Path) -> mujoco.MjSpec | None:
    """The model as its file has it; None of a compiled one, which cannot be changed."""
    if main.suffix.lower() == ".mjb":
        return None
    try:
        with warnings.catch_warnings(action="ignore"):
            spec = mujoco.MjSpec.from_file(str(main))
    except ValueError as error:
        raise ModelFileError(f"{main.name}: {_format_error(error)}") from None
    # Else the base of a URDF becomes a part of the world when it is compiled.
    spec.compiler.fusestatic = False
    if main.suffix.lower() == ".urdf":
        spec.strippath = False
    return spec


def read_compiled(main: Path) -> mujoco.MjModel:
    try:
        return mujoco.MjModel.from_binary_path(str(main))
    except ValueError as error:
        raise ModelFileError(
            f"{main.name} is not a compiled model of MuJoCo {mujoco.__version__} "
            f"({_format_error(error)}): give the XML that it was made from"
        ) from None


def compile_spec(spec: mujoco.MjSpec, main: Path) -> mujoco.MjModel:
    try:
        with warnings.catch_warnings(action="ignore"):
            return spec.compile()
    except ValueError as error:
        raise ModelFileError(f"{main.name}: {_format_error(error)}") from None


def _format_error(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


def check_model(model: mujoco.MjModel, main: Path) -> None:
    """Raise ModelFileError for what cannot be simulated, or is too large."""
    for name, most in MAX_SIZES.items():
        if (size := int(getattr(model, name))) > most:
            raise ModelFileError(
                f"{main.name}: {name} is {size:,}, over {most:,}: simplify the model"
            )
    if model.narena > MAX_ARENA:
        raise ModelFileError(
            f"{main.name}: <size memory> asks for {model.narena >> 20} MiB in every environment, "
            f"over {MAX_ARENA >> 20}: leave it out"
        )
    if model.nu == 0:
        raise ModelFileError(
            f"{main.name} has nothing to move: add joints, or <actuator> elements to it"
        )
    if model.nv == 0:
        raise ModelFileError(f"{main.name} has no joints: nothing in it can move")
    if model.nplugin:
        raise ModelFileError(f"{main.name}: plugins are not loaded here: take them out")
    for name in filter(str.islower, dir(model)):
        values = getattr(model, name)
        if isinstance(values, np.ndarray) and values.dtype.kind == "f" and np.isnan(values).any():
            raise ModelFileError(f"{main.name}: {name} has NaN: correct it")
    if not 1e-5 <= model.opt.timestep <= 0.1:
        raise ModelFileError(
            f"{main.name}: its time step is {model.opt.timestep:g} s; use 0.0005 to 0.01 in "
            "<option timestep>"
        )


def check_names(model: mujoco.MjModel, options: RobotOptions) -> None:
    """Raise ModelFileError for names in the TOML that the model does not have."""
    bodies = [model.body(i).name for i in range(model.nbody)]
    joints = [model.joint(i).name for i in range(model.njnt)]
    slide = int(mujoco.mjtJoint.mjJNT_SLIDE)
    single = [name for i, name in enumerate(joints) if int(model.jnt_type[i]) >= slide]
    for field, names, known in (
        ("trunk", [options.trunk] if options.trunk else [], bodies),
        ("parts", list(options.parts.values()), bodies),
        ("start.joints", list(options.start.joints), joints),
        ("start.ranges", list(options.start.ranges), single),
    ):
        for name in names:
            if name not in known:
                raise ModelFileError(_describe_unknown(field, name, known))


def _describe_unknown(field: str, name: str, known: Iterable[str]) -> str:
    from p2p.validation import did_you_mean

    hint = did_you_mean(name, known) or f"; known: {', '.join(filter(None, known))[:300]}"
    return f"the TOML's {field}: the model has no {name!r}{hint}"


def free_base(spec: mujoco.MjSpec, main: Path, options: RobotOptions) -> bool:
    """Set the base free, where the options or the conventions of URDF say so.

    A URDF does not say. What has one limb is an arm, and `world` is no part of a robot; a base
    link without mass tells nothing, for robots that walk have one as well.
    """
    base = spec.worldbody.first_body()
    if base is None or options.base == "fixed":
        return False
    if options.base is None:
        from_urdf = main.suffix.lower() == ".urdf"
        if not from_urdf or base.joints or base.name == "world" or count_limbs(base) < 2:
            return False
    elif base.joints:
        raise ModelFileError("base = 'free' in the TOML: the base has joints of its own already")
    base.add_freejoint(name="base")
    return True


def count_limbs(body: mujoco.MjsBody) -> int:
    """Return how many joints move something against this body and what is fixed to it."""
    return sum(bool(child.joints) for link in _find_rigid_links(body) for child in link.bodies)


def _find_rigid_links(body: mujoco.MjsBody) -> list[mujoco.MjsBody]:
    """Return a body and all that is fixed to it; chains may be deeper than calls can be."""
    links = [body]
    for link in links:
        links += [child for child in link.bodies if not child.joints]
    return links


def impossible_inertias(spec: mujoco.MjSpec) -> tuple[str, ...]:
    """Bodies whose inertia no solid has: none where there is mass, or a side over the others' sum.

    Other simulators take such files, so URDFs are full of them.
    """
    return tuple(
        body.name
        for body in spec.bodies[1:]
        if body.explicitinertial
        and (_breaks_triangle(body) or (body.joints and not _has_inertia(body)))
    )


def _moments(body: mujoco.MjsBody) -> Vector:
    """The principal moments of inertia, smallest first."""
    full = np.array(body.fullinertia)
    if np.isnan(full[0]):
        return np.sort(np.array(body.inertia))
    if not np.isfinite(full).all():
        raise ModelFileError(f"the inertia of link {body.name} is not finite: correct it")
    xx, yy, zz, xy, xz, yz = full
    return np.linalg.eigvalsh(np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]))


def _breaks_triangle(body: mujoco.MjsBody) -> bool:
    low, middle, high = _moments(body)
    return bool(low + middle < high)


def _has_inertia(body: mujoco.MjsBody) -> bool:
    """Return whether a body, or one that is fixed to it, has both mass and inertia."""
    return any(
        link.mass > MIN_INERTIA and _moments(link)[0] > MIN_INERTIA
        for link in _find_rigid_links(body)
    )


def round_inertias(spec: mujoco.MjSpec, names: Iterable[str]) -> None:
    """Give bodies the inertia of a ball: of the same sum, or as heavy and as dense as water."""
    for name in names:
        body = spec.body(name)
        body.mass = max(body.mass, MIN_MASS)
        mean = float(_moments(body).mean())
        if mean <= MIN_INERTIA:
            radius = (body.mass / (4 / 3 * np.pi * 1000.0)) ** (1 / 3)
            mean = 0.4 * body.mass * radius**2
        body.fullinertia = [np.nan, 0, 0, 0, 0, 0]
        body.inertia, body.iquat = [mean] * 3, [1, 0, 0, 0]


def remove_joints(spec: mujoco.MjSpec, names: Iterable[str]) -> None:
    """Take joints out, and the actuators that drive them."""
    for name in names:
        joint = spec.joint(name)
        if joint is None:
            known = [each.name for each in spec.joints]
            raise ModelFileError(_describe_unknown("fixed", name, known))
        for actuator in list(spec.actuators):
            if actuator.target == name:
                spec.delete(actuator)
        spec.delete(joint)


def needs_floor(model: mujoco.MjModel) -> bool:
    """Return whether it would fall for ever: it can fall, and there is neither floor nor water."""
    robot = Robot(model, np.array(model.qpos0), STEP_SECONDS)
    terrain = (model.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD).any()
    return robot.falls and robot.ground is None and not floats(model) and not terrain


def add_floor(spec: mujoco.MjSpec) -> None:
    """A level plane, with the friction of MuJoCo's own default, lit wherever the robot goes."""
    spec.worldbody.add_geom(
        name="added_floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[0, 0, 0.05],
        rgba=[0.5, 0.55, 0.6, 1],
        contype=1,
        conaffinity=1,
        condim=3,
    )
    if not spec.lights:
        spec.worldbody.add_light(
            type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, pos=[0, 0, 4], dir=[0, 0, -1]
        )


def action_map(model: mujoco.MjModel, start: Start) -> tuple[Vector, Vector]:
    """Offset and scale of every actuator.

    An action of 0 holds a servo's start; of others it is the middle of the range.
    """
    limited = model.actuator_ctrllimited.astype(bool)[:, None]
    low, high = np.where(limited, model.actuator_ctrlrange, [[-1.0, 1.0]]).T
    servos = np.array([is_servo(model, i) for i in range(model.nu)], dtype=bool)
    offset = np.where(servos, start.ctrl, (low + high) / 2)
    return offset, np.maximum(high - offset, offset - low)


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
