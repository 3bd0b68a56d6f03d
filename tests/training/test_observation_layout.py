"""Environments that nobody described: older ones and a user's own."""

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

from p2p.training.env_spec import get_env_spec, list_env_ids


class OwnCheetah(HalfCheetahEnv):
    """Observes things in another order, some of them made up."""

    def _get_obs(self) -> np.ndarray:
        data = self.data
        return np.array([
            data.qvel[0], np.clip(data.qpos[3], -0.2, 0.3), data.xpos[1, 2],
            data.qpos[4] * data.qpos[5], 1.0, data.ctrl[2], np.sin(data.qpos[2]),
        ])  # fmt: skip

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (7,), np.float64)


class SecretiveCheetah(HalfCheetahEnv):
    """Its observation cannot be asked for without a step."""

    def _get_obs(self, *, scale: float = 1.0) -> np.ndarray:
        return scale * super()._get_obs()


class ScaledObservation(gym.ObservationWrapper[Any, Any, Any]):
    def observation(self, observation: np.ndarray) -> np.ndarray:
        scaled = observation.copy()
        scaled[8:] *= 2.0
        return scaled


@pytest.fixture
def registered() -> Iterator[None]:
    gym.register("OwnCheetah-v0", entry_point=OwnCheetah, max_episode_steps=70)
    gym.register("Secretive-v0", entry_point=SecretiveCheetah)
    gym.register("Scaled-v0", entry_point=lambda **kw: ScaledObservation(HalfCheetahEnv(**kw)))
    yield
    for env_id in ("OwnCheetah-v0", "Secretive-v0", "Scaled-v0"):
        gym.registry.pop(env_id)
    get_env_spec.cache_clear()


def test_a_registered_environment_is_described_like_a_known_one(registered: None) -> None:
    spec = get_env_spec("OwnCheetah-v0")
    assert [e.source for e in spec.observation] == [
        "qvel[0]", "qpos[3]", "xpos[1, 2]", None, None, "ctrl[2]", "sin(qpos[2])",
    ]  # fmt: skip
    assert spec.observation[1].clip == (-0.2, 0.3)
    assert spec.max_episode_steps == 70
    assert "OwnCheetah-v0" in list_env_ids()


def test_what_cannot_be_identified_is_named_by_index_and_says_so(registered: None) -> None:
    product, constant = (get_env_spec("OwnCheetah-v0").observation[i] for i in (3, 4))
    assert (product.name, constant.name) == ("obs[3]", "obs[4]")
    assert "not identified" in product.description
    assert "between 1 and 1" in constant.description


def test_real_steps_identify_an_observation_that_cannot_be_asked_for(registered: None) -> None:
    secretive, open_ = get_env_spec("Secretive-v0"), get_env_spec("HalfCheetah-v5")
    assert [e.source for e in secretive.observation] == [e.source for e in open_.observation]
    assert all(e.clip is None for e in secretive.observation)


def test_a_wrapper_that_changes_numbers_is_not_taken_for_the_plain_ones(registered: None) -> None:
    sources = [e.source for e in get_env_spec("Scaled-v0").observation]
    assert sources == [f"qpos[{i}]" for i in range(1, 9)] + [None] * 9


def test_an_older_version_is_described_too() -> None:
    spec = get_env_spec("Walker2d-v4")
    assert spec.name == "Walker2d"
    assert all(e.source for e in spec.observation)


def test_an_id_with_a_package_imports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_robots_for_p2p.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.mujoco.swimmer_v5 import SwimmerEnv\n"
        "gym.register('Mine-v0', entry_point=SwimmerEnv, max_episode_steps=20)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = get_env_spec("my_robots_for_p2p:Mine-v0")
    assert isinstance(sys.modules["my_robots_for_p2p"], types.ModuleType)
    assert (spec.name, spec.obs_dim, spec.max_episode_steps) == ("Mine", 8, 20)
    gym.registry.pop("Mine-v0")
