"""Training makes policies better: short runs whose first episodes are those of chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from p2p.config import TrainConfig
from p2p.contracts import EvalReady, ScalarsReady, WorkerMessage
from p2p.rewards import find_reward
from p2p.training.training_loop import TrainContext
from p2p.training.worker import train


@pytest.mark.parametrize(
    ("reward", "by_chance", "learned", "options"),
    [
        pytest.param(
            "invertedpendulum_balance", 30, 150,
            {"num_envs": 8, "num_steps": 64, "num_minibatches": 8, "gamma": 0.98,
             "total_timesteps": 20_000, "max_episode_steps": 200},
            marks=pytest.mark.slow,
        ),
        (
            "swimmer_default", 10, 18,
            {"num_envs": 8, "num_steps": 256, "num_minibatches": 16, "gamma": 0.999,
             "gae_lambda": 0.98, "total_timesteps": 12_000, "max_episode_steps": 250},
        ),
    ],
)  # fmt: skip
def test_training_improves_the_return(
    tmp_path: Path, reward: str, by_chance: float, learned: float, options: dict[str, Any]
) -> None:
    builtin = find_reward(reward)
    config = TrainConfig(
        env_id=builtin.env_id, learning_rate=1e-3, num_evals=1, num_eval_rounds=1, num_threads=1,
        seed=1, **options,
    )  # fmt: skip
    heard: list[WorkerMessage] = []
    train(TrainContext(config, builtin.read(), tmp_path, heard.append))
    returns = [
        message.scalars.values["episodic_return"]
        for message in heard
        if isinstance(message, ScalarsReady) and "episodic_return" in message.scalars.values
    ]
    (evaluation,) = [message.result for message in heard if isinstance(message, EvalReady)]
    assert returns[0] < by_chance
    assert evaluation.mean_return > learned
