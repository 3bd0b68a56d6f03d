"""An EnvSpec in words, as prompts and the command line show it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from p2p.training.specs.env_text import direction, interval
from p2p.training.specs.state_fields import body_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from p2p.training.specs.records import BodyEntry, EnvSpec, JointEntry, ObservationEntry

_NEGLIGIBLE = 0.05
_FREE = ("_x", "_y", "_z", "_quat_w", "_quat_x", "_quat_y", "_quat_z")


def summary(
    name: str, joints: Sequence[JointEntry], bodies: Sequence[BodyEntry], actions: int
) -> str:
    """One line about the robot."""
    freedom = sum(joint.qvel_size for joint in joints)
    mass = sum(body.mass for body in bodies)
    return (
        f"{name}: {len(bodies) - 1} bodies ({mass:.3g} kg), {len(joints)} joints with {freedom} "
        f"degrees of freedom, {actions} actuators"
    )


def _numbers(values: Iterable[float]) -> str:
    return "(" + ", ".join(f"{v:.3g}" for v in values) + ")"


def _span(start: int, size: int) -> str:
    return str(start) if size == 1 else f"{start}:{start + size}"


def _clip(entry: ObservationEntry) -> str:
    if entry.clip is None:
        return ""
    return f"; clipped to be {interval(entry.clip)}"


def observation_table(spec: EnvSpec) -> str:
    """One line for each index: name, source, unit, meaning."""
    lines = [
        f"Observation of {spec.env_id}: {spec.obs_dim} numbers, written obs[..., i]",
        "index | name | source | unit | meaning",
    ]
    lines += [
        f"{e.index} | {e.name} | {e.source or 'unknown'} | {e.unit or '-'} | "
        f"{e.description}{_clip(e)}"
        for e in spec.observation
    ]
    hidden = _hidden(spec)
    if hidden:
        lines.append(f"Not observed: {', '.join(hidden)}")
    return "\n".join(lines)


def _hidden(spec: EnvSpec) -> list[str]:
    """Joints whose position no entry shows (usually where the robot is in the world)."""
    sources = " ".join(entry.source or "" for entry in spec.observation)
    return [
        f"{joint.name}{_FREE[k] if joint.type == 'free' else ''} (qpos[{joint.qpos_address + k}])"
        for joint in spec.joints
        for k in range(joint.qpos_size)
        if f"qpos[{joint.qpos_address + k}]" not in sources
    ]


def action_table(spec: EnvSpec) -> str:
    """One line for each actuator."""
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
    """One line for each joint: type, axis, range, sign."""
    lines = [f"Joints of {spec.env_id} (axes in world coordinates, in the resting pose)"]
    for j in spec.joints:
        axis = f", axis {_numbers(j.axis)}" if j.axis else ""
        limits = (
            f", range [{j.range[0]:.3g}, {j.range[1]:.3g}] {j.unit}" if j.range else ", unlimited"
        )
        turns = f"; turns {j.rotation}" if j.rotation and j.rotation not in j.sign else ""
        lines.append(f"- {j.name}: {j.type}, {j.parent} -> {j.body}{axis}{limits}; {j.sign}{turns}")
    return "\n".join(lines)


def body_info(spec: EnvSpec) -> str:
    """How qpos and qvel are indexed, the bodies, and what the state offers for each."""
    lines = [f"State of {spec.env_id} (mj_data), dt {spec.dt:g} s"]
    for j in spec.joints:
        offset = f" (height of {j.body} = qpos + {j.height_offset:g})" if j.height_offset else ""
        lines.append(
            f"- {j.name} ({j.type}): qpos[{_span(j.qpos_address, j.qpos_size)}], "
            f"qvel[{_span(j.qvel_address, j.qvel_size)}], at rest {_numbers(j.rest)}{offset}"
        )
    lines.append("Bodies (index, name, resting position):")
    lines += [
        f"- {b.id} {body_words(b, spec.bodies, spec.geoms)} {_numbers(b.rest_position)}"
        for b in spec.bodies
    ]
    lines += [
        "By body index b: xpos[..., b, :] position; xquat[..., b, :] orientation (w, x, y, z);",
        "cvel[..., b, :] angular, then linear velocity; cfrc_ext[..., b, :] contact torque, force.",
        f"Episode: {spec.termination}; horizon {spec.max_episode_steps or 'none'} steps.",
    ]
    return "\n".join(lines)


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
            f"{indent}    {g.type} {g.name}: size {_numbers(g.size)} m at {_numbers(g.position)}"
            for g in spec.geoms
            if g.body == body.name
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
    """Where the world's axes point in a rendered image."""
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
