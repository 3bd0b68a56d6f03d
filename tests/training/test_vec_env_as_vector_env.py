"""MujocoVecEnv used alone, as a gymnasium.vector.VectorEnv."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from p2p.training.vec_env import MujocoVecEnv


def assert_same_info(mine, theirs):
    assert set(mine) == set(theirs)
    for key, value in theirs.items():
        if isinstance(value, dict):
            assert_same_info(mine[key], value)
            continue
        assert mine[key].dtype == value.dtype, key
        if value.dtype == object:
            for a, b in zip(mine[key], value, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=key)
        else:
            np.testing.assert_array_equal(mine[key], value, err_msg=key)


@pytest.mark.parametrize(
    ("name", "limit"),
    [("Hopper-v5", 40), ("Humanoid-v5", 40), ("InvertedPendulum-v5", 30), ("HalfCheetah-v5", 9)],
)
def test_step_and_reset_equal_sync_vector_env(name, limit):
    rows = 3
    make = partial(gym.make, name, max_episode_steps=limit)
    theirs = SyncVectorEnv([make] * rows, autoreset_mode=AutoresetMode.SAME_STEP)
    mine = MujocoVecEnv(name, rows, max_episode_steps=limit)
    assert isinstance(mine, VectorEnv)
    assert mine.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert mine.observation_space == theirs.observation_space
    assert mine.action_space == theirs.action_space
    (obs, info), (their_obs, their_info) = mine.reset(seed=5), theirs.reset(seed=5)
    np.testing.assert_array_equal(obs, their_obs)
    assert_same_info(info, their_info)
    mine.action_space.seed(2)
    ends = 0
    for _ in range(100):
        action = mine.action_space.sample()
        *result, info = mine.step(action)
        *expected, their_info = theirs.step(action)
        for a, b in zip(result, expected, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
        assert_same_info(info, their_info)
        ends += "final_obs" in info
    assert ends > 0
    mine.close()


def test_a_reset_mask_restarts_only_its_rows():
    mask = np.array([True, False])
    make = partial(gym.make, "Swimmer-v5")
    theirs = SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    mine = MujocoVecEnv("Swimmer-v5", 2)
    for env in (mine, theirs):
        env.reset(seed=1)
    action = np.full((2, 2), 0.5, np.float32)
    for env in (mine, theirs):
        env.step(action)
    obs, info = mine.reset(seed=30, options={"reset_mask": mask})
    their_obs, their_info = theirs.reset(seed=30, options={"reset_mask": mask})
    np.testing.assert_array_equal(obs, their_obs)
    assert_same_info(info, their_info)
    np.testing.assert_array_equal(mine.step(action)[0], theirs.step(action)[0])
