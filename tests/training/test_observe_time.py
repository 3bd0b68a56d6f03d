"""Policies that observe the time, and what those need to know who use them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import pytest

from p2p.benchmark.measuring import play_policy
from p2p.config import EnvOptions, TrainConfig
from p2p.contracts import EvalReady, EvalResult
from p2p.prompts import all_facts
from p2p.records.iteration_record import IterationRecord
from p2p.training.checkpoints import environment_widths
from p2p.training.env_spec import get_env_spec, spec_for
from p2p.training.envs.registry import make_single
from p2p.training.evaluation import evaluation_seed
from p2p.training.export import model_card
from p2p.training.policies.policy import Policy
from p2p.training.policies.portable import save_onnx
from p2p.training.policies.sb3_export import save_sb3_zip
from p2p.training.training_loop import TrainContext
from p2p.training.trajectory import RecordedEpisode
from p2p.training.vec_env import make_batched_env
from p2p.training.worker import train

BACK_AND_FORTH = """
import numpy as np

class BackAndForth(RewardFunction):
    latex = "a"
    terms = {"push": "the first joint one way, then the other, four times"}

    def __init__(self):
        self._step = 0

    def compute(self, obs, action, next_obs, info):
        start = np.asarray(info["_episode_start"])
        self._step = np.where(start, 0, self._step + 1)
        way = np.where(self._step // 6 % 2 == 0, 1.0, -1.0)
        push = way * action[..., 0]
        return push, {"push": push}
"""
TOY = TrainConfig(
    env_id="Reacher-v5", max_episode_steps=48, num_envs=16, num_steps=96, num_minibatches=6,
    total_timesteps=1_536, learning_rate=3e-3, gamma=0.5, num_evals=1, num_eval_rounds=1,
    num_eval_envs=4, num_threads=1,
)  # fmt: skip


@dataclass(frozen=True)
class Trained:
    config: TrainConfig
    result: EvalResult
    folder: Path
    policy_file: Path

    @property
    def policy(self) -> Policy:
        return Policy.load(self.policy_file)

    def episode(self, label: str) -> RecordedEpisode:
        return RecordedEpisode.load(
            self.folder / f"trajectory_{self.result.global_step}_{label}.npz"
        )


def trained(folder: Path, **changes: Any) -> Trained:
    config, heard = TOY.with_updates(**changes), list[Any]()
    train(TrainContext(config, BACK_AND_FORTH, folder, heard.append))
    (last,) = [message for message in heard if isinstance(message, EvalReady)]
    return Trained(config, last.result, folder, folder / last.policy_file)


@pytest.fixture(scope="module")
def with_time(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("with_time"), observe_time=True)


@pytest.mark.parametrize("backend", ["fast", "gym"])
def test_the_time_stands_last_as_gymnasiums_own_wrapper_adds_it(backend: Any) -> None:
    env = make_batched_env(
        EnvOptions("Hopper-v5", max_episode_steps=7, observe_time=True), 2, backend=backend
    )
    single = gym.make("Hopper-v5", max_episode_steps=7)
    single = gym.wrappers.TimeAwareObservation(single, normalize_time=True)
    assert env.single_observation_space == single.observation_space
    np.testing.assert_array_equal(env.reset_batch(3)[0], single.reset(seed=3)[0])
    for _ in range(10):
        batch = env.step_batch(np.zeros((2, 3), np.float32))
        obs, _, _, truncated, _ = single.step(np.zeros(3, np.float32))
        np.testing.assert_array_equal(batch.next_obs[0], obs)
        obs = single.reset()[0] if truncated else obs
        np.testing.assert_array_equal(batch.obs[0], obs)
    again = make_batched_env(
        EnvOptions("Hopper-v5", max_episode_steps=7, observe_time=True), 2, backend=backend
    )
    again.reset_batch(4)
    again.load_state_dict(env.state_dict())
    steps = [e.step_batch(np.zeros((2, 3), np.float32)).next_obs for e in (env, again)]
    np.testing.assert_array_equal(*steps)
    assert steps[0][0, -1] == np.float32(4 / 7)


@pytest.mark.slow
def test_a_motion_in_parts_is_learnt_with_the_time_and_not_without(tmp_path: Path) -> None:
    returns = {}
    for observe_time in (True, False):
        (folder := tmp_path / f"{observe_time}").mkdir()
        run = trained(folder, observe_time=observe_time, total_timesteps=50_000)
        returns[observe_time] = run.result.mean_return
    assert returns[True] > 25  # of 48
    assert returns[False] < 20


def test_an_sb3_policy_acts_in_gymnasium_as_it_was_evaluated(
    with_time: Trained, tmp_path: Path
) -> None:
    from stable_baselines3 import PPO

    policy, label = with_time.policy, "median"
    episode = with_time.episode(label)
    save_sb3_zip(policy, with_time.config, tmp_path / "policy.zip", episode["obs"])
    model = PPO.load(tmp_path / "policy.zip", device="cpu")
    env = gym.make("Reacher-v5", max_episode_steps=48)
    assert model.observation_space.shape != env.observation_space.shape
    timed = gym.wrappers.TimeAwareObservation(env, normalize_time=True)
    obs, _ = timed.reset(seed=evaluation_seed() + with_time.result.rollouts[label])
    for seen, done in zip(episode["obs"], episode["action"], strict=True):
        np.testing.assert_allclose(obs, seen, atol=2e-2)
        action, _ = model.predict(obs, deterministic=True)
        np.testing.assert_allclose(action, done, atol=2e-2)
        obs, *_ = timed.step(action)


def test_whoever_gets_the_policy_is_told(with_time: Trained, tmp_path: Path) -> None:
    policy, config = with_time.policy, with_time.config
    assert policy.observe_time
    save_onnx(policy, tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    assert [entry.key for entry in model.metadata_props] == ["observe_time"]
    assert model.graph.input[0].type.tensor_type.shape.dim[1].dim_value == policy.shape.obs_dim
    result = with_time.result.model_dump(mode="json")
    card = model_card(IterationRecord(tmp_path), config, policy, result, replay=False)
    code = 'TimeAwareObservation(gym.make("Reacher-v5", max_episode_steps=48), normalize_time=True)'
    assert code in card
    assert "observes the time" in card


def test_the_ground_truth_shows_the_policy_the_time(with_time: Trained) -> None:
    (episode,) = play_policy("Reacher-v5", with_time.policy_file, seeds=[1])
    assert episode.steps == 50


def test_the_width_of_an_observation_counts_the_time() -> None:
    env = make_single(EnvOptions("Reacher-v5", observe_time=True))
    assert environment_widths(TrainConfig(env_id="Reacher-v5", observe_time=True)) == (
        *env.observation_space.shape,
        2,
    )
    assert environment_widths(TrainConfig(env_id="Reacher-v5")) == (
        env.observation_space.shape[0] - 1,
        2,
    )


def test_authors_are_told_where_the_time_stands() -> None:
    spec = spec_for(TOY.with_updates(observe_time=True))
    assert spec.obs_dim == get_env_spec("Reacher-v5").obs_dim + 1
    assert "10 | time | steps / max_episode_steps | - | share of the episode" in all_facts(spec)
