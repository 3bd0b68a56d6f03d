"""Our rollout and update beside Stable-Baselines3's own, with the same noise and permutations."""

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from p2p.config import EnvOptions, TrainConfig
from p2p.training import ppo
from p2p.training.compiled_update import UpdateProgram
from p2p.training.env import make_env
from p2p.training.envs.batched_env import row_seeds
from p2p.training.policies.network import flatten, unflatten
from p2p.training.policies.sb3_export import policy_kwargs
from p2p.training.ppo import (
    Actor,
    Hyperparameters,
    LearnerState,
    RolloutCollector,
    make_update,
)
from p2p.training.reward_loader import load_from_code
from p2p.training.reward_runner import RewardRunner
from p2p.training.sb3_trainer import MeasuredPPO
from p2p.training.training_loop import TrainContext, TrainingLoop
from p2p.training.vec_env import make_batched_env

REWARD = """
import numpy as np

def reward_fn(obs, action, next_obs, info):
    progress = 3.0 * (next_obs[..., 0] - obs[..., 0]) + 1.0
    effort = -0.1 * np.sum(np.asarray(action, np.float64) ** 2, axis=-1)
    return progress + effort, {"progress": progress, "effort": effort}
"""

BASE = {
    "num_envs": 4,
    "num_steps": 64,
    "num_minibatches": 8,
    "update_epochs": 5,
    "seed": 7,
    "num_threads": 1,
    "max_episode_steps": 25,
}


class Recorder(BaseCallback):
    """Keeps what each of SB3's updates was given and did."""

    def __init__(self):
        super().__init__()
        self.weights, self.logs = [], []

    def _on_rollout_start(self):
        self._take()

    def _on_step(self):
        return True

    def _on_training_end(self):
        self._take()

    def _take(self):
        state = self.model.policy.state_dict()
        self.weights.append({name: value.numpy().copy() for name, value in state.items()})
        self.logs.append(dict(self.model.logger.name_to_value))


def sb3_run(config, noise, monkeypatch, rollouts, learner=PPO):
    """SB3's PPO.learn; returns its weights before each rollout and at the end, and its shuffles."""

    def one():
        reward = load_from_code(REWARD)
        return make_env(config.env_id, reward, max_episode_steps=config.max_episode_steps)

    venv = DummyVecEnv([one] * config.num_envs)
    venv = VecNormalize(venv, clip_obs=config.obs_clip, clip_reward=config.reward_clip,
                        gamma=config.gamma, norm_obs=config.normalize_obs,
                        norm_reward=config.normalize_reward)  # fmt: skip
    model = learner(
        "MlpPolicy", venv, n_steps=config.num_steps, batch_size=config.minibatch_size,
        n_epochs=config.update_epochs, learning_rate=config.learning_rate, gamma=config.gamma,
        gae_lambda=config.gae_lambda, clip_range=config.clip_coef,
        clip_range_vf=config.clip_coef if config.clip_vloss else None,
        normalize_advantage=config.norm_adv, ent_coef=config.ent_coef, vf_coef=config.vf_coef,
        max_grad_norm=config.max_grad_norm, target_kl=config.target_kl, seed=config.seed,
        policy_kwargs=policy_kwargs(config), device="cpu",
    )  # fmt: skip
    model.set_logger(Logger(folder=None, output_formats=[]))
    venv.venv._seeds = row_seeds(config.seed, config.num_envs)
    deviations = iter(noise.reshape(-1, *noise.shape[2:]))

    def sample(self):
        return self.distribution.mean + self.distribution.stddev * torch.from_numpy(
            next(deviations)
        )

    shuffles = []

    def permutation(n, original=np.random.permutation):
        shuffles.append(original(n))
        return shuffles[-1]

    monkeypatch.setattr(DiagGaussianDistribution, "sample", sample)
    monkeypatch.setattr(np.random, "permutation", permutation)
    recorder = Recorder()
    model.learn(rollouts * config.batch_size, callback=recorder)
    monkeypatch.undo()
    recorder.logs.append(dict(model.logger.name_to_value))
    return recorder, shuffles, venv


def our_run(config, noise, first_weights, shuffles, epochs_run):
    env = make_batched_env(
        EnvOptions(config.env_id, max_episode_steps=config.max_episode_steps), config.num_envs
    )
    widths = env.single_observation_space.shape[0], env.single_action_space.shape[0]
    program = UpdateProgram.from_config(config, *widths)
    shape = program.shape
    collector = RolloutCollector(
        env, RewardRunner(REWARD, config.num_envs, batched=True), shape, config
    )
    collector.restart(config.seed)
    update, given = make_update(program), Hyperparameters.from_config(config)
    state, actor = LearnerState.begin(flatten(shape, first_weights)), Actor(shape, config.num_envs)
    weights, metrics, shuffles = [first_weights], [], iter(shuffles)
    for rollout_noise, ran in zip(noise, epochs_run, strict=True):
        actor.use(weights[-1])
        deviation = rollout_noise * np.exp(weights[-1]["log_std"])
        rollout = collector.collect(actor, deviation, lambda: None)
        orders = [next(shuffles) for _ in range(ran)]
        # After an early stop SB3 draws no more permutations; ours are drawn but not used.
        orders += [np.arange(config.batch_size)] * (config.update_epochs - ran)
        state, logs = update(state, rollout, np.array(orders, np.int32), given)
        weights.append(unflatten(shape, np.array(state.parameters)))
        metrics.append({name: float(value) for name, value in logs.items()})
    return weights, metrics, collector


class Draws(np.random.Generator):
    """Gives noise (rollouts, T, N, A) and shuffles in turn, where a trainer would draw its own."""

    def __new__(cls, *_):
        return super().__new__(cls, np.random.PCG64(0))

    def __init__(self, noise, shuffles):
        super().__init__(np.random.PCG64(0))
        self._noise, self._shuffles = iter(noise), iter(shuffles)

    def standard_normal(self, size, dtype):
        noise = next(self._noise)
        assert (noise.shape, noise.dtype) == (size, dtype)
        return noise.copy()

    def permutation(self, n):
        order = next(self._shuffles)
        assert len(order) == n
        return order


def largest_difference(ours, theirs):
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in theirs)


@pytest.mark.parametrize(
    ("env_id", "rollouts", "options"),
    [
        ("Swimmer-v5", 4, {"update_epochs": 10}),
        ("Hopper-v5", 4, {}),
        (
            "Swimmer-v5",
            2,
            {"norm_adv": False, "normalize_reward": False, "normalize_obs": False,
             "clip_vloss": True, "ent_coef": 0.01, "learning_rate": 1e-4,
             "activation": "relu", "ortho_init": False, "net_arch": (32,)},
        ),
    ],
)  # fmt: skip
def test_weights_stay_with_those_of_sb3_learn(env_id, rollouts, options, monkeypatch):
    config = TrainConfig(env_id=env_id, **{**BASE, **options})
    actions = make_batched_env(EnvOptions(env_id), 1).single_action_space.shape[0]
    shape = (rollouts, config.num_steps, config.num_envs, actions)
    noise = np.random.default_rng(3).standard_normal(shape, np.float32)
    theirs, shuffles, venv = sb3_run(config, noise, monkeypatch, rollouts)
    epochs = [config.update_epochs] * rollouts
    ours, metrics, collector = our_run(config, noise, theirs.weights[0], shuffles, epochs)
    assert largest_difference(ours[-1], theirs.weights[0]) > 1e-3, "nothing was learned"
    assert largest_difference(ours[-1], theirs.weights[-1]) < 1e-6
    if config.normalize_obs:
        assert np.allclose(collector.observations.statistics.var, venv.obs_rms.var, rtol=1e-5)
    logs = theirs.logs[-1]
    names = {"policy_loss": "policy_gradient_loss", "value_loss": "value_loss", "approx_kl":
             "approx_kl", "clip_fraction": "clip_fraction", "policy_std": "std",
             "explained_variance": "explained_variance"}  # fmt: skip
    for name, their_name in names.items():
        assert metrics[-1][name] == pytest.approx(logs[f"train/{their_name}"], rel=2e-3, abs=2e-5)
    assert metrics[-1]["entropy"] == pytest.approx(-logs["train/entropy_loss"], rel=1e-5)


def test_the_whole_trainer_learns_what_sb3_learns_from_the_same_draws(tmp_path, monkeypatch):
    rollouts = 3
    config = TrainConfig(
        env_id="Hopper-v5", num_envs=8, num_steps=64, num_minibatches=8, update_epochs=10,
        seed=1, num_threads=1, total_timesteps=rollouts * 512, checkpoint_interval=512,
        num_evals=2, num_eval_envs=1, num_eval_rounds=1, max_episode_steps=100,
    )  # fmt: skip
    noise = np.random.default_rng(6).standard_normal((rollouts, 64, 8, 3), np.float32)
    theirs, shuffles, _ = sb3_run(config, noise, monkeypatch, rollouts)
    monkeypatch.setattr(ppo, "initial_parameters", lambda *_, **__: theirs.weights[0])
    loop = TrainingLoop(TrainContext(config, REWARD, tmp_path, lambda _: None), ppo.PPOLearner)
    loop.learner.rng = Draws(noise, shuffles)
    loop.run()
    ours = loop.learner.policy().tensors
    assert largest_difference(ours, theirs.weights[0]) > 1e-2, "nothing was learned"
    assert largest_difference(ours, theirs.weights[-1]) < 1e-5


def test_an_update_stops_early_exactly_where_sb3_stops(monkeypatch):
    options = {"target_kl": 0.003, "learning_rate": 1e-3, "update_epochs": 5}
    config = TrainConfig(env_id="Swimmer-v5", **{**BASE, **options})
    noise = np.random.default_rng(5).standard_normal((1, 64, 4, 2), np.float32)
    theirs, shuffles, _ = sb3_run(config, noise, monkeypatch, 1)
    assert 0 < len(shuffles) < config.update_epochs, "the case is to stop on the way"
    ours, metrics, _ = our_run(config, noise, theirs.weights[0], shuffles, [len(shuffles)])
    assert largest_difference(ours[-1], theirs.weights[-1]) < 1e-6
    logs = theirs.logs[-1]
    assert metrics[0]["approx_kl"] == pytest.approx(logs["train/approx_kl"], rel=1e-3)
    assert metrics[0]["policy_loss"] == pytest.approx(
        logs["train/policy_gradient_loss"], rel=1e-3, abs=1e-6
    )


def test_both_backends_measure_an_update_alike(monkeypatch):
    measured = []

    class Noted(MeasuredPPO):
        def train(self):
            super().train()
            measured.append(self.metrics)

    config = TrainConfig(env_id="Swimmer-v5", **{**BASE, "ent_coef": 0.01, "max_grad_norm": 0.2})
    noise = np.random.default_rng(4).standard_normal((2, 64, 4, 2), np.float32)
    theirs, shuffles, _ = sb3_run(config, noise, monkeypatch, 2, Noted)
    ours, metrics, _ = our_run(config, noise, theirs.weights[0], shuffles, [5, 5])
    assert largest_difference(ours[-1], theirs.weights[-1]) < 1e-6
    for mine, their in zip(metrics, measured, strict=True):
        assert mine.keys() == their.keys()
        assert their["grad_norm"] > config.max_grad_norm
        assert their["kl_mean_term"] > 1e-4
        for name in mine:
            assert mine[name] == pytest.approx(their[name], rel=2e-3, abs=2e-6), name
