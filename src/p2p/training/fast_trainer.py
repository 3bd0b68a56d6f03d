"""The fast backend's PPO: rewards called once per batch, one compiled update for each rollout.

Strictly on-policy: a rollout is collected with the parameters that the update starts from.

All of a step but the physics is small numpy work, so the policy's forward pass is numpy, too: for
a handful of rows it costs less than handing them to a compiled function. Values and
log-probabilities are left to the update, which computes them for the whole rollout at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2p.config import TrainConfig
from p2p.training.base_trainer import TrainContext, part, prefixed
from p2p.training.batched_trainer import BatchedTrainer, Stepper
from p2p.training.compiled_update import UpdateSettings
from p2p.training.envs.batched_env import BatchedEnv
from p2p.training.policies.network import (
    NetworkShape,
    Tensors,
    flatten,
    initial_parameters,
    unflatten,
    value,
)
from p2p.training.policies.normalization import ObservationNormalizer, ReturnNormalizer
from p2p.training.ppo import LearnerState, Rollout, make_update
from p2p.training.reward_runner import RewardRunner


def train(ctx: TrainContext) -> None:
    """Train to the end, continuing from a state in ctx.folder."""
    FastTrainer(ctx).run()


START_ROLLOUTS = 10
"""What the statistics of a policy that training starts from weigh against those of new rollouts."""


class FastTrainer(BatchedTrainer):
    def __init__(self, ctx: TrainContext) -> None:
        super().__init__(ctx)
        config = ctx.config
        self.collector = RolloutCollector(self.env, self.reward, self.shape, config)
        self.observations = self.collector.observations
        self.actor = Actor(self.shape, config.num_envs)
        self.update = make_update(self.shape, UpdateSettings.from_config(config))
        self.begin()

    def initialize(self, rng: np.random.Generator) -> None:
        config, start = self.config, self.start_policy()
        tensors = initial_parameters(
            self.shape, rng, ortho_init=config.ortho_init, log_std_init=config.log_std_init
        )
        if start is not None:
            tensors = start.tensors
            self.observations.statistics.load_state_dict({
                "mean": start.obs_mean,
                "var": start.obs_var,
                "count": np.array([START_ROLLOUTS * config.batch_size]),
            })  # fmt: skip
        self.learner = LearnerState.begin(flatten(self.shape, tensors))

    def start_episodes(self, seed: int) -> None:
        self.collector.restart(seed)

    def iterate(self) -> None:
        config = self.config
        began = time.perf_counter()
        noise = self.rng.standard_normal(
            (config.num_steps, config.num_envs, self.shape.action_dim), np.float32
        )
        noise *= np.exp(self.actor.tensors["log_std"])
        rollout = self.collector.collect(self.actor, noise, self.alive.phase("rollout"))
        ended = self.episodes.add(self.collector.raw_rewards, self.collector.terms, rollout.dones)
        collected = time.perf_counter()
        orders = [self.rng.permutation(config.batch_size) for _ in range(config.update_epochs)]
        with self.updating():
            self.learner, metrics = self.update(self.learner, rollout, np.array(orders, np.int32))
            self.use_parameters()
        now = time.perf_counter()
        self.finish_iteration(metrics, ended, collected - began, now - collected)

    def use_parameters(self) -> None:
        vector = np.array(self.learner.parameters)  # a copy: the update uses its input up
        self.actor.use(unflatten(self.shape, vector))

    def tensors(self) -> Tensors:
        return dict(self.actor.tensors)

    def algorithm_state(self) -> dict[str, NDArray[Any]]:
        learner = {name: np.array(x) for name, x in self.learner._asdict().items()}
        return {**prefixed("learner", learner), **prefixed("collector", self.collector.state())}

    def load_algorithm(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.learner = LearnerState(**part("learner", arrays))
        self.collector.load_state(part("collector", arrays))


class Actor:
    """The policy network for N rows in numpy, with its buffers kept."""

    def __init__(self, shape: NetworkShape, num_envs: int) -> None:
        self.shape = shape
        self.tensors: Mapping[str, Any] = {}
        self._names = [*shape.hidden("policy_net"), "action_net"]
        widths = [*shape.net_arch, shape.action_dim]
        self._buffers = [np.empty((num_envs, width), np.float32) for width in widths]
        self._layers: list[tuple[Any, Any, NDArray[np.float32]]] = []

    def use(self, tensors: Mapping[str, Any]) -> None:
        """Act with these parameters from now on."""
        self.tensors = tensors
        self._layers = [
            (np.ascontiguousarray(tensors[f"{name}.weight"].T), tensors[f"{name}.bias"], buffer)
            for name, buffer in zip(self._names, self._buffers, strict=True)
        ]

    def means(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The means of the actions; overwritten by the next call."""
        x, tanh = obs, self.shape.activation == "tanh"
        *hidden, (weight, bias, means) = self._layers
        for w, b, h in hidden:
            np.dot(x, w, out=h)
            np.add(h, b, out=h)
            if tanh:
                np.tanh(h, out=h)
            else:
                np.maximum(h, 0, out=h)
            x = h
        np.dot(x, weight, out=means)
        np.add(means, bias, out=means)
        return means


class RolloutCollector:
    """Steps the environments with a policy and remembers where they stand."""

    def __init__(
        self, env: BatchedEnv, reward: RewardRunner, shape: NetworkShape, config: TrainConfig
    ) -> None:
        self.observations = ObservationNormalizer(
            shape.obs_dim, config.obs_clip, enabled=config.normalize_obs
        )
        self.returns = ReturnNormalizer(
            env.num_envs, config.gamma, config.reward_clip, enabled=config.normalize_reward
        )
        self._stepper = Stepper(env, reward)
        self._gamma = config.gamma
        space = env.single_action_space
        self._low, self._high = space.low.astype(np.float32), space.high.astype(np.float32)
        rows = (config.num_steps, env.num_envs)
        self._rollout = Rollout(
            obs=np.empty((config.num_steps + 1, env.num_envs, shape.obs_dim), np.float32),
            actions=np.empty((*rows, shape.action_dim), np.float32),
            rewards=np.empty(rows, np.float32),
            dones=np.empty(rows, np.bool_),
        )
        self.raw_rewards = np.empty(rows)
        """Of the last rollout (T, N), as the reward gave them; `terms` likewise."""
        self.terms: dict[str, NDArray[np.float64]] = {}
        self._seen = np.zeros((env.num_envs, shape.obs_dim), np.float32)

    def restart(self, seed: int) -> None:
        """Begin new episodes everywhere, with environments seeded anew."""
        self._stepper.restart(seed)
        self.observations.update(self._stepper.obs)
        self._seen = self.observations(self._stepper.obs)
        self.returns.restart()

    def collect(
        self, actor: Actor, noise: NDArray[np.float32], alive: Callable[[], None]
    ) -> Rollout:
        """One rollout; `noise` (T, N, A) is what each action deviates from the policy's mean.

        What is returned is overwritten by the next call. Raises RewardError.
        """
        rollout, dones = self._rollout, self._rollout.dones
        cut: list[tuple[int, NDArray[np.intp], NDArray[np.float32]]] = []
        rollout.obs[0] = self._seen
        for t, deviation in enumerate(noise):
            alive()
            drawn = rollout.actions[t]
            np.add(actor.means(rollout.obs[t]), deviation, out=drawn)
            action = np.maximum(drawn, self._low)
            np.minimum(action, self._high, out=action)
            step = self._stepper.step(action, last=t + 1 == len(noise))
            dones[t] = self._stepper.starts
            self.observations.update(step.obs)
            rollout.obs[t + 1] = self.observations(step.obs)
            if np.count_nonzero(step.truncated):
                rows = np.flatnonzero(step.truncated & ~step.terminated)
                cut.append((t, rows, self.observations(step.next_obs[rows])))
        self._seen = rollout.obs[-1].copy()
        self.raw_rewards, self.terms = self._stepper.rewards()
        rollout.rewards[:] = self.returns(self.raw_rewards, dones)
        self._bootstrap(actor, cut)
        return rollout

    def state(self) -> dict[str, NDArray[Any]]:
        """Where the rollouts stand: normalisers and current observations, not the environments."""
        arrays: dict[str, Any] = {**self._stepper.state(), "seen": self._seen}
        for name, normalizer in self._normalizers():
            arrays |= {f"{name}.{key}": x for key, x in normalizer.state_dict().items()}
        return arrays

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._stepper.load_state(arrays)
        self._seen = arrays["seen"].copy()
        for name, normalizer in self._normalizers():
            start = f"{name}."
            mine = {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}
            normalizer.load_state_dict(mine)

    def _normalizers(self) -> tuple[tuple[str, Any], ...]:
        return ("observations", self.observations.statistics), ("returns", self.returns)

    def _bootstrap(
        self, actor: Actor, cut: list[tuple[int, NDArray[np.intp], NDArray[np.float32]]]
    ) -> None:
        """At a time limit the episode would have gone on: add what the critic expects of that."""
        if not cut:
            return
        steps = np.concatenate([np.full(len(rows), t) for t, rows, _ in cut])
        columns = np.concatenate([rows for _, rows, _ in cut])
        last = np.concatenate([obs for _, _, obs in cut])
        values = value(actor.shape, actor.tensors, last, np)
        self._rollout.rewards[steps, columns] += np.float32(self._gamma) * values
