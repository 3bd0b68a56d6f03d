"""The fast backend: batched MuJoCo, rewards called once per batch, one compiled PPO update.

Strictly on-policy: a rollout is collected with the parameters that the update starts from. With
the same seed, a run gives the same result on the same machine, at any number of simulation
threads, and whether or not it was killed and resumed on the way.

A reward that keeps state cannot be saved, since its state is whatever it likes. Where the reward
is stateful (or the environment cannot be saved), every checkpoint therefore begins new episodes
with new reward objects, in runs that are never interrupted as well.

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
from p2p.training.base_trainer import BaseTrainer, TrainContext, part, prefixed
from p2p.training.compiled_update import UpdateSettings
from p2p.training.envs.batched_env import BatchedEnv, generator_from_array, generator_to_array
from p2p.training.policies.network import (
    NetworkShape,
    flatten,
    initial_parameters,
    unflatten,
    value,
)
from p2p.training.policies.normalization import ObservationNormalizer, ReturnNormalizer
from p2p.training.policies.policy import Policy
from p2p.training.ppo import LearnerState, Rollout, make_update
from p2p.training.reward.calls import Transition
from p2p.training.reward.runner import RewardRunner


def train(ctx: TrainContext) -> None:
    """Train to the end, continuing from a state in ctx.folder."""
    FastTrainer(ctx).run()


class FastTrainer(BaseTrainer):
    backend = "fast"
    env_backend = "auto"

    def __init__(self, ctx: TrainContext) -> None:
        super().__init__(ctx)
        config = ctx.config
        obs_dim, action_dim = (
            int(np.prod(space.shape))
            for space in (self.env.single_observation_space, self.env.single_action_space)
        )
        self.shape = NetworkShape.from_config(config, obs_dim, action_dim)
        self.collector = RolloutCollector(self.env, self.reward, self.shape, config)
        self.actor = Actor(self.shape, config.num_envs)
        self.update = make_update(self.shape, UpdateSettings.from_config(config))
        self.compiled = False  # the first update is compiled as it is called
        start, self.rng = np.random.default_rng(config.seed).spawn(2)
        if self.saved is None:
            tensors = initial_parameters(
                self.shape, start, ortho_init=config.ortho_init, log_std_init=config.log_std_init
            )
            self.learner = LearnerState.begin(flatten(self.shape, tensors))
            self.collector.restart(config.seed)
        else:
            self._restore(self.saved[0])
        self._use_parameters()

    def learn(self) -> None:
        while self.iteration < self.config.num_iterations:
            self._iterate()

    def _iterate(self) -> None:
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
        with self.alive.during("update" if self.compiled else "compile"):
            self.learner, metrics = self.update(self.learner, rollout, np.array(orders, np.int32))
            self._use_parameters()
        self.compiled = True
        now = time.perf_counter()
        self.finish_iteration(metrics, ended, collected - began, now - collected)

    def _use_parameters(self) -> None:
        vector = np.array(self.learner.parameters)  # a copy: the update uses its input up
        self.actor.use(unflatten(self.shape, vector))

    def policy(self) -> Policy:
        statistics, space = self.collector.observations.statistics, self.env.single_action_space
        return Policy(
            shape=self.shape,
            tensors=dict(self.actor.tensors),
            obs_mean=statistics.mean.copy(),
            obs_var=statistics.var.copy(),
            action_low=space.low.astype(np.float32),
            action_high=space.high.astype(np.float32),
            obs_clip=self.config.obs_clip,
            normalize_obs=self.config.normalize_obs,
            env_id=self.config.env_id,
        )

    def state(self) -> dict[str, Any]:
        environments = self._environment_state()
        if environments is None:
            self.reward.restart()
            self.collector.restart(self.later_seed())
            self.episodes.restart()
        learner = {name: np.array(x) for name, x in self.learner._asdict().items()}
        return {
            **prefixed("learner", learner),
            **prefixed("collector", self.collector.state()),
            **prefixed("environments", environments or {}),
            "rng": generator_to_array(self.rng),
        }

    def _environment_state(self) -> dict[str, Any] | None:
        """None if environments and reward cannot be continued exactly."""
        if self.reward.stateful:
            return None
        try:
            return self.env.state_dict()
        except NotImplementedError:
            return None

    def _restore(self, arrays: dict[str, Any]) -> None:
        self.learner = LearnerState(**part("learner", arrays))
        environments = part("environments", arrays)
        if environments:
            self.env.load_state_dict(environments)
        else:
            self.env.reset_batch(self.later_seed())
        self.collector.load_state(part("collector", arrays))
        self.rng = generator_from_array(arrays["rng"])


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
        self._env = env
        self._reward = reward
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
        self._obs = np.zeros((env.num_envs, shape.obs_dim))
        self._seen = np.zeros((env.num_envs, shape.obs_dim), np.float32)
        self._starts = np.ones(env.num_envs, np.bool_)

    def restart(self, seed: int) -> None:
        """Begin new episodes everywhere, with environments seeded anew."""
        self._obs = self._env.reset_batch(seed)
        self.observations.update(self._obs)
        self._seen = self.observations(self._obs)
        self._starts = np.ones(self._env.num_envs, np.bool_)
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
        pending: list[Transition] = []
        for t, deviation in enumerate(noise):
            alive()
            drawn = rollout.actions[t]
            np.add(actor.means(rollout.obs[t]), deviation, out=drawn)
            action = np.maximum(drawn, self._low)
            np.minimum(action, self._high, out=action)
            step = self._env.step_batch(action)
            pending.append(Transition(self._obs, action, step.next_obs, step.info, self._starts))
            if len(pending) >= self._reward.block_steps or t + 1 == len(noise):
                self._keep_rewards(t + 1, *self._reward.block(pending))
                pending.clear()
            self._starts = step.terminated | step.truncated
            dones[t] = self._starts
            self._obs = step.obs
            self.observations.update(step.obs)
            rollout.obs[t + 1] = self.observations(step.obs)
            if np.count_nonzero(step.truncated):
                rows = np.flatnonzero(step.truncated & ~step.terminated)
                cut.append((t, rows, self.observations(step.next_obs[rows])))
        self._seen = rollout.obs[-1].copy()
        rollout.rewards[:] = self.returns(self.raw_rewards, dones)
        self._bootstrap(actor, cut)
        return rollout

    def state(self) -> dict[str, NDArray[Any]]:
        """Where the rollouts stand: normalisers and current observations, not the environments."""
        arrays: dict[str, Any] = {"obs": self._obs, "seen": self._seen, "starts": self._starts}
        for name, normalizer in self._normalizers():
            arrays |= {f"{name}.{key}": x for key, x in normalizer.state_dict().items()}
        return arrays

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._obs, self._seen = arrays["obs"].copy(), arrays["seen"].copy()
        self._starts = arrays["starts"].copy()
        for name, normalizer in self._normalizers():
            start = f"{name}."
            mine = {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}
            normalizer.load_state_dict(mine)

    def _normalizers(self) -> tuple[tuple[str, Any], ...]:
        return ("observations", self.observations.statistics), ("returns", self.returns)

    def _keep_rewards(
        self, end: int, total: NDArray[np.float64], terms: Mapping[str, NDArray[np.float64]]
    ) -> None:
        """Of the steps before `end`, (K, N) each."""
        if not self.terms:
            self.terms = {name: np.zeros_like(self.raw_rewards) for name in terms}
        steps = slice(end - len(total), end)
        self.raw_rewards[steps] = total
        for name, values in terms.items():
            self.terms[name][steps] = values

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
