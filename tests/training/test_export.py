"""An exported run, as those who get it use it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from p2p.config import TrainConfig
from p2p.interface import TrainedPolicy
from p2p.records.folder import FolderPath
from p2p.records.iteration_record import IterationRecord
from p2p.training.checkpoints import load_checkpoint
from p2p.training.evaluation import evaluation_seed
from p2p.training.export import ExportError, export_run, zip_name

FILES = {
    "README.md", "config.json", "metrics/scalars.jsonl", "policy.safetensors", "replay.mp4",
    "ppo-HalfCheetah-v5.zip", "results.json", "reward_fn.py", "reward_spec.json",
    "policy.pt", "policy.onnx",
}  # fmt: skip


@pytest.fixture(scope="module")
def config(trained_run: IterationRecord) -> TrainConfig:
    return TrainConfig.model_validate(trained_run.read_config())


@pytest.fixture(scope="module")
def exported(
    tmp_path_factory: pytest.TempPathFactory, trained_run: IterationRecord, config: TrainConfig
) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "ppo-HalfCheetah-v5"
    files = export_run(trained_run, config, 1024, folder)
    assert {str(path.relative_to(folder)) for path in files} == FILES
    return folder


def test_sb3_reads_it_and_acts_as_our_policy_does(
    exported: Path, trained_run: IterationRecord
) -> None:
    import gymnasium as gym
    from stable_baselines3 import PPO

    policy = load_checkpoint(trained_run, 1024)
    env = gym.make("HalfCheetah-v5")
    model = PPO.load(exported / "ppo-HalfCheetah-v5.zip", device="cpu")
    obs, _ = env.reset(seed=3)
    for _ in range(20):
        action, _ = model.predict(obs, deterministic=True)
        np.testing.assert_allclose(action, policy.act(obs[None])[0], atol=2e-3)
        obs, *_ = env.step(action)


def test_the_environments_own_return_is_that_of_plain_gymnasium(
    exported: Path, trained_run: IterationRecord, config: TrainConfig
) -> None:
    import gymnasium as gym
    from stable_baselines3 import PPO

    def own_return(seed: int, episodes: int) -> float:
        env = gym.make("HalfCheetah-v5", max_episode_steps=40)
        model = PPO.load(exported / "ppo-HalfCheetah-v5.zip", device="cpu")
        total = 0.0
        for episode in range(episodes):
            (obs, _), over = env.reset(seed=seed + episode), False
            while not over:
                action, _ = model.predict(obs, deterministic=True)
                obs, reward, terminated, truncated, _ = env.step(action)
                total += float(reward)
                over = terminated or truncated
        return total / episodes

    result = TrainedPolicy(trained_run, config, 1024).evaluate(episodes=3, seed=7)
    assert result.env_return == pytest.approx(own_return(evaluation_seed(7), 3), rel=1e-4)
    _, evaluations = trained_run.parse_scalars()
    episodes = len(evaluations[-1]["all_returns"])
    measured = own_return(evaluation_seed(0), episodes)
    assert evaluations[-1]["env_return"] == pytest.approx(measured, rel=1e-4)
    text = f"the same episodes return {evaluations[-1]['env_return']:.2f}."
    assert text in (exported / "README.md").read_text()


def test_the_code_of_the_model_card_runs_as_printed(exported: Path) -> None:
    card = (exported / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert 'gym.make("HalfCheetah-v5", max_episode_steps=40)' in code
    code += "assert model.num_timesteps is not None and obs.shape == (17,)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=exported, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_card_says_what_was_measured(exported: Path, trained_run: IterationRecord) -> None:
    card = (exported / "README.md").read_text()
    results = json.loads((exported / "results.json").read_text())
    _, evaluations = trained_run.parse_scalars()
    assert results["mean_reward"] == evaluations[-1]["mean_return"]
    assert results["n_eval_episodes"] == len(evaluations[-1]["all_returns"])
    assert f"value: {results['mean_reward']:.2f} +/- {results['std_reward']:.2f}" in card
    assert "r = v_x - 0.1 |a|^2" in card
    assert card.startswith("---\nlibrary_name: stable-baselines3\n")
    rows = "".join(re.findall(r"^\| (`.*?) \|", card.split("## Files")[1], re.MULTILINE))
    assert set(re.findall(r"`(.*?)`", rows)) == FILES - {"README.md"}


def test_the_replay_of_a_run_without_videos_is_made_now(
    tmp_path: Path, trained_run: IterationRecord, config: TrainConfig
) -> None:
    class WithoutVideos(IterationRecord):
        videos_dir = FolderPath("none")

    export_run(WithoutVideos(trained_run.path), config, 512, tmp_path / "out")
    with av.open(tmp_path / "out" / "replay.mp4") as video:
        assert video.streams.video[0].codec_context.name == "h264"


def test_what_cannot_be_exported_leaves_nothing(
    tmp_path: Path, trained_run: IterationRecord, config: TrainConfig
) -> None:
    with pytest.raises(ExportError, match="no evaluation at step 7"):
        export_run(trained_run, config, 7, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        export_run(trained_run, config, 1024, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert export_run(trained_run, config, 1024, tmp_path / "empty")


def test_zip_names_follow_the_hub() -> None:
    assert zip_name("Ant-v5") == "ppo-Ant-v5.zip"
    assert zip_name("my_package.envs:robots/Crab-v0") == "ppo-robots-Crab-v0.zip"
