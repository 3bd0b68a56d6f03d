"""Getting somewhere, and turning."""

from __future__ import annotations

import numpy as np

from p2p.benchmark.truth.episode import Episode, Truth, laps

ROUND_AT_LEAST_M = 0.5
"""A path that stays nearer to its own middle goes round nothing."""


def _forward(e: Episode) -> float:
    return e.speed(e.torso[:, 0])


def _left(e: Episode) -> float:
    return e.speed(e.torso[:, 1])


def _half_a_metre_a_second(e: Episode) -> float:
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


def _out_and_back(e: Episode) -> float:
    x = e.moved[:, 0]
    return float(min(x.max(), x.max() - x[-1]))


def _circling(e: Episode) -> float:
    path = e.torso[:, :2]
    return abs(laps(path, path.mean(axis=0), nearest=ROUND_AT_LEAST_M))


TRAVEL = {
    "forward_speed": Truth(_forward, "m/s", "mean speed along +x"),
    "backward_speed": Truth(lambda e: -_forward(e), "m/s", "mean speed along -x"),
    "left_speed": Truth(_left, "m/s", "mean speed along +y"),
    "right_speed": Truth(lambda e: -_left(e), "m/s", "mean speed along -y"),
    "straight_speed": Truth(
        lambda e: _forward(e) - 2 * float(np.max(np.abs(e.moved[:, 1]))) / e.seconds, "m/s",
        "mean speed along +x, less twice the farthest it strays to the side, over the time",
    ),
    "half_a_metre_a_second": Truth(
        _half_a_metre_a_second, "share of the time",
        "at 0.35 to 0.65 m/s forward, over half a second each",
    ),
    "run_and_stop": Truth(
        _run_and_stop, "m/s",
        "speed in the first half, less twice the speed after it; a tenth of the time to brake",
    ),
    "out_and_back": Truth(
        _out_and_back, "m", "how far it went out and came back, the smaller of the two",
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
