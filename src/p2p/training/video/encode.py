"""MP4 files that every browser plays, frame by frame."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Frame = NDArray[np.uint8]
"""(height, width, 3), RGB; height and width even."""

FPS = 25
"""Of videos of whole episodes. They play in real time."""
CRF = 26
"""x264's quality: about 60 kB for each second of a running HalfCheetah at 640 x 480."""
PRESET = "superfast"


def partial_path(path: Path) -> Path:
    """Where a video lies while it is being made."""
    return path.with_name(f".{path.name}.partial")


def write_video(path: Path, frames: Iterable[Frame], fps: Fraction) -> int:
    """Encode H.264 in MP4 (yuv420p, index in front), atomically; returns the number of frames.

    Raises:
        ValueError: no frames, or one whose size is odd or differs from the first.
    """
    import av

    partial = partial_path(path)
    count = 0
    shape: tuple[int, ...] = ()
    try:
        with av.open(str(partial), "w", format="mp4", options={"movflags": "+faststart"}) as file:
            stream: Any = None
            for frame in frames:
                if stream is None:
                    shape = frame.shape
                    stream = _add_stream(file, shape, fps)
                if frame.shape != shape:
                    raise ValueError(f"frame {count} is {frame.shape}, the first was {shape}")
                picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
                picture.pts = count
                file.mux(stream.encode(picture))
                count += 1
            if stream is None:
                raise ValueError("a video needs at least one frame")
            file.mux(stream.encode(None))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _add_stream(file: Any, shape: tuple[int, ...], fps: Fraction) -> Any:
    height, width = shape[:2]
    if height % 2 or width % 2:
        raise ValueError(f"H.264 needs an even width and height, not {width} x {height}")
    stream = file.add_stream("libx264", rate=fps)
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    stream.time_base = 1 / fps
    context = stream.codec_context
    context.thread_count = 1  # rendering runs beside training and must not take its cores
    context.options = {
        "preset": PRESET,
        "crf": str(CRF),
        "g": str(max(1, round(2 * fps))),  # a key frame every two seconds: quick seeking
    }
    return stream


def frame_rows(
    length: int, dt: float, max_frames: int | None = None, max_seconds: float | None = None
) -> tuple[list[float], Fraction]:
    """Which recorded rows to show, and at what rate, so that the video runs in real time.

    Rows are as far apart as frames are in time, so most lie between two recorded ones: equal steps
    look smooth. The last one is always shown, so that one sees how an episode ended. Of an episode
    longer than `max_seconds` its beginning and its end are shown, each half of that.
    """
    if dt <= 0:
        raise ValueError(f"dt must be positive, not {dt}")
    step = 1 / (FPS * dt)
    if max_frames is not None:
        step = max(step, length / max_frames)
    last = length - 1
    rows = [number * step for number in range(int(last / step + 1e-6) + 1)]
    if last - rows[-1] > 1e-6:
        rows.append(float(last))
    rows[-1] = min(rows[-1], float(last))
    if max_seconds is not None and len(rows) * step * dt > max_seconds:
        part = max(1, round(max_seconds / (2 * step * dt)))
        rows = rows[:part] + rows[-part:]
    return rows, Fraction(1 / (dt * step)).limit_denominator(1000)
