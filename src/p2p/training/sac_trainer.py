"""Soft actor-critic on the batched environments: more learnt from each step, at a higher price.

Most of its time goes into updates, so it takes far fewer steps per second than PPO. The past steps
that it learns from are a part of its saved state.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2p.config import ConfigurationError
from p2p.training.base_trainer import TrainContext, finite_metrics, part, prefixed
from p2p.training.batched_trainer import BatchedTrainer, Stepper
from p2p.training.policies.network import Tensors
from p2p.training.policies.normalization import ObservationNormalizer
from p2p.training.sac import (
    STEPS_OF_RETURN,
    Batches,
    Replay,
    SacSettings,
    flat_state,
    gaussian,
    initial_state,
    layers_of,
    make_sac_update,
    policy_tensors,
    state_from,
)

UPDATES_PER_CALL = 32
RANDOM_STEPS = 5_000
"""Taken with random actions before the first update; of a short run, a tenth."""


def train(ctx: TrainContext) -> None:
    """Train to the end, continuing from a state in ctx.folder."""
    SacTrainer(ctx).run()


class SacTrainer(BatchedTrainer):
    def __init__(self, ctx: TrainContext) -> None:
        super().__init__(ctx)
        config = ctx.config
        if not np.isfinite([self.low, self.high]).all():
            raise ConfigurationError(
                f"algorithm 'sac' needs actions with bounds, and those of {config.env_id} have "
                "none; use algorithm 'ppo'"
            )
        obs_dim, action_dim = self.shape.obs_dim, self.shape.action_dim
        self.settings = SacSettings(obs_dim, action_dim, config.net_arch, config.learning_rate)
        self.update = make_sac_update(self.settings)
        self.observations = ObservationNormalizer(
            obs_dim, config.obs_clip, enabled=config.normalize_obs
        )
        self.replay = Replay(config.replay_size, config.num_envs, obs_dim, action_dim)
        self.stepper = Stepper(self.env, self.reward)
        self.random_steps = min(RANDOM_STEPS, config.total_timesteps // 10)
        self.reward_square, self.taken, self.owed = 0.0, 0, 0.0
        self.begin()

    def initialize(self, rng: np.random.Generator) -> None:
        self.learner = initial_state(self.settings, rng)

    def start_episodes(self, seed: int) -> None:
        self.stepper.restart(seed)
        self.observations.update(self.stepper.obs)
        self.replay.end_episodes()

    def iterate(self) -> None:
        """Steps of one report: a block of them, the updates that these call for, and so on."""
        config, done = self.config, 0
        rollout_time = train_time = 0.0
        ended = 0
        metrics: list[dict[str, Any]] = []
        while done < config.num_steps:
            began = time.perf_counter()
            count = min(max(1, self._steps_per_call()), config.num_steps - done)
            ended += self._collect(count)
            done += count
            collected = time.perf_counter()
            metrics += self._learn_from(count * config.num_envs)
            rollout_time += collected - began
            train_time += time.perf_counter() - collected
        values = {name: np.mean([m[name] for m in metrics]) for name in (*metrics[:1], {})[0]}
        values["learning_rate"] = config.learning_rate
        self.finish_iteration(values, ended, rollout_time, train_time)

    def _steps_per_call(self) -> int:
        """Of every environment, between two calls of the update."""
        return round(UPDATES_PER_CALL / self.config.updates_per_step / self.config.num_envs)

    def _collect(self, count: int) -> int:
        """Take so many steps in every environment; returns how many episodes ended."""
        rows = (count, self.config.num_envs)
        steps: dict[str, NDArray[Any]] = {
            "obs": np.empty((*rows, self.settings.obs_dim), np.float32),
            "actions": np.empty((*rows, self.settings.action_dim), np.float32),
            "rewards": np.empty(rows, np.float32),
            "terminated": np.empty(rows, np.bool_),
            "ended": np.empty(rows, np.bool_),
        }
        layers = layers_of(self.settings.actor_layers(), self.parameters)
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        shape, random = steps["actions"].shape, self.taken < self.random_steps
        drawn = self.rng.uniform(-1, 1, shape) if random else self.rng.standard_normal(shape)
        drawn = drawn.astype(np.float32)
        for t in range(count):
            self.alive("rollout")
            obs = self.stepper.obs
            if random:
                squashed = drawn[t]
            else:
                mean, log_std = gaussian(layers, self.observations(obs), np)
                squashed = np.tanh(mean + np.exp(log_std) * drawn[t])
            step = self.stepper.step(middle + half * squashed, last=t + 1 == count)
            steps["obs"][t], steps["actions"][t] = obs, squashed
            steps["terminated"][t], steps["ended"][t] = step.terminated, self.stepper.starts
            self.observations.update(step.obs)
        rewards, terms = self.stepper.rewards()
        steps["rewards"][:] = rewards
        self.replay.add(**steps)
        self.reward_square += float(np.sum(rewards**2))
        self.taken += rewards.size
        return self.episodes.add(rewards, terms, steps["ended"])

    def _learn_from(self, steps: int) -> list[dict[str, Any]]:
        """Do the updates that these new steps call for."""
        if self.taken < self.random_steps or not self.replay.ready:
            return []
        self.owed += steps * self.config.updates_per_step
        metrics = []
        while self.owed >= UPDATES_PER_CALL:
            self.owed -= UPDATES_PER_CALL
            with self.updating():
                self.learner, logs = self.update(self.learner, self._batches())
                self.use_parameters()
            # At once: an actor that is no longer finite would make the reward look guilty.
            metrics.append(finite_metrics(logs, self.step))
        return metrics

    def _batches(self) -> Batches:
        config = self.config
        size = config.replay_batch_size
        drawn = self.replay.sample(self.rng, UPDATES_PER_CALL, size, config.gamma)
        for name in ("obs", "later_obs"):
            self.observations.apply(drawn[name])
        if config.normalize_reward and self.reward_square > 0:
            drawn["returns"] /= np.float32(np.sqrt(self.reward_square / self.taken))
        most = config.reward_clip * STEPS_OF_RETURN
        drawn["returns"] = np.clip(drawn["returns"], -most, most)
        shape = (UPDATES_PER_CALL, size, 2, self.settings.action_dim)
        return Batches(**drawn, noise=self.rng.standard_normal(shape, np.float32))

    def use_parameters(self) -> None:
        self.parameters = np.array(self.learner.actor.parameters)

    def tensors(self) -> Tensors:
        average = np.array(self.learner.policy)
        return policy_tensors(self.settings, self.shape, average, self.low, self.high)

    def algorithm_state(self) -> dict[str, NDArray[Any]]:
        return {
            **prefixed("learner", flat_state(self.learner)),
            **prefixed("replay", self.replay.state()),
            **prefixed("observations", self.observations.statistics.state_dict()),
            **self.stepper.state(),
            "counts": np.array([self.reward_square, self.taken, self.owed]),
        }

    def load_algorithm(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.learner = state_from(self.settings, part("learner", arrays))
        self.replay.load_state(part("replay", arrays))
        self.observations.statistics.load_state_dict(part("observations", arrays))
        self.stepper.load_state(arrays)
        self.reward_square, taken, self.owed = arrays["counts"].tolist()
        self.taken = int(taken)
