"""What an iteration trains: its configuration, and the policy or state that it starts from.

PPO starts from the judged policy, with whatever reward. SAC learns from past steps as well, which
are in no policy's file: it continues from the state that the run left, with the same reward.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from p2p import files
from p2p.config import TrainConfig
from p2p.records.iteration_record import IterationRecord
from p2p.records.loop_files import IterationPlan
from p2p.session.search import candidate_count
from p2p.session.stopping import TrainingUnavailable
from p2p.training.checkpoints import (
    FILE_NAME,
    ResumeError,
    checkpoint_dir,
    environment_widths,
    state_for,
)
from p2p.training.hp_presets import quick_config
from p2p.training.policies.network import NetworkShape
from p2p.training.policies.policy import Policy, PolicyFileError
from p2p.training.worker import choose_backend

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from p2p.contracts import Intent, Revision
    from p2p.records.iteration_record import SessionRecord
    from p2p.records.loop_files import SteeringTaken
    from p2p.session.context import SessionContext


def plan_iteration(
    context: SessionContext,
    number: int,
    intent: Intent,
    feedback: Sequence[SteeringTaken],
    revision: Revision | None,
) -> IterationPlan:
    """The configuration of the iteration that this one is based on, changed by the revision."""
    loop = context.loop
    before, parent, wanted = loop.train, None, intent.training
    if revision is not None:
        parent = revision.based_on
        before = context.iteration(parent).config
        wanted = revision.hp_changes if loop.hp_tuning else {}
    # What the user has set on the way, no revision moves any more.
    requested = {name: value for each in feedback for name, value in each.hp_changes.items()}
    fixed = {*loop.fixed, *requested}
    if revision is None:  # what is not as usual somebody has chosen
        usual = quick_config(before.env_id, algorithm=before.algorithm, device=before.device)
        fixed |= {name for name in wanted if getattr(before, name) != getattr(usual, name)}
    base, notes = before.apply_updates({k: v for k, v in wanted.items() if k not in fixed})
    notes += [f"{name} is fixed" for name in wanted if name in fixed]
    base, more = _apply_requested(base, requested)
    start = ""
    if revision is not None and revision.warm_start:
        try:
            start = start_of(context, revision.based_on, base, revision.reward_code)
        except ValueError as error:
            notes.append(f"warm_start: {error}")
    own_reward = feedback[-1].reward_code is not None
    return IterationPlan(
        iteration=number,
        parent=parent,
        train=base,
        configs=loop.configs,
        seeds=loop.seeds,
        candidates=1 if own_reward else candidate_count(loop, base),
        start_policy=start,
        hp_changes=base.model_dump(mode="json", include=set(base.differences(before))),
        notes=(*notes, *more),
    )


def _apply_requested(
    base: TrainConfig, changes: Mapping[str, Any]
) -> tuple[TrainConfig, list[str]]:
    """Apply the user's changes to a configuration, also beyond the bounds of a revision."""
    notes: list[str] = []
    for name, value in changes.items():
        if name not in TrainConfig.model_fields or name in {"env_id", "seed", "iteration_id"}:
            notes.append(f"{name} cannot be changed")
            continue
        try:
            base = base.with_updates(**{name: value})
        except ValidationError as error:
            notes.append(f"{name}={value!r} refused: {error.errors()[0]['msg']}")
    return base, notes


# --- what training starts from --------------------------------------------------------------------

MAY_DIFFER = frozenset({"total_timesteps", "iteration_id", "num_threads"})
"""What may differ between a run and the one that continues it."""


def start_of(context: SessionContext, iteration: int, config: TrainConfig, reward_code: str) -> str:
    """The judged policy of an iteration, or the state of its run, as a path below the session's.

    Raises ValueError where there is none that this configuration and reward could start from.
    """
    record = context.session.iteration(iteration)
    best = record.best_run.read()
    if best is None:
        raise ValueError(f"iteration {iteration} has no judged policy")
    run = IterationRecord(record.path / best.run_id)
    if config.algorithm == "sac":
        own = {"seed", *(name for entry in context.loop.configs for name in entry.params)}
        path, problem = run.work_dir / FILE_NAME, _discontinuity(run, config, reward_code, own)
    else:
        path = checkpoint_dir(run, best.step) / "policy.safetensors"
        try:
            problem = _describe_misfit(Policy.load(path), config)
        except (OSError, PolicyFileError) as error:
            problem = f"the policy of iteration {iteration} cannot be read: {error}"
    if problem:
        raise ValueError(problem)
    return str(path.relative_to(context.session.path))


def place_start(
    context: SessionContext,
    source: str,
    runs: Iterable[tuple[IterationRecord, TrainConfig]],
    reward_code: str,
) -> None:
    """Lay what training starts from into the folders that it fits; a run that has begun is left.

    Raises TrainingUnavailable where it cannot be read any more, or there is no room for a copy.
    """
    path = context.session.path / source
    try:
        if path.name == FILE_NAME:
            _continue(path, runs, reward_code)
        else:
            _place_policy(path, runs)
    except (OSError, PolicyFileError, ResumeError) as error:
        raise TrainingUnavailable(f"training cannot start from {source}: {error}") from error


def forget_states(session: SessionRecord) -> None:
    """Remove what a session that has ended does not continue from."""
    for iteration in session.iteration_records():
        for run in iteration.runs():
            shutil.rmtree(run.work_dir, ignore_errors=True)


def _place_policy(path: Path, runs: Iterable[tuple[IterationRecord, TrainConfig]]) -> None:
    data = files.read_bytes(path)
    policy = Policy.from_bytes(data, path.name)
    for run, config in runs:
        if not run.start_policy_path.exists() and not _describe_misfit(policy, config):
            files.write_bytes(run.start_policy_path, data)


def _describe_misfit(policy: Policy, config: TrainConfig) -> str:
    if config.algorithm != "ppo" or choose_backend(config) != "fast":
        return "only PPO and SAC of the fast backend can continue a policy's training"
    widths = environment_widths(config)
    if policy.shape != NetworkShape.from_config(config, *widths):
        return "its network or observation differs"
    if policy.normalize_obs != config.normalize_obs:
        return "it normalises observations otherwise"
    return ""


def _continue(
    state: Path, runs: Iterable[tuple[IterationRecord, TrainConfig]], reward_code: str
) -> None:
    """Continue a run with its own seed; with another one it would do the very same."""
    earlier = IterationRecord(state.parent.parent)
    for run, config in runs:
        if run.config.exists() or _discontinuity(earlier, config, reward_code):
            continue
        run.work_dir.mkdir(parents=True, exist_ok=True)
        state_for(config, reward_code, state.parent, run.work_dir, same_reward=True)


def _discontinuity(
    run: IterationRecord, config: TrainConfig, reward_code: str, own: Collection[str] = ()
) -> str:
    """Why a run of SAC cannot be continued so; `own` are fields that each run has its own of."""
    before = run.config.read()
    if before is None or not (run.work_dir / FILE_NAME).is_file():
        return "the state of its training is gone"
    if run.read_reward_source() != reward_code:
        return "SAC's replay holds rewards of another reward function"
    changed = [n for n in config.differences(before) if n not in MAY_DIFFER and n not in own]
    return f"SAC continues only with the same settings, not {', '.join(changed)}" if changed else ""
