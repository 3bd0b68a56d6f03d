"""Parts of a body by what people call them, and how high each of them is.

A reward sees joint angles, not positions. Where a part is follows from the angles: its point in the
resting pose is turned about every joint on the way to the root, the last joint first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from p2p.agents.builtin.body import Body
    from p2p.training.specs.records import BodyEntry, JointEntry

NOUNS: dict[str, tuple[str, ...]] = {
    "leg": ("leg", "thigh", "shin", "foot", "limb"),
    "arm": ("arm", "hand"),
    "hand": ("hand", "lower_arm", "wrist"),
    "foot": ("foot", "ankle", "toe"),
    "thigh": ("thigh", "hip"),
    "shin": ("shin", "knee", "leg"),
    "elbow": ("lower_arm", "elbow", "forearm"),
    "head": ("head",),
    "tail": ("tail",),
}
"""A word for a part, and what bodies call it."""

TURNED = '''def turned(point, axis, anchor, angle):
    """A point, turned about an axis through an anchor."""
    axis, lever = np.asarray(axis), point - np.asarray(anchor)
    c, s = np.cos(angle)[..., None], np.sin(angle)[..., None]
    along = np.sum(lever * axis, axis=-1, keepdims=True) * axis
    return anchor + c * lever + s * np.cross(axis, lever) + (1.0 - c) * along
'''
"""Stands in a reward that needs it."""


def find_limb(body: Body, said: tuple[str, ...]) -> BodyEntry | None:
    """The part that these words name: the last link of the limb."""
    if not said or body.root is None:
        return None
    *sides, noun = said
    names = NOUNS.get(noun, (noun,))
    parts = body.below(body.root)[1:]
    for part in parts:
        if any(name in part.name.lower() for name in names) and _on(part, sides, parts):
            ends = body.ends(part)
            return part if noun in ("thigh", "shin", "elbow") else ends[0]
    return None


def _on(part: BodyEntry, sides: list[str], parts: tuple[BodyEntry, ...]) -> bool:
    name = part.name.lower()
    words = set(re.split(r"[^a-z]+", name))
    names = {other.name.lower() for other in parts}
    for side in sides:
        # Where only the left ones are marked, the others are the right ones.
        unmarked = side == "right" and "left" not in words and f"{name}_left" in names
        first_letter = side in ("front", "back") and name[0] == side[0] and name[1:] in (
            "thigh", "shin", "foot", "leg",
        )  # fmt: skip
        if not (side in words or unmarked or first_letter):
            return False
    return True


def offset_of(body: Body, part: BodyEntry) -> tuple[float, float, float]:
    """The middle of the part's shape, in its own frame."""
    for geom in body.spec.geoms:
        if geom.body == part.name:
            return geom.position
    return (0.0, 0.0, 0.0)


def chain(body: Body, part: BodyEntry) -> tuple[JointEntry, ...]:
    """The joints between the root and a part, from the root on, without the root's own."""
    assert body.root is not None
    found: list[JointEntry] = []
    link = part
    while link.id != body.root.id:
        found = [*body.joints_of(link), *found]
        link = body.spec.bodies[link.parent]
    return tuple(found)


def limb_length(body: Body, part: BodyEntry) -> float:
    """How long the limb is, from its first joint to the middle of the part."""
    joints = chain(body, part)
    point = np.asarray(part.rest_position) + np.asarray(offset_of(body, part))
    if not joints:
        return 0.0
    return float(max(np.linalg.norm(point - np.asarray(joint.anchor)) for joint in joints))


def judged_rise(body: Body, part: BodyEntry) -> str:
    """Judge code: how high the part's middle is above the root."""
    assert body.root is not None
    quat = [f'trajectory["xquat"][:, {part.id}, {k}]' for k in range(4)]
    column = f'trajectory["xpos"][:, {part.id}, 2] - trajectory["xpos"][:, {body.root.id}, 2]'
    return _plus(column, _upward(quat, offset_of(body, part)))


def rewarded_rise(body: Body, part: BodyEntry) -> str | None:
    """Reward code for the same, from the angles; None: not all of them are observed."""
    joints = chain(body, part)
    angles = [body.seen(f"qpos[{joint.qpos_address}]") for joint in joints]
    if body.root is None or not all(angles) or any(j.type != "hinge" for j in joints):
        return None
    rest = np.asarray(part.rest_position) + np.asarray(offset_of(body, part))
    code = f"np.array({_listed(rest)})"
    for joint, angle in zip(reversed(joints), reversed(angles), strict=True):
        turn = f"{angle} - {joint.rest[0]:g}" if joint.rest[0] else angle
        code = f"turned({code}, {_listed(joint.axis)}, {_listed(joint.anchor)}, {turn})"
    from_root = f"({code} - np.array({_listed(body.root.rest_position)}))"
    if body.free:
        start = body.free.qpos_address + 3
        quat = [body.seen(f"qpos[{start + k}]") for k in range(4)]
        return _dot(from_root, [q for q in quat if q]) if all(quat) else None
    hinge = body.root_axis("hinge", 1)
    lean = body.seen(f"qpos[{hinge[0].qpos_address}]") if hinge else None
    if hinge is None or lean is None:
        return None
    sine = f"np.sin({lean})" if hinge[1] > 0 else f"-np.sin({lean})"
    return (
        f"np.sum({from_root} * np.stack([-{sine}, 0.0 * {lean}, np.cos({lean})], axis=-1), axis=-1)"
    )


def _dot(vector: str, quat: list[str]) -> str:
    """The world height of a vector that a quaternion turns."""
    w, x, y, z = quat
    row = (
        f"2 * ({x} * {z} - {w} * {y})",
        f"2 * ({y} * {z} + {w} * {x})",
        f"1 - 2 * ({x} ** 2 + {y} ** 2)",
    )
    return f"np.sum({vector} * np.stack([{', '.join(row)}], axis=-1), axis=-1)"


def _upward(quat: list[str], offset: tuple[float, float, float]) -> str:
    w, x, y, z = quat
    row = (f"2 * ({x} * {z} - {w} * {y})", f"2 * ({y} * {z} + {w} * {x})",
           f"(1 - 2 * ({x} ** 2 + {y} ** 2))")  # fmt: skip
    return " + ".join(f"{o:.4g} * {r}" for o, r in zip(offset, row, strict=True) if o)


def _plus(first: str, second: str) -> str:
    return f"{first} + {second}" if second else first


def _listed(vector: object) -> str:
    return str([round(float(v), 5) + 0.0 for v in np.asarray(vector, dtype=float)])
