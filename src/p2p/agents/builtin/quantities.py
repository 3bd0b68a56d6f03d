"""What can be measured step by step: one table for criteria, rewards and judges.

Code is a template over named columns. A reward fills them with the arguments of one step
(`{next_obs}`, `{action}`, a key of `info`), a judge with the columns of a whole trajectory; with
side information a reward reads the simulator's state. All are indexed as `[..., i]`, so the same
text serves one step, a batch and an episode. The environment's own quantities are columns of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from string import Formatter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from p2p.agents.builtin.gaits import Memory, gait_codes
from p2p.agents.builtin.morphology import OBJECTS, Morphology, morphology_of
from p2p.training.env_spec import BodyEntry, GeomEntry
from p2p.training.specs.quantities import QUANTITIES

if TYPE_CHECKING:
    from p2p.training.env_spec import JointEntry

STEP_COLUMNS = ("obs", "action", "next_obs")
STATE_COLUMNS = ("qpos", "qvel")
"""Columns of the simulator's state; the rest are quantities of the environment."""


class Code(NamedTuple):
    """A number as templates."""

    reward: str | None
    """None: the observation does not show it."""
    judge: str


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number per step."""

    key: str
    words: str
    """Its name in a criterion's measure; unique."""
    unit: str
    code: Code
    symbol: str = "x"
    """In LaTeX."""
    episode_only: bool = False
    """The judge's code looks at several steps, so no reward can use it."""
    span: float | None = None
    """The largest distance at the start, for distances to targets."""
    headroom: float = 1.6
    """A reward grows up to so many times the target: enough for swings within a stride."""
    enough: float | None = None
    """A reward is highest at so many times the target; None: more is always better."""
    stretch: float | None = None
    """The length of the limb, for a limb's height, which has no natural zero."""
    usual: float | None = None
    """What it is where the agent stands."""
    ceiling: tuple[float, float] | None = None
    """A value that is already much, and the one above which the environment ends the episode."""
    turning: float | None = None
    """For turning: a rate, in rad/s, that is well on the way to a full turn."""
    about: str = ""
    """For going round something: the quantity of the distance from it."""
    least_weight: float = 0.0
    """The least weight of its reward term, where nothing is learnt without it."""
    full_cost: float = 1.0
    """The value above which a cost of it no longer grows."""
    felt_as: str = ""
    """The observed quantity that stands for it, where a policy does not observe it itself."""
    memory: Memory | None = None
    """What a reward has to remember for it."""

    def judge_code(self, columns: Collection[str]) -> str | None:
        """Return the code for a judge with these columns, or None if it cannot be measured."""

        def trajectory_column(name: str) -> str | None:
            return f'trajectory["{name}"]' if name in columns else None

        return _fill_template(self.code.judge, trajectory_column) or _fill_template(
            self.code.reward, trajectory_column
        )

    def reward_code(self, *, side_info: bool = False) -> str | None:
        """Return the code for a reward, or None if no reward can read it."""
        code = self._fill_for_reward(self.code.reward, side_info=side_info)
        if self.memory and self._fill_for_reward(self.memory.update, side_info=side_info) is None:
            return None
        if code is None and side_info and not self.episode_only:
            return self._fill_for_reward(self.code.judge, side_info=True)
        return code

    def memory_code(self, *, side_info: bool = False) -> tuple[str, str] | None:
        """Return the lines by which a reward begins to remember and goes on, or None."""
        if self.memory is None:
            return None
        update = self._fill_for_reward(self.memory.update, side_info=side_info)
        return f"{self.memory.name} = 0.0", f"{self.memory.name} = {update}"

    def _fill_for_reward(self, template: str | None, *, side_info: bool) -> str | None:
        def argument(name: str) -> str | None:
            if name in QUANTITIES and not side_info:
                return None
            return name if name in STEP_COLUMNS else f'info["{name}"]'

        def state(name: str) -> str | None:
            return f'info["mj_data"].{name}' if name in STATE_COLUMNS else argument(name)

        return _fill_template(template, state if side_info else argument)


def _fill_template(template: str | None, source: Callable[[str], str | None]) -> str | None:
    """Fill in a template's columns from a source; return None if one is missing."""
    if template is None:
        return None
    columns = {name: source(name) for _, name, _, _ in Formatter().parse(template) if name}
    return None if None in columns.values() else template.format(**columns)


@cache
def quantities_of(env_id: str) -> Mapping[str, Quantity]:
    """Return the quantities of this environment by key."""
    model = morphology_of(env_id)
    tables = (
        _travel_quantities,
        _posture_quantities,
        _rotation_quantities,
        _pole_quantities,
        _target_quantities,
        _limb_quantities,
        _effort_quantities,
        _gait_quantities,
    )
    return {quantity.key: quantity for table in tables for quantity in table(model)}


def _format_code(form: str, *numbers: Code) -> Code:
    """The same formula over numbers, for rewards and for judges."""
    rewards = [number.reward for number in numbers]
    judge = form.format(*(number.judge for number in numbers))
    return Code(None if None in rewards else form.format(*rewards), judge)


def _state_code(model: Morphology, column: str, index: int) -> Code:
    """An entry of qpos or qvel."""
    return Code(_observation_code(model, f"{column}[{index}]"), f"{{{column}}}[..., {index}]")


def _observation_code(model: Morphology, source: str) -> str | None:
    index = model.observation_index(source)
    return None if index is None else f"{{next_obs}}[..., {index}]"


def _format_index(indices: Sequence[int]) -> str:
    """Return columns as an index: a slice if contiguous, which on a GPU copies nothing."""
    first, last = indices[0], indices[-1] + 1
    return f"{first}:{last}" if list(indices) == list(range(first, last)) else str(list(indices))


def _apply_sign(sign: float, code: Code) -> Code:
    return _format_code("-{}", code) if sign < 0 else code


# --- the whole: where it goes, how it holds itself, how it turns ----------------------------------

_SPEED_NAMES = (
    (("forward_speed", "forward speed"), ("backward_speed", "backward speed")),
    (("left_speed", "speed to the left"), ("right_speed", "speed to the right")),
)
_LINE_ERROR_NAMES = (
    ("stray_ahead", "distance ahead of or behind where it began"),
    ("stray_aside", "distance to the side of where it began"),
)
_TURN_RATE_NAMES = (
    (("roll_right_rate", "rolling rate to the right"),
     ("roll_left_rate", "rolling rate to the left")),
    (("flip_forward_rate", "forward flipping rate"), ("flip_back_rate", "backward flipping rate")),
    (("turn_left_rate", "counterclockwise turning rate"),
     ("turn_right_rate", "clockwise turning rate")),
)  # fmt: skip
"""Along and about x, y and z: the positive and the negative way."""

_KNEELING = 0.15
"""Height of a knee, as a share of the robot's, below which the leg under it lies on the ground."""
_TURNING_ENOUGH = 1.5
"""Turning even faster only carries an agent off: its rate swings with every step of its legs, and
one that is paid up to a cap turns more than twice as fast as asked to stay above it."""

_STROKE_HEADROOM = 20.0
"""The peak of a swimming speed within a stroke, in multiples of its mean."""

_HEADING_VELOCITIES = (
    "({0} * np.cos({2}) + {1} * np.sin({2}))",
    "({1} * np.cos({2}) - {0} * np.sin({2}))",
)
"""The velocity {0}, {1} in the world, ahead and to the left of a robot with heading {2}."""

_AXIS_HEIGHTS = (
    "2 * ({1} * {3} - {0} * {2})",
    "2 * ({2} * {3} + {0} * {1})",
    "1 - 2 * ({1} ** 2 + {2} ** 2)",
)
"""The height of each axis of a frame that the quaternion {0} {1} {2} {3} turns."""


def _root_velocity_code(model: Morphology, axis: int) -> Code | None:
    """The root's velocity along x or y."""
    slide = model.root_axis("slide", axis)
    # What the environment calls velocity is the way of a whole step: no swing within it is missed.
    if (key := ("x_velocity", "y_velocity")[axis]) in model.spec.info_keys:
        return Code(f"{{{key}}}", f"{{{key}}}") if model.free or slide else None
    if model.free:
        return _free_velocity_code(model, axis)
    return (
        _apply_sign(slide[1], _state_code(model, "qvel", slide[0].qvel_address)) if slide else None
    )


def _free_velocity_code(model: Morphology, axis: int) -> Code:
    """Return a free root's velocity along a world axis, which a policy may see in its own frame."""
    assert model.free is not None
    assert model.root is not None
    code = _state_code(model, "qvel", model.free.qvel_address + axis)
    return Code(code.reward or f"{{body_velocity}}[..., {model.root.id}, {axis}]", code.judge)


def _travel_quantities(model: Morphology) -> Iterator[Quantity]:
    # In the water, every stroke also pulls back.
    headroom = 1.6 if model.height_joint else _STROKE_HEADROOM
    velocities = {axis: code for axis in range(2) if (code := _root_velocity_code(model, axis))}
    ways = velocities
    if not model.knows_heading:
        # Forward is where it faces: it cannot tell where +x of the world is.
        ways = {
            axis: _format_code(form, velocities[0], velocities[1], Code("{heading}", "{heading}"))
            for axis, form in enumerate(_HEADING_VELOCITIES)
        }
    for axis, code in ways.items():
        for (key, words), sign in zip(_SPEED_NAMES[axis], (1, -1), strict=True):
            symbol = f"{'-' if sign < 0 else ''}v_{'xy'[axis]}"
            yield Quantity(key, words, "m/s", _apply_sign(sign, code), symbol, headroom=headroom)
    if not velocities:
        return
    planar = len(velocities) == 2
    speed = _format_code("np.hypot({}, {})" if planar else "np.abs({})", *velocities.values())
    symbol = r"\|v_{xy}\|" if planar else r"\|v_x\|"
    yield Quantity("ground_speed", "speed over ground", "m/s", speed, symbol)
    assert model.root is not None
    parts = f"{{body_velocity}}[..., {_format_index([p.id for p in model.below(model.root)])}, :]"
    moving = f"np.mean(np.linalg.norm({parts}, axis=-1), axis=-1)"
    yield Quantity("parts_speed", "speed of its parts on average", "m/s", Code(moving, moving),
                   r"\overline{\|v\|}")  # fmt: skip
    yield _drift_quantity(model)
    turn = model.root_axis("hinge", 2)
    if planar and turn is not None:
        heading = _apply_sign(turn[1], _state_code(model, "qpos", turn[0].qpos_address))
        ahead = _format_code(_HEADING_VELOCITIES[0], *velocities.values(), heading)
        yield Quantity("ahead_speed", "speed in the direction it faces", "m/s", ahead, "v_h",
                       headroom=headroom)  # fmt: skip
    if planar and model.knows_heading:
        for axis, (key, words) in enumerate(_LINE_ERROR_NAMES):
            yield _line_error_quantity(model, axis, key, words)


def _drift_quantity(model: Morphology) -> Quantity:
    assert model.root is not None
    keys = model.spec.info_keys
    reward = "{distance_from_origin}" if "distance_from_origin" in keys else None
    if reward is None and "x_position" in keys and "y_position" not in keys:
        reward = "np.abs({x_position})"
    place = f"[..., {model.root.id}, :2]"
    judge = f"np.linalg.norm({{body_position}}{place} - {{body_position}}[:1]{place}, axis=-1)"
    slides = (model.root_axis("slide", axis) for axis in range(2))
    addresses = [slide[0].qpos_address for slide in slides if slide]
    if model.free:
        addresses = [model.free.qpos_address, model.free.qpos_address + 1]
    sees_its_place = all(_observation_code(model, f"qpos[{address}]") for address in addresses)
    return Quantity("drift", "distance from where it began", "m", Code(reward, judge),
                    r"\|x - x_0\|", episode_only=True,
                    felt_as="" if sees_its_place else "ground_speed")  # fmt: skip


def _line_error_quantity(model: Morphology, axis: int, key: str, words: str) -> Quantity:
    """Return how far it is from its line; the line is through the origin for a reward."""
    assert model.root is not None
    name = ("x_position", "y_position")[axis]
    place = f"[..., {model.root.id}, {axis}]"
    reward = f"np.abs({{{name}}})" if name in model.spec.info_keys else None
    judge = f"np.abs({{body_position}}{place} - {{body_position}}[:1]{place})"
    return Quantity(key, words, "m", Code(reward, judge), rf"\|{'xy'[axis]} - {'xy'[axis]}_0\|",
                    episode_only=True)  # fmt: skip


def _posture_quantities(model: Morphology) -> Iterator[Quantity]:
    root, joint = model.root, model.height_joint
    if root is None:
        return
    if joint is not None:
        climb = (
            _free_velocity_code(model, 2)
            if model.free
            else _state_code(model, "qvel", joint.qvel_address)
        )
        usual = None if model.starts_lying else model.standing_height
        yield Quantity("height", f"height of the {root.name}", "m", _root_height_code(model), "z",
                       headroom=3.0, usual=usual, ceiling=model.ceiling)  # fmt: skip
        yield Quantity("climb_speed", f"upward speed of the {root.name}", "m/s", climb, "v_z")
        yield Quantity("bounce", f"speed of the {root.name} up or down", "m/s",
                       _format_code("np.abs({})", climb), r"\|v_z\|")  # fmt: skip
    if "airborne" in model.spec.quantities:
        # What bounces is in the air: a reward needs no more than that.
        yield Quantity("flight", "share of time with nothing on the ground", "",
                       Code(None, "{airborne}"), episode_only=True)  # fmt: skip
    if model.spec.feet and not model.starts_lying:
        clearance = "np.min({foot_height}, axis=-1)"
        yield Quantity("clearance", "height of its lowest foot over the ground", "m",
                       Code(clearance, clearance), "h")  # fmt: skip
    yield from _contact_quantities(model)
    tilt = _root_tilt_code(model)
    if tilt is not None:
        # What has no weight may begin any way up, and has to feel from there which way is up.
        yield Quantity("tilt", f"tilt of the {root.name}", "rad", tilt, r"\theta",
                       full_cost=float(np.pi) if joint is None else 0.0)  # fmt: skip

    if model.free and model.front:
        for key, way, sign in (("front_up", "above", 1), ("front_down", "below", -1)):
            minus = "" if sign * model.front > 0 else "-"
            height = _axis_height_code(model, 2)
            angle = _format_code(f"np.arcsin(np.clip({minus}{{}}, -1.0, 1.0))", height)
            yield Quantity(key, f"angle of the {root.name}'s front {way} the horizontal", "rad",
                           angle, r"\phi" if sign > 0 else r"-\phi")  # fmt: skip
    for way, lean in _lean_quantities(model).items():
        words = f"angle by which the {root.name} leans {way}"
        yield Quantity(lean_key(way), words, "rad", lean, r"\phi")
    nose = _nose_angle_code(model)
    if nose is not None:
        yield Quantity("nose_up", f"angle of the {root.name}'s nose above the horizontal", "rad",
                       nose, r"\phi")  # fmt: skip


def _contact_quantities(model: Morphology) -> Iterator[Quantity]:
    """Yield what touches the ground besides what carries it, and how deep it is in the ground."""
    if model.starts_lying or "ground_contact" not in model.spec.quantities:
        return
    assert model.root is not None
    others = [part.id for part in model.below(model.root) if part.id not in model.spec.supports]
    if others and model.spec.supports:
        count = f"np.sum({{ground_contact}}[..., {_format_index(others)}], axis=-1)"
        with_shanks = count
        if shanks := [part.id for part in model.shanks]:
            # A foot that is the end of a leg's body: its contacts do not say what of it is down.
            knees = f"{{body_position}}[..., {_format_index(shanks)}, 2]"
            with_shanks += f" + np.sum({knees} < {_KNEELING * model.standing_height:.3g}, axis=-1)"
        yield Quantity("other_contacts", "number of parts on the ground that do not carry it", "",
                       Code(with_shanks if model.has_servos else count, with_shanks),
                       "n")  # fmt: skip
    yield Quantity("penetration", "depth of its lowest point in the ground", "m",
                   Code(None, "{penetration}"), "p", episode_only=True)  # fmt: skip


def lean_key(way: str) -> str:
    return f"lean_{way.rsplit(maxsplit=1)[-1]}"


def _lean_quantities(model: Morphology) -> Mapping[str, Code]:
    """Return the code of the lean to each side to which a standing model can lean."""
    hinge = model.root_axis("hinge", 1)
    if model.starts_lying or model.height_joint is None or model.up != (0.0, 0.0, 1.0):
        return {}
    if model.free:
        angle = "np.arcsin(np.clip({}, -1.0, 1.0))"
        ahead, left = (
            _format_code(angle.format(_AXIS_HEIGHTS[axis]), *_quaternion_codes(model))
            for axis in (0, 1)
        )
        return {"forward": _format_code("-{}", ahead), "backward": ahead,
                "to the right": left, "to the left": _format_code("-{}", left)}  # fmt: skip
    if hinge is None:
        return {}
    pitch = _apply_sign(hinge[1], _state_code(model, "qpos", hinge[0].qpos_address))
    return {"forward": pitch, "backward": _format_code("-{}", pitch)}


def _nose_angle_code(model: Morphology) -> Code | None:
    """Return how far the front end of one that is longer than high points up, -pi/2 to pi/2."""
    hinge = model.root_axis("hinge", 1)
    if not model.is_long or not (model.free or hinge):
        return None
    if model.free:
        return _format_code("np.arcsin(np.clip({}, -1.0, 1.0))", _axis_height_code(model, 0))
    assert hinge is not None
    sine = _apply_sign(-hinge[1], _trigonometric_code(model, "sin", hinge[0].qpos_address))
    return _format_code("np.arcsin({})", sine)


def _root_height_code(model: Morphology) -> Code:
    """Return the height of the root over the ground."""
    assert model.root is not None
    joint = model.height_joint
    assert joint is not None
    reward = _observation_code(model, f"qpos[{joint.qpos_address + (2 if model.free else 0)}]")
    if reward and not model.free and joint.height_offset:
        reward += f" + {joint.height_offset:g}"
    return Code(reward, f"{{body_position}}[..., {model.root.id}, 2]")


def _root_tilt_code(model: Morphology) -> Code | None:
    """Return how far the root's own upward axis leans from the vertical, 0 to pi."""
    if model.free:
        axis = int(np.argmax(np.abs(model.up)))
        sign = "" if model.up[axis] > 0 else "-"
        by_axis = _format_code(
            f"np.arccos(np.clip({sign}{{}}, -1.0, 1.0))", _axis_height_code(model, axis)
        )
        if model.up != (0.0, 0.0, 1.0):
            return by_axis
        # By half the angle: near 1 a cosine is blind in float32.
        half = "np.arcsin(np.clip(np.hypot({1}, {2}), 0.0, 1.0))"
        tilt = _format_code(f"2 * {half}", *_quaternion_codes(model))
        return by_axis if tilt.reward is None and by_axis.reward is not None else tilt
    hinge = model.root_axis("hinge", 1) or model.root_axis("hinge", 0)
    if hinge is None:
        return None
    return _format_code("np.arccos({})", _trigonometric_code(model, "cos", hinge[0].qpos_address))


def _trigonometric_code(model: Morphology, function: str, address: int) -> Code:
    """The sine or the cosine of an angle, which may be observed instead of the angle."""
    code = _format_code(f"np.{function}({{}})", _state_code(model, "qpos", address))
    return Code(code.reward or _observation_code(model, f"{function}(qpos[{address}])"), code.judge)


def _axis_height_code(model: Morphology, axis: int) -> Code:
    """Return how far one of a free root's own axes points up, -1 to 1."""
    assert model.root is not None
    code = _format_code(f"({_AXIS_HEIGHTS[axis]})", *_quaternion_codes(model))
    seen = _observation_code(model, f"xmat[{model.root.id}, {6 + axis}]")
    return Code(code.reward or seen, code.judge)


def _quaternion_codes(model: Morphology) -> list[Code]:
    """The quaternion of a free root."""
    assert model.free is not None
    return [_state_code(model, "qpos", model.free.qpos_address + 3 + k) for k in range(4)]


def _rotation_quantities(model: Morphology) -> Iterator[Quantity]:
    yield from _arm_rotation_quantities(model)
    for axis, ways in enumerate(_TURN_RATE_NAMES):
        hinge = model.root_axis("hinge", axis)
        flips = axis == 1 and not model.free
        if model.free:
            rate, sign = _state_code(model, "qvel", model.free.qvel_address + 3 + axis), 1.0
            if axis == 2:  # about the vertical of the world, which is not that of one that leans
                turning = _yaw_rate_code(model)
                rate = Code(turning.reward or rate.reward, turning.judge)
        elif hinge is None:
            continue
        elif flips:
            rate, sign = _angle_per_step_code(model, hinge[0].qpos_address), hinge[1]
        else:
            rate, sign = _state_code(model, "qvel", hinge[0].qvel_address), hinge[1]
        for (key, words), way in zip(ways, (sign, -sign), strict=True):
            symbol = (r"\omega_" if way > 0 else r"-\omega_") + "xyz"[axis]
            # In the water, every stroke turns it to and fro: only the mean says where it goes.
            on_legs = model.height_joint is not None
            yield Quantity(key, words, "rad/s", _apply_sign(way, rate), symbol, episode_only=flips,
                           headroom=1.6 if on_legs else _STROKE_HEADROOM,
                           enough=_TURNING_ENOUGH if axis == 2 and on_legs else None)  # fmt: skip


def _arm_rotation_quantities(model: Morphology) -> Iterator[Quantity]:
    """How fast an arm on a base turns about the vertical."""
    if (wheel := model.turning_thing) is not None and wheel.axis:
        # Seen from above, or from the front, where x points to the right.
        way = wheel.axis[2] or -wheel.axis[1]
        rate = _state_code(model, "qvel", wheel.qvel_address)
        for (key, words), sign in zip(_TURN_RATE_NAMES[2], (way, -way), strict=True):
            yield Quantity(key, f"{words} of the {wheel.body}", "rad/s", _apply_sign(sign, rate),
                           r"\dot q")  # fmt: skip
        return
    hinge = next(
        (j for j in model.driven if j.type == "hinge" and j.axis and abs(j.axis[2]) > 0.99), None
    )
    if model.root is not None or model.poles or hinge is None or hinge is not model.driven[0]:
        return
    assert hinge.axis is not None
    rate = _state_code(model, "qvel", hinge.qvel_address)
    for (key, words), way in zip(_TURN_RATE_NAMES[2], (hinge.axis[2], -hinge.axis[2]), strict=True):
        yield Quantity(key, f"{words} of the arm", "rad/s", _apply_sign(way, rate), r"\dot q")


def _yaw_rate_code(model: Morphology) -> Code:
    """The rate about the world's vertical; for a reward, where the policy observes how it leans."""
    assert model.free is not None
    first = model.free.qvel_address + 3
    rates = [_state_code(model, "qvel", first + axis) for axis in range(3)]
    heights = [_axis_height_code(model, axis) for axis in range(3)]
    form = " + ".join(f"{{{axis}}} * {{{3 + axis}}}" for axis in range(3))
    return _format_code(f"({form})", *heights, *rates)


def _angle_per_step_code(model: Morphology, address: int) -> Code:
    """Return how fast a hinge turns, by how far it came within a step.

    An agent that trembles in time with the steps has the same speed at the end of each, and gets
    nowhere; by speeds it would have flipped over.
    """
    index, dt = model.observation_index(f"qpos[{address}]"), f"{model.spec.dt:.6g}"
    reward = f"({{next_obs}}[..., {index}] - {{obs}}[..., {index}]) / {dt}"
    angle = f"{{qpos}}[..., {address}]"
    judge = f"np.diff({angle}, prepend={angle}[:1]) / {dt}"
    return Code(None if index is None else reward, judge)


# --- parts: poles, targets, limbs, actuators ------------------------------------------------------


def _pole_quantities(model: Morphology) -> Iterator[Quantity]:
    if not model.poles:
        return
    angles = [_state_code(model, "qpos", pole.qpos_address) for pole in model.poles]
    tilt = _format_code("np.abs({})", angles[0])
    phases = [_pole_rest_angle(pole) for pole in model.poles]
    if len(angles) > 1 or tilt.reward is None or any(phases):
        # The angle of a pole is against the one below it.
        sums = (" + ".join(a.judge for a in angles[: k + 1]) for k in range(len(angles)))
        leans = [
            f"np.arccos(np.clip(np.cos({total} + {phase:.6g}), -1.0, 1.0))"
            for total, phase in zip(sums, phases, strict=True)
        ]
        tilt = Code(_pole_tilt_code(model), f"np.max([{', '.join(leans)}], axis=0)")
    yield Quantity("pole_tilt", "lean of the pole that leans most", "rad", tilt, r"\|\theta\|",
                   full_cost=0.0, span=float(np.pi) if model.hangs else None)  # fmt: skip
    cart = model.cart
    if cart is None:
        return
    offset = _format_code("np.abs({})", _state_code(model, "qpos", cart.qpos_address))
    speed = _format_code("np.abs({})", _state_code(model, "qvel", cart.qvel_address))
    rail = max(abs(end) for end in cart.range) if cart.range else 1.0
    yield Quantity("cart_offset", "distance of the cart from the middle", "m", offset, r"\|x\|",
                   full_cost=rail if model.hangs else 0.0)  # fmt: skip
    yield Quantity("cart_speed", "speed of the cart", "m/s", speed, r"\|v\|")
    place = _state_code(model, "qpos", cart.qpos_address)
    for side, sign, symbol in (("right", 1.0, ""), ("left", -1.0, "-")):
        yield Quantity(f"cart_{side}", f"offset of the cart to the {side}", "m",
                       _apply_sign(sign, place), f"{symbol}x")  # fmt: skip


def _pole_rest_angle(pole: JointEntry) -> float:
    """Return how far a pole is from upright in its resting pose, in the sense of its joint."""
    aside = float(np.cross(pole.axis or (0.0, 1.0, 0.0), pole.lever)[2])
    angle = float(np.arctan2(-aside, pole.lever[2])) if any(pole.lever) else 0.0
    return 0.0 if abs(angle) < 1e-6 else angle - pole.rest[0]


def _pole_tilt_code(model: Morphology) -> str | None:
    """The lean of the poles from the sines and cosines of all, which is what is observed."""
    sine, cosine = "0.0", "1.0"
    leans = []
    for number, pole in enumerate(model.poles):
        source = f"qpos[{pole.qpos_address}]"
        angle = _observation_code(model, source)
        s = f"np.sin({angle})" if angle else _observation_code(model, f"sin({source})")
        c = f"np.cos({angle})" if angle else _observation_code(model, f"cos({source})")
        if s is None or c is None:
            return None
        sums = f"({sine} * {c} + {cosine} * {s})", f"({cosine} * {c} - {sine} * {s})"
        sine, cosine = sums if number else (s, c)
        up = cosine
        if phase := _pole_rest_angle(pole):
            up = f"({np.cos(phase):.6g} * {cosine} - {np.sin(phase):.6g} * {sine})"
        leans.append(f"np.arccos(np.clip({up}, -1.0, 1.0))")
    return leans[0] if len(leans) == 1 else f"np.max([{', '.join(leans)}], axis=0)"


def _target_quantities(model: Morphology) -> Iterator[Quantity]:
    """Distances to what is to be reached or pushed."""
    goal, thing, hand = model.goal, model.find_body(*OBJECTS), model.hand
    if goal is None or hand is None:
        return
    yield _distance_quantity(model, "target_distance", thing or hand, goal)
    if thing is not None:
        yield _distance_quantity(model, "hand_distance", hand, thing)
        place = f"{{body_position}}[..., {thing.id}, :]"
        code = f"np.linalg.norm({place} - {{body_position}}[:1][..., {thing.id}, :], axis=-1)"
        yield Quantity("object_drift", f"distance of the {thing.name} from where it began", "m",
                       Code(None, code), "d_0", episode_only=True)  # fmt: skip
    elif isinstance(goal, BodyEntry):
        yield from _orbit_quantities(model, hand, goal)


def _observed_offset(model: Morphology, a: BodyEntry, b: BodyEntry, axis: int) -> str | None:
    """Return how far one is from the other along an axis, up to its sign, as observed."""
    first, second = f"xpos[{a.id}, {axis}]", f"xpos[{b.id}, {axis}]"
    one, other = _observation_code(model, first), _observation_code(model, second)
    return (
        _observation_code(model, f"{first} - {second}")
        or _observation_code(model, f"{second} - {first}")
        or (f"({one} - {other})" if one and other else None)
    )


def _distance_quantity(
    model: Morphology, key: str, a: BodyEntry, b: BodyEntry | GeomEntry
) -> Quantity:
    gaps: list[str] = []
    there = f"np.array({list(b.position)})" if isinstance(b, GeomEntry) else ""
    if isinstance(b, BodyEntry):
        gaps = [gap for axis in range(3) if (gap := _observed_offset(model, a, b, axis))]
        there = f"{{body_position}}[..., {b.id}, :]"
    squares = " + ".join(f"{gap} ** 2" for gap in gaps)
    ends = (f"{{body_position}}[..., {a.id}, :]", there)
    judge = f"np.linalg.norm({' - '.join(ends)}, axis=-1)"
    code = Code(f"np.sqrt({squares})" if gaps else None, judge)
    # A hand that is elsewhere pushes nothing.
    return Quantity(key, f"distance of the {a.name} from the {b.name}", "m", code, "d",
                    span=model.length,
                    least_weight=0.5 if key == "hand_distance" else 0.0)  # fmt: skip


def _orbit_quantities(model: Morphology, hand: BodyEntry, goal: BodyEntry) -> Iterator[Quantity]:
    """How fast the hand goes round the target, seen from above."""
    dt = f"{model.spec.dt:.6g}"
    seen = [_observed_offset(model, hand, goal, axis) for axis in range(2)]
    turned = "np.arctan2({0} * {3} - {1} * {2}, {0} * {2} + {1} * {3}) / " + dt
    reward = None
    if seen[0] and seen[1]:
        now = [str(gap) for gap in seen]
        reward = turned.format(*(gap.replace("{next_obs}", "{obs}") for gap in now), *now)
    arm = f"({{body_position}}[..., {hand.id}, %d] - {{body_position}}[..., {goal.id}, %d])"
    x, y = arm % (0, 0), arm % (1, 1)
    judge = f"np.diff(np.unwrap(np.arctan2({y}, {x})), prepend=np.arctan2({y}, {x})[:1]) / {dt}"
    for key, way, sign in (
        ("orbit_left", "counterclockwise", 1.0),
        ("orbit_right", "clockwise", -1.0),
    ):
        words = f"{way} rate of the {hand.name} around the {goal.name}"
        yield Quantity(f"{key}_rate", words, "rad/s", _apply_sign(sign, Code(reward, judge)),
                       r"\dot\alpha", episode_only=True, about="target_distance",
                       turning=2 * np.pi / (model.horizon * model.spec.dt))  # fmt: skip


def _limb_quantities(model: Morphology) -> Iterator[Quantity]:
    """How high each limb is, and left against right."""
    if model.root is None or model.height_joint is None:
        return
    for part in model.below(model.root)[1:]:
        if model.chain(part):
            name = part.name.replace("_", " ")
            place = f"{{body_com}}[..., {part.id}, 2] - {{body_position}}[..., {model.root.id}, 2]"
            code = Code(place, place)
            symbol = rf"h_\mathrm{{{part.name.replace('_', '')}}}"
            yield Quantity(rise_key(part), f"height of the {name} over the {model.root.name}", "m",
                           code, symbol, stretch=model.limb_length(part))  # fmt: skip
            if model.rests_on(part):
                feet = [foot.body for foot in model.spec.feet]
                height = f"{{foot_height}}[..., {feet.index(part.id)}]"
                yield Quantity(lift_key(part), f"height of the {name} over the ground", "m",
                               Code(height, height), symbol)  # fmt: skip
    gaps = [
        _format_code("np.abs({} - {})" if sign > 0 else "np.abs({} + {})",
                 *(_state_code(model, "qpos", joint.qpos_address) for joint in (left, right)))
        for left, right, sign in _find_mirror_pairs(model)
    ]  # fmt: skip
    if gaps:
        mean = _format_code(f"({' + '.join(['{}'] * len(gaps))}) / {len(gaps)}", *gaps)
        yield Quantity("asymmetry", "difference between the left and the right joints", "rad",
                       mean, r"\|q_l - q_r\|")  # fmt: skip
    yield from _stride_quantities(model)


def _stride_quantities(model: Morphology) -> Iterator[Quantity]:
    """How far the left leg is ahead of the right one, and which side moves least."""
    for left, right, _ in _find_mirror_pairs(model) if len(model.spec.feet) <= 2 else ():
        body = next(body for body in model.spec.bodies if body.name == left.body)
        lateral = left.axis[1] if left.axis else 0.0
        if abs(lateral) > 0.7 and any(model.rests_on(end) for end in model.ends(body)):
            form = "({1} - {0})" if lateral > 0 else "({0} - {1})"
            lead = _format_code(
                form, *(_state_code(model, "qpos", j.qpos_address) for j in (left, right))
            )
            yield Quantity("stride", "lead of the left leg over the right", "rad", lead,
                           r"q_l - q_r")  # fmt: skip
            words = "angle of the leg that swings less from its mean"
            yield _idle_angle_quantity("lazy_leg", words, [[left], [right]])
            return
    sides = model.leg_joints_by_side
    if len(sides) == 2:
        words = "angle of the livelier leg of the side that moves less, from its mean"
        yield _idle_angle_quantity("lazy_side", words, sides)


def _idle_angle_quantity(key: str, words: str, groups: Sequence[Sequence[JointEntry]]) -> Quantity:
    """The joint that moves most of the group that moves least: one leg can carry off another."""
    addresses = (_format_index([joint.qpos_address for joint in group]) for group in groups)
    columns = [
        f"(lambda q: q[..., int(np.argmax(np.std(q, axis=0)))])({{qpos}}[..., {where}])"
        for where in addresses
    ]
    livelier = f"np.stack([{', '.join(columns)}], axis=-1)"
    lazy = f"(lambda q: q[..., int(np.argmin(np.std(q, axis=0)))])({livelier})"
    return Quantity(key, words, "rad", Code(None, f"{lazy} - np.mean({lazy})"), r"q - \bar q",
                    episode_only=True, felt_as="stride")  # fmt: skip


def rise_key(part: BodyEntry) -> str:
    """The key of how high a part is."""
    return "rise_" + re.sub(r"\W", "_", part.name.lower())[:34]


def lift_key(part: BodyEntry) -> str:
    """The key of how high a part that it stands on is over the ground."""
    return "lift_" + rise_key(part).removeprefix("rise_")


def _find_mirror_pairs(model: Morphology) -> Iterator[tuple[JointEntry, JointEntry, int]]:
    """Yield pairs of left and right joints, with -1 if their mirror images turn opposite ways."""
    by_name = {joint.name: joint for joint in model.driven if joint.type == "hinge"}
    for name, left in by_name.items():
        twins = [name.replace("left", "right"), name.replace("_left", ""),
                 name.replace("left_", "")]  # fmt: skip
        twin = next((by_name[other] for other in twins if other != name and other in by_name), None)
        if twin is not None:
            a, b = left.range, twin.range
            flipped = a and b and np.allclose(a, (-b[1], -b[0])) and not np.allclose(a, b)
            yield left, twin, -1 if flipped else 1


def _gait_quantities(model: Morphology) -> Iterator[Quantity]:
    for key, words, unit, reward, judge, memory in gait_codes(model):
        quantity = Quantity(key, words, unit, Code(reward, judge), episode_only=True, memory=memory)
        if key in ("least_stance", "least_swing"):
            # Whoever never sets a foot down, or lifts it, is told so by nothing else; one that does
            # so all the time is paid no more than one that walks.
            # A tenth of the time is the least that is asked of a swing; a walk has three.
            more = 2.0 if key == "least_swing" else 1.0
            quantity = replace(quantity, least_weight=0.3, headroom=more)
        yield quantity


def _effort_quantities(model: Morphology) -> Iterator[Quantity]:
    highs = [max(abs(a.high or 1.0), abs(a.low or 1.0)) for a in model.spec.actions]
    if len(set(highs)) > 1:
        action = f"{{action}} / np.array({[round(high, 6) for high in highs]})"
    else:
        action = "{action}" if highs[0] == 1.0 else f"{{action}} / {highs[0]:g}"
    square = f"np.mean(np.square({action}), axis=-1)"
    change = f"np.mean(np.abs(np.diff({action}, axis=0, prepend=({action})[:1])), axis=-1) / 2"
    before = [
        column
        for number in range(len(highs))
        if (column := model.observation_index(f"action[{number}]")) is not None
    ]
    observed_change = None
    if len(before) == len(highs) and set(highs) == {1.0}:
        last = f"{{obs}}[..., {_format_index(before)}]"
        observed_change = f"np.mean(np.abs({{action}} - {last}), axis=-1) / 2"
    # A servo's target can leap, and a leap costs nothing by itself; a motor's force is spent. Nor
    # has it a strongest action: a cost that ends at 1 would let the noise of exploration grow.
    yield Quantity("effort", "effort (mean square of the actions, as a share of the strongest)",
                   "", Code(square, square), r"\overline{a^2}",
                   least_weight=1.2 if model.has_servos else 0.0,
                   full_cost=4.0 if model.has_servos else 1.0)  # fmt: skip
    yield Quantity("action_change", "change of the actions from step to step, as a share of their "
                   "range", "", Code(observed_change, change), r"\|\Delta a\|", episode_only=True,
                   least_weight=1.0 if model.has_servos else 0.0)  # fmt: skip
    yield from _joint_strain_quantities(model)
    columns = [joint.qvel_address for joint in model.driven if joint.type == "hinge"]
    if columns:
        seen = [
            index for c in columns if (index := model.observation_index(f"qvel[{c}]")) is not None
        ]
        rms = "np.sqrt(np.mean(np.square({}[..., {}]), axis=-1))"
        full = len(seen) == len(columns)
        reward = rms.format("{next_obs}", _format_index(seen)) if full else None
        judge = rms.format("{qvel}", _format_index(columns))
        yield Quantity("joint_speed", "speed of the joints (root mean square)", "rad/s",
                       Code(reward, judge), r"\|\dot q\|")  # fmt: skip


_REVERSAL_ANGLE = 0.01
"""The least joint movement in a step, in rad, that counts as a reversal; less is noise."""
_STOP_MARGIN = 0.02
"""The distance from a stop, as a share of the range, that counts as being at it."""


def _joint_strain_quantities(model: Morphology) -> Iterator[Quantity]:
    """Joints that tremble from step to step, or are pressed against their stops."""
    hinges = [joint for joint in model.driven if joint.type == "hinge"]
    if not hinges:
        return
    angles = f"{{qpos}}[..., {_format_index([joint.qpos_address for joint in hinges])}]"
    moved = f"np.diff({angles}, axis=0, prepend=({angles})[:1])"
    back = (
        f"(lambda d: np.mean((d * np.roll(d, 1, axis=0) < 0) & (np.abs(d) > {_REVERSAL_ANGLE})"
        f" & (np.abs(np.roll(d, 1, axis=0)) > {_REVERSAL_ANGLE}), axis=-1))({moved})"
    )
    yield Quantity("reversals", "share of the joints that turn back from one step to the next", "",
                   Code(None, back), r"\rho", episode_only=True)  # fmt: skip
    free = [joint for joint in hinges if joint.range and _starts_within_range(joint)]
    if free:
        angles = f"{{qpos}}[..., {_format_index([joint.qpos_address for joint in free])}]"
        lows, highs = zip(*((j.range or (0.0, 0.0)) for j in free), strict=True)
        near = [_STOP_MARGIN * (high - low) for low, high in zip(lows, highs, strict=True)]
        low = [round(edge + by, 4) for edge, by in zip(lows, near, strict=True)]
        high = [round(edge - by, 4) for edge, by in zip(highs, near, strict=True)]
        code = f"np.mean(({angles} < np.array({low})) | ({angles} > np.array({high})), axis=-1)"
        yield Quantity("at_stops", "share of the joints at their stops", "",
                       Code(None, code), "s", episode_only=True)  # fmt: skip


def _starts_within_range(joint: JointEntry) -> bool:
    """Return whether a joint starts well within its range, and not at one of its stops."""
    assert joint.range is not None
    low, high = joint.range
    return low + 0.05 * (high - low) < joint.rest[0] < high - 0.05 * (high - low)
