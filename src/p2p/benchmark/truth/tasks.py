"""Reaching, pushing and balancing."""

from __future__ import annotations

import numpy as np

from p2p.benchmark.truth.episode import Episode, Mask, Truth, gap, laps

REACHED_M = 0.03
PUSHED_M = 0.1
REACHER, PUSHER, CART = ("fingertip", "target"), ("tips_arm", "object", "goal"), ("cart", "pole")


def _round_target(e: Episode) -> float:
    target = e.body("target")
    return abs(laps(e.body("fingertip"), target, nearest=0.02, farthest=0.1))


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
        _pushed_and_left, "share of the last fifth of the time",
        "the object is within 10 cm of the goal and the hand is 25 cm from it", PUSHER,
    ),
    "pushed_away": Truth(
        _pushed_away, "m", "how much farther the object is from the goal at the end", PUSHER,
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
