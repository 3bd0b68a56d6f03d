"""A saved policy acts by itself: raw observations in, the evaluated actions out."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from p2p.config import TrainConfig
from p2p.training.env_spec import list_env_ids
from p2p.training.evaluation import evaluation_seed, record_episodes
from p2p.training.policies.network import NetworkShape, initial_parameters
from p2p.training.policies.policy import Policy
from p2p.training.policies.portable import save_onnx, save_torchscript
from p2p.training.policies.sb3_export import save_sb3_zip

STEPS = 20
"""Few enough that differences in an action's last bits have not grown to be seen."""


def lively_policy(config: TrainConfig, *, clip: float = 10.0, seed: int = 0) -> Policy:
    """A policy that moves, with the statistics of what a random one meets."""
    rng = np.random.default_rng(seed)
    seen = np.concatenate(
        [t["obs"] for t in record_episodes(config, "random", episodes=4, seed=evaluation_seed(3))]
    ).astype(np.float64)
    env = gym.make(config.env_id)
    assert isinstance(env.action_space, gym.spaces.Box)
    shape = NetworkShape.from_config(config, seen.shape[1], env.action_space.shape[0])
    tensors = initial_parameters(shape, rng, ortho_init=True, log_std_init=0.0)
    tensors["action_net.weight"] = tensors["action_net.weight"] * np.float32(10)
    return Policy(
        shape=shape,
        tensors=tensors,
        obs_mean=seen.mean(0),
        obs_var=seen.var(0),
        action_low=env.action_space.low,
        action_high=env.action_space.high,
        obs_clip=clip,
        env_id=config.env_id,
    )


def play_zip(path: Path, config: TrainConfig, episodes: int) -> list[float]:
    """Returns of plain Gymnasium with the zip alone."""
    model = PPO.load(path, device="cpu")
    env = gym.make(config.env_id, max_episode_steps=config.max_episode_steps)
    returns = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=evaluation_seed() + episode)
        total, ended = 0.0, False
        while not ended:
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            ended = terminated or truncated
        returns.append(total)
    return returns


@pytest.mark.parametrize("env_id", list_env_ids())
@pytest.mark.parametrize("clip", [10.0, 1.0])
def test_the_zip_alone_gets_the_evaluated_returns(tmp_path: Path, env_id: str, clip: float) -> None:
    config = TrainConfig(env_id=env_id, max_episode_steps=STEPS, obs_clip=clip)
    policy = lively_policy(config, clip=clip)
    episodes = record_episodes(config, policy, episodes=3, seed=evaluation_seed())
    evaluated = np.concatenate([each["obs"] for each in episodes])
    save_sb3_zip(policy, config, tmp_path / "policy.zip", evaluated)
    model = PPO.load(tmp_path / "policy.zip", device="cpu")
    actions, _ = model.predict(evaluated, deterministic=True)
    expected = policy.act(evaluated.astype(float))
    scale = (policy.action_high - policy.action_low).max()
    assert expected.std() > 0
    np.testing.assert_allclose(actions, expected, atol=1e-5 * scale)
    ours = [float(each["env_reward"].sum()) for each in episodes]
    assert play_zip(tmp_path / "policy.zip", config, 3) == pytest.approx(ours, rel=0.05, abs=0.01)


def test_a_zip_without_clipping_needs_no_class_of_its_own(tmp_path: Path) -> None:
    config = TrainConfig(env_id="HalfCheetah-v5", max_episode_steps=STEPS)
    policy = lively_policy(config)
    seen = policy.obs_mean + np.sqrt(policy.obs_var) * np.linspace(-9, 9, 50)[:, None]
    save_sb3_zip(policy, config, tmp_path / "folded.zip", seen)
    assert "features_extractor_class" not in PPO.load(tmp_path / "folded.zip").policy_kwargs
    save_sb3_zip(policy, config, tmp_path / "clipping.zip", seen * 2)
    assert "features_extractor_class" in PPO.load(tmp_path / "clipping.zip").policy_kwargs


def test_a_zip_that_clips_loads_without_this_package(tmp_path: Path) -> None:
    config = TrainConfig(env_id="HalfCheetah-v5", max_episode_steps=STEPS)
    policy = lively_policy(config, clip=0.5)
    obs = policy.obs_mean + np.sqrt(policy.obs_var) * np.linspace(-2, 2, 50)[:, None]
    save_sb3_zip(policy, config, tmp_path / "policy.zip", obs)
    np.save(tmp_path / "obs.npy", obs)
    code = """if True:
        import sys
        sys.modules["p2p"] = None  # to import it is an error now
        import numpy as np
        from stable_baselines3 import PPO
        model = PPO.load("policy.zip", device="cpu")
        actions, _ = model.predict(np.load("obs.npy"), deterministic=True)
        np.save("actions.npy", actions)
    """
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "actions.npy"), policy.act(obs), atol=1e-5)


def test_writing_a_zip_does_not_import_torchs_compiler(tmp_path: Path) -> None:
    """It takes more than a second, in every run."""
    config = TrainConfig(env_id="Hopper-v5", max_episode_steps=STEPS)
    lively_policy(config).save(tmp_path / "policy.safetensors")
    code = f"""
import sys
from pathlib import Path
import numpy as np
from p2p.config import TrainConfig
from p2p.training.policies.policy import Policy
from p2p.training.policies.sb3_export import save_sb3_zip
folder = Path({str(tmp_path)!r})
policy = Policy.load(folder / "policy.safetensors")
save_sb3_zip(policy, TrainConfig(env_id="Hopper-v5"), folder / "policy.zip", np.zeros((1, 11)))
print("torch._dynamo" in sys.modules)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert ended.stdout.strip() == "False"
    assert (tmp_path / "policy.zip").exists()


def test_the_zip_loads_by_the_steps_of_rl_zoo3s_enjoy(tmp_path: Path) -> None:
    """Algorithm by name, an environment to check the spaces against, schedules replaced."""
    config = TrainConfig(env_id="Hopper-v5", max_episode_steps=STEPS)
    policy = lively_policy(config)
    save_sb3_zip(policy, config, tmp_path / "Hopper-v5.zip", policy.obs_mean[None])
    env = DummyVecEnv([lambda: gym.make("Hopper-v5")])
    custom_objects = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0}
    model = PPO.load(
        tmp_path / "Hopper-v5.zip", env=env, custom_objects=custom_objects, device="cpu", seed=0
    )
    obs = env.reset()
    for _ in range(STEPS):
        action, _ = model.predict(obs, deterministic=True)
        np.testing.assert_allclose(action, policy.act(obs.astype(float)), atol=1e-5)
        obs, *_ = env.step(action)


@pytest.mark.parametrize(
    "options",
    [{}, {"activation": "relu", "net_arch": (32,), "obs_clip": 0.5}, {"normalize_obs": False}],
)
def test_torchscript_and_onnx_act_as_the_policy_does(
    tmp_path: Path, options: dict[str, object]
) -> None:
    config = TrainConfig(env_id="Walker2d-v5", max_episode_steps=STEPS).with_updates(**options)
    policy = lively_policy(config, clip=config.obs_clip)
    if not config.normalize_obs:
        zeros = np.zeros_like(policy.obs_mean)
        policy = dataclasses.replace(policy, normalize_obs=False, obs_mean=zeros, obs_var=zeros + 1)
    policy.tensors["action_net.weight"] *= 20
    obs = policy.obs_mean + 2 * np.random.default_rng(1).normal(size=(64, 17))
    save_torchscript(policy, tmp_path / "policy.pt")
    save_onnx(policy, tmp_path / "policy.onnx")
    raw: NDArray[np.float32] = obs.astype(np.float32)
    by_torch = torch.jit.load(tmp_path / "policy.pt")(torch.from_numpy(raw)).numpy()
    runtime = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    (by_onnx,) = runtime.run(["action"], {"observation": raw})
    expected = policy.act(obs)
    assert np.abs(expected).max() == 1
    np.testing.assert_allclose(by_torch, expected, atol=2e-5)
    np.testing.assert_allclose(by_onnx, expected, atol=2e-5)
