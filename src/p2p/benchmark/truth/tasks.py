"""Reaching, pushing and balancing."""

from __future__ import annotations

import numpy as np

from p2p.benchmark.truth.episode import Episode, Mask, Truth, gap, laps

REACHED_M = 0.03
PUSHED_M = 0.1
REACHER, PUSHER, CART = ("fingertip", "target"), ("tips_arm", "object", "goal"), ("cart", "pole")


def _lasted(e: Episode) -> float:
    return e.steps / e.horizon


def _reach_gap(e: Episode) -> float:
    return e.last_fifth(gap(e.body("fingertip"), e.body("target")), if_over=1.0)


def _at_target(e: Episode) -> float:
    return e.share(gap(e.body("fingertip"), e.body("target")) < REACHED_M)


def _round_target(e: Episode) -> float:
    target = e.body("target")
    return abs(laps(e.body("fingertip"), target, nearest=0.02, farthest=0.1))


def _fingertip_speed(e: Episode) -> float:
    return float(gap(e.body("fingertip")[1:], e.body("fingertip")[:-1]).mean()) / e.dt


def _push_gap(e: Episode) -> float:
    return e.last_fifth(gap(e.body("object"), e.body("goal")), if_over=1.0)


def _hand_gap(e: Episode) -> float:
    return e.last_fifth(gap(e.body("tips_arm"), e.body("object")), if_over=1.0)


def _pushed_and_left(e: Episode) -> float:
    there = gap(e.body("object"), e.body("goal")) < PUSHED_M
    left = gap(e.body("tips_arm"), e.body("object")) > 0.25
    return e.last_fifth((there & left).astype(float), if_over=0.0)


def _pushed_away(e: Episode) -> float:
    far = gap(e.body("object"), e.body("goal"))
    return e.last_fifth(far, if_over=0.0) - float(far[0])


def _poles_up(e: Episode) -> Mask:
    # A pole's angle is against the one below it.
    up: Mask = np.abs(np.cumsum(e.qpos[:, 1:], axis=1)).max(axis=1) < 0.2
    return up


def _balanced(e: Episode) -> float:
    return e.share(_poles_up(e))


def _balanced_in_the_middle(e: Episode) -> float:
    return e.share(_poles_up(e) & (np.abs(e.qpos[:, 0]) < 0.1))


def _balanced_on_the_right(e: Episode) -> float:
    return e.last_fifth((_poles_up(e) & (e.qpos[:, 0] > 0.3)).astype(float), if_over=0.0)


def _balanced_swings(e: Episode) -> float:
    cart = e.qpos[:, 0][np.cumprod(_poles_up(e)).astype(bool)]
    sides = np.sign(cart[np.abs(cart) > 0.15])
    return float(np.count_nonzero(np.diff(sides)))


TASKS = {
    "lasted": Truth(_lasted, "at_least", "share of the time", "until the episode ended"),
    "reach_gap": Truth(
        _reach_gap, "at_most", "m", "fingertip to target, mean of the last fifth of the time",
        REACHER,
    ),
    "at_target": Truth(
        _at_target, "at_least", "share of the time", "the fingertip is within 3 cm of the target",
        REACHER,
    ),
    "round_target": Truth(
        _round_target, "at_least", "rounds", "about the target, 2 to 10 cm from it", REACHER
    ),
    "fingertip_speed": Truth(
        _fingertip_speed, "at_most", "m/s", "mean speed of the fingertip", ("fingertip",)
    ),
    "push_gap": Truth(
        _push_gap, "at_most", "m", "object to goal, mean of the last fifth of the time", PUSHER
    ),
    "hand_gap": Truth(
        _hand_gap, "at_most", "m", "hand to object, mean of the last fifth of the time", PUSHER
    ),
    "pushed_and_left": Truth(
        _pushed_and_left, "at_least", "share of the last fifth of the time",
        "the object is within 10 cm of the goal and the hand is 25 cm from it", PUSHER,
    ),
    "pushed_away": Truth(
        _pushed_away, "at_least", "m", "how much farther the object is from the goal at the end",
        PUSHER,
    ),
    "balanced": Truth(
        _balanced, "at_least", "share of the time", "every pole is within 0.2 rad of upright",
        CART,
    ),
    "balanced_in_the_middle": Truth(
        _balanced_in_the_middle, "at_least", "share of the time",
        "every pole is within 0.2 rad of upright, the cart within 10 cm of the middle",
        CART,
    ),
    "balanced_on_the_right": Truth(
        _balanced_on_the_right, "at_least", "share of the last fifth of the time",
        "every pole is within 0.2 rad of upright, the cart 30 cm or more to the right",
        CART,
    ),
    "balanced_swings": Truth(
        _balanced_swings, "at_least", "swings",
        "from beyond 15 cm on one side to the other, before a pole leaves 0.2 rad", CART,
    ),
}  # fmt: skip
