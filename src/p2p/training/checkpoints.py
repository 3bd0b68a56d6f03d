"""An evaluated checkpoint, from the sandbox's folder into the run's.

A checkpoint is a policy and the episodes it was judged by. It is there as a whole or not at all:
`policy.zip` is written last.
"""

from __future__ import annotations

from pathlib import Path

from p2p import files
from p2p.config import TrainConfig
from p2p.contracts import ROLLOUT_LABELS, EvalReady
from p2p.records.iteration_record import IterationRecord
from p2p.sandbox import UntrustedResultError, read_arrays, read_result
from p2p.training.policies.policy import MAX_FILE_BYTES, Policy, PolicyFileError
from p2p.training.policies.sb3_export import save_sb3_zip
from p2p.training.trajectory import MAX_BYTES, Trajectory, TrajectoryFileError


def checkpoint_dir(record: IterationRecord, step: int) -> Path:
    """The folder of one checkpoint."""
    return record.checkpoints_dir / f"step_{step}"


def publish_checkpoint(record: IterationRecord, config: TrainConfig, message: EvalReady) -> None:
    """Check what the trainer left in its folder, and write it down as this checkpoint.

    Raises:
        UntrustedResultError: a file is not what it claims to be.
    """
    step = message.result.global_step
    folder = checkpoint_dir(record, step)
    try:
        data = read_result(record.work_dir, message.policy_file, MAX_FILE_BYTES)
        policy = Policy.from_bytes(data, message.policy_file)
        trajectories = {
            label: Trajectory.from_arrays(read_arrays(record.work_dir, name, max_bytes=MAX_BYTES))
            for label, name in message.trajectory_files.items()
        }
    except (PolicyFileError, TrajectoryFileError) as error:
        raise UntrustedResultError(str(error)) from error
    if unknown := set(trajectories) - set(ROLLOUT_LABELS):
        raise UntrustedResultError(f"unknown rollouts: {sorted(unknown)}")
    for label, trajectory in trajectories.items():
        trajectory.save(record.trajectory_file(step, label))
    folder.mkdir(parents=True, exist_ok=True)
    files.write_bytes(folder / "policy.safetensors", data)
    partial = folder / ".policy.partial.zip"
    save_sb3_zip(policy, config, partial)
    partial.replace(folder / "policy.zip")
    for name in (message.policy_file, *message.trajectory_files.values()):
        (record.work_dir / name).unlink(missing_ok=True)


def load_checkpoint(record: IterationRecord, step: int) -> Policy:
    """The policy of a published checkpoint."""
    return Policy.load(checkpoint_dir(record, step) / "policy.safetensors")


def checkpoint_steps(record: IterationRecord) -> list[int]:
    """The steps of the checkpoints that are there as a whole, ascending."""
    return sorted(
        int(path.parent.name.removeprefix("step_"))
        for path in record.checkpoints_dir.glob("step_*/policy.zip")
    )
