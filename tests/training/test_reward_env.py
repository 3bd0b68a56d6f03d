import pickle

import gymnasium as gym
import numpy as np
import pytest
from test_reward_loader import CLASS, MAKER

from p2p.training.env import CustomRewardWrapper, make_env
from p2p.training.envs.registry import UnknownEnvironmentError
from p2p.training.reward_function import RewardError
from p2p.training.reward_loader import load_from_code


def function(body):
    return load_from_code(f"def reward_fn(obs, action, next_obs, info):\n    {body}\n")


def test_the_reward_sees_the_observation_before_the_step():
    seen = []

    def reward_fn(obs, action, next_obs, info):
        seen.append((obs.copy(), next_obs.copy(), info["_episode_start"]))
        return 0.0, {}

    env = make_env("HalfCheetah-v5", reward_fn)
    plain = gym.make("HalfCheetah-v5")
    for seed in (1, 2):
        expected = [plain.reset(seed=seed)[0]]
        env.reset(seed=seed)
        for _ in range(3):
            action = plain.action_space.sample()
            expected.append(plain.step(action)[0])
            env.step(action)
        for (obs, next_obs, start), i in zip(seen[-3:], range(3), strict=True):
            np.testing.assert_array_equal(obs, expected[i])
            np.testing.assert_array_equal(next_obs, expected[i + 1])
            assert start is (i == 0)


def test_reward_and_terms_replace_the_environments_own():
    env = make_env("HalfCheetah-v5", load_from_code(CLASS), max_episode_steps=2)
    env.reset(seed=0)
    action = np.full(6, 0.5, np.float32)
    _, reward, _, truncated, info = env.step(action)
    assert not truncated
    assert info["reward_terms"] == {"speed": info["x_velocity"], "ctrl": pytest.approx(-0.15)}
    assert reward == pytest.approx(info["x_velocity"] - 0.15)
    assert env.term_names == ("speed", "ctrl")
    assert env.step(action)[3]


def test_side_information_is_live_and_does_not_leave_the_wrapper():
    reward = function("return info['mj_data'].qpos[1] + info['mj_model'].nq, {}")
    env = make_env("HalfCheetah-v5", reward, side_info=True)
    env.reset(seed=0)
    for _ in range(2):
        _, reward, _, _, info = env.step(np.ones(6, np.float32))
        assert reward == env.unwrapped.data.qpos[1] + 9
        assert not {"mj_data", "mj_model", "_episode_start"} & set(info)
        pickle.dumps(info)


def test_side_information_needs_mujoco():
    with pytest.raises(ValueError, match="no MuJoCo model"):
        CustomRewardWrapper(gym.make("CartPole-v1"), function("return 0.0, {}"), side_info=True)


def test_state_begins_anew_with_every_episode():
    env = make_env("HalfCheetah-v5", load_from_code(MAKER))
    for _ in range(2):
        env.reset()
        assert [env.step(np.zeros(6, np.float32))[1] for _ in range(3)] == [1, 2, 3]


def test_a_broken_reward_ends_the_step():
    env = make_env("HalfCheetah-v5", function("return float('nan'), {}"))
    env.reset(seed=0)
    with pytest.raises(RewardError, match="the total is nan"):
        env.step(np.zeros(6, np.float32))


def test_unknown_names_are_errors_that_name_the_known_ones():
    with pytest.raises(UnknownEnvironmentError, match="HalfCheetah-v5"):
        make_env("HalfCheeta-v5", function("return 1.0, {}"))
    with pytest.raises(ValueError, match=r"'warp'; known: isaaclab, mjlab, mujoco"):
        make_env("HalfCheetah-v5", function("return 1.0, {}"), engine="warp")
    with pytest.raises(ValueError, match=r"'warp'; known: isaaclab, mjlab, mujoco"):
        load_from_code("def reward_fn(obs, action, next_obs, info):\n    return 0.0, {}", "warp")
