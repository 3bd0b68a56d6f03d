"""Videos of recorded episodes for the judge that looks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from p2p.training.trajectory import Trajectory
from p2p.training.video.rendering import RenderJob, render_async

MAX_FRAMES = 150


def film(env_id: str, trajectories: Sequence[Path], outputs: Sequence[Path]) -> list[str]:
    """Render each trajectory to its output; "" for each that is there, else why it is not."""
    jobs = [
        RenderJob(env_id=env_id, trajectory=source, output=output, max_frames=MAX_FRAMES)
        for source, output in zip(trajectories, outputs, strict=True)
    ]
    process = render_async(jobs)
    try:
        outcomes = process.wait()
    finally:
        process.cancel()  # nothing to cancel, unless the wait was interrupted
    return ["" if outcome.ok else outcome.error or "no video" for outcome in outcomes]


def cut(trajectory: Trajectory, start_s: float, end_s: float) -> Trajectory:
    """The steps between two times, or the step nearest to them if there is none between."""
    times = trajectory["timestamp"]
    rows = np.flatnonzero((times >= start_s) & (times <= end_s))
    if not len(rows):
        rows = np.array([int(np.abs(times - start_s).argmin())])
    return trajectory.part(rows)
