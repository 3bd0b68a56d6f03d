"""The reference backend: Stable-Baselines3's own PPO, for any Gymnasium environment.

Same configuration, metrics, files and kind of policy as the fast backend. The environments are
Gymnasium's, stepped in a loop; rewards are checked and called as on the fast backend.

A killed run continues with its weights, optimiser, statistics and random states, but Gymnasium
environments cannot be saved: they begin new episodes, so the result is not bit for bit that of an
uninterrupted run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecNormalize

from p2p.config import TrainConfig
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
from p2p.training.envs.batched_env import StepBatch
from p2p.training.evaluator import Evaluator
from p2p.training.metrics.episodes import EpisodeLog
from p2p.training.policies.sb3_export import policy_from_sb3, ppo_settings
from p2p.training.resume import load_own_state, part, prefixed, save_state
from p2p.training.reward.runner import decide_batched
from p2p.training.sb3.measure import MeasuredPPO
from p2p.training.sb3.state import load_learner, save_learner
from p2p.training.sb3.vec_env import RewardedVecEnv


def train(ctx: TrainContext) -> None:
    """Train to the end, continuing from a state in ctx.folder."""
    torch.set_num_threads(1)  # small networks: a second thread costs more than it brings
    torch.use_deterministic_algorithms(ctx.config.torch_deterministic, warn_only=True)
    trainer = _Trainer(ctx)
    try:
        trainer.run()
    finally:
        trainer.close()


class _Trainer:
    def __init__(self, ctx: TrainContext) -> None:
        self.ctx, config = ctx, ctx.config
        self.alive = Heartbeat(ctx.send)
        self.alive("setup")
        saved = load_own_state(ctx.folder, fingerprint(ctx))
        env = make_environment(config, config.num_envs, backend="gym")
        if saved is None:
            batched, self.note = decide_batched(
                ctx.reward_code, env, side_info=config.side_info, engine=config.engine
            )
        else:
            batched, self.note = saved[1]["batched"], saved[1]["note"]
        self.reward = make_reward(ctx, config.num_envs, batched=batched)
        self.evaluator = Evaluator(ctx, self.alive, batched=batched)
        self.episodes = EpisodeLog(config.num_envs, config.reward_term_avg_window)
        iteration = saved[1]["iteration"] if saved else 0
        self.iteration, self.elapsed, self.began = iteration, 0.0, time.perf_counter()
        seed = later_seed(config.seed, iteration) if iteration else config.seed
        self.steps: list[tuple[NDArray[np.float64], dict[str, Any], NDArray[np.bool_]]] = []
        rewarded = RewardedVecEnv(
            env, self.reward, seed, self._note_step, side_info=config.side_info
        )
        self.normalize = VecNormalize(
            rewarded,
            norm_obs=config.normalize_obs,
            norm_reward=config.normalize_reward,
            clip_obs=config.obs_clip,
            clip_reward=config.reward_clip,
            gamma=config.gamma,
        )
        self.model = make_model(config, self.normalize, self._after_update)
        if saved is not None:
            self._restore(*saved)

    @property
    def step(self) -> int:
        return self.iteration * self.ctx.config.batch_size

    def run(self) -> None:
        config = self.ctx.config
        self.ctx.send(start_message("sb3", self.ctx, self.step, self.reward, self.note))
        left = config.num_iterations * config.batch_size - self.step
        if left > 0:
            self.began = time.perf_counter()
            self.model.learn(left, _Beats(self.alive), reset_num_timesteps=False)
        self.ctx.send(end_message(self.step, self.episodes))

    def close(self) -> None:
        self.normalize.close()
        self.evaluator.close()

    def _note_step(
        self, rewards: NDArray[np.float64], terms: dict[str, Any], step: StepBatch
    ) -> None:
        self.steps.append((rewards, terms, step.terminated | step.truncated))

    def _after_update(self, metrics: dict[str, float], train_time: float) -> None:
        """A rollout and its update are done: report, evaluate, save."""
        config, before = self.ctx.config, self.step
        rewards, terms, dones = zip(*self.steps, strict=True)
        self.steps.clear()
        ended = self.episodes.add(
            np.stack(rewards),
            {name: np.stack([row[name] for row in terms]) for name in terms[0]},
            np.stack(dones),
        )
        self.iteration += 1
        self.alive.global_step = self.step
        spent = time.perf_counter() - self.began
        self.elapsed += spent
        values = finite_metrics(metrics, self.step) | self.episodes.metrics()
        values |= {
            "episodes_per_rollout": float(ended),
            "sps": config.batch_size / spent,
            "elapsed_time": self.elapsed,
            "rollout_time": spent - train_time,
            "train_time": train_time,
        }
        scalars = TrainScalars(global_step=self.step, iteration=self.iteration, values=values)
        self.ctx.send(ScalarsReady(scalars=scalars))
        if evaluation_due(config, before, self.step):
            began = time.perf_counter()
            statistics = self.normalize.obs_rms if config.normalize_obs else None
            self.evaluator.run(policy_from_sb3(self.model, statistics, config), self.step)
            self.elapsed += time.perf_counter() - began
        if checkpoint_due(config, before, self.step):
            self._checkpoint()
        self.began = time.perf_counter()

    def _checkpoint(self) -> None:
        episodes, meta = self.episodes.state()
        arrays = prefixed("learner", save_learner(self.model, self.normalize))
        arrays |= prefixed("episodes", episodes)
        file = save_state(
            self.ctx.folder,
            self.step,
            arrays,
            {
                "fingerprint": fingerprint(self.ctx),
                "batched": self.reward.batched,
                "note": self.note,
                "iteration": self.iteration,
                "elapsed": self.elapsed,
                "episodes": meta,
            },
        )
        self.ctx.send(StateSaved(global_step=self.step, file=file))

    def _restore(self, arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        load_learner(part("learner", arrays), self.model, self.normalize)
        self.episodes.load_state(part("episodes", arrays), meta["episodes"])
        self.episodes.restart()  # the environments could not be saved, new episodes begin
        self.elapsed = meta["elapsed"]
        self.model.num_timesteps = self.step


class _Beats(BaseCallback):
    """Says during rollouts that work goes on."""

    def __init__(self, alive: Heartbeat) -> None:
        super().__init__()
        self.alive = alive

    def _on_step(self) -> bool:
        self.alive("rollout")
        return True


def make_model(
    config: TrainConfig,
    env: VecNormalize,
    after_update: Callable[[dict[str, float], float], None] = lambda *_: None,
) -> PPO:
    """Stable-Baselines3's PPO with this configuration's settings."""
    model = MeasuredPPO(
        "MlpPolicy",
        env,
        after_update=after_update,
        **ppo_settings(config),
        seed=config.seed,
        device=config.device,
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model
