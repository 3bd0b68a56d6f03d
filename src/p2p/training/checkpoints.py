"""What a run leaves to continue from and to judge: saved states, and published checkpoints.

The trainer writes states into the sandbox's folder; the parent adopts one when everything before it
is published, so what a run continues from and what is on record always agree. A checkpoint is a
policy and the episodes it was judged by. It is there as a whole or not at all: the policy is
written last. For Stable-Baselines3 it is exported where it is wanted: that takes seconds.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from p2p import files
from p2p.config import EnvOptions, TrainConfig, engine_of
from p2p.contracts import ROLLOUT_LABELS, EvalReady
from p2p.records.iteration_record import IterationRecord
from p2p.sandbox import UntrustedResultError, copy_result, read_arrays, read_result
from p2p.training.engines.table import is_engine
from p2p.training.envs.registry import make_single
from p2p.training.model_files.store import is_model
from p2p.training.policies.network import NetworkShape
from p2p.training.policies.policy import MAX_FILE_BYTES, Policy, PolicyFileError
from p2p.training.policies.sb3_export import save_sb3_zip
from p2p.training.trajectory import MAX_BYTES, RecordedEpisode, TrajectoryFileError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray


_STEP = re.compile(r"[0-9]{1,18}")


def checkpoint_dir(record: IterationRecord, step: int) -> Path:
    return record.checkpoints_dir / f"step_{step}"


def publish_checkpoint(
    record: IterationRecord,
    config: TrainConfig,
    message: EvalReady,
    left: Path,
    max_bytes: int = MAX_BYTES,
) -> int:
    """Check what the trainer left in a folder, and write it down as this checkpoint.

    Returns the bytes written; what was left is removed.

    Raises UntrustedResultError, before anything is written, where it is not what the run makes, or
    takes more than `max_bytes`.
    """
    step = message.result.global_step
    folder = checkpoint_dir(record, step)
    most = max(0, min(max_bytes, MAX_BYTES))
    try:
        data = read_result(left, message.policy_file, min(most, MAX_FILE_BYTES))
        policy = Policy.from_bytes(data, message.policy_file)
        size, episodes = len(data), dict[str, RecordedEpisode]()
        for label, name in message.trajectory_files.items():
            arrays = read_arrays(left, name, max_bytes=most - size)
            size += sum(array.nbytes for array in arrays.values())
            episodes[label] = RecordedEpisode.from_arrays(arrays)
    except (PolicyFileError, TrajectoryFileError) as error:
        raise UntrustedResultError(str(error)) from error
    _check_shapes(message, config, policy, episodes)
    for label, episode in episodes.items():
        episode.save(record.trajectory_file(step, label))
    folder.mkdir(parents=True, exist_ok=True)
    files.write_bytes(folder / "policy.safetensors", data)
    for name in (message.policy_file, *message.trajectory_files.values()):
        (left / name).unlink(missing_ok=True)
    written = [record.trajectory_file(step, label) for label in episodes]
    return sum(path.stat().st_size for path in (*written, *folder.iterdir()))


def export_policy(record: IterationRecord, step: int) -> Path:
    """The checkpoint's policy.zip for Stable-Baselines3, written now unless it is there.

    Raises OSError or PolicyFileError where the checkpoint cannot be read.
    """
    path, config = checkpoint_dir(record, step) / "policy.zip", record.config.read()
    if path.exists():
        return path
    if config is None:
        raise FileNotFoundError(errno.ENOENT, "it is not a run", str(record.config_path))
    policy = load_checkpoint(record, step)
    files.refuse_links(record.path)
    partial = path.with_name(f".policy.{os.getpid()}.partial.zip")
    try:
        save_sb3_zip(policy, config, partial, evaluated_observations(record, step, policy))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _check_shapes(
    message: EvalReady, config: TrainConfig, policy: Policy, episodes: Mapping[str, RecordedEpisode]
) -> None:
    obs_dim, action_dim = environment_widths(config)
    expected = NetworkShape.from_config(config, obs_dim, action_dim), config.observe_time
    if (policy.shape, policy.observe_time) != expected:
        raise UntrustedResultError(f"{message.policy_file}: not a policy of this run")
    for label, episode in episodes.items():
        widths = prod(episode["obs"].shape[1:]), prod(episode["action"].shape[1:])
        if widths != (obs_dim, action_dim):
            raise UntrustedResultError(f"the {label} episode is not one of {config.env_id}")


def environment_widths(config: TrainConfig) -> tuple[int, int]:
    """Numbers of an observation and of an action."""
    obs_dim, action_dim = _widths(config.env_id)
    return obs_dim + config.observe_time, action_dim


@cache
def _widths(env_id: str) -> tuple[int, int]:
    if is_engine(engine_of(env_id)) or is_model(env_id):
        from p2p.training.env_spec import get_env_spec

        spec = get_env_spec(env_id)
        return spec.obs_dim, spec.action_dim
    # Some have no time limit of their own.
    env = make_single(EnvOptions(env_id, max_episode_steps=1))
    try:
        spaces = env.observation_space, env.action_space
        return prod(spaces[0].shape or ()), prod(spaces[1].shape or ())
    finally:
        env.close()


def evaluated_observations(
    record: IterationRecord, step: int, policy: Policy
) -> NDArray[np.float32]:
    """What this checkpoint's policy saw in the recorded episodes of its evaluation, (N, D)."""
    paths = (record.trajectory_file(step, label) for label in ROLLOUT_LABELS)
    recorded = [RecordedEpisode.load(path)["obs"] for path in paths if path.exists()]
    return np.concatenate([np.zeros((0, policy.shape.obs_dim), np.float32), *recorded])


def load_checkpoint(record: IterationRecord, step: int) -> Policy:
    return Policy.load(checkpoint_dir(record, step) / "policy.safetensors")


def checkpoint_steps(record: IterationRecord) -> list[int]:
    """The steps of the checkpoints that are there as a whole, ascending."""
    return sorted(
        step
        for step, folder in _checkpoint_folders(record).items()
        if (folder / "policy.safetensors").exists()
    )


def forget_checkpoints(record: IterationRecord, after: int) -> None:
    """Remove what was published beyond a step that the run is at again: it comes anew."""
    for step, folder in _checkpoint_folders(record).items():
        if step > after:
            shutil.rmtree(folder)
            for label in ROLLOUT_LABELS:
                record.trajectory_file(step, label).unlink(missing_ok=True)


def published_bytes(record: IterationRecord) -> int:
    """Return what the checkpoints of a run take on disk, their episodes included."""
    folders = _checkpoint_folders(record)
    paths = [path for folder in folders.values() for path in folder.iterdir()]
    paths += [record.trajectory_file(step, label) for step in folders for label in ROLLOUT_LABELS]
    return sum(path.stat().st_size for path in paths if path.is_file())


def _checkpoint_folders(record: IterationRecord) -> dict[int, Path]:
    """Return the checkpoint folders by step, complete or not; foreign names are ignored."""
    folders = record.checkpoints_dir.glob("step_*")
    steps = {folder.name.removeprefix("step_"): folder for folder in folders}
    return {int(step): folder for step, folder in steps.items() if _STEP.fullmatch(step)}


FILE_NAME = "resume.safetensors"
MAX_STATE_BYTES = 16 << 30
START_POLICY = "start_policy.safetensors"
"""In the sandbox's folder: the policy that training starts from, where there is one."""


Arrays = dict[str, "NDArray[Any]"]


def add_prefix(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Add a prefix to the names of a part's arrays."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def part(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays that `prefixed` put there."""
    start = f"{prefix}/"
    return {name[len(start) :]: a for name, a in arrays.items() if name.startswith(start)}


class ResumeError(ValueError):
    """There is a state, but this run cannot continue from it."""


def save_state(
    folder: Path, step: int, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> str:
    """Write the state at this step; it counts once it is adopted. Returns the file's name."""
    from safetensors.numpy import save

    data = save(
        # Not ascontiguousarray, which makes a vector of a single number.
        {name: np.asarray(array, order="C") for name, array in arrays.items()},
        metadata={"meta": json.dumps(meta)},
    )
    name = f"state_{step}.safetensors"
    files.write_bytes(folder / name, data)
    return name


def adopt_state(folder: Path, name: str, left: Path | None = None) -> None:
    """Make this the state that the folder's run continues from, in one step.

    `left` is where it lies, if not in the folder itself.
    """
    if left is not None and left != folder.absolute():
        partial = f"{FILE_NAME}.partial"
        copy_result(left, name, folder / partial, MAX_STATE_BYTES)
        (left / name).unlink()
        name = partial
    if not _is_file(folder / name):
        raise UntrustedResultError(f"{name} is not a file that is there")
    if not _is_file(folder / FILE_NAME):
        _remove(folder / FILE_NAME)
    (folder / name).replace(folder / FILE_NAME)


def forget_leftovers(folder: Path) -> None:
    """Remove what a killed run left in its folder, except the state it continues from."""
    for path in folder.iterdir():
        if path.name != FILE_NAME or not _is_file(path):
            _remove(path)


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def state_names(folder: Path) -> Collection[str]:
    """The names of the arrays of a saved state, without reading them; none if there is none."""
    try:
        with files.open_data(folder / FILE_NAME, MAX_STATE_BYTES) as stream:
            header: object = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    except (OSError, ValueError):  # `load_state` says what is wrong with it
        return ()
    return header if isinstance(header, dict) else ()


def load_state(folder: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Arrays and meta as saved; None if there is no state. Raises ResumeError if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = folder / FILE_NAME
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        arrays = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        meta = json.loads(header["__metadata__"]["meta"])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ResumeError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(meta, dict):
        raise ResumeError(f"{path.name} cannot be read: its metadata is not a mapping")
    return arrays, meta


def identity_of(config: TrainConfig, reward_code: str) -> dict[str, Any]:
    """Return the identity of a state's run, for `is_state_of`."""
    digest = hashlib.sha256(reward_code.encode()).hexdigest()
    return {"config": config.model_dump(mode="json"), "reward": digest}


def is_state_of(meta: Mapping[str, Any], config: TrainConfig, reward_code: str) -> bool:
    """Return whether a run is equivalent to the run of a state, and may continue it.

    A field that the state does not know has its default. Older states have a fingerprint of all
    fields instead: they are known by the config.json beside them alone.
    """
    if "fingerprint" in meta:
        return True
    try:
        known = TrainConfig.model_validate(meta.get("config"))
    except ValidationError:
        return False
    # How many threads step makes no difference, so a resumed run may have other cores.
    differs = set(config.differences(known)) - {"num_threads"}
    return not differs and meta.get("reward") == identity_of(config, reward_code)["reward"]


def state_for(
    config: TrainConfig, reward_code: str, source: Path, target: Path, *, same_reward: bool = False
) -> None:
    """Write a state for another run to continue from; raises ResumeError.

    Args:
        config: Of the other run; but for its name and its length, the same.
        reward_code: Its reward, with the same terms.
        source: The folder with the state.
        target: The other run's.
        same_reward: Whether this run has that reward, too.
    """
    saved = load_state(source)
    if saved is None:
        raise ResumeError(f"{source} has no state to continue from")
    arrays, meta = saved
    if not same_reward:  # past steps to learn from have the rewards of the one that took them
        arrays = {name: array for name, array in arrays.items() if not name.startswith("replay/")}
    meta = {name: value for name, value in meta.items() if name != "fingerprint"}
    meta |= identity_of(config, reward_code)
    iteration = meta.get("iteration")
    if not isinstance(iteration, int) or not 0 <= iteration < config.num_iterations:
        raise ResumeError(f"{source.name} holds a state with which nothing is left to be trained")
    step = iteration * config.batch_size
    adopt_state(target, save_state(target, step, arrays, meta))
