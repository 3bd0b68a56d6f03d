"""Words for what no simulator says by itself: info keys, ways an episode ends, directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from p2p.training.specs.records import OpenRange

INFO_MEANINGS: Mapping[str, str] = {
    "x_position": "x coordinate of the root after the step (m)",
    "y_position": "y coordinate of the root after the step (m)",
    "x_velocity": "velocity along +x, averaged over the step (m/s)",
    "y_velocity": "velocity along +y, averaged over the step (m/s)",
    "z_distance_from_origin": "height of the root minus its height in the resting pose (m)",
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
    """What an info key means; `size` numbers of it (1 for a scalar)."""
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
    """What a positive rotation about a world axis does, by the right-hand rule."""
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
    """What ends an episode before its horizon."""
    if name in TERMINATION_RULES:
        return TERMINATION_RULES[name]
    if switch is None:
        return "never ends before its horizon, as far as the environment says"
    rules = "; ".join(
        f"{HEALTHY_QUANTITIES.get(key, key)} {interval(bounds)}" for key, bounds in ranges.items()
    )
    verb = "ends when it is not healthy" if switch else "does not end when it is not healthy"
    return f"{verb}; healthy: {rules}" if rules else verb
