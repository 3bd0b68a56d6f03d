"""Play a trained policy again: new episodes with the reward it was trained on, sandboxed."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p import files
from p2p.config import TrainConfig
from p2p.contracts import ROLLOUT_LABELS, Alive, EvalReady, EvalResult, Failed, WorkerMessage
from p2p.records.iteration_record import IterationRecord
from p2p.sandbox import (
    Sandbox,
    SandboxedProcess,
    UntrustedResultError,
    read_arrays,
    run_worker,
)
from p2p.training.checkpoints import checkpoint_dir, checkpoint_steps
from p2p.training.engines.facts import surroundings
from p2p.training.policies.policy import Policy, PolicyFileError
from p2p.training.runner import (
    WORKER_ENVIRONMENT,
    WORKER_MODULE,
    RunOptions,
    TrainingFailed,
    explain_end,
)
from p2p.training.trainer_messages import MAX_SIGNS, longest_evaluation_s, parse_message
from p2p.training.trajectory import MAX_BYTES, RecordedEpisode, TrajectoryFileError


@dataclass(frozen=True)
class ReplayResult:
    """Episodes of one checkpoint, and three of them in full."""

    step: int
    result: EvalResult
    trajectories: dict[str, RecordedEpisode]


class NoSuchCheckpoint(Exception):
    """The run has no such checkpoint; the message lists those it has."""


def choose_step(record: IterationRecord, step: int | None) -> int:
    """The checkpoint asked for, else the selected one, else the last."""
    steps = checkpoint_steps(record)
    if not steps:
        raise NoSuchCheckpoint(
            f"{record.path} has no checkpoint yet: policy.safetensors is missing"
        )
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
) -> ReplayResult:
    """Play `episodes` deterministic episodes; equal seeds give equal episodes, however many.

    As many run side by side as in training's own evaluation: the last bits of an action depend on
    how many are computed at once, and a long episode may depend on the last bits.

    Raises:
        NoSuchCheckpoint: the run's files are not there, not any more, or damaged.
        TrainingFailed: the reward or the environment failed.
    """
    policy_file = checkpoint_dir(record, step) / "policy.safetensors"
    code = record.read_reward_source()
    if not policy_file.is_file() or not code:
        missing = record.path / "reward_fn.py" if policy_file.is_file() else policy_file
        raise NoSuchCheckpoint(f"{missing} is missing: this run cannot be played")
    try:
        Policy.load(policy_file)
    except (OSError, PolicyFileError) as error:
        raise NoSuchCheckpoint(f"{policy_file} cannot be played: {error}") from error
    with tempfile.TemporaryDirectory(prefix="p2p-replay-") as name:
        folder = Path(name)
        files.copy_data(policy_file, folder / "policy.safetensors")
        payload = {
            "config": config.model_dump(mode="json"),
            "reward_code": code,
            "folder": name,
            "replay": {"episodes": episodes, "seed": seed, "step": step},
            "stall_seconds": RunOptions.stall_seconds,
        }
        sandbox = surroundings(config, folder).sandbox(
            folder,
            stall_seconds=RunOptions.stall_seconds,
            wall_seconds=longest_evaluation_s(config, episodes),
            max_lines=MAX_SIGNS,
            memory_bytes=8 << 30,
            disk_bytes=2 << 30,
            env=WORKER_ENVIRONMENT,
        )
        try:
            ready, left = _play(payload, sandbox)
            trajectories = {
                label: RecordedEpisode.from_arrays(
                    read_arrays(left.folder, file, max_bytes=MAX_BYTES)
                )
                for label, file in ready.trajectory_files.items()
            }
        except (UntrustedResultError, TrajectoryFileError) as error:
            raise TrainingFailed("reward", f"what playing left cannot be used: {error}") from error
    if set(trajectories) != set(ROLLOUT_LABELS):
        raise TrainingFailed("reward", f"playing left the wrong episodes: {sorted(trajectories)}")
    return ReplayResult(step, ready.result, trajectories)


def _play(payload: dict[str, Any], sandbox: Sandbox) -> tuple[EvalReady, SandboxedProcess]:
    """Play to the end; return the messages and the process that wrote the files."""
    ready: EvalReady | None = None
    reward_seconds, began = 0.0, time.monotonic()

    def take(message: WorkerMessage, _: SandboxedProcess) -> None:
        nonlocal ready, reward_seconds
        match message:
            case Alive():
                reward_seconds = message.reward_seconds
            case Failed():
                raise TrainingFailed(message.kind, message.message, message.traceback)
            case EvalReady():
                ready = message

    process = run_worker(WORKER_MODULE, payload, sandbox, read=parse_message, on_message=take)
    if ready is None:
        share = reward_seconds / (time.monotonic() - began)
        raise explain_end(process.wait(), "playing ended", share)
    return ready, process
