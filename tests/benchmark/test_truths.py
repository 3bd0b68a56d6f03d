"""Ground truths: numbers known from how an episode was made, and those of policies that idle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmark_folder import idle_policy
from p2p.benchmark.measuring import NotPlayable, play, play_policy
from p2p.benchmark.suite import SHIPPED, load_suite
from p2p.benchmark.truth import TRUTHS
from p2p.benchmark.truth.episode import Episode

DT, HORIZON = 0.1, 100
TIME = np.arange(HORIZON + 1) * DT
Path3 = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def turned(axis: str, angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotations about z, or about y (which lean forward)."""
    c, s, one, none = np.cos(angles), np.sin(angles), np.ones_like(angles), np.zeros_like(angles)
    rows = {
        "z": [[c, -s, none], [s, c, none], [none, none, one]],
        "y": [[c, none, s], [none, one, none], [-s, none, c]],
    }[axis]
    return np.moveaxis(np.array(rows), -1, 0)


def episode(
    x: NDArray[np.float64] | float = 0.0,
    y: NDArray[np.float64] | float = 0.0,
    z: NDArray[np.float64] | float = 1.0,
    *,
    rotation: NDArray[np.float64] | None = None,
    lasted: float = 1.0,
    **bodies: tuple[object, object, object],
) -> Episode:
    """A torso that goes this way, other bodies elsewhere; it ends after a share of the time."""
    points = {"world": (0, 0, 0), "torso": (x, y, z), **bodies}
    xpos = np.stack(
        [np.stack([np.broadcast_to(c, TIME.shape) for c in p], -1) for p in points.values()], 1
    ).astype(float)
    kept = round(lasted * HORIZON) + 1
    upright = turned("z", np.zeros_like(TIME))
    return Episode(
        qpos=np.zeros((kept, 3)),
        xpos=xpos[:kept],
        rotation=(upright if rotation is None else rotation)[:kept],
        foot_heights=xpos[:kept, :, 2],  # every body is a foot, and a point
        bodies=tuple(points),
        feet=tuple(points),
        dt=DT,
        horizon=HORIZON,
    )


def cart(position: NDArray[np.float64] | float, *poles: NDArray[np.float64] | float) -> Episode:
    qpos = np.stack([np.broadcast_to(q, TIME.shape) for q in (position, *poles)], -1).astype(float)
    return replace(episode(), qpos=qpos)


HALF = TIME < 5
ROUND = 2 * np.pi * TIME / 5
STEP_OUT = np.minimum(TIME, 10 - TIME)
SWING = 0.3 * np.sin(ROUND)


@pytest.mark.parametrize(
    ("name", "made", "value"),
    [
        ("forward_speed", episode(2 * TIME), 2.0),
        ("forward_speed", episode(2 * TIME, lasted=0.5), 1.0),  # the time it did not use counts
        ("backward_speed", episode(-2 * TIME), 2.0),
        ("left_speed", episode(y=TIME), 1.0),
        ("right_speed", episode(y=-TIME), 1.0),
        ("straight_speed", episode(TIME), 1.0),
        ("straight_speed", episode(TIME, np.sin(ROUND)), 0.8),
        ("half_a_metre_a_second", episode(0.5 * TIME), 1.0),
        ("half_a_metre_a_second", episode(TIME), 0.0),
        ("half_a_metre_a_second", episode(0.5 * TIME, lasted=0.03), 0.0),
        ("run_and_stop", episode(np.minimum(2 * TIME, 10)), 2.0),
        ("run_and_stop", episode(2 * TIME), -2.0),
        ("run_and_stop", episode(np.minimum(2 * TIME, 10), lasted=0.9), 0.0),
        ("out_and_back", episode(STEP_OUT), 5.0),
        ("out_and_back", episode(TIME), 0.0),
        ("turning_rate", episode(rotation=turned("z", 0.5 * TIME)), 0.5),
        ("turning_rate", episode(rotation=turned("z", -0.5 * TIME)), -0.5),
        ("spinning_rate", episode(rotation=turned("z", 2 * TIME)), 2.0),
        ("spinning_rate", episode(2 * TIME + 0.1, rotation=turned("z", 2 * TIME)), 0.08),
        ("circles", episode(2 * np.cos(ROUND), 2 * np.sin(ROUND)), 2.0),
        ("circles", episode(0.2 * np.cos(ROUND), 0.2 * np.sin(ROUND)), 0.0),
        ("circles", episode(TIME), 0.0),
        ("standing", episode(), 1.0),
        ("standing", episode(lasted=0.3), 0.3),
        ("standing", episode(np.where(HALF, 0, 2)), 0.49),
        ("standing", episode(rotation=turned("y", np.where(HALF, 0.0, 1.5))), 0.49),
        ("standing", episode(z=np.where(HALF, 1, 0.3)), 0.49),
        ("low_forward_speed", episode(TIME, z=np.where(HALF, 0.4, 0.6)), 0.49),
        ("reared_forward_speed", episode(TIME, rotation=turned("y", -1.5 * np.ones(101))), 1.0),
        ("reared_forward_speed", episode(TIME, rotation=turned("y", 1.5 * np.ones(101))), 0.0),
        ("backflips", episode(rotation=turned("y", -ROUND)), 2.0),
        ("backflips", episode(rotation=turned("y", ROUND)), 0.0),
        ("highest_rise", episode(z=1 + np.abs(SWING)), 0.3),
        ("hops_on_the_spot", episode(foot=(0, 0, SWING)), 0.2),
        ("hops_on_the_spot", episode(TIME, foot=(0, 0, SWING)), 0.1),
        ("left_foot_up_forward_speed", episode(TIME, foot_left=(0, 0, HALF * 0.0 + ~HALF)), 0.51),
        ("crouching", episode(z=np.where(HALF, 1.1, 1.4)), 0.49),
        (
            "right_arm_up",
            episode(
                z=1.3, right_lower_arm=(0, 0, np.where(HALF, 1.6, 1.0)), right_upper_arm=(0, 0, 1.4)
            ),
            0.49,
        ),
        ("last_height", episode(z=TIME), 9.05),
        ("last_height", episode(z=2.0, lasted=0.9), 1.0),
        ("on_its_feet", episode(z=np.where(HALF, 0.3, 1.3), pelvis=(0, 0, 0.9)), 0.51),
        ("lying_still", episode(z=0.1), 1.0),
        ("lying_still", episode(TIME, z=0.1), 0.0),
        ("turned_over", episode(rotation=turned("y", np.pi * ~HALF)), 1.0),
        ("lasted", episode(lasted=0.7), 0.7),
        ("reach_gap", episode(fingertip=(0, 0, 0), target=(HALF, 0, 0.01)), 0.01),
        ("at_target", episode(fingertip=(0, 0, 0), target=(HALF, 0, 0.01)), 0.51),
        (
            "round_target",
            episode(
                fingertip=(1 + 0.05 * np.cos(ROUND), 0.05 * np.sin(ROUND), 0), target=(1, 0, 0)
            ),
            2.0,
        ),
        (
            "round_target",
            episode(fingertip=(np.cos(ROUND), np.sin(ROUND), 0), target=(0, 0, 0)),
            0.0,
        ),
        ("fingertip_speed", episode(fingertip=(TIME, 0, 0), target=(0, 0, 0)), 1.0),
        ("push_gap", episode(tips_arm=(0, 0, 0), object=(0, 1, 0), goal=(0, 1.2, 0)), 0.2),
        ("hand_gap", episode(tips_arm=(0, 0, 0), object=(0, 1, 0), goal=(0, 1.2, 0)), 1.0),
        ("pushed_and_left", episode(tips_arm=(0, 0, 0), object=(0, 1, 0), goal=(0, 1, 0)), 1.0),
        ("pushed_and_left", episode(tips_arm=(0, 1, 0), object=(0, 1, 0), goal=(0, 1, 0)), 0.0),
        ("pushed_away", episode(tips_arm=(0, 0, 0), object=(0, ~HALF, 0), goal=(0, 0, 0)), 1.0),
        ("balanced", cart(0, np.where(HALF, 0.1, 0.3)), 0.49),
        ("balanced", cart(0, 0.15, 0.1), 0.0),  # the second pole leans by both
        ("balanced_in_the_middle", cart(np.where(HALF, 0, 0.2), 0), 0.49),
        ("balanced_on_the_right", cart(np.where(HALF, 0, 0.4), 0), 1.0),
        ("balanced_swings", cart(SWING, 0), 3.0),
        ("balanced_swings", cart(SWING, np.where(HALF, 0, 1)), 1.0),
    ],
)
def test_a_truth_measures_what_it_says(name: str, made: Episode, value: float) -> None:
    assert TRUTHS[name].measure(made) == pytest.approx(value, abs=0.021)


def test_passing_and_how_much_is_attained_go_together() -> None:
    speed, distance = TRUTHS["forward_speed"], TRUTHS["reach_gap"]
    assert speed.passes(2.0, 2.0)
    assert not speed.passes(1.9, 2.0)
    assert distance.passes(0.03, 0.03)
    assert not distance.passes(0.04, 0.03)
    assert speed.compute_attainment(1.0, 2.0) == 0.5
    assert speed.compute_attainment(-1.0, 2.0) == 0.0
    assert speed.compute_attainment(9.0, 2.0) == 1.0
    assert distance.compute_attainment(0.06, 0.03) == 0.5
    assert distance.compute_attainment(0.0, 0.03) == 1.0


@pytest.mark.parametrize(
    "env_id", ["Hopper-v5", "Reacher-v5", "InvertedDoublePendulum-v5", "Humanoid-v5"]
)
def test_idle_and_random_policies_pass_no_truth(env_id: str) -> None:
    import gymnasium

    cases = [case for case in load_suite(SHIPPED) if case.env_id == env_id]
    space = gymnasium.make(env_id).action_space
    space.seed(0)
    idle = list(play(env_id, lambda _: np.zeros(space.shape or ()), [1]))
    wild = list(play(env_id, lambda _: space.sample(), [1]))
    for case in cases:
        truth, threshold = TRUTHS[case.truth or ""], case.threshold or 0.0
        assert not truth.passes(truth.measure(wild[0]), threshold), case
        if "still" not in case.instruction:
            assert not truth.passes(truth.measure(idle[0]), threshold), case


def test_a_saved_policy_is_played_in_the_registered_environment(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    idle_policy(10, 2).save(path)
    episodes = play_policy("Reacher-v5", path, [3, 4])
    assert [e.steps for e in episodes] == [50, 50]
    assert episodes[0].dt == 0.02
    assert episodes[0].bodies[-2:] == ("fingertip", "target")
    assert TRUTHS["fingertip_speed"].measure(episodes[0]) < 0.05
    again = play_policy("Reacher-v5", path, [3])
    assert np.array_equal(again[0].qpos, episodes[0].qpos)
    assert not np.array_equal(again[0].qpos, episodes[1].qpos)


def test_what_is_no_policy_of_ours_or_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    with pytest.raises(NotPlayable, match="No such file"):
        play_policy("Reacher-v5", path)
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(NotPlayable, match="not a safetensors file"):
        play_policy("Reacher-v5", path)
    idle_policy(4, 1).save(path)
    with pytest.raises(NotPlayable, match="does not fit"):
        play_policy("Reacher-v5", path)
    other = tmp_path / "link.safetensors"
    other.symlink_to(path)
    with pytest.raises(NotPlayable, match="links are not followed"):
        play_policy("InvertedPendulum-v5", other)
