"""Training that goes on from the policy of an earlier iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2p import files
from p2p.records.iteration_record import IterationRecord
from p2p.session.endings import TrainingUnavailable
from p2p.training.checkpoints import checkpoint_dir, environment_widths
from p2p.training.policies.network import NetworkShape
from p2p.training.policies.policy import Policy, PolicyFileError
from p2p.training.worker import choose_backend

if TYPE_CHECKING:
    from collections.abc import Iterable

    from p2p.config import TrainConfig
    from p2p.session.context import SessionContext


def start_policy(context: SessionContext, iteration: int, config: TrainConfig) -> str:
    """The judged policy of an iteration, as a path below the session's folder.

    Raises ValueError where there is none that this configuration could train on from.
    """
    record = context.session.iteration(iteration)
    best = record.best_run.read()
    if best is None:
        raise ValueError(f"iteration {iteration} has no judged policy")
    folder = checkpoint_dir(IterationRecord(record.path / best.run_id), best.step)
    path = folder / "policy.safetensors"
    try:
        policy = Policy.load(path)
    except (OSError, PolicyFileError) as error:
        raise ValueError(f"the policy of iteration {iteration} cannot be read: {error}") from error
    if problem := _misfit(policy, config):
        raise ValueError(problem)
    return str(path.relative_to(context.session.path))


def _misfit(policy: Policy, config: TrainConfig) -> str:
    if config.algorithm != "ppo" or choose_backend(config) != "fast":
        return "only PPO of the fast backend can start from a policy"
    widths = environment_widths(config.env_id, observe_time=config.observe_time)
    if policy.shape != NetworkShape.from_config(config, *widths):
        return "its network or its observation is another one"
    if policy.normalize_obs != config.normalize_obs:
        return "it normalises observations otherwise"
    return ""


def place_start_policy(
    context: SessionContext, source: str, runs: Iterable[tuple[IterationRecord, TrainConfig]]
) -> None:
    """Lay the policy into the folders of the runs that it fits; one that has begun is left.

    Raises TrainingUnavailable where it cannot be read any more.
    """
    path = context.session.path / source
    try:
        data = path.read_bytes()
        policy = Policy.from_bytes(data, path.name)
    except (OSError, PolicyFileError) as error:
        raise TrainingUnavailable(
            f"the policy that training is to start from is gone: {error}"
        ) from error
    for run, config in runs:
        if not run.start_policy_path.exists() and not _misfit(policy, config):
            files.write_bytes(run.start_policy_path, data)
