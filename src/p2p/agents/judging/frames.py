"""What a judge that looks is shown of an episode: a video or frames of it, and single pictures.

Frames follow the motion: a few over the whole episode, and bursts that are dense enough for a gait,
where the episode changes most and where it is most like itself.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from p2p.inference.question import Media
from p2p.inference.vlm import frames_at, jpeg, seconds_of, whole_video

if TYPE_CHECKING:
    from pathlib import Path

    from p2p.contracts import Criterion
    from p2p.training.trajectory import RecordedEpisode

STRIP = 12
"""Frames over the whole episode."""
BURST_FPS = 8.0
BURST_S = 1.5
MAX_FRAMES = 36
"""An episode that has no more at BURST_FPS is shown whole at that rate."""

INITIAL_FRAME = (
    "The first frame, with the names of the robot's bodies and the directions of the world's axes:"
)
MOTION_TRAIL = (
    "The whole episode in one picture: its poses at equal times, from blue (first) to red (last). "
    "Long travel is drawn shortened:"
)


@dataclass(frozen=True, slots=True)
class Film:
    """The files that were drawn of an episode; with a `problem` there is no video."""

    video: Path
    initial_frame: Path | None = None
    motion_trail: Path | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Pictures:
    """What goes with a question, each piece after a line that says what it is."""

    parts: tuple[str | Media, ...]
    summary: str
    """The same for people: `12 frames, 24 of them ...`."""
    video: bool

    @property
    def frames(self) -> int:
        return sum(isinstance(part, Media) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of an episode that is worth many frames."""

    start_s: float
    end_s: float
    reason: str


def pictures(
    model: str,
    film: Film,
    trajectory: RecordedEpisode,
    criteria: Sequence[Criterion],
    *,
    as_frames: bool = False,
) -> Pictures:
    """What to show this model: the video where it takes one, unless `as_frames`; else frames.

    Raises RequestRejected for a model that cannot see, or a video that cannot be read.
    """
    parts = [*_still(INITIAL_FRAME, film.initial_frame), *_still(MOTION_TRAIL, film.motion_trail)]
    extra = [name for name, path in (("initial frame", film.initial_frame),
                                     ("motion trail", film.motion_trail)) if path]  # fmt: skip
    video = whole_video(model, film.video, BURST_FPS)
    bursts = stretches(trajectory, criteria)
    # The first frame shows the state after the first step.
    begin = float(trajectory["timestamp"][0])
    if video is not None and not as_frames:
        parts += ["The whole episode as a video:", video]
        summary = "the whole video"
        if video.fps is not None and video.fps >= BURST_FPS:
            bursts = []
    else:
        seconds = seconds_of(film.video)
        fits = seconds * BURST_FPS <= MAX_FRAMES
        count = max(1, round(seconds * BURST_FPS)) if fits else STRIP
        strip = [(i + 0.5) * seconds / count for i in range(count)]
        parts += ["The whole episode:", *_frames(film.video, strip, begin)]
        summary = f"{count} frames of the whole episode"
        bursts = [] if fits else bursts
    for burst in bursts:
        count = round((burst.end_s - burst.start_s) * BURST_FPS)
        times = [burst.start_s - begin + (i + 0.5) / BURST_FPS for i in range(count)]
        shown = f"{burst.start_s:.2f} to {burst.end_s:.2f} s"
        parts += [
            f"From {shown} at {BURST_FPS:g} frames a second, {burst.reason}:",
            *_frames(film.video, times, begin),
        ]
        summary += f"; {count} from {shown}, {burst.reason}"
    return Pictures(tuple(parts), "; ".join((summary, *extra)), video is not None and not as_frames)


def stretches(trajectory: RecordedEpisode, criteria: Sequence[Criterion]) -> list[Stretch]:
    """Where an episode changes most, and where it goes on as it does most of the time.

    Change is that of what the criteria name, if they name columns or bodies, else of heights,
    postures and speeds; averaged over a stretch, so that a gait counts as no change.
    """
    times = trajectory["timestamp"].astype(np.float64)
    span = float(times[-1] - times[0])
    if span <= 2 * BURST_S:
        return []
    values = _judged_columns(trajectory, criteria)
    step = span / max(1, trajectory.length - 1)
    width = max(1, round(BURST_S / step))
    sums = np.cumsum(np.vstack([np.zeros(values.shape[1]), values]), axis=0)
    means = (sums[width:] - sums[:-width]) / width  # of the rows from i to i + width
    after, before = means[width:], means[:-width]
    change = np.abs(after - before).sum(axis=1)  # at row i + width, which is in their middle
    event = int(change.argmax()) + width // 2
    typical = np.abs(means - np.median(means, axis=0)).sum(axis=1)
    apart = np.abs(np.arange(len(means)) - event) >= width
    usual = int(np.where(apart, typical, np.inf).argmin())
    chosen = [Stretch(*_from(times, event), "where it changes most")]
    if apart.any():
        chosen.append(Stretch(*_from(times, usual), "as it is most of the time"))
    return sorted(chosen, key=lambda stretch: stretch.start_s)


def _from(times: NDArray[np.float64], row: int) -> tuple[float, float]:
    start = float(times[min(row, len(times) - 1)])
    start = max(float(times[0]), min(start, float(times[-1]) - BURST_S))
    return start, start + BURST_S


def _judged_columns(
    trajectory: RecordedEpisode, criteria: Sequence[Criterion]
) -> NDArray[np.float64]:
    """One column for each quantity that is looked at, each with the same spread."""
    text = " ".join(f"{c.measure} {c.description}" for c in criteria)
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    names = [n for n, c in trajectory.columns.items() if c.ndim == 1 and n in words]
    columns = [trajectory[name] for name in names if name not in ("step", "timestamp")]
    if not columns and "xpos" in trajectory.columns:
        heights = trajectory["xpos"][:, 1:, 2]
        columns = [*heights.T, *_tilts(trajectory).T]
        columns += [c for n, c in trajectory.columns.items() if n.endswith("_velocity")]
    if not columns:
        columns = list(trajectory["obs"].reshape(trajectory.length, -1).T)
    values = np.nan_to_num(np.stack(columns, axis=1).astype(np.float64))
    scaled: NDArray[np.float64] = values / np.maximum(values.std(axis=0), 1e-6)
    return scaled


def _tilts(trajectory: RecordedEpisode) -> NDArray[np.float64]:
    """How far each body's own z axis points up."""
    turn = trajectory["xquat"][:, 1:].astype(np.float64)
    up: NDArray[np.float64] = 1 - 2 * (turn[..., 1] ** 2 + turn[..., 2] ** 2)
    return up


def _frames(video: Path, times: Sequence[float], begin: float) -> list[str | Media]:
    """The frames at these times of a video, each after its time in the episode."""
    return [
        part
        for seconds, data in frames_at(video, times)
        for part in (f"{begin + seconds:.2f} s", Media(data, "image/jpeg"))
    ]


def _still(text: str, path: Path | None) -> list[str | Media]:
    from PIL import Image

    if path is None:
        return []
    with Image.open(io.BytesIO(path.read_bytes())) as picture:
        return [text, Media(jpeg(picture.convert("RGB"), picture.width), "image/jpeg")]
