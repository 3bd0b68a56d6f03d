import dataclasses
import json

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from p2p.config import TrainConfig
from p2p.training.policies.network import NetworkShape, initial_parameters
from p2p.training.policies.policy import Policy, PolicyFileError
from p2p.training.policies.sb3_export import (
    policy_from_sb3,
    save_sb3_zip,
    sb3_model,
)

CONFIG = TrainConfig(env_id="Swimmer-v5", num_envs=2, num_steps=64, num_minibatches=4)


def make_policy(seed=0, **options):
    rng = np.random.default_rng(seed)
    shape = NetworkShape(8, 2, options.pop("net_arch", (64, 64)), options.pop("activation", "tanh"))
    tensors = initial_parameters(shape, rng, ortho_init=False, log_std_init=-0.3)
    tensors["action_net.weight"] *= 5
    return Policy(
        shape=shape,
        tensors=tensors,
        obs_mean=rng.normal(size=8),
        obs_var=rng.lognormal(size=8),
        action_low=np.full(2, -1, np.float32),
        action_high=np.full(2, 1, np.float32),
        env_id="Swimmer-v5",
        **options,
    )


def observations(n=200):
    return np.random.default_rng(5).normal(0, 3, (n, 8))


def test_a_saved_policy_acts_the_same(tmp_path):
    policy = make_policy(activation="relu", net_arch=(16,), obs_clip=2.0)
    policy.save(tmp_path / "p.safetensors")
    again = Policy.load(tmp_path / "p.safetensors")
    assert again.shape == policy.shape
    assert again.env_id == "Swimmer-v5"
    assert np.array_equal(again.act(observations()), policy.act(observations()))


def test_actions_stay_within_the_bounds():
    actions = make_policy().act(observations())
    assert actions.dtype == np.float32
    assert np.abs(actions).max() == 1.0
    assert (np.abs(actions) < 1).any()


@pytest.mark.parametrize(
    "options", [{}, {"activation": "relu", "net_arch": (32, 16)}, {"normalize_obs": False}]
)
def test_sb3_loads_the_zip_and_predicts_the_same(tmp_path, options):
    policy = make_policy(**options)
    config = CONFIG.with_updates(net_arch=policy.shape.net_arch, activation=policy.shape.activation)
    save_sb3_zip(policy, config, tmp_path / "policy.zip", observations())
    model = PPO.load(tmp_path / "policy.zip", device="cpu")
    theirs, _ = model.predict(observations(), deterministic=True)
    assert np.allclose(theirs, policy.act(observations()), atol=1e-5)
    env = gymnasium.make("Swimmer-v5")
    assert model.observation_space == env.observation_space
    assert model.action_space == env.action_space
    assert model.batch_size == config.minibatch_size


def test_learning_continues_from_the_zip(tmp_path):
    policy = make_policy()
    save_sb3_zip(policy, CONFIG, tmp_path / "policy.zip", policy.obs_mean[None])
    venv = DummyVecEnv([lambda: gymnasium.make("Swimmer-v5")] * 2)
    model = PPO.load(tmp_path / "policy.zip", env=venv, device="cpu")
    model.learn(128)
    learned = policy_from_sb3(model, None, CONFIG)
    assert not np.array_equal(learned.tensors["log_std"], policy.tensors["log_std"])
    theirs, _ = model.predict(observations(), deterministic=True)
    assert np.allclose(learned.act(observations()), theirs, atol=2e-6)


def test_minibatches_of_one_sample_can_be_exported(tmp_path):
    config = CONFIG.with_updates(num_minibatches=128, norm_adv=False)
    save_sb3_zip(make_policy(), config, tmp_path / "policy.zip", observations())
    assert PPO.load(tmp_path / "policy.zip", device="cpu").batch_size == 1


def test_an_sb3_model_and_its_policy_are_the_same_network():
    policy = make_policy(normalize_obs=False)
    again = policy_from_sb3(sb3_model(policy, CONFIG), None, CONFIG)
    assert all(np.array_equal(again.tensors[n], policy.tensors[n]) for n in policy.tensors)
    assert not again.normalize_obs


def rewrite(data, **changes):
    """A policy file with another header."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    meta = json.loads(header["__metadata__"]["p2p"]) | changes
    header["__metadata__"]["p2p"] = json.dumps(meta)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _: b"", "not a safetensors"),
        (lambda _: b"\x80\x04\x95 a pickle, say", "not a safetensors"),
        (lambda d: d[:-100], "p.safetensors"),
        (lambda d: (1 << 60).to_bytes(8, "little") + d[8:], "not a safetensors"),
        (lambda d: rewrite(d, net_arch=[64, 32]), "expected float32"),
        (lambda d: rewrite(d, net_arch=[64]), "missing or unexpected"),
        (lambda d: rewrite(d, net_arch=[1_000_000] * 60), "too short"),
        (lambda d: rewrite(d, activation="__import__"), "metadata"),
        (lambda d: rewrite(d, obs_clip=-1.0), "metadata"),
        (lambda d: rewrite(d, extra=1), "metadata"),
        (lambda d: rewrite(d, obs_dim=None), "metadata"),
    ],
)
def test_a_damaged_or_hostile_file_is_refused(tmp_path, damage, message):
    path = tmp_path / "p.safetensors"
    make_policy().save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(PolicyFileError, match=message):
        Policy.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs_mean": np.full(8, np.nan)}, "obs_mean is not finite"),
        ({"obs_var": np.full(8, -1.0)}, "negative"),
        ({"action_low": np.full(2, 2, np.float32)}, "above action_high"),
        ({"action_low": np.full(2, np.nan, np.float32)}, "NaN"),
        ({"obs_mean": np.zeros(8, np.float32)}, "expected float64"),
    ],
)
def test_values_that_no_policy_has_are_refused(tmp_path, change, message):
    path = tmp_path / "p.safetensors"
    dataclasses.replace(make_policy(), **change).save(path)
    with pytest.raises(PolicyFileError, match=message):
        Policy.load(path)
