"""A trained policy, played again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from p2p.config import TrainConfig
from p2p.contracts import ROLLOUT_LABELS
from p2p.records.iteration_record import IterationRecord
from p2p.training.replay import NoSuchCheckpoint, ReplayResult, choose_step, replay
from p2p.training.runner import RunOptions, TrainingFailed, run_training
from p2p.training.trainer_messages import longest_evaluation_s


def play(record: IterationRecord, step: int = 1024, episodes: int = 1) -> ReplayResult:
    config = TrainConfig(max_episode_steps=40)
    return replay(record, config, step=step, episodes=episodes, seed=2**33)


def test_the_checkpoint_that_stands_for_the_run_is_taken(trained_run: IterationRecord) -> None:
    assert choose_step(trained_run, None) == 1024
    assert choose_step(trained_run, 512) == 512
    with pytest.raises(NoSuchCheckpoint, match="no checkpoint at step 600, only at 512, 1024"):
        choose_step(trained_run, 600)


def test_a_stopped_run_is_played_from_its_last_checkpoint(
    tmp_path: Path, trained_run: IterationRecord
) -> None:
    shutil.copytree(trained_run.path, tmp_path / "run")
    record = IterationRecord(tmp_path / "run")
    record.summary_path.unlink()
    shutil.rmtree(record.checkpoints_dir / "step_1024")
    assert choose_step(record, None) == 512


def test_as_many_episodes_as_asked_for_and_three_of_them_in_full(
    trained_run: IterationRecord,
) -> None:
    played = play(trained_run, episodes=17)
    assert len(played.result.all_returns) == 17
    assert set(played.trajectories) == set(ROLLOUT_LABELS)
    for label, trajectory in played.trajectories.items():
        expected = played.result.all_returns[played.result.rollouts[label]]
        np.testing.assert_allclose(trajectory.total_reward, expected, rtol=1e-5)


def test_a_policy_that_is_none_is_refused(tmp_path: Path, trained_run: IterationRecord) -> None:
    shutil.copytree(trained_run.path, tmp_path / "run")
    record = IterationRecord(tmp_path / "run")
    (record.checkpoints_dir / "step_1024" / "policy.safetensors").write_bytes(b"no policy")
    with pytest.raises(
        NoSuchCheckpoint, match=r"policy\.safetensors cannot be played: .*not a saf"
    ):
        play(record)


def test_a_run_whose_files_went_away_is_told(tmp_path: Path, trained_run: IterationRecord) -> None:
    shutil.copytree(trained_run.path, tmp_path / "run")
    record = IterationRecord(tmp_path / "run")
    record.reward_fn_path.unlink()
    with pytest.raises(NoSuchCheckpoint, match=r"reward_fn\.py is missing"):
        play(record)
    shutil.rmtree(record.path)
    with pytest.raises(NoSuchCheckpoint, match=r"policy\.safetensors is missing"):
        play(record)


ALIVE = """
import os, sys, time

def reward_fn(obs, action, next_obs, info):
    while True:
        os.write(int(sys.argv[1]), b'{"type":"alive","phase":"eval","global_step":1024}\\n')
        time.sleep(0.05)
"""


def test_signs_of_life_do_not_stretch_a_replay(
    tmp_path: Path, trained_run: IterationRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained_run.path, tmp_path / "run")
    record = IterationRecord(tmp_path / "run")
    record.reward_fn_path.write_text(ALIVE)
    monkeypatch.setattr("p2p.training.replay.longest_evaluation_s", lambda *_: 2.0)
    with pytest.raises(TrainingFailed, match="longer than its 2 s"):
        play(record)


def test_a_replay_has_time_for_its_steps_alone() -> None:
    config = TrainConfig(max_episode_steps=100, num_envs=4)
    assert longest_evaluation_s(config, 1) == longest_evaluation_s(config, 4)
    assert longest_evaluation_s(config, 400) < 1000


HEIGHT = """
def reward_fn(obs, action, next_obs, info):
    height = info["mj_data"].qpos[..., 1]
    return height, {"height": height}
"""


def test_a_reward_that_needs_the_simulator_has_it_in_a_replay_too(
    tmp_path: Path, small_config: TrainConfig
) -> None:
    record = IterationRecord(tmp_path / "session_x" / "iter_1")
    config = small_config.with_updates(side_info=True, num_evals=1, total_timesteps=256)
    run_training(config, HEIGHT, record, options=RunOptions(videos=False))
    played = replay(record, config, step=choose_step(record, None), episodes=2, seed=5)
    assert len(played.result.all_returns) == 2
    assert played.result.reward_terms["height"] == played.result.mean_return
