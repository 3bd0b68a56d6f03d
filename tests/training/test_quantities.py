"""Named quantities equal what MuJoCo itself computes, for one state and for a batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest

from p2p.config import EnvOptions, TrainConfig
from p2p.training.envs.registry import quiet_loading
from p2p.training.evaluation import acting, evaluate
from p2p.training.reward_function import RewardError
from p2p.training.reward_runner import RewardRunner, decide_batched
from p2p.training.specs.quantities import (
    QUANTITIES,
    Robot,
    Shapes,
    compute,
    names_of,
    of_state,
)
from p2p.training.training_loop import make_environment
from p2p.training.trajectory import RecordedEpisode
from p2p.training.vec_env import make_batched_env

ENVIRONMENTS = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid")
FEET = {
    "HalfCheetah": ("bfoot", "ffoot"),
    "Hopper": ("foot",),
    "Walker2d": ("foot", "foot_left"),
    "Ant": ("left_ankle", "right_ankle", "third_ankle", "fourth_ankle"),
    "Humanoid": ("right_foot", "left_foot"),
    "HumanoidStandup": ("right_foot", "left_foot"),
    "Swimmer": (),
    "Reacher": (),
}


def made(name: str) -> Any:
    with quiet_loading():
        return gym.make(f"{name}-v5")


def states(name: str, steps: int = 60, every: int = 4) -> Iterator[tuple[Robot, mujoco.MjData]]:
    """States of a robot that flails about; what follows from them is up to date."""
    env = made(name)
    robot = Robot.of(env)
    env.reset(seed=3)
    env.action_space.seed(3)
    data = env.unwrapped.data
    for step in range(steps):
        env.step(env.action_space.sample())
        if step % every == 0:
            mujoco.mj_forward(robot.model, data)
            mujoco.mj_rnePostConstraint(robot.model, data)
            mujoco.mj_subtreeVel(robot.model, data)
            yield robot, data


def distances(robot: Robot, data: mujoco.MjData) -> dict[int, float]:
    """Of each colliding geom of the robot from the ground, by MuJoCo's own geometry."""
    line, model = np.zeros(6), robot.model
    return {
        int(geom): mujoco.mj_geomDistance(model, data, int(geom), robot.ground, 10.0, line)
        for geom in robot.shapes.ids
    }


def ground_contacts(
    robot: Robot, data: mujoco.MjData, distance: dict[int, float] | None = None
) -> set[int]:
    """Bodies with an active contact on the ground; by distance, those within 2 mm of one."""
    margin = robot.model.geom_margin
    if distance is not None:
        rest = margin[robot.ground]
        near = (geom for geom, gap in distance.items() if gap < margin[geom] + rest + 2e-3)
        return {int(robot.model.geom_bodyid[geom]) for geom in near}
    return {
        int(robot.model.geom_bodyid[contact.geom[k]])
        for contact in data.contact
        for k in range(2)
        if contact.geom[1 - k] == robot.ground and contact.dist < contact.includemargin
    }


def contact_force(robot: Robot, data: mujoco.MjData, body: int) -> np.ndarray:
    total, wrench = np.zeros(3), np.zeros(6)
    for number, contact in enumerate(data.contact):
        bodies = robot.model.geom_bodyid[contact.geom]
        mujoco.mj_contactForce(robot.model, data, number, wrench)
        for side, sign in ((0, -1.0), (1, 1.0)):
            if bodies[side] == body:
                total += sign * contact.frame.reshape(3, 3).T @ wrench[:3]
    return total


@pytest.mark.parametrize(("name", "feet"), FEET.items())
def test_feet_are_what_a_robot_stands_on(name: str, feet: tuple[str, ...]) -> None:
    robot = Robot.of(made(name))
    assert tuple(robot.body_name(foot) for foot in robot.feet) == feet


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_contacts_and_forces_are_those_of_the_solver(name: str) -> None:
    """Up to the tolerance: what stands within it of the ground counts as touching."""
    touched = 0
    for robot, data in states(name):
        values, expected = of_state(robot, data), ground_contacts(robot, data)
        near = ground_contacts(robot, data, distances(robot, data))
        for contact, body in zip(values["foot_contact"], robot.feet, strict=True):
            assert bool(contact) == (body in near)
        assert set(np.flatnonzero(values["ground_contact"])) == near
        assert expected <= near
        assert bool(values["airborne"]) == (not near)
        lowest = min(distances(robot, data).values())
        assert values["penetration"] == pytest.approx(max(0.0, -lowest), abs=1e-5)
        forces = [np.linalg.norm(contact_force(robot, data, foot)) for foot in robot.feet]
        np.testing.assert_allclose(values["foot_contact_force"], forces, rtol=1e-6, atol=1e-6)
        touched += len(expected)
    assert touched


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_foots_height_is_its_distance_from_where_it_rests(name: str) -> None:
    for robot, data in states(name, steps=20):
        values = of_state(robot, data)
        for number, foot in enumerate(robot.feet):
            start = int(robot.model.body_geomadr[foot])
            geoms = range(start, start + int(robot.model.body_geomnum[foot]))
            gaps = [distances(robot, data)[geom] for geom in geoms]
            rest = robot.model.geom_margin[start] + robot.model.geom_margin[robot.ground]
            assert values["foot_height"][number] == pytest.approx(min(gaps) - rest, abs=1e-5)
            lowest = values["foot_lowest_point"][number, 2] - robot.ground_height
            assert values["foot_height"][number] == pytest.approx(lowest - rest, abs=1e-9)


def test_a_standing_ants_feet_touch_the_ground_at_height_zero() -> None:
    env = made("Ant")
    robot = Robot.of(env)
    env.reset(seed=0)
    contacts, heights = [], []
    for step in range(100):
        env.step(np.zeros(8))
        if step >= 60:
            values = of_state(robot, env.unwrapped.data)
            contacts.append(values["foot_contact"])
            heights.append(values["foot_height"])
    assert np.all(contacts)
    assert np.abs(heights).max() < 2e-3


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_positions_and_velocities_are_those_of_mujoco(name: str) -> None:
    velocity = np.zeros(6)
    for robot, data in states(name, steps=20):
        values, kind = of_state(robot, data), mujoco.mjtObj.mjOBJ_XBODY
        np.testing.assert_array_equal(values["body_position"], data.xpos)
        np.testing.assert_array_equal(values["body_com"], data.xipos)
        np.testing.assert_allclose(values["com"], data.subtree_com[robot.root])
        np.testing.assert_allclose(
            values["com_velocity"], data.subtree_linvel[robot.root], atol=1e-9
        )
        for body in range(robot.model.nbody):
            mujoco.mj_objectVelocity(robot.model, data, kind, body, velocity, 0)
            np.testing.assert_allclose(values["body_velocity"][body], velocity[3:], atol=1e-9)
            up = data.xmat[body].reshape(3, 3) @ [0.0, 0.0, 1.0]
            np.testing.assert_allclose(values["body_up"][body], up)
        power = np.abs(data.actuator_force * data.actuator_velocity).sum()
        assert values["energy"] == pytest.approx(power * robot.dt)
        if robot.turns:
            forward = data.xmat[robot.root].reshape(3, 3)[:, 0]
            assert values["heading"] == pytest.approx(np.arctan2(forward[1], forward[0]))


@pytest.mark.parametrize("kind", ["sphere", "capsule", "cylinder", "ellipsoid", "box", "mesh"])
def test_every_shape_has_its_lowest_point(kind: str) -> None:
    shape = 'mesh="cube"' if kind == "mesh" else 'size="0.1 0.2 0.3"'
    corners = "0 0 0 1 0 0 0 1 0 0 0 1 1 1 0 1 0 1 0 1 1 1 1 1"
    mesh = f'<asset><mesh name="cube" vertex="{corners}"/></asset>'
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco>{mesh}<worldbody><geom name="g" type="plane" size="1 1 1"/><body pos="0 0 3">'
        f'<freejoint/><geom type="{kind}" {shape}/></body></worldbody></mujoco>'
    )
    data, line = mujoco.MjData(model), np.zeros(6)
    shapes = Shapes.of(model, [1], 0)
    rng = np.random.default_rng(1)
    for _ in range(20):
        data.qpos[3:] = rng.normal(size=4)
        mujoco.mj_forward(model, data)
        height = shapes.heights(lambda name: np.asarray(getattr(data, name)))[0]
        point = shapes.lowest(lambda name: np.asarray(getattr(data, name)))[0]
        expected = mujoco.mj_geomDistance(model, data, 1, 0, 10.0, line)
        assert height == pytest.approx(expected, abs=1e-4)
        assert point[2] == pytest.approx(height, abs=1e-9)


@pytest.mark.parametrize("name", ["Walker2d", "Humanoid", "Pusher"])
def test_a_batch_gives_what_each_state_gives(name: str) -> None:
    single: list[dict[str, Any]] = []
    arrays: dict[str, list[Any]] = {f: [] for q in QUANTITIES.values() for f in q.fields}
    for robot, data in states(name, steps=12):
        single.append(of_state(robot, data))
        for field, rows in arrays.items():
            rows.append(np.array(getattr(data, field)))
    stacked = {field: np.stack(rows) for field, rows in arrays.items()}
    for shape in ((-1,), (3, 1)):  # environments; steps by environments
        batch = {f: rows.reshape(*shape, *rows.shape[1:]) for f, rows in stacked.items()}
        values = compute(robot, names_of(robot), batch.__getitem__)
        for quantity, value in values.items():
            flat = value.reshape(len(single), *single[0][quantity].shape)
            np.testing.assert_array_equal(flat, np.stack([each[quantity] for each in single]))


@pytest.mark.parametrize("name", ["Hopper", "Humanoid", "HalfCheetah"])
def test_both_kinds_of_environments_show_the_same_quantities_up_to_an_episodes_end(
    name: str,
) -> None:
    fast, slow = (
        make_batched_env(
            EnvOptions(f"{name}-v5", max_episode_steps=12, quantities=QUANTITIES),
            3,
            backend=backend,
        )
        for backend in ("fast", "gym")
    )
    for env in (fast, slow):
        env.reset_batch(4)
    rng = np.random.default_rng(0)
    for _ in range(15):
        action = rng.uniform(-0.4, 0.4, (3, *fast.single_action_space.shape))
        ours, gymnasiums = (env.step_batch(action).info for env in (fast, slow))
        assert {"foot_height", "body_up", "com_velocity", "energy"} <= ours.keys()
        for quantity in names_of(Robot.of(made(name))):
            np.testing.assert_array_equal(ours[quantity], gymnasiums[quantity])


def test_only_the_quantities_that_are_asked_for_are_computed() -> None:
    env = make_batched_env(EnvOptions("Hopper-v5", quantities=["foot_height", "heading"]), 2)
    env.reset_batch(0)
    info = env.step_batch(np.zeros((2, 3))).info
    assert "foot_height" in info
    assert QUANTITIES.keys() & info.keys() == {"foot_height"}  # a hopper has no heading


HOP = """
import numpy as np

def reward_fn(obs, action, next_obs, info):
    lift = np.clip(info["foot_height"][..., 0], 0.0, 0.3)
    landed = 0.1 * info["foot_contact"].any(axis=-1)
    push = 1e-3 * info["foot_contact_force"][..., 0]
    return lift + landed + push, {"lift": lift, "landed": landed, "push": push}
"""


def test_a_reward_measures_what_its_judge_finds_in_the_recording(tmp_path: Path) -> None:
    config = TrainConfig(env_id="Hopper-v5", max_episode_steps=30, side_info=True)
    env = make_environment(config, 4, HOP, recorded=True)
    assert decide_batched(HOP, env)[0]
    runner = RewardRunner(HOP, 4, batched=True)
    assert runner.block_steps > 1  # quantities are data: many steps are rewarded at once
    act = acting("random", env, 0)
    _, kept = evaluate(env, runner, act, rounds=1, seed=0, step=0)
    trajectory = kept["median"]
    height = trajectory["foot_height"]
    assert height.shape == (trajectory.length, 1)
    np.testing.assert_allclose(
        trajectory.reward_terms["lift"], np.clip(height[:, 0], 0.0, 0.3), atol=1e-6
    )
    trajectory.save(tmp_path / "trajectory.npz")
    read = RecordedEpisode.load(tmp_path / "trajectory.npz")
    assert read["foot_contact"].dtype == np.bool_
    assert read["foot_contact"].any()


def test_a_reward_gets_no_quantities_without_side_information() -> None:
    blind = TrainConfig(env_id="Hopper-v5", side_info=False)
    env = make_environment(blind, 2, HOP)
    with pytest.raises(RewardError, match=r"KeyError: 'foot_height'; info has"):
        decide_batched(HOP, env)
