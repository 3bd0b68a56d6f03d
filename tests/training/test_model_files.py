"""Environments from model files: MJCF in this folder, read in the sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from p2p.config import EnvOptions
from p2p.settings import get_settings
from p2p.training.env_spec import get_env_spec
from p2p.training.envs.registry import make_single
from p2p.training.model_files.adoption import adopt
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
