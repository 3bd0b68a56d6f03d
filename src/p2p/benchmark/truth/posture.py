"""Staying somewhere, getting up, flying, and holding limbs."""

from __future__ import annotations

import numpy as np

from p2p.benchmark.truth.episode import Episode, Mask, Truth

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


def _hops_on_the_spot(e: Episode) -> float:
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


def _on_its_feet(e: Episode) -> float:
    trunk = e.torso - e.body("pelvis")
    upright = trunk[:, 2] > 0.8 * np.linalg.norm(trunk, axis=-1)
    return e.share(upright & (e.torso[:, 2] > UP))


def _lying_still(e: Episode) -> float:
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
        _hops_on_the_spot, "1/s",
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
        _on_its_feet, "share of the time", "the trunk is upright and its top above 1 m",
        ("pelvis",),
    ),
    "lying_still": Truth(
        _lying_still, "share of the time",
        "the torso is below 0.3 m and no body is faster than 0.3 m/s",
    ),
    "turned_over": Truth(
        lambda e: e.last_fifth((e.rotation[:, 2, 2] < -0.7).astype(float), if_over=0.0),
        "share of the last fifth of the time", "its front points down",
    ),
}  # fmt: skip
