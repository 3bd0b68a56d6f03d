"""Returns of DM Control's tasks, on states of small models whose rewards are known."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
from dmc_returns import NATIVE_REWARDS, closeness, native_return

BALL = '<geom type="sphere" size="0.1" mass="1"/>'
TORSO = f'<body name="torso"><freejoint/>{BALL}'


def model_of(bodies, rest=""):
    return mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{bodies}</worldbody>{rest}</mujoco>")


def reward(task, model, qpos, qvel=(), ctrl=()):
    """What one state is worth, 0 to 1."""
    velocity = np.zeros(model.nv)
    velocity[: len(qvel)] = qvel
    states = [np.asarray(row, float)[None] for row in (qpos, velocity, ctrl)]
    return native_return(task, model, *states, horizon=1) / 1000


def pose(height=0.0, pitch=0.0):
    """A free body's position."""
    return [0, 0, height, np.cos(pitch / 2), 0, np.sin(pitch / 2), 0]


@pytest.mark.parametrize(
    ("falloff", "half", "twice"),
    [
        ("gaussian", 0.1**0.25, 0.1**4),
        ("linear", 0.55, 0),
        ("quadratic", 0.775, 0),
        ("long_tail", 1 / 3.25, 1 / 37),
    ],
)
def test_closeness_falls_to_its_value_at_the_margin(falloff, half, twice):
    close = [closeness(x, 1, 2, margin=4, falloff=falloff) for x in (1, 2, 6, -3, 4, 10)]
    assert close == pytest.approx([1, 1, 0.1, 0.1, half, twice])
    assert closeness(2.01, 1, 2) == 0


def test_walker_is_paid_for_height_then_for_speed():
    model = model_of(TORSO + "</body>")
    assert reward("walker-stand", model, pose(1.3)) == pytest.approx(1)
    assert reward("walker-stand", model, pose(0.6)) == pytest.approx((3 * 0.1 + 1) / 4)
    assert reward("walker-stand", model, pose(1.3, np.pi)) == pytest.approx(0.75)
    standing, half, full = (
        reward("walker-walk", model, pose(1.3), [speed]) for speed in (0, 0.5, 1)
    )
    assert (standing, half, full) == pytest.approx((1 / 6, 3.5 / 6, 1))
    assert reward("walker-run", model, pose(1.3), [4]) == pytest.approx(3.5 / 6)


def test_cheetah_is_paid_by_speed_alone():
    model = model_of(TORSO + "</body>")
    paid = [reward("cheetah-run", model, pose(), [speed]) for speed in (-3, 0, 2.5, 10, 12)]
    assert paid == pytest.approx([0, 0, 0.25, 1, 1])


def test_hopper_is_paid_only_above_its_foot():
    foot = f'<body name="foot" pos="0 0 -0.7">{BALL}</body></body>'
    model = model_of(TORSO + foot)
    assert reward("hopper-hop", model, pose(1), [2]) == pytest.approx(1)
    assert reward("hopper-hop", model, pose(1), [1]) == pytest.approx(0.5)
    assert reward("hopper-hop", model, pose(1, np.pi / 2), [2]) == 0


def test_humanoid_is_paid_for_head_and_stillness():
    head = f'<body name="head" pos="0 0 0.2">{BALL}</body></body>'
    motor = '<actuator><motor site="s" gear="1 0 0 0 0 0"/></actuator>'
    model = model_of(TORSO + '<site name="s"/>' + head, motor)
    assert reward("humanoid-stand", model, pose(1.3), ctrl=[0]) == pytest.approx(1)
    assert reward("humanoid-stand", model, pose(1.3), ctrl=[1]) == pytest.approx(0.8)
    assert reward("humanoid-stand", model, pose(0.85), ctrl=[0]) == pytest.approx(0.1)
    assert reward("humanoid-stand", model, pose(1.3), [2], [0]) == pytest.approx(0.55)
    assert reward("humanoid-walk", model, pose(1.3), [0, 1], [0]) == pytest.approx(1)
    assert reward("humanoid-walk", model, pose(1.3), ctrl=[0]) == pytest.approx(1 / 6)


def test_quadruped_is_paid_for_speed_along_its_nose():
    model = model_of(TORSO + "</body>")
    turned = [0, 0, 1, np.sqrt(0.5), 0, 0, np.sqrt(0.5)]
    assert reward("quadruped-walk", model, turned, [0, 0.5]) == pytest.approx(1)
    assert reward("quadruped-walk", model, turned, [0.5, 0]) == pytest.approx(0.5)
    assert reward("quadruped-walk", model, pose(1, np.pi / 2), [0, 0, -0.5]) == pytest.approx(0.5)


def test_cartpole_is_paid_for_pole_place_and_calm():
    slide, hinge = (
        f'<joint name="{n}" type="{t}" axis="{a}"/>'
        for n, t, a in (("slider", "slide", "1 0 0"), ("hinge_1", "hinge", "0 1 0"))
    )
    pole = f'<body name="pole_1">{hinge}{BALL}</body></body>'
    motor = '<actuator><motor joint="slider"/></actuator>'
    model = model_of(f'<body name="cart">{slide}{BALL}{pole}', motor)
    assert reward("cartpole-balance", model, [0, 0], ctrl=[0]) == pytest.approx(1)
    assert reward("cartpole-balance", model, [2, 0], ctrl=[0]) == pytest.approx(0.55)
    assert reward("cartpole-swingup", model, [0, np.pi], ctrl=[0]) == pytest.approx(0)
    assert reward("cartpole-swingup", model, [0, 0], [0, 5], [1]) == pytest.approx(0.8 * 0.55)


def test_pendulum_counts_within_eight_degrees():
    joint = '<joint name="hinge" type="hinge" axis="0 1 0"/>'
    model = model_of(f'<body name="pole">{joint}{BALL}</body>')
    degrees = [reward("pendulum-swingup", model, [np.radians(a)]) for a in (0, 7.9, 8.1, 180)]
    assert degrees == [1, 1, 0, 0]


def test_reacher_counts_where_finger_and_target_overlap():
    target = '<geom name="target" type="sphere" size="0.05"/>'
    joint = '<joint type="slide" axis="1 0 0"/>'
    finger = '<geom name="finger" type="sphere" size="0.01" mass="1"/>'
    model = model_of(f"{target}<body>{joint}{finger}</body>")
    assert [reward("reacher-easy", model, [x]) for x in (0, 0.059, 0.061)] == [1, 1, 0]


def test_spinner_counts_in_one_direction():
    joint = '<joint name="hinge" type="hinge" axis="0 -1 0"/>'
    model = model_of(f"<body>{joint}{BALL}</body>")
    assert [reward("finger-spin", model, [0], [v]) for v in (-15, -14, 15)] == [1, 0, 0]


def test_caught_ball_lies_within_the_cup():
    cup = '<site name="target" type="box" size=".05 .006 .05"/>'
    slides = '<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/>'
    ball = '<geom name="ball" type="sphere" size="0.025" mass="1"/>'
    model = model_of(f'{cup}<body name="ball">{slides}{ball}</body>')
    assert reward("ball_in_cup-catch", model, [0, 0.02]) == 1
    assert reward("ball_in_cup-catch", model, [0.03, 0]) == 0


def test_missing_steps_count_nothing():
    model = model_of(TORSO + "</body>")
    qpos, qvel = np.tile(pose(1.3), (5, 1)), np.zeros((5, 6))
    lasted = native_return("walker-stand", model, qpos, qvel, np.zeros((5, 0)), horizon=10)
    assert lasted == pytest.approx(500)


def test_every_prompt_of_the_suite_has_its_reward():
    suite = Path(__file__).parents[2] / "benchmarks" / "dmc_suite.csv"
    tasks = [line.split(",")[0] for line in suite.read_text("utf-8").splitlines()[1:]]
    assert tasks == [*NATIVE_REWARDS]
