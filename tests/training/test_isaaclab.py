"""Isaac Lab: what is known without it, and training on it where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium as gym
import mujoco
import numpy as np
import pytest

from p2p.config import TrainConfig
from p2p.records.iteration_record import IterationRecord
from p2p.training._isaaclab_registry import ENVIRONMENTS, PRESETS
from p2p.training.engines.facts import read_facts
from p2p.training.engines.install import write_assets
from p2p.training.engines.table import find_installed
from p2p.training.env_spec import get_env_spec
from p2p.training.hp_presets import config_from_preset
from p2p.training.reward_runner import RewardRunner, Transition
from p2p.training.runner import run_training
from p2p.training.specs.quantities import Robot, of_state
from p2p.training.trajectory import RecordedEpisode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Values = Mapping[str, NDArray[np.float64]]

installed = pytest.mark.skipif(
    find_installed("isaaclab") is None, reason="Isaac Lab: p2p engines install isaaclab"
)

ANT_REWARDS = sorted(Path(__file__).parents[2].glob("benchmarks/rewards/ant/*.py"))
OF_BOTH = ("", "-Direct")
"""How ids end of tasks with managers, and of those that are written without."""

BALANCE = """
import numpy as np

def reward_fn(obs, action, next_obs, info):
    upright = np.exp(-4.0 * next_obs[..., 1] ** 2)
    centred = -0.05 * next_obs[..., 0] ** 2
    return upright + centred, {"upright": upright, "centred": centred}
"""
RUN = """
import numpy as np

def reward_fn(obs, action, next_obs, info):
    forward = info["com_velocity"][..., 0]
    height = info["com"][..., 2]
    feet = -np.sum(info["foot_height"], axis=-1)
    facing = np.cos(info["heading"])
    upright = info["body_up"][..., 1, 2]
    effort = -0.05 * np.sum(np.square(action), axis=-1)
    terms = {"forward": forward, "height": height, "feet": feet, "facing": facing,
             "upright": upright, "effort": effort}
    return sum(terms.values()), terms
"""


def test_seven_tasks_need_nothing_but_the_engine() -> None:
    free = {env_id for env_id, environment in ENVIRONMENTS.items() if not environment.needs}
    both = {f"Isaac-{name}{end}" for name in ("Cartpole", "Ant", "Humanoid") for end in OF_BOTH}
    assert free == {*both, "IsaacContrib-Cartpole-Showcase-Direct"}
    assert all(ENVIRONMENTS[env_id].supported for env_id in free)


@pytest.mark.parametrize("env_id", PRESETS)
def test_an_engines_own_settings_are_a_configuration(env_id: str) -> None:
    config = TrainConfig(env_id=env_id, num_envs=64, **PRESETS[env_id])
    assert config.engine == "isaaclab"


def test_assets_lie_where_the_tasks_look_for_them(tmp_path: Path) -> None:
    source, root = tmp_path / "newton", tmp_path / "assets"
    source.mkdir()
    (source / "ant.usda").write_text("float physics:density = 1\nfloat other = 1\n")
    (source / "humanoid.usda").write_text('def PhysicsRevoluteJoint "left_knee"\n')
    write_assets(root, source)
    ant = root / "Isaac/Robots/IsaacSim/Ant/ant_instanceable.usd"
    humanoid = root / "Isaac/Robots/IsaacSim/Humanoid/humanoid_instanceable.usd"
    assert ant.read_text() == "float physics:density = 5\nfloat other = 1\n"
    assert humanoid.read_text() == 'def PhysicsRevoluteJoint "left_shin"\n'
    assert (root / "Isaac/IsaacLab/Robots/Classic/Cartpole/cartpole.usd").is_file()


@installed
@pytest.mark.slow
def test_a_cartpole_learns_to_stand_and_is_recorded_and_filmed(tmp_path: Path) -> None:
    record = IterationRecord(tmp_path / "session_isaac" / "iter_1")
    config = config_from_preset(
        "Isaac-Cartpole",
        num_envs=64,
        total_timesteps=24_000,
        num_evals=2,
        num_eval_envs=4,
        num_eval_rounds=1,
    )
    summary = run_training(config, BALANCE, record)
    # Of 300 steps with at most 1 each; the pole hangs after the first ones until it is learnt.
    assert summary.checkpoints[-1].mean_return > 120
    spec = get_env_spec("Isaac-Cartpole", "isaaclab")
    assert [joint.name for joint in spec.joints] == ["slider_to_cart", "cart_to_pole"]
    assert [action.kind for action in spec.actions] == ["force"]
    episode = RecordedEpisode.load(next(record.path.glob("trajectory_*_median.npz")))
    np.testing.assert_allclose(episode["next_obs"][:, :2], episode["qpos"], atol=1e-5)
    assert (record.path / "videos" / "eval_24576_median.mp4").is_file()


def rewarded(
    code: str, robot: Robot, states: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
) -> Values:
    """The reward of states, (qpos, qvel) each, as a batch on this robot's model."""
    data, rows = mujoco.MjData(robot.model), []
    for qpos, qvel in states:
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_forward(robot.model, data)
        rows.append({name: np.array(value) for name, value in of_state(robot, data).items()})
    info = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    action = np.random.default_rng(1).uniform(-1, 1, (len(states), 8)).astype(np.float32)
    empty = np.zeros((len(states), 1))
    runner = RewardRunner(code, len(states), batched=True)
    total, terms = runner(Transition(empty, action, empty, info, np.zeros(len(states), np.bool_)))
    return {"total": total, **terms}


@installed
@pytest.mark.slow
@pytest.mark.parametrize("code", [RUN, *(path.read_text() for path in ANT_REWARDS)])
def test_one_reward_gives_the_same_on_mujocos_ant_and_on_isaac_labs(code: str) -> None:
    scene = read_facts("isaaclab", "Isaac-Ant") / "model" / "scene.xml"
    model = mujoco.MjModel.from_xml_path(str(scene))
    rng = np.random.default_rng(0)
    states = []
    for _ in range(100):
        turn = rng.normal(size=4)
        place = (*rng.normal(size=2), rng.uniform(0.3, 1.2))
        joints = rng.uniform(-1, 1, 8)
        qpos = np.concatenate([place, turn / np.linalg.norm(turn), joints])
        states.append((qpos, rng.normal(size=14)))
    ours = rewarded(code, Robot.of(gym.make("Ant-v5")), states)
    theirs = rewarded(code, Robot(model, model.qpos0, 1 / 60), states)
    for name, values in ours.items():
        np.testing.assert_allclose(theirs[name], values, atol=1e-5, err_msg=name)


@installed
@pytest.mark.slow
def test_a_direct_task_is_described_trained_and_judged_as_one_with_managers(tmp_path: Path) -> None:
    spec = get_env_spec("Isaac-Cartpole-Direct", "isaaclab")
    names = ["qpos[0]", "qpos[1]", "qvel[0]", "qvel[1]"]
    assert [entry.source for entry in spec.observation] == names
    (action,) = spec.actions
    assert (action.joint, action.kind, action.gear) == ("slider_to_cart", "force", 100.0)
    record = IterationRecord(tmp_path / "session_isaac" / "iter_1")
    config = config_from_preset(
        "Isaac-Cartpole-Direct",
        num_envs=64,
        total_timesteps=16_384,
        num_evals=1,
        num_eval_envs=4,
        num_eval_rounds=1,
    )
    summary = run_training(config, BALANCE, record)
    assert summary.checkpoints[-1].mean_return > 100  # of 300; it ends where the cart runs away
    episode = RecordedEpisode.load(next(record.path.glob("trajectory_*_median.npz")))
    np.testing.assert_allclose(episode["next_obs"][:, :2], episode["qpos"], atol=1e-5)
    np.testing.assert_allclose(episode["obs"][1:], episode["next_obs"][:-1], atol=1e-6)
