"""Training that starts from a policy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2p.config import ConfigurationError, TrainConfig
from p2p.contracts import EvalReady
from p2p.records.iteration_record import IterationRecord
from p2p.training.checkpoints import START_POLICY, checkpoint_steps, load_checkpoint
from p2p.training.policies.policy import Policy
from p2p.training.runner import RunOptions, run_training
from p2p.training.training_loop import TrainContext
from p2p.training.worker import train


def trained(folder: Path, config: TrainConfig, reward: str, start: Path | None = None) -> Path:
    """The last policy of a run within this process."""
    folder.mkdir()
    if start is not None:
        shutil.copyfile(start, folder / START_POLICY)
    heard: list[Any] = []
    train(TrainContext(config, reward, folder, heard.append))
    return folder / [each.policy_file for each in heard if isinstance(each, EvalReady)][-1]


@pytest.fixture
def first(tmp_path: Path, small_config: TrainConfig, batched_reward: str) -> Path:
    return trained(tmp_path / "first", small_config, batched_reward)


def test_network_and_statistics_are_those_of_the_policy_it_starts_from(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str, first: Path
) -> None:
    before = Policy.load(first)
    still = small_config.with_updates(learning_rate=1e-12, seed=7)
    after = Policy.load(trained(tmp_path / "after", still, batched_reward, first))
    anew = Policy.load(trained(tmp_path / "anew", still, batched_reward))
    for name, tensor in before.tensors.items():
        np.testing.assert_allclose(after.tensors[name], tensor, atol=1e-6)
    assert not np.allclose(anew.tensors["action_net.weight"], before.tensors["action_net.weight"])
    moved = np.abs(after.obs_mean - before.obs_mean).max()
    assert 0 < moved < np.abs(anew.obs_mean - before.obs_mean).max()  # new rollouts count, too


def test_a_damaged_start_is_not_the_rewards_fault(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str
) -> None:
    (tmp_path / "half").write_bytes(b"half a policy")
    with pytest.raises(ConfigurationError, match=START_POLICY):
        trained(tmp_path / "run", small_config, batched_reward, tmp_path / "half")


def test_paused_and_resumed_it_does_not_start_from_it_again(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str, first: Path
) -> None:
    def trained_until(number: int, *ends: int | None) -> Policy:
        record = IterationRecord(tmp_path / f"iter_{number}")
        record.path.mkdir()
        shutil.copyfile(first, record.start_policy_path)
        for end in ends:
            options = RunOptions(videos=False, until=end, pause=end is not None)
            run_training(small_config, batched_reward, record, options=options)
        return load_checkpoint(record, checkpoint_steps(record)[-1])

    whole, resumed = trained_until(1, None), trained_until(2, 512, None)
    for name, tensor in whole.tensors.items():
        np.testing.assert_array_equal(resumed.tensors[name], tensor)
