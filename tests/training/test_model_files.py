"""Environments from model files: MJCF in this folder, read in the sandbox."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest

from p2p.config import ConfigurationError, EnvOptions, TrainConfig
from p2p.settings import get_settings
from p2p.training.env_spec import get_env_spec
from p2p.training.envs.registry import make_single
from p2p.training.evaluation import play_here, record_episodes
from p2p.training.model_files import adoption
from p2p.training.model_files.adoption import adopt, restore
from p2p.training.model_files.description import as_toml
from p2p.training.model_files.facts import read_facts
from p2p.training.model_files.store import copy_into, folder_of, read_record
from p2p.training.scripted import play_scripts, play_scripts_here
from p2p.training.specs.spec_text import body_info
from p2p.training.vec_env import MujocoVecEnv, is_fast

WALKER = """<mujoco model="small walker">
  <include file="parts/ground.xml"/>
  <option timestep="0.005"/>
  <worldbody>
    <body name="torso" pos="0 0 1">
      <joint name="rootz" type="slide" axis="0 0 1"/>
      <joint name="rootx" type="slide" axis="1 0 0"/>
      <joint name="rooty" type="hinge" axis="0 1 0"/>
      <geom type="capsule" size="0.05 0.2"/>
      <body name="left_leg" pos="0 0.1 -0.2">
        <joint name="left_hip" type="hinge" axis="0 1 0" range="-60 60"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 0 0 -0.4"/>
      </body>
      <body name="right_leg" pos="0 -0.1 -0.2">
        <joint name="right_hip" type="hinge" axis="0 1 0" range="-60 60"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 0 0 -0.4"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="left_hip" gear="20" ctrlrange="-1 1"/>
    <position joint="right_hip" kp="30" ctrlrange="-0.5 1"/>
  </actuator>
</mujoco>
"""
GROUND = '<mujoco><worldbody><geom name="floor" type="plane" size="5 5 1"/></worldbody></mujoco>'


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own place for models, and the folder in which the test's files lie."""
    monkeypatch.setenv("P2P_MODELS_DIR", str(tmp_path / "models"))
    get_settings.cache_clear()
    folder = tmp_path / "mine"
    (folder / "parts").mkdir(parents=True)
    (folder / "walker.xml").write_text(WALKER)
    (folder / "parts" / "ground.xml").write_text(GROUND)
    return folder


def test_same_file_is_the_same_environment(models: Path) -> None:
    first = adopt(models / "walker.xml")
    (models / "unrelated.xml").write_text(GROUND)
    assert adopt(models / "walker.xml") == first
    (models / "parts" / "ground.xml").write_text(GROUND.replace("5 5 1", "6 6 1"))
    assert adopt(models / "walker.xml") != first


def test_unchanged_files_are_not_read_again(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ground = models / "walker.xml", models / "parts" / "ground.xml"
    first, seen = adopt(model), get_env_spec(adopt(model))
    read = 0

    def count(*args: Any) -> str:
        nonlocal read
        read += 1
        return build(*args)

    build = adoption._build
    monkeypatch.setattr(adoption, "_build", count)
    assert adopt(model) == first
    assert (read, get_env_spec(first)) == (0, seen)
    ground.write_text(GROUND.replace("5 5 1", "6 6 1"))
    assert adopt(model) != first
    model.with_suffix(".toml").write_text("episode = 5\n")
    assert adopt(model) != first
    model.with_suffix(".toml").unlink()
    ground.write_text(GROUND)
    assert read == 2
    (folder_of(first) / "facts.json").write_bytes(b"{")  # damaged: made anew
    read_facts.cache_clear()
    assert adopt(model) == first
    read_facts.cache_clear()
    assert (read, get_env_spec(first)) == (3, seen)


def test_batch_equals_gymnasium_on_a_model_file(models: Path) -> None:
    env_id = adopt(models / "walker.xml")
    assert is_fast(env_id)
    options = EnvOptions(env_id, max_episode_steps=20)
    batch, seeds = MujocoVecEnv(options, 3), [5, 6, 7]
    rows: list[Any] = [make_single(options) for _ in seeds]
    observed = batch.reset_batch(seeds)
    expected = np.stack([row.reset(seed=s)[0] for row, s in zip(rows, seeds, strict=True)])
    np.testing.assert_array_equal(observed, expected)
    rng = np.random.default_rng(0)
    for _ in range(50):
        action = rng.uniform(-1.5, 1.5, (3, 2)).astype(np.float32)
        step = batch.step_batch(action)
        for i, row in enumerate(rows):
            obs, _, terminated, truncated, _ = row.step(action[i])
            np.testing.assert_array_equal(step.next_obs[i], obs)
            assert (step.terminated[i], step.truncated[i]) == (terminated, truncated)
            if terminated or truncated:
                np.testing.assert_array_equal(step.obs[i], row.reset()[0])


def test_spec_says_where_every_observation_comes_from(models: Path) -> None:
    spec = get_env_spec(adopt(models / "walker.xml"))
    env: Any = gymnasium.make(spec.env_id)
    obs, _ = env.reset(seed=0)
    data, last_action = env.unwrapped.data, np.zeros(2)
    scope = {**{n: getattr(data, n) for n in ("qpos", "qvel", "xmat")}, "last_action": last_action}
    for entry in spec.observation:
        value = eval(str(entry.source), {"sin": np.sin, "cos": np.cos}, scope)  # noqa: S307
        assert obs[entry.index] == pytest.approx(value), entry
    assert not any("rootx_position" in entry.name for entry in spec.observation)


def test_other_machine_takes_the_model_from_the_session(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_id = adopt(models / "walker.xml")
    before = read_facts(env_id).spec
    copy_into(tmp_path / "session_1", env_id)
    monkeypatch.setenv("P2P_MODELS_DIR", str(tmp_path / "elsewhere"))
    get_settings.cache_clear()
    read_facts.cache_clear()
    restore(tmp_path / "session_1" / "iter_1" / "run_1", env_id)
    assert read_facts(env_id).spec == before


def test_changed_copy_is_refused(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_id = adopt(models / "walker.xml")
    copy_into(tmp_path / "session_1", env_id)
    (copy,) = (tmp_path / "session_1" / "models").iterdir()
    (copy / "source" / "walker.xml").write_text(WALKER.replace('gear="20"', 'gear="21"'))
    monkeypatch.setenv("P2P_MODELS_DIR", str(tmp_path / "elsewhere"))
    get_settings.cache_clear()
    with pytest.raises(ConfigurationError, match="was changed"):
        restore(tmp_path / "session_1", env_id)


def test_written_toml_makes_the_same_environment(models: Path) -> None:
    env_id = adopt(models / "walker.xml")
    first, spec = read_record(env_id), read_facts(env_id).spec
    (models / "walker.toml").write_text(as_toml(first, spec))
    second = read_record(adopt(models / "walker.xml"))
    assert second == first.model_copy(update={"start": "given"})


def test_toml_decides_what_it_says(models: Path) -> None:
    (models / "walker.toml").write_text(
        """
        control_step = 0.01
        episode = 5
        fixed = ["right_hip"]
        [start.joints]
        left_hip = 0.3
        [ends]
        height = [0.4, 9]
        [parts]
        "my leg" = "left_leg"
        """
    )
    env_id = adopt(models / "walker.xml")
    record, spec = read_record(env_id), get_env_spec(env_id)
    assert (spec.dt, spec.max_episode_steps, spec.action_dim) == (0.01, 500, 1)
    assert record.parts == {"my leg": "left_leg"}
    assert "right_hip" not in {joint.name for joint in spec.joints}
    assert "at the start (0.3), in the reference pose (0)" in body_info(spec)
    env: Any = gymnasium.make(env_id)
    env.reset(seed=0)
    lengths = [n for n in range(500) if env.step(np.zeros(1, np.float32))[2]][:1]
    assert lengths, "it falls, which ends the episode"


INERTIA = """<inertial><mass value="0.5"/>
<inertia ixx="{}" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>"""
CART = f"""<?xml version="1.0"?>
<robot name="cart">
<gazebo><plugin name="drive" filename="libgazebo_ros_diff_drive.so"/></gazebo>
<link name="base">{INERTIA.format(0.01)}<collision><geometry>
<mesh filename="package://meshes/box.obj"/></geometry></collision></link>
<link name="arm">{INERTIA.format(0.03)}</link>
<link name="wheel">{INERTIA.format(0)}<collision><origin rpy="1.5708 0 0"/><geometry>
<cylinder radius="0.1" length="0.03"/></geometry></collision></link>
<joint name="elbow" type="revolute"><parent link="base"/><child link="arm"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="3" velocity="2"/></joint>
<joint name="axle" type="continuous"><parent link="base"/><child link="wheel"/><axis xyz="0 1 0"/>
<origin xyz="0.1 0 0"/></joint>
</robot>\0"""
BOX = "".join(f"v {x} {y} {z}\n" for x in (0, 0.3) for y in (0, 0.2) for z in (0, 0.1)) + (
    "f 1 2 4\nf 1 4 3\nf 5 7 8\nf 5 8 6\nf 1 5 6\nf 1 6 2\nf 3 4 8\nf 3 8 7\nf 1 3 7\nf 1 7 5\n"
    "f 2 6 8\nf 2 8 4\n"
)


def write_urdf(folder: Path, text: str) -> Path:
    (folder / "meshes").mkdir(exist_ok=True)
    (folder / "meshes" / "box.obj").write_text(BOX)
    (folder / "cart.urdf").write_text(text)
    return folder / "cart.urdf"


def test_urdf_of_another_simulator_gets_what_it_lacks(models: Path) -> None:
    record = read_record(adopt(write_urdf(models, CART)))
    assert record.free_base
    assert record.floor
    assert record.rounded == ("arm", "wheel")
    elbow, axle = record.servos
    assert (elbow.kind, elbow.effort, elbow.low, elbow.high) == ("position", 3.0, -1.0, 1.0)
    assert (axle.joint, axle.kind) == ("axle", "velocity")


def test_wheels_that_roll_another_way_than_the_robot_faces_are_told(models: Path) -> None:
    axle = CART.index('<joint name="axle"')
    aside = CART[:axle] + CART[axle:].replace("0 1 0", "1 0 0")
    aside = aside.replace('rpy="1.5708 0 0"', 'rpy="0 1.5708 0"')
    for text, told in ((CART, False), (aside, True)):
        doubts = read_facts(adopt(write_urdf(models, text))).doubts
        assert any("roll along y" in doubt for doubt in doubts) == told


def test_urdf_of_an_arm_stays_fixed(models: Path) -> None:
    wheel = CART.index('<joint name="axle"'), CART.index("</robot>")
    arm = CART[: wheel[0]] + CART[wheel[1] :]
    arm = arm.replace('<link name="wheel">', '<link name="hand">')
    hand = '<joint name="wrist" type="continuous"><parent link="arm"/><child link="hand"/></joint>'
    record = read_record(adopt(write_urdf(models, arm.replace("</robot>", hand + "</robot>"))))
    assert not record.free_base
    assert record.trunk is None


def test_archive_and_compiled_model_are_the_same_robot(models: Path, tmp_path: Path) -> None:
    first = get_env_spec(adopt(models / "walker.xml"))
    archive = tmp_path / "mine" / "robot.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for path in ("walker.xml", "parts/ground.xml"):
            opened.write(models / path, f"walker/{path}")
    compiled = models / "walker2.mjb"
    mujoco.mj_saveModel(mujoco.MjModel.from_xml_path(str(models / "walker.xml")), str(compiled))
    for file in (archive, compiled):
        other = get_env_spec(adopt(file))
        assert (other.joints, other.actions) == (first.joints, first.actions)
        assert other.observation == first.observation


def test_metadata_makes_the_robot_hold_its_start(models: Path) -> None:
    facts = read_facts(adopt(models / "walker.xml"))
    metadata = facts.policy_metadata
    assert metadata.action_joint_names == ("left_hip", "right_hip")
    assert metadata.joint_stiffness[metadata.joint_names.index("right_hip")] == 30
    held = metadata.action_offset[1] + 0 * metadata.action_scale[1]
    start = metadata.default_joint_pos[metadata.joint_names.index("right_hip")]
    assert held == pytest.approx(start, abs=0.1)


def test_judges_see_episodes_that_the_sandbox_played(models: Path) -> None:
    config = TrainConfig(env_id=adopt(models / "walker.xml"), max_episode_steps=20)
    played = record_episodes(config, "random", episodes=3, seed=5)
    here = list(play_here(config, "random", rows=3, episodes=3, seed=5))
    for episode, expected in zip(played, here, strict=True):
        np.testing.assert_array_equal(episode["qpos"], expected["qpos"])


def test_scripted_motions_are_played_in_the_sandbox(models: Path) -> None:
    config = TrainConfig(env_id=adopt(models / "walker.xml"))
    asked = {"motion": ("moving along x, from -2 to 2 m/s", 3)}
    played = list(play_scripts(config, asked, seed=3))
    here = list(play_scripts_here(config, asked, seed=3))
    assert [name for name, _ in played] == [name for name, _ in here]
    assert len(played) > 5
    for (_, episode), (_, expected) in zip(played, here, strict=True):
        np.testing.assert_array_equal(episode["qpos"], expected["qpos"])
    forward = played[0][1]["com_velocity"][1:, 0]
    assert forward == pytest.approx(np.ones_like(forward), abs=0.05)
