"""The second argument of `judge_fn`: what is known of an episode besides its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p2p.training.env_spec import get_env_spec
from p2p.training.trajectory import ENGINE_COLUMNS, ENV_REWARD, SCALAR_COLUMNS, VECTOR_COLUMNS

if TYPE_CHECKING:
    from p2p.config import TrainConfig
    from p2p.contracts import TrainSummary
    from p2p.training.trajectory import Trajectory

SUMMARY_KEYS: dict[str, str] = {
    "env_id": "the environment",
    "dt": "seconds between two steps",
    "length": "number of steps",
    "seconds": "length * dt",
    "max_episode_steps": "steps after which an episode is cut off",
    "terminated": "whether the environment ended it early (in most: fell or became unhealthy)",
    "truncated": "whether it was cut off at its time limit",
    "env_return": "sum of the environment's own reward",
    "final": "dict: every scalar of the environment's info at the last step",
    "seed": "of the episode's start; None if it is not known",
    "step": "the training step of the policy; None if it is no trained one",
    "training": "dict: total_timesteps and final_return of the training run; empty if none",
}
"""What stands in a summary, in words."""


def episode_summary(
    config: TrainConfig,
    trajectory: Trajectory,
    *,
    seed: int | None = None,
    step: int | None = None,
    training: TrainSummary | None = None,
) -> dict[str, Any]:
    """The summary of an episode that `record_episodes` recorded, as plain JSON."""
    spec = get_env_spec(config.env_id, config.engine)
    known = {*SCALAR_COLUMNS, *VECTOR_COLUMNS, *ENGINE_COLUMNS, ENV_REWARD}
    length = int(trajectory["step"][-1]) + 1
    return {
        "env_id": config.env_id,
        "dt": spec.dt,
        "length": length,
        "seconds": length * spec.dt,
        "max_episode_steps": config.max_episode_steps or spec.max_episode_steps,
        "terminated": bool(trajectory["terminated"][-1]),
        "truncated": bool(trajectory["truncated"][-1]),
        "env_return": _env_return(trajectory),
        "final": {
            name: column[-1].item()
            for name, column in trajectory.columns.items()
            if name not in known and column.ndim == 1
        },
        "seed": seed,
        "step": step,
        "training": {}
        if training is None
        else {
            "total_timesteps": training.total_timesteps,
            "final_return": training.final_episodic_return,
        },
    }


def _env_return(trajectory: Trajectory) -> float:
    # Where a stride left steps out, the sum over those that were kept stands for all of them.
    column = trajectory.columns.get(ENV_REWARD)
    if column is None:
        return trajectory.total_reward
    length = int(trajectory["step"][-1]) + 1
    return float(column.sum(dtype="float64")) * length / trajectory.length
