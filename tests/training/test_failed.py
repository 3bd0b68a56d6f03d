"""`failed` in a reward file ends episodes of training early, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2p.config import TrainConfig
from p2p.contracts import EvalReady, ScalarsReady
from p2p.training.policies.network import NetworkShape, initial_parameters
from p2p.training.ppo import Actor, RolloutCollector
from p2p.training.reward_check import check_reward
from p2p.training.reward_function import RewardError
from p2p.training.reward_loader import load_from_code
from p2p.training.reward_runner import RewardRunner, decide_batched
from p2p.training.training_loop import TrainContext, make_environment, make_reward
from p2p.training.worker import train

FUNCTION = """
import numpy as np

def reward_fn(obs, action, next_obs, info):
    total = np.ones(np.shape(action)[:-1])
    return total, {"alive": total}

def failed(obs, action, next_obs, info):
    return %s
"""
LEANS = FUNCTION % "np.abs(next_obs[..., 1]) > 0.2"
CLASS = """
import numpy as np

class Upright(RewardFunction):
    latex = "1"
    terms = {"alive": "for every step"}

    def compute(self, obs, action, next_obs, info):
        total = np.ones(np.shape(action)[:-1])
        return total, {"alive": total}

    def failed(self, obs, action, next_obs, info):
        return info["body_up"][..., 1, 2] < 0.97
"""
SMALL = TrainConfig(
    env_id="HalfCheetah-v5", num_envs=4, num_steps=64, num_minibatches=4, total_timesteps=256,
    max_episode_steps=40, num_evals=1, num_eval_rounds=1, net_arch=(8,), update_epochs=1,
)  # fmt: skip
SAC = {"algorithm": "sac", "replay_batch_size": 16, "replay_size": 10_000}


@pytest.mark.parametrize("changes", [{}, {"backend": "sb3"}, SAC], ids=["ppo", "sb3", "sac"])
def test_training_episodes_end_where_the_reward_says_and_evaluated_ones_go_on(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    messages: list[Any] = []
    train(TrainContext(SMALL.with_updates(**changes), CLASS, tmp_path, messages.append))
    [scalars] = [m.scalars.values for m in messages if isinstance(m, ScalarsReady)]
    [result] = [m.result for m in messages if isinstance(m, EvalReady)]
    assert 1 < scalars["episode_length"] < 39
    assert scalars["episodes_per_rollout"] > 4  # those of time limits alone
    assert 0 < scalars["failed_share"] <= 1
    assert set(result.episode_lengths) == {40}


def test_a_failure_terminates_and_is_worth_nothing_beyond_its_step() -> None:
    config = SMALL.with_updates(normalize_reward=False, training_horizon=20)
    code = FUNCTION % 'info["x_position"] * 0.0 + next_obs[..., 1] > 0.15'
    env = make_environment(config, 4, code, training=True)
    reward = make_reward(config, code, env, batched=True)
    shape = NetworkShape.from_config(config, 17, 6)
    collector, actor = RolloutCollector(env, reward, shape, config), Actor(shape, 4)
    tensors = initial_parameters(shape, np.random.default_rng(0), ortho_init=True, log_std_init=0.0)
    actor.use({name: np.asarray(value) for name, value in tensors.items()})
    collector.restart(1)
    noise = np.random.default_rng(1).standard_normal((64, 4, 6)).astype(np.float32)
    rollout = collector.collect(actor, noise, lambda: None)
    ends = rollout.dones.sum()
    bootstrapped = (np.abs(rollout.rewards - 1.0) > 1e-6) & rollout.dones
    assert ends > bootstrapped.sum() > 0  # time limits only
    assert not ((np.abs(rollout.rewards - 1.0) > 1e-6) & ~rollout.dones).any()
    # The row starts anew: the observation after a failure is that of a new episode.
    failures = np.argwhere(rollout.dones & ~bootstrapped)
    raw = collector.observations.statistics
    after = rollout.obs[1:][tuple(failures.T)] * np.sqrt(raw.var) + raw.mean
    assert (np.abs(after[:, 1]) < 0.15).mean() > 0.9


def test_both_ways_of_calling_give_the_same_rows() -> None:
    env = make_environment(SMALL, 4, CLASS)
    assert decide_batched(CLASS, env) == (True, "")
    assert RewardRunner(CLASS, 4, batched=True).ends_episodes
    plain = LEANS.partition("def failed")[0]
    assert not RewardRunner(plain, 4, batched=True).ends_episodes


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("np.ones(np.shape(action)[:-1], bool)", "true on the first step of all"),
        ("next_obs[..., 1]", "failed returned an? .*float64.*, not"),
        ("next_obs > 0.2", r"failed returned an array of bool with shape \(17,\), not True or"),
        ("np.random.random(np.shape(action)[:-1]) > 0.5", "two answers for the same step"),
        ("info['no_such_key'] > 0", "KeyError: 'no_such_key'"),
    ],
)
def test_a_failed_that_cannot_be_trained_on_is_refused(answer: str, message: str) -> None:
    code = FUNCTION % answer
    with pytest.raises(RewardError, match=message):
        decide_batched(code, make_environment(SMALL, 4, code))


def test_the_check_in_the_sandbox_says_so() -> None:
    report = check_reward(FUNCTION % "np.ones(np.shape(action)[:-1], bool)", "HalfCheetah-v5")
    [error] = [finding for finding in report.findings if finding.level == "error"]
    assert "no training episode would last" in error.message
    assert not report.ok


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (LEANS.replace("def failed(obs, action, next_obs, info)", "def failed(obs)"),
         "must be failed\\(obs, action, next_obs, info\\)"),
        (LEANS.partition("def failed")[0] + "failed = 3\n", "failed must be a function"),
        (CLASS + "\ndef failed(obs, action, next_obs, info):\n    return False\n",
         "make it a method of the class"),
    ],
)  # fmt: skip
def test_a_file_that_defines_it_wrongly_says_what_to_do(code: str, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        load_from_code(code)


def test_the_horizon_of_training_is_not_that_of_evaluation() -> None:
    config = SMALL.with_updates(training_horizon=7)
    assert make_environment(config, 1, LEANS, training=True).max_episode_steps == 7
    assert make_environment(config, 1, LEANS).max_episode_steps == 40
