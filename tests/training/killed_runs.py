"""Runs in this process that can be killed on the way, for the tests of trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2p.contracts import WORKER_MESSAGE, ScalarsReady, StateSaved, WorkerMessage
from p2p.training.checkpoints import adopt_state
from p2p.training.training_loop import TrainContext

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from p2p.config import TrainConfig

REWARD = """
import numpy as np

def reward_fn(obs, action, next_obs, info):
    speed = info["x_velocity"]
    effort = -0.1 * np.sum(np.square(action), axis=-1)
    return speed + effort, {"speed": speed, "effort": effort}
"""


class KilledError(Exception):
    pass


def run(
    train: Callable[[TrainContext], None],
    folder: Path,
    config: TrainConfig,
    code: str = REWARD,
    *,
    kill_after: int | None = None,
    until: int | None = None,
) -> list[WorkerMessage]:
    """Train; `kill_after` ends it abruptly when that many iterations have been reported."""
    folder.mkdir(exist_ok=True)
    messages: list[WorkerMessage] = []

    def send(message: WorkerMessage) -> None:
        messages.append(WORKER_MESSAGE.validate_json(message.model_dump_json()))
        if isinstance(message, StateSaved):
            adopt_state(folder, message.file)
        if sum(isinstance(m, ScalarsReady) for m in messages) == kill_after:
            raise KilledError

    train(TrainContext(config, code, folder, send, until))
    return messages
