"""What the judge exam asks: prompts, the episodes shown of each, and how they are labelled.

Labels are measurements on positions. They share no code with criteria and judges: ground truths of
`p2p benchmark`, and short functions of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import exam_motions as make
import numpy as np
from exam_motions import (
    Floats,
    Motion,
    Trained,
    alternate,
    ant,
    balance,
    burst,
    cheetah,
    fingertip,
    flip,
    hips,
    hopper,
    humanoid,
    knees,
    pusher,
    ramp,
    sines,
    steady,
    swimmer,
    swing,
    walker,
)

from p2p.benchmark.truth import TRUTHS
from p2p.benchmark.truth.episode import Episode

Label = Literal["good", "bad", "unclear"]

# --- what is asked, measured on positions ---------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """From `good` on it is attained, from `bad` on clearly missed; which side is which they say."""

    name: str
    measure: Callable[[Episode], float]
    good: float
    bad: float

    def label(self, value: float) -> Label:
        sign = 1 if self.good > self.bad else -1
        if sign * value >= sign * self.good:
            return "good"
        return "bad" if sign * value <= sign * self.bad else "unclear"


def truth(name: str, good: float, bad: float) -> Asked:
    return Asked(name, TRUTHS[name].measure, good, bad)


def _pace(e: Episode) -> Floats:
    """(T,): of the fastest body, in m/s."""
    moved: Floats = np.linalg.norm(np.diff(e.xpos, axis=0), axis=-1).max(axis=-1)
    return moved / e.dt


def _crossings(values: Floats, size: float) -> float:
    sides = np.sign(values[np.abs(values) > size])
    return float(np.count_nonzero(np.diff(sides)))


def _lifts(name: str) -> Callable[[Episode], float]:
    """Times a second that a foot goes up over 3 cm and was on the ground before."""

    def measure(e: Episode) -> float:
        height, up, lifts = e.foot_height(name), False, 0
        for each in height:
            if up != (each > 0.03 if not up else each > 0.01):
                up = not up
                lifts += up
        return lifts / e.seconds

    return measure


def _second_half(along: Callable[[Episode], Floats]) -> Callable[[Episode], float]:
    def measure(e: Episode) -> float:
        path, half = along(e), e.horizon // 2
        return 0.0 if e.steps <= half else float(path[-1] - path[half]) / (e.seconds / 2)

    return measure


UPRIGHT = Asked("time not on its back", lambda e: e.share(e.rotation[:, 2, 2] > 0.0), 0.9, 0.7)
UP_LATE = Asked(
    "end not on its back",
    lambda e: e.last_fifth((e.rotation[:, 2, 2] > 0.5).astype(float), if_over=0.0), 0.9, 0.5,
)  # fmt: skip
LASTS = Asked("time lasted", lambda e: e.steps / e.horizon, 0.95, 0.8)
ON_AND_ON = Asked("m/s in the second half", _second_half(lambda e: e.torso[:, 0]), 0.4, 0.15)
EVERY_LEG = Asked(
    "swing of the leg that swings least, rad",
    lambda e: float(np.ptp(e.qpos[:, 7::2], axis=0).min()), 0.2, 0.05,
)  # fmt: skip
ON_LEFT = Asked(
    "m/s to the left in the second half", _second_half(lambda e: e.torso[:, 1]), 0.3, 0.15
)
STILL = Asked("pace of the fastest body", lambda e: float(_pace(e).mean()), 0.15, 0.4)
STEPS = Asked(
    "feet pass each other, 1/s",
    lambda e: _crossings(e.body("foot")[:, 0] - e.body("foot_left")[:, 0], 0.08) / e.seconds,
    0.8, 0.4,
)  # fmt: skip
STRIDES = Asked(
    "swing of the leg that swings less, m",
    lambda e: min(float(np.ptp(e.body(n)[:, 0] - e.torso[:, 0])) for n in ("foot", "foot_left")),
    0.15,
    0.08,
)
REARED = Asked(
    "time with the nose up", lambda e: e.share(e.rotation[:, 2, 0] > 0.6), 0.65, 0.5
)  # fmt: skip


# --- the prompts, and what is shown of each -------------------------------------------------------


@dataclass(frozen=True)
class Prompt:
    env_id: str
    text: str
    asked: tuple[Asked, ...]
    shown: Mapping[str, Motion]
    held_out: bool = False

    @property
    def name(self) -> str:
        return f"{self.env_id.removesuffix('-v5')}: {self.text}"


RUN = "halfcheetah_run_forward"
SWIMS, BALANCES = "swimmer_swim_forward", "invertedpendulum_balance"


def on_back(stage: Any) -> Floats:
    return np.full(len(stage.t), np.pi)


def tipped(first: float) -> Callable[[Any], Floats]:
    return lambda stage: np.pi * ramp(stage, first, first + 0.02)


def const(value: float) -> Callable[[Any], Floats]:
    return lambda stage: np.full(len(stage.t), value)


def until(share: float, speed: float, then: float = 0.0) -> Callable[[Any], Floats]:
    """One speed up to a share of the time, then another."""
    return lambda stage: (
        stage.t[-1] * (speed * np.minimum(stage.s, share) + then * np.maximum(stage.s - share, 0.0))
    )


def circle(radius: float, seconds: float, axis: int) -> Callable[[Any], Floats]:
    wave = (np.sin, lambda a: 1 - np.cos(a))[axis]
    return lambda stage: radius * wave(2 * np.pi * stage.t / seconds)


def around(radius: float, seconds: float, arc: float = 0.0) -> Any:
    """Round the target; with an arc to and fro along it."""

    def place(target: Floats, t: float) -> Floats:
        angle = 2 * np.pi * t / seconds
        if arc:
            angle = arc * np.sin(angle)
        return target + radius * np.array([np.cos(angle), np.sin(angle)])

    return place


FLAT, UP = 0.0, np.pi / 2
ROSE = ((0.0, FLAT), (0.1, FLAT), (0.3, UP), (1.0, UP))

PROMPTS: tuple[Prompt, ...] = (
    Prompt(
        "HalfCheetah-v5",
        "run forward",
        (truth("forward_speed", 1.5, 1.0), UPRIGHT, ON_AND_ON),
        {
            "trained": Trained(RUN),
            "half trained": Trained(RUN, 1),
            "gallops": cheetah(steady(2.5), trot=0.5),
            "trots": cheetah(steady(1.8), swing(0.2, 0.5), 0.4),
            "barely trained": Trained(RUN, 0),
            "slides on its back": cheetah(steady(2.5), on_back),
            "one burst, then lies on its back": cheetah(burst(10, 0.2), tipped(0.2), 0.5),
            "falls at two thirds": cheetah(until(0.66, 2.5), tipped(0.66), 0.5),
            "right speed, wrong direction": cheetah(steady(-2.5), trot=0.5),
            "to and fro": cheetah(swing(2.0, 4.0), trot=0.5),
            "random": make.random,
        },
    ),
    Prompt(
        "HalfCheetah-v5",
        "stand still",
        (truth("standing", 0.9, 0.75), STILL),
        {
            "no action": make.zero,
            "holds a pose": cheetah(),
            "breathes": cheetah(pitch=swing(0.03, 3.0)),
            "drifts slowly": cheetah(steady(0.1)),
            "creeps backward": cheetah(steady(-0.12)),
            "sways": cheetah(swing(0.35, 1.5)),
            "trembles": cheetah(pitch=alternate(0.12)),
            "lies on its back": cheetah(pitch=on_back),
            "trained to run": Trained(RUN),
            "falls at two thirds": cheetah(pitch=tipped(0.66)),
            "random": make.random,
        },
    ),
    Prompt(
        "HalfCheetah-v5",
        "do a backflip",
        (truth("backflips", 0.9, 0.6),),
        {
            "one flip": flip(1),
            "three flips": flip(3),
            "one high flip": flip(1, 10.0, 0.8, 1.0),
            "a slow one": flip(1, 5.0, 2.5, 0.7),
            "trembles": cheetah(pitch=alternate(0.8)),
            "rocks": cheetah(pitch=swing(1.4, 1.0)),
            "flips forward": flip(-1),
            "flips forward, three times": flip(-3),
            "half a flip, lies on its back": flip(0.5),
            "jumps without turning": flip(0.02),
            "random": make.random,
        },
    ),
    Prompt(
        "HalfCheetah-v5",
        "walk forward on your hind legs with the nose pointing up",
        (truth("reared_forward_speed", 0.3, 0.15), REARED),
        {
            "on its hind legs": cheetah(steady(0.8), const(-1.2), 0.4),
            "swaying": cheetah(steady(1.0), lambda st: -1.2 + 0.25 * np.sin(3 * st.t), 0.4),
            "rears first": cheetah(steady(0.9), lambda st: -1.3 * ramp(st, 0.0, 0.05), 0.4),
            "on all fours": cheetah(steady(1.0), trot=0.4),
            "trained to run": Trained(RUN),
            "rears and stays": cheetah(pitch=const(-1.2)),
            "backward": cheetah(steady(-0.8), const(-1.2), 0.4),
            "nose down": cheetah(steady(0.8), const(1.2), 0.4),
            "on its back": cheetah(steady(0.8), on_back),
            "rears now and then": cheetah(
                steady(1.0), lambda st: -1.3 * (np.sin(3 * st.t) > 0.5), 0.4
            ),
            "rears on the spot, then runs level": cheetah(
                until(0.72, 0.0, 3.0), lambda st: -1.2 * (1 - ramp(st, 0.72, 0.74)), 0.4
            ),
        },
    ),
    Prompt(
        "HalfCheetah-v5",
        "run forward, then stop and stand still",
        (truth("run_and_stop", 0.8, 0.5), UP_LATE),
        {
            "runs, stops": cheetah(until(0.5, 2.0), trot=0.5),
            "trots, stops": cheetah(until(0.5, 1.6), swing(0.1, 0.5), 0.4),
            "runs fast, stops": cheetah(until(0.48, 3.0), trot=0.5),
            "never stops": cheetah(steady(2.0), trot=0.5),
            "trained to run": Trained(RUN),
            "never runs": make.zero,
            "stands, then runs": cheetah(until(0.5, 0.0, 2.0), trot=0.5),
            "falls instead of stopping": cheetah(until(0.5, 2.0), tipped(0.5), 0.5),
            "runs on slowly": cheetah(until(0.5, 2.0, 0.8), trot=0.5),
            "runs back": cheetah(until(0.5, 2.0, -2.0), trot=0.5),
        },
        held_out=True,
    ),
    Prompt(
        "Hopper-v5",
        "hop forward",
        (truth("forward_speed", 0.7, 0.4), Asked("hops a second", _lifts("foot"), 0.8, 0.4), LASTS),
        {
            "hops": hopper(1.3, 2.0),
            "hops high": hopper(1.2, 1.5, 0.25),
            "quick hops": hopper(1.5, 3.0, 0.08),
            "slides": hopper(1.3),
            "slides and bobs": hopper(1.3, bob=0.3),
            "hops backward": hopper(-1.3, 2.0),
            "hops on the spot": hopper(0.0, 2.0),
            "one leap, then stands": hopper(once=2.0, height=0.4, x=burst(5.0, 0.2)),
            "falls after half": hopper(1.3, 2.0, falls_at=0.5),
            "no action": make.zero,
        },
    ),
    Prompt(
        "Hopper-v5",
        "keep hopping on the spot",
        (truth("hops_on_the_spot", 1.0, 0.6), LASTS),
        {
            "hops": hopper(0, 2.0),
            "hops high": hopper(0, 1.5, 0.25),
            "sways a little": hopper(0, 2.0, x=swing(0.1, 3.0)),
            "hops low": hopper(0, 2.5, 0.09),
            "one jump, then stands": hopper(once=1.0, height=0.35),
            "bobs on the ground": hopper(0, bob=0.5),
            "hops away": hopper(0.8, 2.0),
            "drifts off as it hops": hopper(0.25, 2.0),
            "stands": hopper(0),
            "falls after half": hopper(0, 2.0, falls_at=0.5),
            "trembles": hopper(0, 12.0, 0.02),
        },
    ),
    Prompt(
        "Hopper-v5",
        "jump up high",
        (
            Asked(
                "rise of the torso with the foot 8 cm up",
                lambda e: float(np.max(np.where(e.foot_height("foot") > 0.08, e.rise, 0.0))),
                0.15,
                0.1,
            ),
            LASTS,
        ),
        {
            "one jump": hopper(once=1.0, height=0.4),
            "jumps again and again": hopper(0, 1.2, 0.35),
            "jumps high": hopper(once=1.4, height=0.6),
            "low hops": hopper(0, 2.0, 0.06),
            "bobs": hopper(0, bob=0.5),
            "stands": hopper(0),
            "falls": hopper(0, bob=0.2, falls_at=0.3),
            "slides": hopper(1.3),
            "no action": make.zero,
        },
        held_out=True,
    ),
    Prompt(
        "Walker2d-v5",
        "walk forward",
        (truth("forward_speed", 0.5, 0.3), STEPS, STRIDES, LASTS),
        {
            "walks": walker(1.0, 0.4, 0.4),
            "walks briskly": walker(1.8, 0.5, 0.5, 1.5),
            "walks at ease": walker(0.7, 0.35, 0.35, 0.8),
            "drags a leg": walker(1.0, 0.5, 0.0),
            "slides": walker(1.0),
            "bounds with both legs": walker(1.2, 0.4, -0.4, 1.5, rate=1.5),
            "trembles along": walker(1.0, 0.03, 0.03, 10.0),
            "steps on the spot": walker(0, 0.4, 0.4),
            "walks backward": walker(1.0, 0.4, 0.4, reverse=True),
            "falls at two thirds": walker(1.2, 0.4, 0.4, falls_at=0.66),
            "no action": make.zero,
        },
    ),
    Prompt(
        "Walker2d-v5",
        "stand still",
        (truth("standing", 0.9, 0.7), STILL, LASTS),
        {
            "stands": walker(),
            "leans a little": walker(lean=0.1),
            "knees bent": walker(lean=-0.05),
            "drifts": walker(0.1),
            "steps on the spot": walker(0, 0.4, 0.4),
            "trembles": walker(0, 0.06, 0.06, 15.0),
            "walks": walker(1.0, 0.4, 0.4),
            "falls at the end": walker(falls_at=0.7),
            "no action": make.zero,
            "random": make.random,
        },
        held_out=True,
    ),
    Prompt(
        "Walker2d-v5",
        "hop forward on your right leg and keep the left foot off the ground",
        (
            truth("left_foot_up_forward_speed", 0.3, 0.15),
            LASTS,
            Asked("hops of the right foot a second", _lifts("foot"), 0.8, 0.3),
        ),
        {
            "hops on the right leg": walker(1.2, 0.15, 0.0, 2.0, "left", 2.0),
            "slower": walker(1.15, 0.1, 0.0, 1.5, "left", 1.5),
            "faster": walker(1.6, 0.2, 0.0, 2.5, "left", 2.5),
            "toes up, heel down": walker(1.2, 0.15, 0.0, 2.0, "left toes", 0.0),
            "toes up, bounding": walker(1.2, 0.0, 0.0, 2.0, "left toes", 2.0),
            "bounds on both": walker(1.2, 0.2, -0.2, 2.0, rate=2.0),
            "on the wrong leg": walker(1.2, 0.0, 0.15, 2.0, "right", 2.0),
            "slides on the right leg": walker(1.2, raised="left"),
            "stands on the right leg": walker(raised="left"),
            "hops backward": walker(-1.2, 0.15, 0.0, 2.0, "left", 2.0),
            "lifts it a finger's breadth": walker(1.2, 0.0, 0.0, raised="left slightly"),
        },
    ),
    Prompt(
        "Ant-v5",
        "walk forward",
        (truth("forward_speed", 0.5, 0.3), UPRIGHT, ON_AND_ON, LASTS, EVERY_LEG),
        {
            "walks": ant(steady(0.8)),
            "walks fast": ant(steady(1.5)),
            "meanders": ant(steady(0.7), swing(0.5, 8.0)),
            "to the left": ant(y=steady(0.8)),
            "backward": ant(steady(-0.8)),
            "upside down": ant(steady(0.8), roll=on_back),
            "one burst, then stands": ant(burst(5.0, 0.15)),
            "turns over at two thirds": ant(steady(1.0), roll=tipped(0.66)),
            "to and fro": ant(swing(3.0, 8.0)),
            "random": make.random,
            "no action": make.zero,
            "carries a leg": ant(steady(0.8), carried=0),
        },
    ),
    Prompt(
        "Ant-v5",
        "spin counterclockwise in place",
        (
            truth("spinning_rate", 0.7, 0.4),
            LASTS,
            Asked(
                "heading gained in the second half, rad/s",
                _second_half(lambda e: e.heading),
                0.4,
                0.2,
            ),
        ),
        {
            "spins": ant(heading=steady(1.3)),
            "spins fast": ant(heading=steady(2.5)),
            "spins, swaying": ant(swing(0.3, 5.0), heading=steady(1.3)),
            "clockwise": ant(heading=steady(-1.3)),
            "turns to and fro": ant(heading=swing(1.5, 3.0)),
            "trembles": ant(heading=alternate(0.15)),
            "in a wide circle": ant(circle(4.0, 5.0, 0), circle(4.0, 5.0, 1), steady(1.26)),
            "spins away": ant(steady(0.4), heading=steady(1.3)),
            "one burst, then stands": ant(heading=burst(8.0, 0.2)),
            "no action": make.zero,
            "lies on its back, turning": ant(heading=steady(0.1), roll=on_back),
        },
    ),
    Prompt(
        "Ant-v5",
        "walk to the left",
        (truth("left_speed", 0.45, 0.3), UPRIGHT, ON_LEFT, LASTS),
        {
            "walks left": ant(y=steady(0.8)),
            "turns, then walks left": ant(y=steady(0.8), heading=const(1.57)),
            "walks left, fast": ant(y=steady(1.4)),
            "to the right": ant(y=steady(-0.8)),
            "forward": ant(steady(0.8)),
            "turns left": ant(heading=steady(0.8)),
            "upside down": ant(y=steady(0.8), roll=on_back),
            "one burst": ant(y=burst(5.0, 0.15)),
            "in circles": ant(circle(3.0, 20.0, 0), circle(3.0, 20.0, 1)),
            "no action": make.zero,
        },
        held_out=True,
    ),
    Prompt(
        "Swimmer-v5",
        "swim forward in a straight line",
        (truth("straight_speed", 0.08, 0.04),),
        {
            "glides straight": swimmer(steady(0.2)),
            "swims straight": swimmer(steady(0.15), swing(0.05, 2.0)),
            "a slight bow": swimmer(steady(0.3), lambda st: 1.0 * np.sin(np.pi * st.s)),
            "wave": sines(0.8, 1.0, -1.5),
            "trained": Trained(SWIMS),
            "half trained": Trained(SWIMS, 1),
            "slow wave": sines(1.0, 0.3, -1.5),
            "bent wave": sines(0.8, 1.0, -1.5, 0.5),
            "in a bow": swimmer(steady(0.2), lambda st: 4.0 * np.sin(np.pi * st.s)),
            "off to the side": swimmer(steady(0.18), steady(0.12)),
            "zigzag": swimmer(steady(0.18), swing(3.0, 16.0)),
            "backward": swimmer(steady(-0.2)),
            "in circles": swimmer(circle(1.0, 10.0, 0), circle(1.0, 10.0, 1)),
            "no action": make.zero,
        },
    ),
    Prompt(
        "Swimmer-v5",
        "turn counterclockwise",
        (
            truth("turning_rate", 0.4, 0.2),
            Asked(
                "heading gained in the second half, rad/s",
                _second_half(lambda e: e.heading),
                0.3,
                0.15,
            ),
        ),
        {
            "turns": swimmer(heading=steady(0.8)),
            "turns fast": swimmer(heading=steady(1.5)),
            "in a circle": swimmer(circle(1.0, 9.0, 0), circle(1.0, 9.0, 1), steady(0.7)),
            "clockwise": swimmer(heading=steady(-0.8)),
            "wiggles": swimmer(heading=swing(1.0, 2.0)),
            "one burst": swimmer(heading=burst(6.0, 0.12)),
            "straight": swimmer(steady(0.2)),
            "bent wave": sines(0.8, 1.0, -1.5, 0.5),
            "no action": make.zero,
            "random": make.random,
        },
        held_out=True,
    ),
    Prompt(
        "Reacher-v5",
        "reach the target",
        (truth("reach_gap", 0.025, 0.04),),
        {
            "reaches": fingertip(lambda g, _: g),
            "reaches, another target": fingertip(lambda g, _: g),
            "a third": fingertip(lambda g, _: g),
            "comes gently": fingertip(
                lambda g, t: g * min(1.0, 2.5 * t) + (1 - min(1.0, 2.5 * t)) * np.array([0.2, 0.0])
            ),
            "stops short": fingertip(lambda g, _: g + 0.06 * np.array([0.6, -0.8])),
            "reaches, then leaves": fingertip(lambda g, t: g if t < 0.6 else -g),
            "round the target": fingertip(around(0.06, 0.6)),
            "away": fingertip(lambda g, _: -g),
            "passes through": fingertip(lambda g, t: g + (np.array([0.25, 0.25]) * (2 * t - 1))),
            "no action": make.zero,
            "random": make.random,
        },
    ),
    Prompt(
        "Reacher-v5",
        "move the fingertip in circles around the target",
        (truth("round_target", 1.0, 0.6),),
        {
            "circles": fingertip(around(0.05, 0.5)),
            "circles, another target": fingertip(around(0.05, 0.5)),
            "slower circles": fingertip(around(0.06, 0.7)),
            "clockwise": fingertip(around(0.05, -0.5)),
            "on the target": fingertip(lambda g, _: g),
            "to and fro along an arc": fingertip(around(0.05, 0.5, 0.8)),
            "trembles beside it": fingertip(around(0.05, 0.08, 0.3)),
            "far round": fingertip(around(0.3, 0.5)),
            "no action": make.zero,
            "random": make.random,
        },
        held_out=True,
    ),
    Prompt(
        "Pusher-v5",
        "push the object to the goal",
        (truth("push_gap", 0.1, 0.17),),
        {
            "pushes": pusher((0, 0, 1, 1), (0.3, 0.08, 0.08, 0.08)),
            "pushes fast": pusher((0, 1, 1, 1), (0.1, 0.1, 0.08, 0.08)),
            "pushes, lets go": pusher((0, 0.5, 0.95, 0.95), (0.2, 0.1, 0.1, 0.2)),
            "half of the way": pusher((0, 0, 0.4, 0.4), (0.3, 0.1, 0.1, 0.1)),
            "past the goal": pusher((0, 0, 1, 2, 2), (0.3, 0.1, 0.1, 0.1, 0.1)),
            "only touches": pusher((0, 0), (0.3, 0.08)),
            "the hand goes to the goal": pusher((0, 0), (0, 0), True),
            "away from the goal": pusher((0, -0.5), (0.2, 0.1)),
            "no action": make.zero,
            "random": make.random,
        },
    ),
    Prompt(
        "Pusher-v5",
        "push the object to the goal and then take your hand away from it",
        (truth("pushed_and_left", 0.8, 0.4),),
        {
            "pushes, leaves": pusher((0, 0.5, 1, 1, 1, 1), (0.3, 0.1, 0.1, 0.2, 0.4, 0.4)),
            "pushes fast, leaves": pusher((0, 1, 1, 1), (0.2, 0.1, 0.35, 0.45)),
            "leaves early": pusher((0, 0.5, 1, 1, 1), (0.2, 0.1, 0.1, 0.45, 0.45)),
            "stays at it": pusher((0, 0, 1, 1), (0.3, 0.1, 0.08, 0.08)),
            "leaves without pushing": pusher((0, 0), (0.1, 0.5)),
            "half of the way, leaves": pusher((0, 0.4, 0.4, 0.4), (0.2, 0.1, 0.4, 0.4)),
            "leaves, comes back": pusher((0, 1, 1, 1, 1), (0.2, 0.1, 0.4, 0.1, 0.08)),
            "no action": make.zero,
            "random": make.random,
        },
        held_out=True,
    ),
    Prompt(
        "InvertedPendulum-v5",
        "balance",
        (truth("balanced", 0.95, 0.85), LASTS),
        {
            "trained": Trained(BALANCES),
            "trained, another start": Trained(BALANCES),
            "barely trained": Trained(BALANCES, 0),
            "half trained": Trained(BALANCES, 1),
            "balances": balance(lambda _: 0.0),
            "balances, swaying": balance(lambda t: 0.2 * np.sin(t)),
            "drops it at two thirds": balance(lambda _: 0.0, until=26.0),
            "no action": make.zero,
            "random": make.random,
        },
    ),
    Prompt(
        "InvertedPendulum-v5",
        "balance the pole with the cart on the right side of the track",
        (
            truth("balanced_on_the_right", 0.8, 0.5),
            LASTS,
            Asked("time on the right", lambda e: e.share(e.qpos[:, 0] > 0.25), 0.7, 0.5),
        ),
        {
            "on the right": balance(lambda _: 0.6),
            "farther right": balance(lambda _: 0.8),
            "sways on the right": balance(lambda t: 0.6 + 0.1 * np.sin(t)),
            "goes there slowly": balance(lambda t: min(0.6, 0.1 * t)),
            "on the left": balance(lambda _: -0.6),
            "in the middle": balance(lambda _: 0.0),
            "a little right": balance(lambda _: 0.12),
            "both sides": balance(lambda t: 0.55 * np.sin(0.5 * t)),
            "right, then back": balance(lambda t: 0.6 if t < 20 else 0.0),
            "drops it on the right": balance(lambda _: 0.6, until=26.0),
            "right at last": balance(lambda t: 0.0 if t < 30 else 0.6),
            "trained to balance": Trained(BALANCES),
            "no action": make.zero,
        },
    ),
    Prompt(
        "InvertedPendulum-v5",
        "swing the cart from side to side without dropping the pole",
        (truth("balanced_swings", 5, 2), LASTS),
        {
            "swings": balance(lambda t: 0.5 * np.sin(0.8 * t)),
            "swings wide": balance(lambda t: 0.7 * np.sin(0.7 * t)),
            "swings fast": balance(lambda t: 0.4 * np.sin(1.2 * t)),
            "in the middle": balance(lambda _: 0.0),
            "trembles": balance(lambda _: 0.0, shake=0.5),
            "on one side": balance(lambda t: 0.5 + 0.2 * np.sin(0.8 * t)),
            "drops it halfway": balance(lambda t: 0.5 * np.sin(0.8 * t), until=20.0),
            "once": balance(lambda t: 0.5 if t < 20 else -0.5),
            "no action": make.zero,
        },
        held_out=True,
    ),
    Prompt(
        "InvertedDoublePendulum-v5",
        "balance both poles without moving the cart away from the middle",
        (truth("balanced_in_the_middle", 0.9, 0.7), LASTS),
        {
            "balances": balance(lambda _: 0.0),
            "balances, another start": balance(lambda _: 0.0),
            "with a little noise": balance(lambda _: 0.0, shake=0.01),
            "a hand off": balance(lambda _: 0.03),
            "off to the right": balance(lambda _: 0.4),
            "off to the left": balance(lambda _: -0.3),
            "to and fro": balance(lambda t: 0.4 * np.sin(0.6 * t)),
            "drifts off": balance(lambda t: 0.012 * t),
            "drops them at two thirds": balance(lambda _: 0.0, until=33.0),
            "lower pole leans, upper is upright": make.Played(
                lambda st: np.tile([0.0, 0.35, -0.35], (len(st.t), 1))
            ),
            "both lean": make.Played(lambda st: np.tile([0.0, 0.3, 0.0], (len(st.t), 1))),
            "no action": make.zero,
        },
    ),
    Prompt(
        "InvertedDoublePendulum-v5",
        "balance both poles with the cart on the right side of the track",
        (truth("balanced_on_the_right", 0.8, 0.5), LASTS),
        {
            "on the right": balance(lambda _: 0.6),
            "farther right": balance(lambda _: 0.75),
            "goes there slowly": balance(lambda t: min(0.6, 0.1 * t)),
            "on the left": balance(lambda _: -0.6),
            "in the middle": balance(lambda _: 0.0),
            "a little right": balance(lambda _: 0.1),
            "right, then back": balance(lambda t: 0.6 if t < 25 else 0.0),
            "drops them": balance(lambda _: 0.6, until=30.0),
            "no action": make.zero,
        },
        held_out=True,
    ),
    Prompt(
        "HumanoidStandup-v5",
        "get to your feet and stay standing",
        (truth("on_its_feet", 0.5, 0.35),),
        {
            "gets up": humanoid((0.0, {}), pitch=ROSE),
            "gets up slowly": humanoid((0.0, {}), pitch=((0.0, FLAT), (0.4, UP), (1.0, UP))),
            "gets up over a squat": humanoid(
                (0.0, {}), (0.25, knees(1.0)), (0.4, {}), (1.0, {}), pitch=ROSE
            ),
            "sits up": humanoid(
                (0.0, {}), (0.3, hips(1.4)), (1.0, hips(1.4)), pitch=((0, 0), (0.3, UP), (1, UP))
            ),
            "kneels": humanoid(
                (0.0, {}),
                (0.3, {"right_knee": -1.7, "left_knee": -1.7}),
                (1.0, {"right_knee": -1.7, "left_knee": -1.7}),
                pitch=ROSE,
            ),
            "up for a moment": humanoid(
                (0.0, {}), pitch=((0, 0), (0.2, UP), (0.3, UP), (0.4, 0), (1, 0))
            ),
            "squats": humanoid((0.0, {}), (0.3, knees(1.3)), (1.0, knees(1.3)), pitch=ROSE),
            "on its head": humanoid((0.0, {}), pitch=((0, 0), (0.3, -UP), (1, -UP))),
            "lies": make.zero,
            "random": make.random,
        },
    ),
    Prompt(
        "HumanoidStandup-v5",
        "lie still",
        (truth("lying_still", 0.8, 0.6),),
        {
            "lies": make.zero,
            "lies, another start": make.zero,
            "holds a pose": humanoid((0.0, {})),
            "arms move a little": humanoid((0.0, {}), (1.0, {"right_elbow": -0.5})),
            "trembles": humanoid((0.0, {}), shake=0.1),
            "random": make.random,
            "gets up": humanoid((0.0, {}), pitch=ROSE),
            "kicks": humanoid(*((k / 20, hips(1.2 * (k % 2))) for k in range(21))),
            "sits up": humanoid(
                (0.0, {}), (0.3, hips(1.4)), (1.0, hips(1.4)), pitch=((0, 0), (0.3, UP), (1, UP))
            ),
            "slides along": humanoid((0.0, {}), x=steady(0.6)),
        },
    ),
    Prompt(
        "Humanoid-v5",
        "crouch and hold it",
        (truth("crouching", 0.7, 0.5), LASTS),
        {
            "crouches": humanoid((0.0, knees(0.75))),
            "goes down first": humanoid((0.0, {}), (0.15, knees(0.75)), (1.0, knees(0.75))),
            "crouches less": humanoid((0.0, knees(0.65))),
            "stands": humanoid((0.0, {})),
            "up and down": humanoid(*((k / 20, knees(0.85 * (k % 2))) for k in range(21))),
            "for a moment": humanoid((0.0, {}), (0.2, knees(0.8)), (0.4, {}), (1.0, {})),
            "collapses": humanoid(
                (0.0, {}), (0.3, knees(0.7)), (0.5, knees(1.4)), (1.0, knees(1.4))
            ),
            "no action": make.zero,
            "random": make.random,
        },
    ),
    Prompt(
        "Humanoid-v5",
        "stand and raise your right arm",
        (truth("right_arm_up", 0.7, 0.5), LASTS, truth("standing", 0.9, 0.6)),
        {
            "raises it": humanoid((0.0, {}), raised="right"),
            "knees a little bent": humanoid((0.0, knees(0.3)), raised="right"),
            "leaning a little": humanoid((0.0, {}), raised="right", pitch=((0.0, 0.15),)),
            "the left one": humanoid((0.0, {}), raised="left"),
            "neither": humanoid((0.0, {})),
            "now and then": humanoid((0.0, {}), raised="right 0.4"),
            "walking off": humanoid((0.0, {}), raised="right", x=steady(0.8)),
            "falls": humanoid(
                (0.0, {}), raised="right", pitch=((0.0, 0.0), (0.3, 0.0), (0.4, 1.5))
            ),
            "no action": make.zero,
        },
    ),
)
