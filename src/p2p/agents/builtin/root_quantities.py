"""Of the body as a whole: where it goes, how it holds itself, how it turns."""

from __future__ import annotations

from p2p.agents.builtin.body import Body
from p2p.agents.builtin.quantity import Quantity, minus, signed

_INFO = ("x_velocity", "y_velocity")

_WAYS = (
    (("forward_speed", "forward speed"), ("backward_speed", "backward speed")),
    (("left_speed", "speed to the left"), ("right_speed", "speed to the right")),
)


def _axis_speed(body: Body, axis: int) -> tuple[str | None, str] | None:
    """Reward and judge code for the root's velocity along x or y."""
    if body.free:
        address, sign = body.free.qvel_address + axis, 1.0
    elif found := body.root_axis("slide", axis):
        address, sign = found[0].qvel_address, found[1]
    else:
        return None
    seen = body.seen(f"qvel[{address}]")
    # What the environment calls velocity is the way of a whole step: no swing within it is missed.
    if (key := _INFO[axis]) in body.spec.info_keys:
        return f'info["{key}"]', f'trajectory["{key}"]'
    return signed(sign, seen), f'{minus(sign)}trajectory["qvel"][:, {address}]'


def travel(body: Body) -> list[Quantity]:
    """Where it goes."""
    found: list[Quantity] = []
    seen: list[tuple[str | None, str]] = []
    headroom = 1.6 if body.has_weight else 20.0  # in the water, every stroke also pulls back
    for axis, ((ahead, ahead_words), (back, back_words)) in enumerate(_WAYS):
        speed = _axis_speed(body, axis)
        if speed is None:
            continue
        reward, judge = speed
        seen.append(speed)
        symbol = "v_" + "xy"[axis]
        found += [
            Quantity(ahead, ahead_words, "m/s", reward, judge, symbol, signed=True,
                     headroom=headroom),
            Quantity(back, back_words, "m/s", reward and f"-{reward}", f"-({judge})", f"-{symbol}",
                     signed=True, headroom=headroom),
        ]  # fmt: skip
    if len(seen) == 1:
        (reward, judge), symbol = seen[0], r"\|v_x\|"
        reward, judge = reward and f"np.abs({reward})", f"np.abs({judge})"
    elif seen:
        (a, x), (b, y) = seen
        reward, judge = (f"np.hypot({a}, {b})" if a and b else None), f"np.hypot({x}, {y})"
        symbol = r"\|v_{xy}\|"
    else:
        return found
    found.append(Quantity("ground_speed", "speed over ground", "m/s", reward, judge, symbol))
    found.append(_drift(body))
    return found


def _drift(body: Body) -> Quantity:
    assert body.root is not None
    place = f'trajectory["xpos"][:, {body.root.id}, :2]'
    keys = body.spec.info_keys
    reward = 'info["distance_from_origin"]' if "distance_from_origin" in keys else None
    if reward is None and "x_position" in keys and "y_position" not in keys:
        reward = 'np.abs(info["x_position"])'
    judge = f"np.linalg.norm({place} - {place}[:1], axis=-1)"
    return Quantity("drift", "distance from where it began", "m", reward, judge, r"\|x - x_0\|",
                    felt_as="" if _sees_its_place(body) else "ground_speed")  # fmt: skip


def _sees_its_place(body: Body) -> bool:
    if body.free:
        addresses = [body.free.qpos_address, body.free.qpos_address + 1]
    else:
        slides = (body.root_axis("slide", axis) for axis in range(2))
        addresses = [slide[0].qpos_address for slide in slides if slide]
    return all(body.seen(f"qpos[{address}]") for address in addresses)


def posture(body: Body) -> list[Quantity]:
    """How it holds itself."""
    if body.root is None:
        return []
    found: list[Quantity] = []
    joint = body.height_joint
    name = body.root.name
    if joint is not None:
        if body.free:
            seen, offset, rate = body.seen(f"qpos[{joint.qpos_address + 2}]"), 0.0, 2
        else:
            seen, offset, rate = (
                body.seen(f"qpos[{joint.qpos_address}]"), joint.height_offset or 0.0, 0,
            )  # fmt: skip
        reward = seen and (f"{seen} + {offset:g}" if offset else seen)
        judge = f'trajectory["xpos"][:, {body.root.id}, 2]'
        found.append(
            Quantity("height", f"height of the {name}", "m", reward, judge, "z", headroom=3.0,
                     ceiling=body.ceiling)
        )  # fmt: skip
        address = joint.qvel_address + rate
        found.append(
            Quantity("climb_speed", f"upward speed of the {name}", "m/s",
                     body.seen(f"qvel[{address}]"), f'trajectory["qvel"][:, {address}]', "v_z",
                     signed=True)
        )  # fmt: skip
        lift = f'np.abs(trajectory["qvel"][:, {address}])'
        seen = body.seen(f"qvel[{address}]")
        found.append(Quantity("bounce", f"speed of the {name} up or down", "m/s",
                              seen and f"np.abs({seen})", lift, r"\|v_z\|"))  # fmt: skip
    if tilt := _tilt(body):
        reward, judge = tilt
        found.append(Quantity("tilt", f"tilt of the {name}", "rad", reward, judge, r"\theta"))
    return found


def _tilt(body: Body) -> tuple[str | None, str] | None:
    """How far the root's own upward axis leans from the vertical, 0 to pi."""
    if body.free:
        start = body.free.qpos_address + 3
        seen = [body.seen(f"qpos[{start + k}]") for k in range(4)]
        reward = _lean([s for s in seen if s], body.up) if all(seen) else None
        return reward, _lean([f'trajectory["qpos"][:, {start + k}]' for k in range(4)], body.up)
    hinge = body.root_axis("hinge", 1) or body.root_axis("hinge", 0)
    if hinge is None:
        return None
    address = hinge[0].qpos_address
    seen_angle = body.seen(f"qpos[{address}]")
    reward = seen_angle and f"np.arccos(np.cos({seen_angle}))"
    return reward, f'np.arccos(np.cos(trajectory["qpos"][:, {address}]))'


def _lean(quat: list[str], up: tuple[float, float, float]) -> str:
    """The angle between a turned axis and the vertical, from a quaternion (w, x, y, z)."""
    w, x, y, z = quat
    rows = {
        0: f"2 * ({x} * {z} - {w} * {y})",
        1: f"2 * ({y} * {z} + {w} * {x})",
        2: f"1 - 2 * ({x} ** 2 + {y} ** 2)",
    }
    axis = max(range(3), key=lambda k: abs(up[k]))
    cosine = rows[axis] if up[axis] > 0 else f"-({rows[axis]})"
    return f"np.arccos(np.clip({cosine}, -1.0, 1.0))"


_TURNS = (
    ("roll_right_rate", "rolling rate to the right", "roll_left_rate", "rolling rate to the left"),
    ("flip_forward_rate", "forward flipping rate", "flip_back_rate", "backward flipping rate"),
    ("turn_left_rate", "counterclockwise turning rate", "turn_right_rate",
     "clockwise turning rate"),
)  # fmt: skip


_TURNING_ENOUGH = 1.5
"""Turning even faster only carries a body off: its rate swings with every step of its legs, and
one that is paid up to a cap turns more than twice as fast as asked to stay above it."""


def _turned(body: Body, address: int) -> tuple[str | None, str]:
    """How fast a hinge turns, by how far it came within a step.

    A body that trembles in time with the steps has the same speed at the end of each, and gets
    nowhere; by speeds it would have flipped over.
    """
    dt = f"{body.spec.dt:.6g}"
    column = f'trajectory["qpos"][:, {address}]'
    after = body.seen(f"qpos[{address}]")
    before = after and after.replace("next_obs", "obs")
    reward = after and f"({after} - {before}) / {dt}"
    return reward, f"np.diff({column}, prepend={column}[:1]) / {dt}"


def rotation(body: Body) -> list[Quantity]:
    """How it turns."""
    found: list[Quantity] = []
    for axis, (one, one_words, other, other_words) in enumerate(_TURNS):
        hinge = None if body.free else body.root_axis("hinge", axis)
        if body.free:
            address, sign = body.free.qvel_address + 3 + axis, 1.0
        elif hinge:
            address, sign = hinge[0].qvel_address, hinge[1]
        else:
            continue
        seen, judge = body.seen(f"qvel[{address}]"), f'trajectory["qvel"][:, {address}]'
        if axis == 1 and hinge is not None:
            seen, judge = _turned(body, hinge[0].qpos_address)
        symbol = r"\omega_" + "xyz"[axis]
        for key, words, way in ((one, one_words, sign), (other, other_words, -sign)):
            code = f"{minus(way)}{judge}"
            mark = symbol if way > 0 else f"-{symbol}"
            found.append(
                Quantity(key, words, "rad/s", signed(way, seen), code, mark, signed=True,
                         enough=_TURNING_ENOUGH if axis == 2 else None)
            )  # fmt: skip
    return found
