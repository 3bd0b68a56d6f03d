"""Gaits, measured by the phases of the feet's touch-downs.

The functions that `judge_functions` gives are also the text of every judge that needs them, which
has NumPy and the trajectory, and nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from p2p.agents.builtin.morphology import Morphology

Phases = tuple[float, ...]
LF, RF, LH, RH = range(4)
"""Places of the feet in a pattern: left and right, front and hind."""


@dataclass(frozen=True, slots=True)
class Gait:
    """When each foot touches down, as a share of the stride."""

    patterns: tuple[Phases, ...]
    """Any of them, in the order LF, RF, LH, RH; of two legs, left and right."""
    aloft: tuple[float, float] = (0.0, 1.0)
    """Which share of the time no foot is on the ground."""
    duty: float = 0.0
    """Which share of the time a foot is on the ground, at least."""


_FOUR_BEATS = ((0.25, 0.75, 0.0, 0.5), (0.75, 0.25, 0.0, 0.5))
_SPREADS = (0.35, 0.5, 0.65)
FOUR_LEGS: Mapping[str, Gait] = {
    "walk": Gait(_FOUR_BEATS, aloft=(0.0, 0.05), duty=0.5),
    "amble": Gait(_FOUR_BEATS, aloft=(0.0, 0.05)),
    "trot": Gait(((0.0, 0.5, 0.5, 0.0),)),
    "pace": Gait(((0.0, 0.5, 0.0, 0.5),)),
    "pronk": Gait(((0.0, 0.0, 0.0, 0.0),)),
    "bound": Gait(tuple((0.0, 0.0, spread, spread) for spread in _SPREADS)),
    "gallop": Gait(
        tuple(
            (spread, spread + front, 0.0, hind)
            for spread, front, hind in product(_SPREADS, (-0.12, 0.12), (-0.12, 0.12))
        ),
        aloft=(0.02, 1.0),
    ),
    # Three beats: one foot, a diagonal pair, the last foot; horses begin with a hind foot.
    "canter": Gait(
        tuple(
            pattern
            for beat in (-0.36, -0.25, 0.25, 0.36)
            for pattern in ((beat, 2 * beat, 0.0, beat), (2 * beat, beat, beat, 0.0))
        )
    ),
}
TWO_LEGS: Mapping[str, Gait] = {
    "walk": Gait(((0.0, 0.5),), aloft=(0.0, 0.05), duty=0.5),
    "amble": Gait(((0.0, 0.5),), aloft=(0.0, 0.05), duty=0.5),
    "steps": Gait(((0.0, 0.5),)),
    "pronk": Gait(((0.0, 0.0),)),
}
"""`steps` is one foot after the other, in flight or not."""

NEAR = 0.4
"""The match from which on a gait is the one that is meant: 0.15 of the cycle off."""
FLICKER_SECONDS = 0.04
"""A foot that is on or off the ground for less neither stands nor swings."""
SET_DOWN = 0.005
"""At which height of its lowest point a foot is on the ground, in m."""
LIFT_SECONDS = 1.5
"""Within which every foot that steps is lifted."""
STEP_SECONDS = 2.0
"""Within which every foot that steps both stands and swings."""
VEER_SECONDS = 3.0
"""Over which a turning rate is no swaying of its strides."""
LIFTED = 0.01
"""How high a foot is that swings, as a share of the robot's height: what slides stays below it."""


def settle_contact(contact: np.ndarray, on: int, off: int) -> np.ndarray:
    """Contacts without those shorter than `on` steps and without gaps shorter than `off`."""
    settled = np.asarray(contact, dtype=float) > 0.5
    for foot in range(settled.shape[1]):
        for value, least in ((False, off), (True, on)):
            column = settled[:, foot]
            edges = np.flatnonzero(np.diff(column.astype(int))) + 1
            for first, last in zip(edges[:-1], edges[1:], strict=True):  # noqa: RUF007 - judge text
                if column[first] == value and last - first < least:
                    column[first:last] = not value
    return settled


def match_gait(
    contact: np.ndarray,
    patterns: tuple[tuple[float, ...], ...],
    aloft: tuple[float, float],
    duty: float,
    on: int,
    off: int,
) -> np.ndarray:
    """Return how well the touch-downs around each step follow one of the patterns, 0 to 1.

    A stride lasts from one touch-down of the first foot to its next. The phases of the others are
    their circular means over five strides; a pair that is a quarter of the cycle off gives 0.
    """
    down = settle_contact(contact, on, off)
    match = np.zeros(len(down))
    landings = [np.flatnonzero(foot[1:] & ~foot[:-1]) + 1 for foot in down.T]
    starts = landings[0]
    for stride in range(len(starts) - 1):
        first, last = max(0, stride - 2), min(len(starts) - 1, stride + 3)
        length = starts[stride + 1] - starts[stride]
        usual = np.median(np.diff(starts[first : last + 1]))
        inside = down[starts[first] : starts[last]]
        in_air = np.mean(~inside.any(axis=1))
        steady = length <= 2 * usual and aloft[0] <= in_air <= aloft[1]
        phases = []
        for times in landings:
            seen = times[(times >= starts[first]) & (times < starts[last])]
            place = np.searchsorted(starts, seen, side="right") - 1
            turn = np.exp(2j * np.pi * (seen - starts[place]) / np.diff(starts)[place])
            steady &= abs(len(seen) - (last - first)) <= 1 and len(seen) > 0
            steady &= bool(np.abs(np.sum(turn)) >= 0.5 * len(seen))
            phases.append(np.angle(np.sum(turn)) / (2 * np.pi))
        if not steady or np.mean(inside) < duty:
            continue
        worst = [
            max(
                abs((phases[i] - phases[j] - pattern[i] + pattern[j] + 0.5) % 1.0 - 0.5)
                for i in range(len(phases))
                for j in range(i)
            )
            for pattern in patterns
        ]
        begin = starts[stride] - length * (stride == 0)
        end = starts[stride + 1] + length * (stride == len(starts) - 2)
        match[max(0, begin) : end] = max(0.0, 1.0 - 4.0 * min(worst))
    return match


def match_skip(contact: np.ndarray, on: int, off: int) -> np.ndarray:
    """Return how well the touch-downs around each step come in twos of one foot, 0 to 1."""
    down = settle_contact(contact, on, off)
    match = np.zeros(len(down))
    times, feet = np.nonzero(down[1:] & ~down[:-1])
    again = feet[1:] == feet[:-1]
    for landing in range(1, len(again)):
        match[times[landing] : times[landing + 1]] = again[landing - 1] != again[landing]
    return match


def count_landings(contact: np.ndarray, on: int, off: int) -> np.ndarray:
    """Return how many feet touch down again at each step, after they have stood."""
    down = settle_contact(contact, on, off)
    landings = np.zeros(len(down))
    landings[1:] = np.sum(down[1:] & ~down[:-1] & (np.cumsum(down[:-1], axis=0) > 0), axis=1)
    return landings


def match_stride(contact: np.ndarray, place: np.ndarray, on: int, off: int) -> np.ndarray:
    """How far it gets between two touch-downs of a foot, the mean of all feet, at each step."""
    down = settle_contact(contact, on, off)
    way = np.zeros(down.shape)
    for foot in range(down.shape[1]):
        landings = np.flatnonzero(down[1:, foot] & ~down[:-1, foot]) + 1
        for first, last in zip(landings[:-1], landings[1:], strict=True):  # noqa: RUF007 - judge text
            way[first:last, foot] = np.linalg.norm(place[last] - place[first])
    return np.asarray(np.mean(way, axis=1))


def judge_functions(code: str) -> str:
    """The source of the functions above that this code of a judge calls."""
    used = [f for f in (match_gait, match_skip, count_landings, match_stride) if f.__name__ in code]
    return "\n\n".join(map(inspect.getsource, (settle_contact, *used))) if used else ""


class Memory(NamedTuple):
    """What a reward remembers from step to step: code over `start`, itself and the columns."""

    name: str
    update: str


class GaitCode(NamedTuple):
    """What a quantity of a gait is made of: templates over the columns of a trajectory."""

    key: str
    words: str
    unit: str
    reward: str | None
    judge: str
    memory: Memory | None = None


def order_feet(model: Morphology) -> tuple[int, ...] | None:
    """Return each foot's place in a gait pattern, or None if no pattern fits the legs.

    Two feet behind one another are the left side of four.
    """
    feet = model.spec.feet
    if model.starts_lying or model.height_joint is None or len(feet) not in (2, 4):
        return None
    points = np.array([foot.lowest_point for foot in feet])
    x, y, _ = (points - points.mean(axis=0)).T
    if len(feet) == 4:
        places = tuple(
            (LF if ahead else LH) + (not left) for ahead, left in zip(x > 0, y > 0, strict=True)
        )
        return places if len(set(places)) == 4 else None
    if abs(x[0]) > 0.1 * model.length:
        return (LF, LH) if x[0] > 0 else (LH, LF)
    if abs(y[0]) > 1e-3:
        return (LF, RF) if y[0] > 0 else (RF, LF)
    lefts = [f"{foot.name} {model.spec.bodies[foot.body].name}".lower() for foot in feet]
    return (RF, LF) if "left" in lefts[1] else (LF, RF)


def gaits_of(model: Morphology) -> Mapping[str, Gait]:
    """The gaits that can be told on these legs, with the phases in the order of its feet."""
    places = order_feet(model)
    if places is None:
        return {}
    table = TWO_LEGS if set(places) == {LF, RF} else FOUR_LEGS
    return {
        name: Gait(tuple(tuple(each[place] for place in places) for each in gait.patterns),
                   gait.aloft, gait.duty)
        for name, gait in table.items()
    }  # fmt: skip


def gait_codes(model: Morphology) -> Iterator[GaitCode]:
    """Return the code of each gait's match, and of the height of the feet."""
    dt = model.spec.dt
    # Where a step is long, a contact of one step is a stance; a gap of one is no swing.
    on = max(1, round(FLICKER_SECONDS / dt))
    off = max(2, on)
    for name, gait in gaits_of(model).items():
        words = f"match of the touch-downs with {_NAMES.get(name, f'the gait “{name}”')}"
        shape = f"{gait.patterns!r}, {gait.aloft!r}, {gait.duty}, {on}, {off}"
        reward = _agreement(gait) if name not in _SEEN_LATER else None
        yield GaitCode(f"{name}_match", words, "", reward,
                       f"match_gait({{foot_contact}}, {shape})")  # fmt: skip
    gaits = gaits_of(model)
    if alternating := gaits.get("trot") or gaits.get("steps"):
        phases = alternating.patterns[0]
        halves = ([i for i, phase in enumerate(phases) if phase == one] for one in (0.0, 0.5))
        lifts = (f"np.mean({{foot_height}}[..., {half}], axis=-1)" for half in halves)
        lead = f"({' - '.join(lifts)})"
        yield GaitCode("lift_lead", "lead in height of one half of its feet over the other", "m",
                       lead, lead)  # fmt: skip
    if set(order_feet(model) or ()) == {LF, RF}:
        yield GaitCode("skip_match", "match of the touch-downs with skipping", "", None,
                       f"match_skip({{foot_contact}}, {on}, {off})")  # fmt: skip
    if model.spec.feet and not model.starts_lying:
        lift = f"np.min({_windows('{foot_height}', LIFT_SECONDS, dt)}.max(axis=-1), axis=-1)"
        yield GaitCode("foot_lift", f"lift of the foot that is lifted least, within {LIFT_SECONDS} "
                       "s", "m", None, lift)  # fmt: skip
        least = "(lambda s: np.min(s, axis=-1) / np.maximum(np.mean(s, axis=-1), 1e-3))({})"
        stance = f"{_windows('{foot_contact}', STEP_SECONDS, dt)}.mean(axis=-1)"
        yield GaitCode("least_stance", "time on the ground of the foot that is there least, as a "
                       f"share of the mean of all feet, within {STEP_SECONDS:g} s", "",
                       least.format("self._stance"), least.format(stance),
                       _fading_mean("self._stance", "{foot_contact}", dt))  # fmt: skip
        height = LIFTED * model.standing_height
        lifted = f"({{foot_height}} > {height:.3g})"
        swing = f"np.min({_windows(lifted, STEP_SECONDS, dt)}.mean(axis=-1), axis=-1)"
        # Stiff legs can vibrate over the ground; where forces move the legs, a gait lifts the feet.
        paid = ("np.min(self._swing, axis=-1)", _fading_mean("self._swing", lifted, dt))
        reward, memory = paid if model.has_servos else (None, None)
        yield GaitCode("least_swing", f"share of the time, within {STEP_SECONDS:g} s, in which the "
                       f"foot that is lifted least is over {height:.2g} m", "",
                       reward, swing, memory)  # fmt: skip
    if model.spec.feet and not model.starts_lying and model.root is not None:
        yield GaitCode("landings", "number of feet that touch down", "", None,
                       f"count_landings({{foot_contact}}, {on}, {off})")  # fmt: skip
        place = f"{{body_position}}[..., {model.root.id}, :2]"
        yield GaitCode("stride_length", "length of its strides", "m", None,
                       f"match_stride({{foot_contact}}, {place}, {on}, {off})")  # fmt: skip
        most = f"int(np.argmax(np.sum({{foot_height}} > {SET_DOWN}, axis=0)))"
        yield GaitCode("spare_foot", "height of the foot that is off the ground most", "m",
                       "np.max({foot_height}, axis=-1)",
                       f"{{foot_height}}[..., {most}]")  # fmt: skip
    if "heading" in model.spec.quantities:
        for way, sign in (("left", ""), ("right", "-")):
            now = f"{sign}{{heading}}"
            within = f"np.mod({now} + np.pi / 2, 2 * np.pi) - np.pi / 2"
            yield GaitCode(f"turned_{way}", f"angle by which it has turned to the {way}", "rad",
                           within if model.knows_heading else None,
                           f"{sign}(np.unwrap({{heading}}) - {{heading}}[:1])")  # fmt: skip
        angle = "np.abs(np.arctan2(np.sin({0}), np.cos({0})))"
        began = Memory("self._began_facing", "np.where(start, {heading}, self._began_facing)")
        yield GaitCode("facing", "angle between where it faces and where it faced at the start",
                       "rad", angle.format("{heading} - self._began_facing"),
                       angle.format("{heading} - {heading}[:1]"), began)  # fmt: skip
        if not model.knows_heading:
            # How far its heading is ahead of a mean that follows it is seen in what it does now:
            # a step's own rate is mostly sway, and what it has turned so far it cannot know.
            ahead = "np.arctan2(np.sin({heading} - self._faced), np.cos({heading} - self._faced))"
            follow = f"self._faced + {min(1.0, dt / VEER_SECONDS):.4g} * {ahead}"
            yield GaitCode(
                "veer",
                f"counterclockwise turning rate over {VEER_SECONDS:g} s",
                "rad/s",
                f"{ahead} / {VEER_SECONDS:g}",
                f"np.diff(np.unwrap({{heading}}), prepend={{heading}}[:1]) / {dt:.6g}",
                Memory("self._faced", f"np.where(start, {{heading}}, {follow})"),
            )


def _fading_mean(name: str, values: str, dt: float) -> Memory:
    """What a reward knows of the share of time of each foot: a mean that forgets."""
    new = min(1.0, 2 * dt / STEP_SECONDS)
    fading = f"{1 - new:.4g} * {name} + {new:.4g} * {values}"
    return Memory(name, f"np.where(start[..., None], 0.5, {fading})")


def _windows(values: str, seconds: float, dt: float) -> str:
    """Code of the steps around each step, on a last axis."""
    size = max(2, round(seconds / dt))
    ends = f"(({size // 2}, {size - 1 - size // 2}), (0, 0))"
    padded = f"np.pad(1.0 * {values}, {ends}, mode='edge')"
    return f"np.lib.stride_tricks.sliding_window_view({padded}, {size}, axis=0)"


_NAMES = {"walk": "a walk", "trot": "a trot", "pace": "a pace", "bound": "a bound",
          "gallop": "a gallop", "canter": "a canter", "amble": "an amble",
          "pronk": "all feet together", "steps": "steps of one foot after the other"}  # fmt: skip
_SEEN_LATER = frozenset({"walk", "amble", "gallop", "canter"})
"""Gaits of which one step says too little: what goes ahead has to find them."""


def _agreement(gait: Gait) -> str | None:
    """Step by step: feet in phase do alike, and feet half a cycle apart do not."""
    phases = gait.patterns[len(gait.patterns) // 2]
    together, apart = [], []
    for i, j in combinations(range(len(phases)), 2):
        gap = f"np.abs(1.0 * {{foot_contact}}[..., {i}] - 1.0 * {{foot_contact}}[..., {j}])"
        if phases[i] == phases[j]:
            together.append(f"(1.0 - {gap})")
        else:
            apart.append(gap)
    means = (f"({' + '.join(terms)}) / {len(terms)}" for terms in (together, apart) if terms)
    return " * ".join(f"({mean})" for mean in means)
