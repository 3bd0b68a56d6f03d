"""The fast backend: batched MuJoCo, rewards called once per batch, one compiled PPO update.

Strictly on-policy: a rollout is collected with the parameters that the update starts from. With
the same seed, a run gives the same result on the same machine, at any number of simulation
threads, and whether or not it was killed and resumed on the way.

A reward that keeps state cannot be saved, since its state is whatever it likes. Where the reward
is stateful (or the environment cannot be saved), every checkpoint therefore begins new episodes
with new reward objects, in runs that are never interrupted as well.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from p2p.training.base_trainer import BaseTrainer, TrainContext, part, prefixed
from p2p.training.envs.batched_env import generator_from_array, generator_to_array
from p2p.training.policies.network import NetworkShape, flatten, initial_parameters, unflatten
from p2p.training.policies.policy import Policy
from p2p.training.ppo import LearnerState, Rollout, UpdateSettings, make_update
from p2p.training.rollout import Actor, RolloutCollector


def train(ctx: TrainContext) -> None:
    """Train to the end, continuing from a state in ctx.folder. Raises RewardError and others."""
    trainer = FastTrainer(ctx)
    try:
        trainer.run()
    finally:
        trainer.close()


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

    def run(self) -> None:
        self.send_started()
        while self.iteration < self.config.num_iterations:
            self._iterate()
        self.send_finished()

    def _iterate(self) -> None:
        config = self.config
        began = time.perf_counter()
        noise = self.rng.standard_normal(
            (config.num_steps, config.num_envs, self.shape.action_dim), np.float32
        )
        noise *= np.exp(self.actor.tensors["log_std"])
        rollout = self.collector.collect(self.actor, noise, self.alive.phase("rollout"))
        ended = self.episodes.add(rollout.raw_rewards, rollout.terms, rollout.dones)
        collected = time.perf_counter()
        orders = [self.rng.permutation(config.batch_size) for _ in range(config.update_epochs)]
        batch = Rollout(rollout.obs, rollout.actions, rollout.rewards, rollout.dones)
        with self.alive.during("update" if self.compiled else "compile"):
            self.learner, metrics = self.update(self.learner, batch, np.array(orders, np.int32))
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
