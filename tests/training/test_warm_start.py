"""Training that starts from a policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from p2p.config import TrainConfig
from p2p.records.iteration_record import IterationRecord
from p2p.training.checkpoints import checkpoint_steps, load_checkpoint
from p2p.training.policies.policy import Policy
from p2p.training.runner import RunOptions, run_training

SHORT = RunOptions(videos=False)


def trained(
    folder: Path, config: TrainConfig, reward: str, start: Path | None = None
) -> IterationRecord:
    record = IterationRecord(folder)
    if start is not None:
        record.path.mkdir(parents=True)
        record.start_policy_path.write_bytes(start.read_bytes())
    run_training(config, reward, record, options=SHORT)
    return record


def last_policy(record: IterationRecord) -> Policy:
    return load_checkpoint(record, checkpoint_steps(record)[-1])


@pytest.fixture
def first(tmp_path: Path, small_config: TrainConfig, batched_reward: str) -> Path:
    record = trained(tmp_path / "iter_1", small_config, batched_reward)
    step = checkpoint_steps(record)[-1]
    return record.checkpoints_dir / f"step_{step}" / "policy.safetensors"


def test_network_and_statistics_are_those_of_the_policy_it_starts_from(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str, first: Path
) -> None:
    before = Policy.load(first)
    still = small_config.with_updates(learning_rate=1e-12, seed=7)
    after = last_policy(trained(tmp_path / "iter_2", still, batched_reward, first))
    anew = last_policy(trained(tmp_path / "iter_3", still, batched_reward))
    for name, tensor in before.tensors.items():
        np.testing.assert_allclose(after.tensors[name], tensor, atol=1e-6)
    assert not np.allclose(anew.tensors["action_net.weight"], before.tensors["action_net.weight"])
    # New rollouts count, too.
    assert 0 < np.abs(after.obs_mean - before.obs_mean).max() < 0.5
    assert np.abs(anew.obs_mean - before.obs_mean).max() > 0


def test_paused_and_resumed_it_does_not_start_from_it_again(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str, first: Path
) -> None:
    whole = trained(tmp_path / "iter_2", small_config, batched_reward, first)
    record = IterationRecord(tmp_path / "iter_3")
    record.path.mkdir()
    record.start_policy_path.write_bytes(first.read_bytes())
    run_training(
        small_config,
        batched_reward,
        record,
        options=RunOptions(videos=False, until=512, pause=True),
    )
    run_training(small_config, batched_reward, record, options=SHORT)
    for name, tensor in last_policy(whole).tensors.items():
        np.testing.assert_array_equal(last_policy(record).tensors[name], tensor)
