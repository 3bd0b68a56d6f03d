"""Ground truths: what a prompt asks for, measured on the simulator. No agent is shown any of it.

A new one is a small function of an episode and a line in one of the tables.
"""

from __future__ import annotations

import numpy as np

from p2p.benchmark.truth.episode import Episode, Mask, Truth, gap, laps
from p2p.benchmark.truth.legged import LEGGED

ROUND_AT_LEAST_M = 0.5
"""A path that stays nearer to its own middle goes round nothing."""


def _forward(e: Episode) -> float:
    return e.speed(e.torso[:, 0])


def _left_speed(e: Episode) -> float:
    return e.speed(e.torso[:, 1])


def _score_half_speed(e: Episode) -> float:
    window = max(1, round(0.5 / e.dt))
    if e.steps < window:
        return 0.0
    x = e.torso[:, 0]
    pace = (x[window:] - x[:-window]) / (window * e.dt)
    # Windows begin with the first step, so the first half second has none of its own.
    return float(np.count_nonzero(np.abs(pace - 0.5) < 0.15)) / (e.horizon - window + 1)


def _run_and_stop(e: Episode) -> float:
    half = e.horizon // 2
    if e.steps < e.horizon:
        return 0.0
    x = e.torso[:, 0]
    rushing = (x[half] - x[0]) / (half * e.dt)
    creeping = np.abs(np.diff(x[half + e.horizon // 10 :])).mean() / e.dt
    return float(rushing - 2 * creeping)


def _score_return_trip(e: Episode) -> float:
    x = e.moved[:, 0]
    return float(min(x.max(), x.max() - x[-1]))


def _circling(e: Episode) -> float:
    path = e.torso[:, :2]
    return abs(laps(path, path.mean(axis=0), nearest=ROUND_AT_LEAST_M))


TRAVEL = {
    "forward_speed": Truth(_forward, "m/s", "mean speed along +x"),
    "backward_speed": Truth(lambda e: -_forward(e), "m/s", "mean speed along -x"),
    "left_speed": Truth(_left_speed, "m/s", "mean speed along +y"),
    "right_speed": Truth(lambda e: -_left_speed(e), "m/s", "mean speed along -y"),
    "straight_speed": Truth(
        lambda e: _forward(e) - 2 * float(np.max(np.abs(e.moved[:, 1]))) / e.seconds, "m/s",
        "mean speed along +x, less twice the farthest it strays to the side, over the time",
    ),
    "half_a_metre_a_second": Truth(
        _score_half_speed, "share of the time",
        "at 0.35 to 0.65 m/s forward, over half a second each",
    ),
    "run_and_stop": Truth(
        _run_and_stop, "m/s",
        "speed in the first half, less twice the speed after it; a tenth of the time to brake",
    ),
    "out_and_back": Truth(
        _score_return_trip, "m", "how far it went out and came back, the smaller of the two",
    ),
    "turning_rate": Truth(
        lambda e: e.speed(e.heading), "rad/s", "heading gained, counterclockwise",
    ),
    "spinning_rate": Truth(
        lambda e: e.speed(e.heading, e.near), "rad/s",
        "heading gained within 1 m of the start, counterclockwise",
    ),
    "circles": Truth(
        _circling, "rounds", "rounds about the middle of its own path, 0.5 m or wider",
    ),
}  # fmt: skip


UP, ARM = 1.0, "right_upper_arm"
LYING_M = 0.3


def _upright(e: Episode) -> Mask:
    return e.rotation[:, 2, 2] > 0.7


def _standing(e: Episode) -> float:
    high = e.torso[:, 2] > 0.5 * e.torso[0, 2]
    return e.share(_upright(e) & high & (np.linalg.norm(e.moved, axis=-1) < 0.5))


def _reared_forward(e: Episode) -> float:
    nose_up = -e.pitch
    return e.speed(e.torso[:, 0], (nose_up > np.pi / 4) & (nose_up < 3 * np.pi / 4))


def _count_hops_in_place(e: Episode) -> float:
    off = (e.foot_height("foot") > 0.05) & (np.linalg.norm(e.moved, axis=-1) < 0.5)
    return float(np.count_nonzero(off[1:] & ~off[:-1])) / e.seconds


def _left_foot_up_forward(e: Episode) -> float:
    return e.speed(e.torso[:, 0], e.foot_height("foot_left") > 0.1)


def _crouching(e: Episode) -> float:
    height = e.torso[:, 2]
    return e.share((height > UP) & (height < 1.2))


def _arm_up(e: Episode) -> float:
    elbow, shoulder = e.body("right_lower_arm")[:, 2], e.body(ARM)[:, 2]
    return e.share((elbow > shoulder) & (e.torso[:, 2] > UP))


def _share_on_feet(e: Episode) -> float:
    trunk = e.torso - e.body("pelvis")
    upright = trunk[:, 2] > 0.8 * np.linalg.norm(trunk, axis=-1)
    return e.share(upright & (e.torso[:, 2] > UP))


def _share_lying_still(e: Episode) -> float:
    pace = np.linalg.norm(np.diff(e.xpos, axis=0), axis=-1).max(axis=-1) / e.dt
    still = np.concatenate([[False], pace < 0.3])
    return e.share(still & (e.torso[:, 2] < LYING_M))


POSTURE = {
    "standing": Truth(
        _standing, "share of the time",
        "upright, above half of its first height, within 0.5 m of the start",
    ),
    "low_forward_speed": Truth(
        lambda e: e.speed(e.torso[:, 0], e.torso[:, 2] < 0.5), "m/s",
        "mean speed along +x, counted while the torso is below 0.5 m",
    ),
    "reared_forward_speed": Truth(
        _reared_forward, "m/s",
        "mean speed along +x, counted while the nose points up (within 45 degrees)",
    ),
    "backflips": Truth(
        lambda e: float(np.max(-(e.pitch - e.pitch[0]))) / (2 * np.pi), "turns",
        "most full turns backward",
    ),
    "highest_rise": Truth(
        lambda e: float(np.max(e.rise)), "m", "highest point of the torso above its start",
    ),
    "hops_on_the_spot": Truth(
        _count_hops_in_place, "1/s",
        "times the whole foot rises over 5 cm within 0.5 m of the start, each second", ("foot",),
    ),
    "left_foot_up_forward_speed": Truth(
        _left_foot_up_forward, "m/s",
        "mean speed along +x, counted while all of the left foot is 10 cm up", ("foot_left",),
    ),
    "crouching": Truth(_crouching, "share of the time", "the torso is between 1.0 and 1.2 m high"),
    "right_arm_up": Truth(
        _arm_up, "share of the time", "the right elbow is above the shoulder, the torso above 1 m",
        ("right_lower_arm", ARM),
    ),
    "last_height": Truth(
        lambda e: e.last_fifth(e.torso[:, 2], if_over=0.0), "m",
        "mean height of the torso in the last fifth of the time",
    ),
    "on_its_feet": Truth(
        _share_on_feet, "share of the time", "the trunk is upright and its top above 1 m",
        ("pelvis",),
    ),
    "lying_still": Truth(
        _share_lying_still, "share of the time",
        "the torso is below 0.3 m and no body is faster than 0.3 m/s",
    ),
    "turned_over": Truth(
        lambda e: e.last_fifth((e.rotation[:, 2, 2] < -0.7).astype(float), if_over=0.0),
        "share of the last fifth of the time", "its front points down",
    ),
}  # fmt: skip


REACHED_M = 0.03
PUSHED_M = 0.1
REACHER, PUSHER, CART = ("fingertip", "target"), ("tips_arm", "object", "goal"), ("cart", "pole")


def _round_target(e: Episode) -> float:
    target = e.body("target")
    return abs(laps(e.body("fingertip"), target, nearest=0.02, farthest=0.1))


def _score_push_and_leave(e: Episode) -> float:
    there = gap(e.body("object"), e.body("goal")) < PUSHED_M
    left = gap(e.body("tips_arm"), e.body("object")) > 0.25
    return e.last_fifth((there & left).astype(float), if_over=0.0)


def _score_push(e: Episode) -> float:
    far = gap(e.body("object"), e.body("goal"))
    return e.last_fifth(far, if_over=0.0) - float(far[0])


def _poles_up(e: Episode) -> Mask:
    # A pole's angle is against the one below it.
    up: Mask = np.abs(np.cumsum(e.qpos[:, 1:], axis=1)).max(axis=1) < 0.2
    return up


def _balanced_swings(e: Episode) -> float:
    cart = e.qpos[:, 0][np.cumprod(_poles_up(e)).astype(bool)]
    sides = np.sign(cart[np.abs(cart) > 0.15])
    return float(np.count_nonzero(np.diff(sides)))


TASKS = {
    "lasted": Truth(lambda e: e.steps / e.horizon, "share of the time", "until the episode ended"),
    "reach_gap": Truth(
        lambda e: e.last_fifth(gap(e.body("fingertip"), e.body("target")), if_over=1.0), "m",
        "fingertip to target, mean of the last fifth of the time", REACHER, better="at_most",
    ),
    "at_target": Truth(
        lambda e: e.share(gap(e.body("fingertip"), e.body("target")) < REACHED_M),
        "share of the time", "the fingertip is within 3 cm of the target", REACHER,
    ),
    "round_target": Truth(_round_target, "rounds", "about the target, 2 to 10 cm from it", REACHER),
    "fingertip_speed": Truth(
        lambda e: float(gap(e.body("fingertip")[1:], e.body("fingertip")[:-1]).mean()) / e.dt,
        "m/s", "mean speed of the fingertip", ("fingertip",), better="at_most",
    ),
    "push_gap": Truth(
        lambda e: e.last_fifth(gap(e.body("object"), e.body("goal")), if_over=1.0), "m",
        "object to goal, mean of the last fifth of the time", PUSHER, better="at_most",
    ),
    "hand_gap": Truth(
        lambda e: e.last_fifth(gap(e.body("tips_arm"), e.body("object")), if_over=1.0), "m",
        "hand to object, mean of the last fifth of the time", PUSHER, better="at_most",
    ),
    "pushed_and_left": Truth(
        _score_push_and_leave, "share of the last fifth of the time",
        "the object is within 10 cm of the goal and the hand is 25 cm from it", PUSHER,
    ),
    "pushed_away": Truth(
        _score_push, "m", "how much farther the object is from the goal at the end", PUSHER,
    ),
    "balanced": Truth(
        lambda e: e.share(_poles_up(e)), "share of the time",
        "every pole is within 0.2 rad of upright", CART,
    ),
    "balanced_in_the_middle": Truth(
        lambda e: e.share(_poles_up(e) & (np.abs(e.qpos[:, 0]) < 0.1)), "share of the time",
        "every pole is within 0.2 rad of upright, the cart within 10 cm of the middle", CART,
    ),
    "balanced_on_the_right": Truth(
        lambda e: e.last_fifth((_poles_up(e) & (e.qpos[:, 0] > 0.3)).astype(float), if_over=0.0),
        "share of the last fifth of the time",
        "every pole is within 0.2 rad of upright, the cart 30 cm or more to the right", CART,
    ),
    "balanced_swings": Truth(
        _balanced_swings, "swings",
        "from beyond 15 cm on one side to the other, before a pole leaves 0.2 rad", CART,
    ),
}  # fmt: skip


TRUTHS: dict[str, Truth] = {**TRAVEL, **POSTURE, **TASKS, **LEGGED}
"""By the name that stands in a suite."""
