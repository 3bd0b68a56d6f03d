"""The reference backend, in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecNormalize

from p2p.config import TrainConfig
from p2p.contracts import EvalReady, Finished, ScalarsReady, Started, StateSaved, WorkerMessage
from p2p.training.checkpoints import adopt_state, load_state
from p2p.training.env import RewardedVecEnv
from p2p.training.policies.policy import Policy
from p2p.training.reward_runner import RewardRunner
from p2p.training.sb3_trainer import MeasuredPPO, SB3Learner
from p2p.training.training_loop import (
    Metrics,
    TrainContext,
    TrainingDivergedError,
    TrainingLoop,
    make_environment,
)
from p2p.training.worker import train as train_in

SCALAR = """
def reward_fn(obs, action, next_obs, info):
    if next_obs[0] > 0.0:
        return 1.0, {"up": 1.0}
    return 0.5, {"up": 0.5}
"""
FROM_THE_STATE = """
def reward_fn(obs, action, next_obs, info):
    height = info["mj_data"].qpos[..., 1]
    return height, {"height": height}
"""

Make = Callable[..., PPO]


@pytest.fixture
def hopper(small_config: TrainConfig) -> TrainConfig:
    """A run of four rollouts, with episodes that end both ways."""
    return small_config.with_updates(env_id="Hopper-v5", max_episode_steps=60, backend="sb3")


def normalised(config: TrainConfig, code: str) -> VecNormalize:
    env = make_environment(config, config.num_envs, code, backend="gym")
    reward = RewardRunner(code, config.num_envs, batched=True)
    rewarded = RewardedVecEnv(env, reward)
    rewarded.seeds = config.seed
    return VecNormalize(rewarded)


def train(config: TrainConfig, code: str, folder: Path) -> list[WorkerMessage]:
    heard: list[WorkerMessage] = []

    def send(message: WorkerMessage) -> None:
        heard.append(message)
        if isinstance(message, StateSaved):
            adopt_state(folder, message.file)

    train_in(TrainContext(config, code, folder, send))
    return heard


def of(kind: type[Any], messages: list[WorkerMessage]) -> list[Any]:
    return [message for message in messages if isinstance(message, kind)]


def last_policy(messages: list[WorkerMessage], folder: Path) -> Policy:
    return Policy.load(folder / of(EvalReady, messages)[-1].policy_file)


def test_a_restored_learner_is_the_saved_one_and_continues_exactly(
    tmp_path: Path, hopper: TrainConfig, batched_reward: str
) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()

    def keep(message: WorkerMessage) -> None:
        if isinstance(message, StateSaved):
            adopt_state(folders[1], message.file, folders[0])

    first = TrainingLoop(TrainContext(hopper, batched_reward, folders[0], keep, 512), SB3Learner)
    first.run()
    saved = first.learner.state()
    random = np.random.get_state()  # noqa: NPY002
    first.learner.model.train()

    second = TrainingLoop(TrainContext(hopper, batched_reward, folders[1], keep), SB3Learner)
    np.random.set_state(random)  # noqa: NPY002
    restored = second.learner.state()
    assert restored.keys() == saved.keys()
    assert {name.split("/")[1] for name in saved} == {
        "weight", "adam", "observations", "returns", "random",
    }  # fmt: skip
    for name, array in saved.items():
        if "observations/" not in name:  # new episodes have begun, whose first rows count
            np.testing.assert_array_equal(restored[name], array, err_msg=name)

    # The same data, the restored shuffles and moments: the same weights after another update.
    mine, theirs = second.learner.model, first.learner.model
    mine.rollout_buffer = copy.deepcopy(theirs.rollout_buffer)
    mine._current_progress_remaining = theirs._current_progress_remaining
    mine.train()
    for one, other in zip(mine.policy.parameters(), theirs.policy.parameters(), strict=True):
        assert torch.equal(one, other)


def test_measuring_changes_nothing_and_sees_the_norm_before_clipping(
    hopper: TrainConfig, batched_reward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Metrics] = []
    norms: list[float] = []
    original = torch.nn.utils.clip_grad_norm_

    def spy(*args: Any, **kwargs: Any) -> torch.Tensor:
        norm = original(*args, **kwargs)
        norms.append(float(norm))
        return norm

    def learn(make: Make) -> PPO:
        model = make(
            "MlpPolicy", normalised(hopper, batched_reward), n_steps=hopper.num_steps,
            batch_size=hopper.minibatch_size, n_epochs=hopper.update_epochs, max_grad_norm=0.3,
            seed=hopper.seed, device="cpu",
        )  # fmt: skip
        model.set_logger(Logger(folder=None, output_formats=[]))
        return model.learn(2 * hopper.batch_size)

    class Noted(MeasuredPPO):
        def train(self) -> None:
            super().train()
            measured.append(self.metrics)

    with_measures = learn(Noted)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spy)
    plain = learn(PPO)
    for mine, their in zip(
        with_measures.policy.parameters(), plain.policy.parameters(), strict=True
    ):
        assert torch.equal(mine, their)
    assert max(norms) > 0.3, "nothing was clipped"
    per_update = np.reshape(norms, (2, -1)).mean(axis=1)
    assert [m["grad_norm"] for m in measured] == pytest.approx(per_update.tolist())


def test_an_interrupted_run_continues_from_its_last_state(
    tmp_path: Path, hopper: TrainConfig, batched_reward: str
) -> None:
    class Killed(BaseException):
        pass

    heard: list[WorkerMessage] = []

    def send(message: WorkerMessage) -> None:
        heard.append(message)
        if isinstance(message, StateSaved):
            adopt_state(tmp_path, message.file)
        if len(of(ScalarsReady, heard)) == 3:
            raise Killed

    with pytest.raises(Killed):
        train_in(TrainContext(hopper, batched_reward, tmp_path, send))
    state = load_state(tmp_path)
    assert state is not None
    rest = train(hopper, batched_reward, tmp_path)
    assert of(Started, rest)[0].start_step == 2 * hopper.batch_size
    lines = [message.scalars for message in of(ScalarsReady, rest)]
    assert [line.global_step for line in lines] == [768, 1024]
    assert [line.iteration for line in lines] == [3, 4]
    assert lines[0].values["elapsed_time"] > state[1]["elapsed"]
    assert of(Finished, rest)[0].global_step == 1024
    # Gradient steps of four updates: none was lost, none was made twice.
    end = load_state(tmp_path)
    assert end is not None
    expected = 4 * hopper.update_epochs * hopper.num_minibatches
    assert float(end[0]["learner/adam/0/step"]) == expected


def test_a_reward_for_one_transition_is_called_per_environment(
    tmp_path: Path, hopper: TrainConfig
) -> None:
    heard = train(hopper, SCALAR, tmp_path)
    assert of(Started, heard)[0].reward_calls == "per_env"
    assert "reward_term_up" in of(ScalarsReady, heard)[-1].scalars.values


def test_the_reward_is_given_the_simulators_state_if_asked(
    tmp_path: Path, hopper: TrainConfig
) -> None:
    heard = train(hopper.with_updates(side_info=True), FROM_THE_STATE, tmp_path)
    result = of(EvalReady, heard)[-1].result
    # A hopper stands at 1.25 m.
    assert 0.5 < result.mean_return / result.episode_length < 1.5


@pytest.mark.parametrize("backend", ["sb3", "fast"])
def test_the_policy_is_built_as_configured(
    tmp_path: Path, hopper: TrainConfig, batched_reward: str, backend: str
) -> None:
    config = hopper.with_updates(
        net_arch=(24, 16, 8), activation="relu", log_std_init=-1.5, num_evals=1, obs_clip=3.0,
        backend=backend, learning_rate=1e-5,
    )  # fmt: skip
    policy = last_policy(train(config, batched_reward, tmp_path), tmp_path)
    assert policy.shape.net_arch == (24, 16, 8)
    assert policy.shape.activation == "relu"
    assert policy.tensors["mlp_extractor.policy_net.2.weight"].shape == (16, 24)
    assert policy.tensors["log_std"] == pytest.approx(-1.5, abs=0.01)
    assert policy.obs_clip == 3.0


@pytest.mark.parametrize("backend", ["sb3", "fast"])
def test_a_run_whose_parameters_are_no_numbers_says_so(
    tmp_path: Path, hopper: TrainConfig, batched_reward: str, backend: str
) -> None:
    config = hopper.with_updates(learning_rate=1e30, backend=backend)
    with pytest.raises(TrainingDivergedError, match=r"no longer finite.* a lower learning_rate"):
        train(config, batched_reward, tmp_path)
