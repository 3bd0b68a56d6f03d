"""Recorded episodes that several tests judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from p2p.agents.judge_code import episode_summary
from p2p.config import TrainConfig
from p2p.training.env_spec import get_env_spec
from p2p.training.evaluation import record_episodes
from p2p.training.policies.network import NetworkShape, initial_parameters
from p2p.training.policies.policy import Policy


class Recorded:
    """Episodes of a hopper that acts at random, as files with their summaries."""

    def __init__(self, folder: Path, episodes: int) -> None:
        self.config = TrainConfig(env_id="Hopper-v5")
        self.files: list[Path] = []
        self.summaries = []
        for i, trajectory in enumerate(
            record_episodes(self.config, "random", episodes=episodes, seed=5)
        ):
            self.files.append(folder / f"{i}.npz")
            trajectory.save(self.files[-1])
            self.summaries.append(episode_summary(self.config, trajectory, seed=5 + i))


def hopper_policy(seed: int = 3) -> Policy:
    """A policy as it is before training: small actions that depend on what it sees."""
    spec = get_env_spec("Hopper-v5")
    shape = NetworkShape(spec.obs_dim, spec.action_dim, (8,), "tanh")
    rng = np.random.default_rng(seed)
    return Policy(
        shape=shape,
        tensors=initial_parameters(shape, rng, ortho_init=True, log_std_init=0.0),
        obs_mean=np.zeros(spec.obs_dim),
        obs_var=np.ones(spec.obs_dim),
        action_low=np.full(spec.action_dim, -1, np.float32),
        action_high=np.full(spec.action_dim, 1, np.float32),
        env_id="Hopper-v5",
    )
