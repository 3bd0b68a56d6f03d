"""An environment in words, as prompts and the command line show it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from p2p.training.env_spec import (
        ActionEntry,
        BodyEntry,
        EnvSpec,
        FootEntry,
        GeomEntry,
        JointEntry,
        ObservationEntry,
        OpenRange,
        QuantityEntry,
    )


INFO_MEANINGS: Mapping[str, str] = {
    "x_position": "x coordinate of the root after the step (m)",
    "y_position": "y coordinate of the root after the step (m)",
    "x_velocity": "velocity along +x, averaged over the step (m/s)",
    "y_velocity": "velocity along +y, averaged over the step (m/s)",
    "z_distance_from_origin": "height of the root minus its height in the start pose (m)",
    "distance_from_origin": "horizontal distance of the root from the world's origin (m)",
    "tendon_length": "length of each tendon",
    "tendon_velocity": "rate of change of each tendon's length",
    "reward_forward": "term of the environment's own reward for moving along +x",
    "reward_ctrl": "term of the environment's own reward against large actions (not positive)",
    "reward_survive": "term of the environment's own reward for being healthy",
    "reward_contact": "term of the environment's own reward against contact forces (not positive)",
    "reward_linup": "term of the environment's own reward for height",
    "reward_quadctrl": "term of the environment's own reward against large actions (not positive)",
    "reward_impact": "term of the environment's own reward against impacts (not positive)",
    "reward_dist": "term of the environment's own reward: minus the weighted distance to the goal",
    "reward_near": "term of the environment's own reward: minus the weighted distance of the "
    "fingertip to the object",
    "distance_penalty": "term of the environment's own reward: minus the tip's distance from "
    "upright (not positive)",
    "velocity_penalty": "term of the environment's own reward: minus joint speeds, weighted "
    "(not positive)",
}

TERMINATION_RULES: Mapping[str, str] = {
    "InvertedPendulum": "ends when the pole leans more than 0.2 rad either way",
    "InvertedDoublePendulum": "ends when the tip of the upper pole is 1 m high or lower",
}
"""For environments whose rule is written into their step and cannot be read off an attribute."""

HEALTHY_QUANTITIES: Mapping[str, str] = {
    "z": "height of the root",
    "angle": "angle of the torso",
    "state": "every joint position but the first two, and every joint velocity",
}

_TURNS: Mapping[str, str] = {
    "+x": "roll: the +y side goes up, the top moves towards -y",
    "-x": "roll: the +y side goes down, the top moves towards +y",
    "+y": "pitch: the +x side goes down, the top moves towards +x",
    "-y": "pitch: the +x side goes up, the top moves towards -x",
    "+z": "yaw: counter-clockwise seen from above",
    "-z": "yaw: clockwise seen from above",
}


def info_meaning(key: str, size: int) -> str:
    """Return the meaning of an info key with `size` numbers (1 for a scalar)."""
    meaning = INFO_MEANINGS.get(key, "no description")
    return meaning if size == 1 else f"{meaning} (array of {size})"


def direction(vector: Sequence[float], *, share: float = 0.3) -> str:
    """The axes a vector points along, leading one first: `+x`, `-z and +x`.

    Parts below `share` of the largest are left out; a zero vector gives an empty string.
    """
    largest = max(abs(v) for v in vector)
    if largest < 1e-9:
        return ""
    parts = sorted(zip("xyz", vector, strict=True), key=lambda part: -abs(part[1]))
    return " and ".join(
        f"{'+' if value > 0 else '-'}{axis}"
        for axis, value in parts
        if abs(value) >= share * largest
    )


def turn(axis: Sequence[float]) -> str:
    """Return what a positive rotation about a world axis does, by the right-hand rule."""
    name = direction(axis, share=0.05)
    if name in _TURNS:
        return f"about {name} ({_TURNS[name]})"
    return "about axis ({:.2f}, {:.2f}, {:.2f}) by the right-hand rule".format(*axis)


def interval(bounds: OpenRange) -> str:
    """A range in words: `in [-1, 1]`, `above 0.7`, `unbounded`."""
    low, high = bounds
    if low is None:
        return "unbounded" if high is None else f"below {high:g}"
    return f"above {low:g}" if high is None else f"in [{low:g}, {high:g}]"


def termination_text(name: str, switch: bool | None, ranges: Mapping[str, OpenRange]) -> str:
    """Return what ends an episode before its horizon."""
    if name in TERMINATION_RULES:
        return TERMINATION_RULES[name]
    if switch is None:
        return "never ends before its horizon, as far as the environment says"
    rules = "; ".join(
        f"{HEALTHY_QUANTITIES.get(key, key)} {interval(bounds)}" for key, bounds in ranges.items()
    )
    verb = "ends when it is not healthy" if switch else "does not end when it is not healthy"
    return f"{verb}; healthy: {rules}" if rules else verb


_NEGLIGIBLE = 0.05
_FREE = ("_x", "_y", "_z", "_quat_w", "_quat_x", "_quat_y", "_quat_z")


def body_words(body: BodyEntry, bodies: Sequence[BodyEntry], geoms: Sequence[GeomEntry]) -> str:
    """The body's name; where the model gives none, what it is fixed to and its shape."""
    if body.name != f"body{body.id}":
        return body.name
    shape = next((geom.name for geom in geoms if geom.body == body.name), "no shape")
    return f"unnamed body {body.id} on {bodies[body.parent].name} ({shape})"


def summary(
    name: str, joints: Sequence[JointEntry], bodies: Sequence[BodyEntry], actions: int
) -> str:
    """Return one line about the robot."""
    freedom = sum(joint.qvel_size for joint in joints)
    mass = sum(body.mass for body in bodies)
    return (
        f"{name}: {len(bodies) - 1} bodies ({mass:.3g} kg), {len(joints)} joints with {freedom} "
        f"degrees of freedom, {actions} actuators"
    )


def _numbers(values: Iterable[float]) -> str:
    return "(" + ", ".join(f"{round(v, 9) + 0.0:.3g}" for v in values) + ")"


def _span(start: int, size: int) -> str:
    return str(start) if size == 1 else f"{start}:{start + size}"


def _clip(entry: ObservationEntry) -> str:
    if entry.clip is None:
        return ""
    return f"; clipped to be {interval(entry.clip)}"


def observation_table(spec: EnvSpec) -> str:
    """Return one line for each index: name, source, unit, meaning."""
    lines = [
        f"Observation of {spec.env_id}: {spec.obs_dim} numbers, written obs[..., i]",
        "index | name | source | unit | meaning",
    ]
    lines += [
        f"{e.index} | {e.name} | {e.source or 'unknown'} | {e.unit or '-'} | "
        f"{e.description}{_clip(e)}"
        for e in spec.observation
    ]
    hidden = _find_hidden(spec)
    if hidden:
        lines.append(f"Not observed: {', '.join(hidden)}")
    return "\n".join(lines)


def _find_hidden(spec: EnvSpec) -> list[str]:
    """Find the joints that no entry observes (usually the robot's place in the world)."""
    sources = " ".join(entry.source or "" for entry in spec.observation)
    return [
        f"{joint.name}{_FREE[k] if joint.type == 'free' else ''} (qpos[{joint.qpos_address + k}])"
        for joint in spec.joints
        for k in range(joint.qpos_size)
        if f"qpos[{joint.qpos_address + k}]" not in sources
    ]


def action_table(spec: EnvSpec) -> str:
    lines = [
        f"Action of {spec.env_id}: {spec.action_dim} numbers, written action[..., i]",
        "index | name | range | meaning",
        *(
            f"{a.index} | {a.name} | {interval((a.low, a.high))} | {a.description}"
            for a in spec.actions
        ),
    ]
    return "\n".join(lines)


def joint_semantics(spec: EnvSpec) -> str:
    """Return one line for each joint: type, axis and a point on it, range, sign."""
    lines = [f"Joints of {spec.env_id} (world coordinates, in the {_pose(spec)}"]
    lines[0] += (
        "; springs in N m/rad, damping in N m s/rad, armature in kg m^2, slides in N, m, kg)"
    )
    for j in spec.joints:
        axis = f", axis {_numbers(j.axis)}" if j.axis else ""
        if j.type == "hinge":
            axis += f" through {_numbers(j.anchor)}"
        limits = (
            f", range [{j.range[0]:.3g}, {j.range[1]:.3g}] {j.unit}" if j.range else ", unlimited"
        )
        turns = f"; turns {j.rotation}" if j.rotation and j.rotation not in j.sign else ""
        drive = _strength(j, spec.actions) + _drive(j)
        lines.append(
            f"- {j.name}: {j.type}, {j.parent} -> {j.body}{axis}{limits}{drive}; {j.sign}{turns}"
        )
    return "\n".join(lines)


def _strength(joint: JointEntry, actions: Sequence[ActionEntry]) -> str:
    """Return the limit of a joint's actuator, where the action has one."""
    for action in actions:
        bounds = (action.low, action.high)
        if action.joint == joint.name and action.kind in ("torque", "force") and all(bounds):
            most = abs(action.gear) * max(abs(bound) for bound in bounds if bound is not None)
            return f", {action.kind} up to {most:.3g} {'N m' if action.kind == 'torque' else 'N'}"
    return ""


def _drive(joint: JointEntry) -> str:
    """Return what works against an actuator: a torque cannot be weighed without it."""
    spring = f", spring {joint.stiffness:.3g} to {joint.spring_rest:.3g}" if joint.stiffness else ""
    damping = f", damping {joint.damping:.3g}" if joint.damping else ""
    return spring + damping + (f", armature {joint.armature:.3g}" if joint.armature else "")


def body_info(spec: EnvSpec) -> str:
    """Return how qpos and qvel are indexed, the bodies, and what the state offers for each."""
    lines = [f"State of {spec.env_id} (mj_data), dt {spec.dt:g} s"]
    for j in spec.joints:
        offset = f" (height of {j.body} = qpos + {j.height_offset:g})" if j.height_offset else ""
        lines.append(
            f"- {j.name} ({j.type}): qpos[{_span(j.qpos_address, j.qpos_size)}], "
            f"qvel[{_span(j.qvel_address, j.qvel_size)}], at the start "
            f"{_numbers(j.start or j.rest)}{_reference(j)}{offset}"
        )
    lines.append(f"Bodies (index, name, mass, origin in the {_pose(spec)}; shapes in its frame):")
    lines += [
        f"- {b.id} {body_words(b, spec.bodies, spec.geoms)}, {b.mass:.3g} kg, at "
        f"{_numbers(b.rest_position)}{_shapes(b, spec.geoms)}"
        for b in spec.bodies[1:]
    ]
    lines += [
        "By body index b: xpos[..., b, :] position; xquat[..., b, :] orientation (w, x, y, z);",
        "cvel[..., b, :] angular, then linear velocity; cfrc_ext[..., b, :] contact torque, force.",
    ]
    return "\n".join(lines)


def _pose(spec: EnvSpec) -> str:
    """Return the name of the pose that positions are of: episodes may begin in another one."""
    return "reference pose (qpos0)" if any(map(_reference, spec.joints)) else "start pose"


def _reference(joint: JointEntry) -> str:
    moved = joint.start and joint.start != joint.rest
    return f", in the reference pose {_numbers(joint.rest)}" if moved else ""


def _shapes(body: BodyEntry, geoms: Sequence[GeomEntry]) -> str:
    # A mesh is a bare name here, and one that touches nothing is for pictures only.
    own = [
        shape_words(geom)
        for geom in geoms
        if geom.body == body.name and (geom.collides or geom.type != "mesh")
    ]
    return f": {'; '.join(own)}" if own else ""


def shape_words(geom: GeomEntry) -> str:
    """A shape in the frame of its body; capsules and cylinders by the ends of their axis."""
    if geom.type not in ("capsule", "cylinder"):
        size = f" of size {_numbers(geom.size)}" if geom.size else ""
        return f"{geom.type}{size} at {_numbers(geom.position)}"
    radius, half = geom.size
    start, end = (
        _numbers(p + side * half * a for p, a in zip(geom.position, geom.axis, strict=True))
        for side in (-1, 1)
    )
    return f"{geom.type} of radius {radius:.3g} from {start} to {end}"


_INDICES: Mapping[str, str] = {"feet": "f", "bodies": "b", "xyz": "k"}


def quantity_index(entry: QuantityEntry) -> str:
    """Return how a quantity is indexed: `[..., f, k]`; nothing for one number."""
    places = "".join(f", {_INDICES[axis]}" for axis in entry.axes)
    return f"[...{places}]" if places else ""


def quantity_table(spec: EnvSpec) -> str:
    """Return one line for each named quantity, and what its indices count."""
    lines = [
        f"Quantities of {spec.env_id}, measured on the simulator after each step",
        "(f: foot, b: body index, k: 0, 1, 2 for x, y, z):",
    ]
    for name, entry in spec.quantities.items():
        unit = f" ({entry.unit})" if entry.unit else ""
        lines.append(f"- {name}{quantity_index(entry)}{unit}: {entry.meaning}")
    lines += [
        f"Foot {f}: {foot.name}, body {foot.body}{_limb(spec, foot)}; in the {_pose(spec)} "
        f"{_place(spec, foot)}, lowest point {_numbers(foot.lowest_point)}"
        for f, foot in enumerate(spec.feet)
    ]
    return "\n".join(lines)


def _limb(spec: EnvSpec, foot: FootEntry) -> str:
    """The body next to the root that it hangs on, where each foot has one of its own."""

    def limb(body: BodyEntry) -> BodyEntry:
        return body if body.parent <= 1 else limb(spec.bodies[body.parent])

    limbs = {each.body: limb(spec.bodies[each.body]) for each in spec.feet}
    if len(limbs) < 2 or len({each.id for each in limbs.values()}) < len(limbs):
        return ""
    return f" of {body_words(limbs[foot.body], spec.bodies, spec.geoms)}"


def _place(spec: EnvSpec, foot: FootEntry) -> str:
    """Return where a foot is, seen from the root: names of bodies may say something else."""
    root = spec.bodies[1].rest_position
    dx, dy = (a - b for a, b in zip(foot.lowest_point[:2], root[:2], strict=True))
    words = [
        word
        for amount, word in (
            (dx, "in front (+x)"), (-dx, "behind (-x)"), (dy, "left (+y)"), (-dy, "right (-y)"),
        )
        if amount > _NEGLIGIBLE
    ]  # fmt: skip
    return f"{' and '.join(words)} of the root" if words else "under the root"


def body_geometry(spec: EnvSpec) -> str:
    """The tree of bodies, indented, with masses, offsets, joints and shapes."""
    lines = [f"Body of {spec.env_id}, total mass {spec.total_mass:.3g} kg"]

    def add(body: BodyEntry, depth: int) -> None:
        indent = "  " * depth
        lines.append(
            f"{indent}- {body.name}: {body.mass:.3g} kg, offset {_numbers(body.offset)}"
            " from its parent"
        )
        for j in (j for j in spec.joints if j.body == body.name):
            limits = f" [{j.range[0]:.3g}, {j.range[1]:.3g}] {j.unit}" if j.range else ""
            lines.append(f"{indent}    joint {j.name}: {j.type}{limits}")
        lines.extend(
            f"{indent}    {g.name}: {shape_words(g)}" for g in spec.geoms if g.body == body.name
        )
        for child in spec.bodies:
            if child.parent == body.id and child.id != 0:
                add(child, depth + 1)

    for root in spec.bodies[1:]:
        if root.parent == 0:
            add(root, 0)
    return "\n".join(lines)


def image_axes(azimuth: float, elevation: float) -> dict[str, tuple[float, float, float]]:
    """For +x, +y, +z: how far each goes right, up and away in the image."""
    a, e = math.radians(azimuth), math.radians(elevation)
    right = (math.sin(a), -math.cos(a), 0.0)
    away = (math.cos(a) * math.cos(e), math.sin(a) * math.cos(e), math.sin(e))
    up = (-math.cos(a) * math.sin(e), -math.sin(a) * math.sin(e), math.cos(e))
    return {f"+{n}": (right[k], up[k], away[k]) for k, n in enumerate("xyz")}


def camera_text(spec: EnvSpec) -> str:
    """Return where the world's axes point in a rendered image."""
    camera = spec.camera
    words = (("right", "left"), ("up", "down"), ("away from the camera", "towards the camera"))
    parts = []
    for axis, amounts in image_axes(camera.azimuth, camera.elevation).items():
        order = sorted(range(3), key=lambda k: -abs(amounts[k]))
        ways = [words[k][amounts[k] < 0] for k in order if abs(amounts[k]) > _NEGLIGIBLE]
        parts.append(f"{axis} goes {' and '.join(ways)}")
    follow = (
        f"It follows {camera.track_body}."
        if camera.track_body
        else f"It stays fixed on {_numbers(camera.lookat)}."
    )
    tilt = f"{abs(camera.elevation):g} degrees {'down' if camera.elevation < 0 else 'up'}"
    view = direction(
        [math.cos(math.radians(camera.azimuth)), math.sin(math.radians(camera.azimuth)), 0.0]
    )
    return (
        f"The camera looks along {view}, tilted {tilt}, from {camera.distance:.3g} m. "
        f"In the image {'; '.join(parts)}. {follow}"
    )
