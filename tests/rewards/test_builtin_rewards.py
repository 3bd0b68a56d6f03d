import subprocess
import sys
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest

from p2p.config import EnvOptions
from p2p.rewards import UnknownRewardError, find_reward, list_rewards
from p2p.training.env_spec import get_env_spec
from p2p.training.reward_loader import load_from_code
from p2p.training.reward_runner import RewardRunner, decide_batched, trial_transitions
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
            made[env_id] = make_batched_env(EnvOptions(env_id), 3)
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
    spec = load_from_code(reward.read())
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


USED = {
    "HalfCheetah-v5": {1: "rooty_angle"},
    "Ant-v5": {2: "root_quat_x", 3: "root_quat_y", 18: "root_angular_velocity_z"},
    "Hopper-v5": {0: "rootz_position", 1: "rooty_angle"},
    "Walker2d-v5": {1: "rooty_angle"},
    "Humanoid-v5": {0: "root_z", 2: "root_quat_x", 3: "root_quat_y"},
    "HumanoidStandup-v5": {0: "root_z", 2: "root_quat_x", 3: "root_quat_y", 24: "root_velocity_z"},
    "Swimmer-v5": {5: "free_body_rot_angular_velocity"},
    "Reacher-v5": {6: "joint0_angular_velocity", 7: "joint1_angular_velocity",
                   8: "fingertip_minus_target_x", 9: "fingertip_minus_target_y"},
    "Pusher-v5": {i + k: f"{name}_position_{axis}"
                  for i, name in ((14, "tips_arm"), (17, "object"), (20, "goal"))
                  for k, axis in enumerate("xyz")},
    "InvertedPendulum-v5": {0: "slider_position", 1: "hinge_angle"},
    "InvertedDoublePendulum-v5": {0: "slider_position", 1: "sin_hinge_angle", 2: "sin_hinge2_angle",
                                  3: "cos_hinge_angle", 4: "cos_hinge2_angle",
                                  6: "hinge_angular_velocity", 7: "hinge2_angular_velocity"},
}  # fmt: skip


@pytest.mark.parametrize("env_id", USED)
def test_the_indices_rewards_use_mean_what_they_say(env_id):
    observation = get_env_spec(env_id).observation
    assert {i: observation[i].name for i in USED[env_id]} == USED[env_id]


@pytest.mark.parametrize("env_id", ["Ant-v5", "Humanoid-v5", "HumanoidStandup-v5"])
def test_upright_is_the_vertical_part_of_the_torso_axis(env_id):
    env = gym.make(env_id)
    env.reset(seed=3)
    obs = env.step(env.action_space.sample())[0]
    upright = 1.0 - 2.0 * (obs[2] ** 2 + obs[3] ** 2)
    assert upright == pytest.approx(env.unwrapped.data.body("torso").xmat[8], abs=1e-3)
