"""Ground truths of robots with legs, on poses and gaits that are known."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from p2p.benchmark.suite import SuiteError, load_suite, parse_suite
from p2p.benchmark.truth.legged import LEGGED, follow

DT, SECONDS = 0.02, 10.0
LEGS = {"FL": (0.2, 0.1), "FR": (0.2, -0.1), "RL": (-0.2, 0.1), "RR": (-0.2, -0.1)}
TROT = {"FL": 0.0, "FR": 0.5, "RL": 0.5, "RR": 0.0}
CANTER = {"FL": 0.76, "FR": 0.0, "RL": 0.0, "RR": 0.21}


def robot(legs):
    """A trunk 0.3 m up, on legs that slide; its feet are spheres."""
    parts = "".join(
        f'<body name="{name}" pos="{x} {y} -0.15"><joint type="slide" axis="0 0 1"/>'
        '<geom type="sphere" size="0.02" pos="0 0 -0.13" mass="1"/></body>'
        for name, (x, y) in legs.items()
    )
    return mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><geom type="plane" size="9 9 1"/><body name="trunk" pos="0 0 0.3">'
        f'<freejoint/><geom type="box" size="0.25 0.08 0.05"/>{parts}</body></worldbody></mujoco>'
    )


QUADRUPED, BIPED = robot(LEGS), robot({"left": (0, 0.1), "right": (0, -0.1)})


def move(model, *, velocity=(0.0, 0.0), turning=0.0, phases=None, roll=0.0, height=0.3):
    """Positions of a trunk that moves as it faces, with legs up for half of each cycle."""
    steps = round(SECONDS / DT)
    time = np.arange(steps + 1) * DT
    qpos = np.tile(model.qpos0, (steps + 1, 1))
    yaw = 1.0 + turning * time
    forward, left = velocity
    qpos[:, 0] = np.cumsum(DT * (forward * np.cos(yaw) - left * np.sin(yaw)))
    qpos[:, 1] = np.cumsum(DT * (forward * np.sin(yaw) + left * np.cos(yaw)))
    qpos[1:, 2] = height
    tilted = (np.arange(steps + 1) > 0) * roll
    qpos[:, 3] = np.cos(yaw / 2) * np.cos(tilted / 2)
    qpos[:, 4] = np.cos(yaw / 2) * np.sin(tilted / 2)
    qpos[:, 5] = np.sin(yaw / 2) * np.sin(tilted / 2)
    qpos[:, 6] = np.sin(yaw / 2) * np.cos(tilted / 2)
    for i, phase in enumerate((phases or {}).values()):
        qpos[1:, 7 + i] = 0.05 * (((time[1:] / 0.5 - phase) % 1.0) > 0.5)
    return follow(model, qpos, DT, steps)


def value(truth, episode):
    return LEGGED[truth].measure(episode)


def test_a_trot_is_told_from_a_canter():
    trot = move(QUADRUPED, velocity=(1.5, 0.0), phases=TROT)
    canter = move(QUADRUPED, velocity=(1.5, 0.0), phases=CANTER)
    assert value("trots_forward_at_1.5", trot) > 0.8
    assert value("trots_forward_at_1.5", canter) == 0.0
    assert value("walks_forward", canter) == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize(
    ("truth", "phases"),
    [
        ("paces_forward", {"FL": 0.0, "FR": 0.5, "RL": 0.0, "RR": 0.5}),
        ("bounds_forward", {"FL": 0.0, "FR": 0.0, "RL": 0.5, "RR": 0.5}),
    ],
)
def test_pace_and_bound_have_their_own_phases(truth, phases):
    assert value(truth, move(QUADRUPED, velocity=(1.0, 0.0), phases=phases)) > 0.7
    assert value(truth, move(QUADRUPED, velocity=(1.0, 0.0), phases=TROT)) == 0.0


def test_speed_is_measured_as_the_robot_faces():
    steps = {"left": 0.0, "right": 0.5}
    back = move(BIPED, velocity=(-0.5, 0.0), phases=steps)
    right = move(BIPED, velocity=(0.0, -0.4), phases=steps, turning=0.3)
    assert value("walks_backward_at_0.5", back) > 0.9
    assert value("walks_forward", back) < 0
    assert value("walks_right_at_0.4", right) > 0.9
    assert value("walks_right_at_0.4", back) == 0.0
    assert value("walks_backward_at_0.5", move(BIPED, velocity=(-0.9, 0.0), phases=steps)) == 0.0


def test_truths_need_upright_pose_and_steps():
    steps = {"left": 0.0, "right": 0.5}
    on_back = move(BIPED, velocity=(-0.5, 0.0), phases=steps, roll=np.pi, height=0.06)
    on_knees = move(BIPED, velocity=(-0.5, 0.0), phases=steps, height=0.15)
    glides = move(BIPED, velocity=(-0.5, 0.0))
    for episode in (on_back, on_knees, glides):
        assert value("walks_backward_at_0.5", episode) == 0.0
    assert value("turns_left", move(BIPED, turning=1.0, phases=steps, roll=np.pi, height=0.06)) == 0
    assert value("stands_on_feet", move(BIPED, roll=np.pi, height=0.06)) < 0.01


def test_turning_is_of_the_world_and_has_a_side():
    left = move(BIPED, turning=0.5, phases={"left": 0.0, "right": 0.5})
    assert value("turns_left", left) == pytest.approx(0.5, abs=0.05)
    assert value("turns_right", left) == pytest.approx(-0.5, abs=0.05)


def test_hops_need_all_feet_in_the_air():
    both = move(QUADRUPED, phases=dict.fromkeys(LEGS, 0.0))
    assert value("hops_on_feet", both) == pytest.approx(2.0, abs=0.2)
    assert value("hops_on_feet", move(QUADRUPED, phases=TROT)) < 0.2


def test_standing_and_crouching_exclude_each_other():
    stands, crouches = move(BIPED), move(BIPED, height=0.2)
    assert value("stands_on_feet", stands) == 1.0
    assert value("crouches_on_feet", stands) == 0.0
    assert value("stands_on_feet", crouches) == 0.0
    assert value("crouches_on_feet", crouches) == 1.0


def test_the_suite_has_twelve_prompts_for_each_robot():
    cases = load_suite("mjlab")
    for robot_id in ("G1", "Go1"):
        assert sum(case.env_id.endswith(f"-{robot_id}") for case in cases) >= 12
    assert all(case.truth in LEGGED for case in cases)


def test_a_legged_truth_is_refused_where_there_are_no_contacts():
    text = "env_id,instruction,category,difficulty,truth,threshold\nAnt-v5,go,x,easy,turns_left,1\n"
    with pytest.raises(SuiteError, match="robots of an engine"):
        parse_suite(text, "own.csv")
