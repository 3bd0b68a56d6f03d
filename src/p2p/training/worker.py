"""What runs inside the sandbox: environment, reward and PPO in one process.

The reward is code that nobody has vouched for, so everything this process says and writes is
checked by whoever reads it. It talks in WorkerMessages, one JSON line each.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from p2p.config import TrainConfig
from p2p.contracts import Alive, Failed, WorkerMessage

MODULE = "p2p.training.worker"

BACKENDS: dict[str, str] = {
    "fast": "p2p.training.fast_trainer",
    "sb3": "p2p.training.sb3_trainer",
}
"""Backend name to the module whose `train(context)` does it."""


ENVIRONMENT = {"OMP_NUM_THREADS": "1", "NPROC": "1"}
"""Environment variables of the process. XLA's CPU client reads NPROC when it starts: more than one
thread makes an update of a small network slower and burns a second core."""


class ConfigurationError(ValueError):
    """The configuration asks for something that does not exist."""


def main(payload: dict[str, Any], send: Callable[[bytes], None]) -> None:
    """Train as the payload says: config, reward_code, folder."""

    def emit(message: WorkerMessage) -> None:
        send(message.model_dump_json().encode())

    emit(Alive(phase="setup", global_step=0))
    with reporting_failures(emit):
        from p2p.training.base_trainer import TrainContext

        config = TrainConfig.model_validate(payload["config"])
        context = TrainContext(config, payload["reward_code"], Path(payload["folder"]), emit)
        importlib.import_module(BACKENDS[choose_backend(config)]).train(context)


@contextmanager
def reporting_failures(emit: Callable[[WorkerMessage], None]) -> Iterator[None]:
    """The border of the process: whatever is raised inside travels to the parent as a message."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - a reward may raise anything, SystemExit too
        emit(describe(error))


def choose_backend(config: TrainConfig) -> str:
    """`auto` is the fast backend for every environment it knows exactly."""
    from p2p.training.vec_env import is_fast

    if config.backend == "fast" and not is_fast(config.env_id):
        raise ConfigurationError(
            f"backend 'fast' does not know {config.env_id}; use backend 'sb3' or 'auto'"
        )
    if config.backend == "auto":
        return "fast" if is_fast(config.env_id) else "sb3"
    return config.backend


def describe(error: BaseException) -> Failed:
    """A failure as the parent is told of it."""
    from p2p.training.base_trainer import TrainingDivergedError
    from p2p.training.checkpoints import ResumeError
    from p2p.training.envs.registry import UnknownEnvironmentError
    from p2p.training.reward_function import RewardError, RewardLoadError

    trace = "".join(traceback.format_exception(error))[-8000:]
    message = str(error) or type(error).__name__
    match error:
        case RewardError() | RewardLoadError():
            return Failed(kind="reward", message=message, traceback=trace)
        case SystemExit() | KeyboardInterrupt():
            return Failed(kind="reward", message=f"the reward ended the process: {error!r}")
        case MemoryError():
            return Failed(
                kind="reward",
                message="the sandbox's memory limit was reached; the reward (or num_envs) needs "
                "less memory, or the run a higher limit",
                traceback=trace,
            )
        case ConfigurationError() | UnknownEnvironmentError() | ResumeError():
            return Failed(kind="config", message=message)
        case TrainingDivergedError():
            return Failed(kind="reward", message=message)
        case _:
            return Failed(
                kind="internal", message=f"{type(error).__name__}: {message}", traceback=trace
            )
