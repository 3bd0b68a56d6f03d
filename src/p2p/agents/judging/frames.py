"""What a judge that looks is shown of an episode: a video or frames of it, and single pictures.

Frames follow the motion: a few over the whole episode, and bursts that are dense enough for a gait,
where the episode changes most and where it is most like itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from p2p.inference.question import Media
from p2p.inference.vlm import frames_of, jpeg, whole_video

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

WHOLE = "The whole episode"
INITIAL_FRAME = (
    "The first frame, with the names of the robot's bodies and the directions of the world's axes:"
)
MOTION_TRAIL = (
    "The whole episode in one picture: its poses at equal times, from blue (first) to red (last). "
    "Long travel is drawn shortened:"
)


@dataclass(frozen=True, slots=True)
class FrameGroup:
    """Frames that belong together."""

    title: str
    rows: tuple[int, ...]
    """Of the trajectory."""
    times: tuple[float, ...]
    """Of these rows, in seconds."""


@dataclass(frozen=True, slots=True)
class Film:
    """The files that were drawn of an episode; with a `problem` they are not all there."""

    video: Path
    frames: Path
    """A video of the frames of the groups alone, in their order."""
    groups: tuple[FrameGroup, ...]
    initial_frame: Path | None = None
    motion_trail: Path | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Pictures:
    """What goes with a question, each piece after a line that says what it is."""

    parts: tuple[str | Media, ...]
    summary: str
    """The same for people: `12 frames of the whole episode; ...`."""
    video: bool
    """Whether the whole video is among them."""

    @property
    def frames(self) -> int:
        return sum(isinstance(part, Media) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of an episode that is worth many frames."""

    start_s: float
    end_s: float
    reason: str


def frame_groups(
    trajectory: RecordedEpisode, criteria: Sequence[Criterion]
) -> tuple[FrameGroup, ...]:
    """The whole episode, then its bursts; a short one is dense enough without."""
    times = trajectory["timestamp"].astype(np.float64)
    dense = _rows(times, float(times[0]), float(times[-1]), BURST_FPS)
    if len(dense) <= MAX_FRAMES:
        groups = [(WHOLE, dense)]
    else:
        whole = ((np.arange(STRIP) + 0.5) * len(times) / STRIP).astype(int)
        groups = [(WHOLE, tuple(whole.tolist()))]
        for each in stretches(trajectory, criteria):
            span = f"From {each.start_s:.2f} to {each.end_s:.2f} s"
            title = f"{span} at {BURST_FPS:g} frames a second, {each.reason}"
            groups.append((title, _rows(times, each.start_s, each.end_s, BURST_FPS)))
    return tuple(FrameGroup(title, rows, tuple(times[list(rows)])) for title, rows in groups)


def _rows(times: NDArray[np.float64], start_s: float, end_s: float, fps: float) -> tuple[int, ...]:
    """The rows nearest to the middles of equal intervals, each once."""
    count = max(1, round((end_s - start_s) * fps))
    wanted = start_s + (np.arange(count) + 0.5) * (end_s - start_s) / count
    return tuple(sorted({int(np.abs(times - at).argmin()) for at in wanted}))


def pictures(model: str, film: Film, *, as_frames: bool = False) -> Pictures:
    """What to show this model: the video where it takes one, unless `as_frames`; else frames.

    A video that the model looks at less closely than a burst comes with the bursts.
    Raises RequestRejected for a model that cannot see, or a video that cannot be read.
    """
    stills = {INITIAL_FRAME: film.initial_frame, MOTION_TRAIL: film.motion_trail}
    parts = [part for text, path in stills.items() if path for part in (text, _still(path))]
    told = [path.stem.partition("_")[0] for path in stills.values() if path]
    video = None if as_frames else whole_video(model, film.video, BURST_FPS)
    groups, left = film.groups, frames_of(film.frames)
    if video is not None:
        parts += ["The whole episode as a video:", video]
        told.append("the whole video")
        dense = video.fps is not None and video.fps >= BURST_FPS
        left, groups = left[len(groups[0].rows) :], () if dense else groups[1:]
    for group in groups:
        shown, left = left[: len(group.rows)], left[len(group.rows) :]
        parts.append(f"{group.title}:")
        for seconds, data in zip(group.times, shown, strict=True):
            parts += [f"{seconds:.2f} s", Media(data, "image/jpeg")]
        told.append(f"{group.title[0].lower()}{group.title[1:]} ({len(shown)} frames)")
    return Pictures(tuple(parts), "; ".join(told), video is not None)


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
    # Side by side they would show one stretch twice as long: half a burst lies between them.
    apart = np.abs(np.arange(len(means)) - event) >= width + max(1, width // 2)
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
    words = set(re.findall(r"\w+", " ".join(f"{c.measure} {c.description}" for c in criteria)))
    named = [n for n in trajectory.columns if n in words and n not in ("step", "timestamp")]
    columns = [_flat(trajectory[name]) for name in named]
    if not columns and "xpos" in trajectory.columns:
        columns = [trajectory["xpos"][:, 1:, 2], _tilts(trajectory)]
        columns += [_flat(c) for n, c in trajectory.columns.items() if n.endswith("_velocity")]
    if not columns:
        columns = [_flat(trajectory["obs"])]
    values = np.nan_to_num(np.concatenate(columns, axis=1).astype(np.float64))
    scaled: NDArray[np.float64] = values / np.maximum(values.std(axis=0), 1e-6)
    return scaled


def _flat(column: NDArray[Any]) -> NDArray[Any]:
    """A column as numbers side by side, one row for each step."""
    return column.reshape(len(column), -1)


def _tilts(trajectory: RecordedEpisode) -> NDArray[np.float64]:
    """How far each body's own z axis points up."""
    turn = trajectory["xquat"][:, 1:].astype(np.float64)
    up: NDArray[np.float64] = 1 - 2 * (turn[..., 1] ** 2 + turn[..., 2] ** 2)
    return up


def _still(path: Path) -> Media:
    from PIL import Image

    with Image.open(path) as picture:
        return Media(jpeg(picture.convert("RGB"), picture.width), "image/jpeg")
