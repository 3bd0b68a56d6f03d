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

from p2p.contracts import ScalarsReady, StateSaved, TrainScalars
from p2p.training.assembly import (
    end_message,
    fingerprint,
    later_seed,
    make_environment,
    make_reward,
    start_message,
)
from p2p.training.context import (
    Heartbeat,
    TrainContext,
    checkpoint_due,
    evaluation_due,
    finite_metrics,
)
from p2p.training.envs.batched_env import generator_from_array, generator_to_array
from p2p.training.evaluator import Evaluator
from p2p.training.metrics.episodes import EpisodeLog
from p2p.training.policies.network import NetworkShape, flatten, initial_parameters, unflatten
from p2p.training.policies.policy import Policy
from p2p.training.ppo import LearnerState, Rollout, UpdateSettings, make_update
from p2p.training.resume import load_own_state, part, prefixed, save_state
from p2p.training.reward.runner import decide_batched
from p2p.training.rollout import Actor, Collector


def train(ctx: TrainContext) -> None:
    """Train to the end, continuing from a state in ctx.folder. Raises RewardError and others."""
    trainer = _Trainer(ctx)
    try:
        trainer.run()
    finally:
        trainer.close()


class _Trainer:
    def __init__(self, ctx: TrainContext) -> None:
        self.ctx, self.config = ctx, ctx.config
        config = ctx.config
        self.alive = Heartbeat(ctx.send)
        self.alive("setup")
        self.env = make_environment(config, config.num_envs)
        self.evaluator: Evaluator | None = None
        saved = load_own_state(ctx.folder, fingerprint(ctx))
        if saved is None:
            batched, self.note = decide_batched(
                ctx.reward_code, self.env, side_info=config.side_info, engine=config.engine
            )
        else:
            batched, self.note = saved[1]["batched"], saved[1]["note"]
        self.reward = make_reward(ctx, config.num_envs, batched=batched)
        obs_dim, action_dim = (
            int(np.prod(space.shape))
            for space in (self.env.single_observation_space, self.env.single_action_space)
        )
        self.shape = NetworkShape.from_config(config, obs_dim, action_dim)
        self.collector = Collector(self.env, self.reward, self.shape, config)
        self.episodes = EpisodeLog(config.num_envs, config.reward_term_avg_window)
        self.actor = Actor(self.shape, config.num_envs)
        self.update = make_update(self.shape, UpdateSettings.from_config(config))
        self.compiled = False  # the first update is compiled as it is called
        self.iteration, self.step, self.elapsed = 0, 0, 0.0
        start, self.rng = np.random.default_rng(config.seed).spawn(2)
        if saved is None:
            tensors = initial_parameters(
                self.shape, start, ortho_init=config.ortho_init, log_std_init=config.log_std_init
            )
            self.learner = LearnerState.begin(flatten(self.shape, tensors))
            self.collector.restart(config.seed)
        else:
            self._restore(*saved)
        self._use_parameters()

    # --- the loop ---------------------------------------------------------------------------

    def run(self) -> None:
        config = self.config
        self.ctx.send(start_message("fast", self.ctx, self.step, self.reward, self.note))
        while self.iteration < config.num_iterations:
            before = self.step
            self._iterate()
            if evaluation_due(config, before, self.step):
                self._evaluate()
            if checkpoint_due(config, before, self.step):
                self._checkpoint()
        self.ctx.send(end_message(self.step, self.episodes))

    def close(self) -> None:
        self.env.close()
        if self.evaluator is not None:
            self.evaluator.close()

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
        self.iteration += 1
        self.step += config.batch_size
        self.elapsed += now - began
        self.alive.global_step = self.step
        values = finite_metrics(metrics, self.step) | self.episodes.metrics()
        values |= {
            "episodes_per_rollout": float(ended),
            "sps": config.batch_size / (now - began),
            "elapsed_time": self.elapsed,
            "rollout_time": collected - began,
            "train_time": now - collected,
        }
        scalars = TrainScalars(global_step=self.step, iteration=self.iteration, values=values)
        self.ctx.send(ScalarsReady(scalars=scalars))

    def _use_parameters(self) -> None:
        vector = np.array(self.learner.parameters)  # a copy: the update uses its input up
        self.actor.use(unflatten(self.shape, vector))

    # --- evaluation -------------------------------------------------------------------------

    def policy(self) -> Policy:
        """The policy as it stands."""
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

    def _evaluate(self) -> None:
        began = time.perf_counter()
        if self.evaluator is None:
            self.evaluator = Evaluator(self.ctx, self.alive, batched=self.reward.batched)
        self.evaluator.run(self.policy(), self.step)
        self.elapsed += time.perf_counter() - began

    # --- resuming ---------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        environments = self._environment_state()
        if environments is None:
            self.reward.restart()
            self.collector.restart(later_seed(self.config.seed, self.iteration))
            self.episodes.restart()
        episodes, episode_meta = self.episodes.state()
        learner = {name: np.array(x) for name, x in self.learner._asdict().items()}
        arrays = {
            **prefixed("learner", learner),
            **prefixed("collector", self.collector.state()),
            **prefixed("episodes", episodes),
            **prefixed("environments", environments or {}),
            "rng": generator_to_array(self.rng),
        }
        meta = {
            "fingerprint": fingerprint(self.ctx),
            "batched": self.reward.batched,
            "note": self.note,
            "iteration": self.iteration,
            "elapsed": self.elapsed,
            "episodes": episode_meta,
        }
        file = save_state(self.ctx.folder, self.step, arrays, meta)
        self.ctx.send(StateSaved(global_step=self.step, file=file))

    def _environment_state(self) -> dict[str, Any] | None:
        """None if environments and reward cannot be continued exactly."""
        if self.reward.stateful:
            return None
        try:
            return self.env.state_dict()
        except NotImplementedError:
            return None

    def _restore(self, arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        self.iteration = meta["iteration"]
        self.step = self.alive.global_step = self.iteration * self.config.batch_size
        self.elapsed = meta["elapsed"]
        self.learner = LearnerState(**part("learner", arrays))
        environments = part("environments", arrays)
        if environments:
            self.env.load_state_dict(environments)
        else:
            self.env.reset_batch(later_seed(self.config.seed, self.iteration))
        self.collector.load_state(part("collector", arrays))
        self.episodes.load_state(part("episodes", arrays), meta["episodes"])
        self.rng = generator_from_array(arrays["rng"])
