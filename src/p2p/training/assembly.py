"""The parts that every trainer is built from, made from its context."""

from __future__ import annotations

import hashlib
import os
from typing import Literal

import numpy as np

from p2p.config import TrainConfig
from p2p.contracts import Finished, Started
from p2p.training.context import TrainContext
from p2p.training.envs.batched_env import BatchedEnv
from p2p.training.metrics.episodes import EpisodeLog
from p2p.training.reward.runner import RewardRunner
from p2p.training.vec_env import make_batched_env


def make_environment(
    config: TrainConfig, num_envs: int, backend: Literal["auto", "fast", "gym"] = "auto"
) -> BatchedEnv:
    """The configuration's environment, `num_envs` times."""
    return make_batched_env(
        config.env_id,
        num_envs,
        backend=backend,
        num_threads=config.num_threads or len(os.sched_getaffinity(0)),
        max_episode_steps=config.max_episode_steps,
        terminate_when_unhealthy=config.terminate_when_unhealthy,
        side_info=config.side_info,
    )


def make_reward(ctx: TrainContext, num_envs: int, *, batched: bool) -> RewardRunner:
    """The context's reward, for `num_envs` environments."""
    return RewardRunner(ctx.reward_code, num_envs, batched=batched, engine=ctx.config.engine)


def start_message(
    backend: Literal["fast", "sb3"], ctx: TrainContext, step: int, reward: RewardRunner, note: str
) -> Started:
    """What a trainer says when it is ready."""
    return Started(
        backend=backend,
        start_step=step,
        total_timesteps=ctx.config.total_timesteps,
        reward=reward.spec,
        reward_calls="batch" if reward.batched else "per_env",
        note=note,
    )


def end_message(step: int, episodes: EpisodeLog) -> Finished:
    """What a trainer says when it is done."""
    return Finished(
        global_step=step,
        total_episodes=episodes.total,
        final_episodic_return=episodes.metrics().get("episodic_return"),
    )


def later_seed(seed: int, iteration: int) -> int:
    """Where environments start again after an iteration: where neither they nor others were."""
    return int(np.random.SeedSequence([seed, iteration]).generate_state(1)[0] >> 1)


def fingerprint(ctx: TrainContext) -> str:
    """Equal for runs that give equal results, so that one may continue the other's state."""
    # How many threads step makes no difference, so a resumed run may have other cores.
    config = ctx.config.model_dump_json(exclude={"num_threads"})
    return hashlib.sha256(f"{config}\n{ctx.reward_code}".encode()).hexdigest()
