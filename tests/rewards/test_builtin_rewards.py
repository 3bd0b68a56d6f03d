import subprocess
import sys
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest

from p2p.rewards import UnknownRewardError, find_reward, list_rewards
from p2p.training.reward.runner import RewardRunner, decide_batched, trial_transitions
from p2p.training.reward_loader import load_from_file
from p2p.training.vec_env import make_batched_env

ENV_IDS = [
    f"{name}-v5"
    for name in (
        *("HalfCheetah", "Ant", "Hopper", "Walker2d", "Humanoid", "HumanoidStandup", "Swimmer"),
        *("Reacher", "Pusher", "InvertedPendulum", "InvertedDoublePendulum"),
    )
]


@pytest.fixture(scope="module")
def envs():
    made = {}

    def get(env_id):
        if env_id not in made:
            made[env_id] = make_batched_env(env_id, 3)
        return made[env_id]

    yield get
    for env in made.values():
        env.close()


def test_every_environment_has_its_default_and_another():
    counts = Counter(reward.env_id for reward in list_rewards())
    assert sorted(counts) == sorted(ENV_IDS)
    assert min(counts.values()) >= 2
    for env_id in ENV_IDS:
        name = f"{env_id.removesuffix('-v5').lower()}_default"
        assert find_reward(name).env_id == env_id
        assert name in {reward.name for reward in list_rewards(env_id)}


def test_an_unknown_name_gets_near_matches():
    with pytest.raises(UnknownRewardError, match="halfcheetah_run_forward"):
        find_reward("halfcheetah_run_foward")


def test_listing_imports_no_reward():
    code = "import sys, p2p.rewards as r; n = len(r.list_rewards()); assert n > 21; "
    code += "assert not {'numpy', 'p2p.training.reward_function'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("reward", list_rewards(), ids=lambda reward: reward.name)
def test_a_built_in_reward_is_described_batched_and_adds_up(reward, envs, monkeypatch):
    env = envs(reward.env_id)
    spec = load_from_file(reward.path)
    assert spec.latex
    assert spec.description.startswith(reward.description.split(";")[0].rstrip("."))
    code = reward.read()
    assert decide_batched(code, env, steps=40) == (True, "")
    runner = RewardRunner(code, env.num_envs, batched=True)
    seen, own, step_batch = [], [], env.step_batch

    def step_and_keep(action):
        batch = step_batch(action)
        own.append(batch.reward)
        return batch

    monkeypatch.setattr(env, "step_batch", step_and_keep)
    for t in trial_transitions(env, 40):
        total, terms = runner(t)
        np.testing.assert_allclose(total, sum(terms.values()), rtol=1e-9, atol=1e-9)
        seen.append(total)
        if reward.name.endswith("_default"):
            np.testing.assert_allclose(total, own[-1], rtol=1e-12, atol=1e-12)
    assert runner.term_names == tuple(spec.terms)
    assert np.std(seen) > 0 or reward.name == "invertedpendulum_default"


POSITIONS = {
    "HalfCheetah-v5": {1: ("qpos", 2)},
    "Ant-v5": {2: ("qpos", 4), 3: ("qpos", 5), 18: ("qvel", 5)},
    "Hopper-v5": {0: ("qpos", 1), 1: ("qpos", 2)},
    "Walker2d-v5": {1: ("qpos", 2)},
    "Humanoid-v5": {0: ("qpos", 2), 2: ("qpos", 4), 3: ("qpos", 5)},
    "HumanoidStandup-v5": {0: ("qpos", 2), 2: ("qpos", 4), 3: ("qpos", 5), 24: ("qvel", 2)},
    "Swimmer-v5": {5: ("qvel", 2)},
    "Reacher-v5": {6: ("qvel", 0), 7: ("qvel", 1)},
    "InvertedPendulum-v5": {0: ("qpos", 0), 1: ("qpos", 1)},
    "InvertedDoublePendulum-v5": {0: ("qpos", 0), 6: ("qvel", 1), 7: ("qvel", 2)},
}


def stepped(env_id):
    env = gym.make(env_id)
    env.reset(seed=3)
    env.action_space.seed(3)
    for _ in range(3):
        obs = env.step(env.action_space.sample())[0]
    return env.unwrapped, obs


@pytest.mark.parametrize("env_id", POSITIONS)
def test_the_indices_rewards_use_mean_what_they_say(env_id):
    env, obs = stepped(env_id)
    for index, (field, position) in POSITIONS[env_id].items():
        assert obs[index] == getattr(env.data, field)[position]


def test_root_joints_are_what_the_positions_stand_for():
    for env_id in ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"):
        model = gym.make(env_id).unwrapped.model
        roots = {name: model.joint(name).qposadr[0] for name in ("rootx", "rootz", "rooty")}
        assert roots == {"rootx": 0, "rootz": 1, "rooty": 2}


@pytest.mark.parametrize("env_id", ["Ant-v5", "Humanoid-v5", "HumanoidStandup-v5"])
def test_upright_is_the_vertical_part_of_the_torso_axis(env_id):
    env, obs = stepped(env_id)
    upright = 1.0 - 2.0 * (obs[2] ** 2 + obs[3] ** 2)
    assert upright == pytest.approx(env.data.body("torso").xmat[8], abs=1e-3)


def test_reacher_and_pusher_observe_the_places_that_rewards_compare():
    env, obs = stepped("Reacher-v5")
    gap = env.data.body("fingertip").xpos - env.data.body("target").xpos
    np.testing.assert_array_equal(obs[8:10], gap[:2])
    env, obs = stepped("Pusher-v5")
    for start, name in ((14, "tips_arm"), (17, "object"), (20, "goal")):
        np.testing.assert_array_equal(obs[start : start + 3], env.data.body(name).xpos)


def test_double_pendulum_angles_are_observed_as_sine_and_cosine():
    env, obs = stepped("InvertedDoublePendulum-v5")
    np.testing.assert_allclose(obs[1:3], np.sin(env.data.qpos[1:]))
    np.testing.assert_allclose(obs[3:5], np.cos(env.data.qpos[1:]))
