"""What runs inside the sandbox: environment, reward and policy in one process.

The reward is code that nobody has vouched for, so everything this process says and writes is
checked by whoever reads it. It talks in WorkerMessages, one JSON line each.
"""

from __future__ import annotations

import faulthandler
import importlib
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from p2p.config import ConfigurationError, TrainConfig
from p2p.contracts import Alive, Failed, WorkerMessage
from p2p.training.engines.table import is_engine

if TYPE_CHECKING:
    from p2p.training.training_loop import TrainContext

LEARNERS: dict[str, tuple[str, str]] = {
    "fast": ("p2p.training.ppo", "PPOLearner"),
    "sac": ("p2p.training.sac", "SACLearner"),
    "sb3": ("p2p.training.sb3_trainer", "SB3Learner"),
    "rsl_rl": ("p2p.training.rsl_rl_trainer", "RslRlLearner"),
}
"""Name of a learner to its module and class."""


def main(payload: dict[str, Any], send: Callable[[bytes], None]) -> None:
    """Train as the payload says (config, reward_code, folder), or play a policy (replay)."""

    def emit(message: WorkerMessage) -> None:
        send(message.model_dump_json().encode())
        if stall is not None:
            # Where it falls silent, the stacks of what it is at are printed before it is killed.
            faulthandler.dump_traceback_later(0.8 * stall, file=sys.stderr)

    stall = payload.get("stall_seconds")
    emit(Alive(phase="setup", global_step=0))
    # The border of the process: whatever is raised inside travels to the parent as a message.
    try:
        from p2p.training.training_loop import TrainContext

        config = TrainConfig.model_validate(payload["config"])
        folder, until = Path(payload["folder"]), payload.get("until")
        context = TrainContext(config, payload["reward_code"], folder, emit, until)
        if "replay" in payload:
            play(context, **payload["replay"])
        else:
            train(context)
    except BaseException as error:  # noqa: BLE001 - a reward may raise anything, SystemExit too
        emit(describe(error))


def train(context: TrainContext) -> None:
    """Train to the end, continuing from a state in the context's folder."""
    from p2p.training.checkpoints import state_names
    from p2p.training.training_loop import TrainingLoop

    name = choose_backend(context.config)
    # Earlier versions trained some environments with Stable-Baselines3 where nothing was said.
    if name == "fast" and "learner/weight/log_std" in state_names(context.folder):
        name = "sb3"
    module, learner = LEARNERS[name]
    make_learner = getattr(importlib.import_module(module), learner)
    TrainingLoop(context, make_learner, "gym" if name == "sb3" else "auto").run()


def play(context: TrainContext, *, episodes: int, seed: int, step: int) -> None:
    """Play the folder's policy with the reward, and report as after an evaluation."""
    from p2p.training.evaluation import evaluate
    from p2p.training.policies.policy import Policy
    from p2p.training.reward_runner import decide_batched
    from p2p.training.training_loop import (
        Heartbeat,
        make_environment,
        make_reward,
        send_evaluation,
    )

    config, code = context.config, context.reward_code
    alive = Heartbeat(context.send)
    alive.global_step = step
    with closing(make_environment(config, config.eval_envs, code, recorded=True)) as env:
        batched, _ = decide_batched(code, env, side_info=config.side_info, engine=config.engine)
        alive.reward = make_reward(config, code, env, batched=batched)
        evaluation = evaluate(
            env,
            alive.reward,
            Policy.load(context.folder / "policy.safetensors").act,
            rounds=-(-episodes // config.eval_envs),
            episodes=episodes,
            seed=seed,
            step=step,
            stride=config.trajectory_stride,
            alive=alive.phase("eval"),
        )
    send_evaluation(context, "policy.safetensors", *evaluation)


def choose_backend(config: TrainConfig) -> str:
    """The learner, of LEARNERS; `auto` is our own, except for an engine."""
    if is_engine(config.engine):
        backends = {"auto": "rsl_rl", "rsl_rl": "rsl_rl", "sb3": "sb3"}
        if config.algorithm != "ppo" or config.backend not in backends:
            raise ConfigurationError(
                f"{config.engine} trains with algorithm 'ppo' of backend 'rsl_rl' or 'sb3'"
            )
        return backends[config.backend]
    if config.backend == "rsl_rl":
        raise ConfigurationError("backend 'rsl_rl' is for GPU simulators; use 'auto'")
    if config.algorithm == "sac":
        if config.backend == "sb3":
            raise ConfigurationError("backend 'sb3' has no algorithm 'sac'; use backend 'auto'")
        return "sac"
    return "sb3" if config.backend == "sb3" else "fast"


def describe(error: BaseException) -> Failed:
    """Return a failure as a message to the parent process."""
    from p2p.training.checkpoints import ResumeError
    from p2p.training.envs.registry import UnknownEnvironmentError
    from p2p.training.reward_function import RewardError
    from p2p.training.training_loop import TrainingDivergedError

    kind: Literal["reward", "environment", "config", "internal"] = "reward"
    message, trace = str(error) or type(error).__name__, ""
    match error:
        case SystemExit() | KeyboardInterrupt():
            message = f"the reward ended the process: {error!r}"
        case TrainingDivergedError():
            pass
        case ConfigurationError() | UnknownEnvironmentError() | ResumeError():
            kind = "config"
        case _:
            trace = "".join(traceback.format_exception(error))[-8000:]
            if isinstance(error, MemoryError):
                kind = "environment"  # one that the reward raises is a RewardError
                message = (
                    "the sandbox's memory limit was reached outside of the reward; fewer num_envs "
                    "or a smaller replay_size need less, or the run a higher limit"
                )
            elif not isinstance(error, RewardError):
                kind, message = "internal", f"{type(error).__name__}: {message}"
    return Failed(kind=kind, message=message, traceback=trace)
