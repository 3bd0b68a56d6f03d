"""Play a trained policy again: new episodes with the reward it was trained on, sandboxed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p.config import TrainConfig
from p2p.contracts import (
    ROLLOUT_LABELS,
    Alive,
    EvalReady,
    EvalResult,
    Failed,
    WorkerMessage,
)
from p2p.records.iteration_record import IterationRecord
from p2p.sandbox import Sandbox, SandboxedProcess, UntrustedResultError, read_arrays
from p2p.sandbox import start as start_sandbox
from p2p.training.checkpoints import checkpoint_dir, checkpoint_steps
from p2p.training.own_modules import own_folders
from p2p.training.runner import TrainingFailed, parse_message
from p2p.training.trajectory import MAX_BYTES, Trajectory, TrajectoryFileError

MODULE = "p2p.training.replay"


@dataclass(frozen=True)
class Replay:
    """Episodes of one checkpoint, and three of them in full."""

    step: int
    result: EvalResult
    trajectories: dict[str, Trajectory]


class NoSuchCheckpoint(Exception):
    """The run has no such checkpoint; the message lists those it has."""


def choose_step(record: IterationRecord, step: int | None) -> int:
    """The checkpoint asked for, else the one that stands for the run, else the last."""
    steps = checkpoint_steps(record)
    if not steps:
        raise NoSuchCheckpoint(f"{record.path} has no checkpoint yet")
    if step is None:
        summary = record.read_summary()
        chosen = summary.selected_step if summary else None
        return chosen if chosen in steps else steps[-1]
    if step not in steps:
        known = ", ".join(map(str, steps))
        raise NoSuchCheckpoint(f"{record.path} has no checkpoint at step {step}, only at {known}")
    return step


def replay(
    record: IterationRecord,
    config: TrainConfig,
    *,
    step: int,
    episodes: int,
    seed: int,
    unsafe_local: bool = False,
) -> Replay:
    """Play `episodes` deterministic episodes; equal seeds give equal episodes, however many.

    As many run side by side as in training's own evaluation: the last bits of an action depend on
    how many are computed at once, and a long episode may depend on the last bits.

    Raises:
        NoSuchCheckpoint: the run's files are not there, or not any more.
        TrainingFailed: the reward or the environment failed.
    """
    rows = config.eval_envs
    policy_file = checkpoint_dir(record, step) / "policy.safetensors"
    code = record.read_reward_source()
    if not policy_file.is_file() or not code:
        missing = record.path / "reward_fn.py" if policy_file.is_file() else policy_file
        raise NoSuchCheckpoint(f"{missing} is missing: this run cannot be played")
    with tempfile.TemporaryDirectory(prefix="p2p-replay-") as name:
        folder = Path(name)
        (folder / "policy.safetensors").write_bytes(policy_file.read_bytes())
        payload = {
            "config": config.model_dump(mode="json"),
            "reward_code": code,
            "folder": name,
            "rows": rows,
            "rounds": -(-episodes // rows),
            "episodes": episodes,
            "seed": seed,
            "step": step,
        }
        sandbox = Sandbox(
            folder=folder,
            stall_seconds=120,
            import_paths=own_folders(),
            env={"OMP_NUM_THREADS": "1"},
            unsafe_local=unsafe_local,
        )
        try:
            with start_sandbox(MODULE, payload, sandbox) as process:
                ready = _follow(process)
            trajectories = {
                label: Trajectory.from_arrays(read_arrays(folder, file, max_bytes=MAX_BYTES))
                for label, file in ready.trajectory_files.items()
            }
        except (UntrustedResultError, TrajectoryFileError) as error:
            raise TrainingFailed("reward", f"what playing left cannot be used: {error}") from error
    if set(trajectories) != set(ROLLOUT_LABELS):
        raise TrainingFailed("reward", f"playing left the wrong episodes: {sorted(trajectories)}")
    return Replay(step, ready.result, trajectories)


def _follow(process: SandboxedProcess) -> EvalReady:
    """Read the process to its end; returns what it reported."""
    ready: EvalReady | None = None
    for line in process.lines():
        match parse_message(line):
            case Failed() as failure:
                raise TrainingFailed(failure.kind, failure.message, failure.traceback)
            case EvalReady() as message:
                ready = message
    end = process.wait()
    if ready is None:
        raise TrainingFailed(
            "reward", f"playing ended ({end.reason}): {end.message}", end.output_tail
        )
    return ready


def main(payload: dict[str, Any], send: Callable[[bytes], None]) -> None:
    """Inside the sandbox: play and report."""
    from p2p.training.worker import reporting_failures

    def emit(message: WorkerMessage) -> None:
        send(message.model_dump_json().encode())

    with reporting_failures(emit):
        _play(payload, emit)


def _play(payload: dict[str, Any], emit: Callable[[WorkerMessage], None]) -> None:
    from p2p.training.evaluation import evaluate
    from p2p.training.policies.policy import Policy
    from p2p.training.reward.runner import RewardRunner, decide_batched
    from p2p.training.vec_env import make_batched_env

    config = TrainConfig.model_validate(payload["config"])
    folder = Path(payload["folder"])
    env = make_batched_env(
        config.env_id,
        payload["rows"],
        max_episode_steps=config.max_episode_steps,
        terminate_when_unhealthy=config.terminate_when_unhealthy,
        side_info=config.side_info,
    )
    code: str = payload["reward_code"]
    batched, _ = decide_batched(code, env, side_info=config.side_info, engine=config.engine)
    step: int = payload["step"]
    result, trajectories = evaluate(
        env,
        RewardRunner(code, env.num_envs, batched=batched, engine=config.engine),
        Policy.load(folder / "policy.safetensors").act,
        rounds=payload["rounds"],
        episodes=payload["episodes"],
        seed=payload["seed"],
        step=step,
        stride=config.trajectory_stride,
        side_info=config.side_info,
        alive=lambda: emit(Alive(phase="eval", global_step=step)),
    )
    files = {}
    for label, trajectory in trajectories.items():
        files[label] = f"{label}.npz"
        trajectory.save(folder / files[label])
    emit(EvalReady(result=result, policy_file="policy.safetensors", trajectory_files=files))
