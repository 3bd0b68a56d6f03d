"""From a model file to a RobotModel and a compiled model, in the sandbox."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mujoco
import numpy as np

from p2p.training.model_files.record import RobotModel, RobotOptions, Servo
from p2p.training.model_files.servos import add_servos, choose_servos
from p2p.training.model_files.sources import ModelFileError
from p2p.training.model_files.start import Start, choose_start, floats, is_servo
from p2p.training.specs.quantities import Robot

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

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
