"""What judges get of an episode: the columns of its trajectory, its summary, its video."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2p.agents.judging.frames import Film, FrameGroup, frame_groups
from p2p.training.env_spec import spec_for
from p2p.training.trajectory import (
    ENGINE_COLUMNS,
    SCALAR_COLUMNS,
    VECTOR_COLUMNS,
    RecordedEpisode,
    is_reward,
)

if TYPE_CHECKING:
    from p2p.config import TrainConfig
    from p2p.contracts import Criterion, TrainSummary
    from p2p.training.env_spec import EnvSpec

MAX_FRAMES = 200
"""Of a video for judges; a longer episode has fewer a second."""
SUMMARY_KEYS: dict[str, str] = {
    "env_id": "the environment",
    "dt": "seconds between two steps",
    "length": "number of steps",
    "seconds": "length * dt",
    "max_episode_steps": "steps after which an episode is cut off",
    "terminated": "whether the environment ended it early (in most: fell or became unhealthy)",
    "truncated": "whether it was cut off at its time limit",
    "final": "dict: every scalar of the environment's info at the last step",
    "seed": "of the episode's start; None if it is not known",
    "step": "the training step of the policy; None if it is no trained one",
    "training": "dict: total_timesteps and final_return of the training run; empty if none",
}
"""What stands in a summary, in words."""


def trajectory_columns(spec: EnvSpec) -> dict[str, str]:
    """Each column that a judge may use: its shape over T steps, and its meaning.

    No reward is among them, neither the environment's nor ours: it is not what was asked for.
    """
    joints = spec.joints
    qpos = sum(joint.qpos_size for joint in joints)
    qvel = sum(joint.qvel_size for joint in joints)
    bodies = len(spec.bodies)
    columns = {
        "step": "(T,) 0, 1, 2, ...",
        "timestamp": "(T,) seconds since the start, at the end of the step",
        "obs": f"(T, {spec.obs_dim}) observation before the step",
        "action": f"(T, {spec.action_dim}) the action",
        "next_obs": f"(T, {spec.obs_dim}) observation after the step",
        "qpos": f"(T, {qpos}) joint positions after the step",
        "qvel": f"(T, {qvel}) joint velocities after the step",
        "ctrl": f"(T, {spec.action_dim}) actuator inputs",
        "xpos": f"(T, {bodies}, 3) world position of each body (m)",
        "xquat": f"(T, {bodies}, 4) orientation of each body (w, x, y, z)",
        "cvel": f"(T, {bodies}, 6) angular, then linear velocity of each body",
        "cfrc_ext": f"(T, {bodies}, 6) contact torque, then force on each body",
        "terminated": "(T,) true at the last step if the environment ended the episode early",
        "truncated": "(T,) true at the last step if the time limit ended it",
    }
    info = {
        name: f"(T,) {text}"
        for name, text in spec.info_keys.items()
        if name not in columns and not is_reward(name)
    }
    measured = {
        name: f"({', '.join(['T', *map(str, entry.shape)])}{'' if entry.shape else ','}) quantity"
        for name, entry in spec.quantities.items()
    }
    return columns | info | measured


def episode_summary(
    config: TrainConfig,
    trajectory: RecordedEpisode,
    *,
    seed: int | None = None,
    step: int | None = None,
    training: TrainSummary | None = None,
) -> dict[str, Any]:
    """The summary of an episode that `record_episodes` recorded, as plain JSON."""
    spec = spec_for(config)
    known = {*SCALAR_COLUMNS, *VECTOR_COLUMNS, *ENGINE_COLUMNS}
    length = int(trajectory["step"][-1]) + 1
    return {
        "env_id": config.env_id,
        "dt": spec.dt,
        "length": length,
        "seconds": length * spec.dt,
        "max_episode_steps": config.max_episode_steps or spec.max_episode_steps,
        "terminated": bool(trajectory["terminated"][-1]),
        "truncated": bool(trajectory["truncated"][-1]),
        "final": {
            name: column[-1].item()
            for name, column in trajectory.columns.items()
            if name not in known and column.ndim == 1 and not is_reward(name)
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


def film(
    env_id: str,
    trajectories: Sequence[Path],
    criteria: Sequence[Criterion],
    *,
    initial_frame: bool = False,
    motion_trail: bool = False,
) -> list[Film]:
    """Draw each trajectory, as files beside it: `trajectory_x.npz` becomes `video_x.mp4`.

    The criteria say which frames are worth a look.
    """
    from p2p.training.video.rendering import RenderJob, render_async

    def job(source: Path, name: str, **options: Any) -> RenderJob:
        output = source.with_name(name.format(source.stem.removeprefix("trajectory_")))
        return RenderJob(env_id=env_id, trajectory=source, output=output, **options)

    by_episode: list[tuple[tuple[FrameGroup, ...], list[RenderJob]]] = []
    for source in trajectories:
        groups = frame_groups(RecordedEpisode.load(source), criteria)
        rows = tuple(row for group in groups for row in group.rows)
        jobs = [
            job(source, "video_{}.mp4", max_frames=MAX_FRAMES),
            job(source, "frames_{}.mp4", rows=rows),
        ]
        if initial_frame:
            jobs.append(job(source, "initial_{}.png", view="initial_frame", width=640, height=480))
        if motion_trail:
            jobs.append(job(source, "trail_{}.png", view="motion_trail", width=1152, height=384))
        by_episode.append((groups, jobs))
    process = render_async([job for _, jobs in by_episode for job in jobs])
    try:
        outcomes = {outcome.output: outcome for outcome in process.wait()}
    finally:
        process.cancel()  # nothing to cancel, unless the wait was interrupted
    films: list[Film] = []
    for groups, jobs in by_episode:
        made = [outcomes[job.output.absolute()] for job in jobs]
        stills = {j.view: o.output for j, o in zip(jobs[2:], made[2:], strict=True) if o.ok}
        films.append(
            Film(
                video=made[0].output,
                frames=made[1].output,
                groups=groups,
                initial_frame=stills.get("initial_frame"),
                motion_trail=stills.get("motion_trail"),
                problem=next((o.error or "no video" for o in made[:2] if not o.ok), ""),
            )
        )
    return films


def cut(trajectory: RecordedEpisode, start_s: float, end_s: float) -> RecordedEpisode:
    """The steps between two times, or the step nearest to them if there is none between."""
    times = trajectory["timestamp"]
    rows = np.flatnonzero((times >= start_s) & (times <= end_s))
    if not len(rows):
        rows = np.array([int(np.abs(times - start_s).argmin())])
    return trajectory.part(rows)
