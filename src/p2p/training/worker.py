"""What runs inside the sandbox: environment, reward and policy in one process.

The reward is code that nobody has vouched for, so everything this process says and writes is
checked by whoever reads it. It talks in WorkerMessages, one JSON line each.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.config import TrainConfig
from p2p.contracts import Alive, EvalReady, Failed, WorkerMessage

if TYPE_CHECKING:
    from p2p.training.base_trainer import TrainContext

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
    """Train as the payload says (config, reward_code, folder), or play a policy (replay)."""

    def emit(message: WorkerMessage) -> None:
        send(message.model_dump_json().encode())

    emit(Alive(phase="setup", global_step=0))
    with reporting_failures(emit):
        from p2p.training.base_trainer import TrainContext

        config = TrainConfig.model_validate(payload["config"])
        context = TrainContext(config, payload["reward_code"], Path(payload["folder"]), emit)
        if "replay" in payload:
            play(context, **payload["replay"])
        else:
            importlib.import_module(BACKENDS[choose_backend(config)]).train(context)


def play(context: TrainContext, *, episodes: int, seed: int, step: int) -> None:
    """Play the folder's policy with the reward, and report as after an evaluation."""
    from p2p.training.base_trainer import make_environment, make_reward
    from p2p.training.evaluation import evaluate
    from p2p.training.policies.policy import Policy
    from p2p.training.reward.runner import decide_batched

    config, code, folder = context.config, context.reward_code, context.folder
    env = make_environment(config, config.eval_envs)
    batched, _ = decide_batched(code, env, side_info=config.side_info, engine=config.engine)
    result, trajectories = evaluate(
        env,
        make_reward(config, code, env, batched=batched),
        Policy.load(folder / "policy.safetensors").act,
        rounds=-(-episodes // config.eval_envs),
        episodes=episodes,
        seed=seed,
        step=step,
        stride=config.trajectory_stride,
        alive=lambda: context.send(Alive(phase="eval", global_step=step)),
    )
    files = {label: f"{label}.npz" for label in trajectories}
    for label, trajectory in trajectories.items():
        trajectory.save(folder / files[label])
    context.send(EvalReady(result=result, policy_file="policy.safetensors", trajectory_files=files))


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
