"""MP4 files that every browser plays, frame by frame, with a line of text over the picture."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Frame = NDArray[np.uint8]
"""(height, width, 3), RGB; height and width even."""

CRF = 21
"""x264's quality: text stays sharp; half a megabyte for 8 s of HalfCheetah at 480 x 480."""
PRESET = "superfast"
MARGIN, PADDING = 10, 12


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


def sampled_steps(
    length: int, dt: float, max_fps: float = 30.0, max_frames: int | None = None
) -> tuple[list[int], Fraction]:
    """Which recorded rows to show, and at what rate, so that the video runs in real time.

    Every k-th row with the smallest k that stays within max_fps and max_frames: equal steps look
    smooth. The last row is always shown, so that one sees how an episode ended.
    """
    if dt <= 0:
        raise ValueError(f"dt must be positive, not {dt}")
    every = max(1, int(np.ceil(1 / (dt * max_fps) - 1e-6)))
    if max_frames is not None:
        every = max(every, -(-length // max_frames))
    rows = list(range(0, length, every))
    if rows and rows[-1] != length - 1:
        rows.append(length - 1)
    return rows, Fraction(1 / (dt * every)).limit_denominator(1000)


def draw_texts(band: Frame, texts: tuple[str, ...]) -> None:
    """Darken a band of a frame, in place, and write the texts: left, right, and between them.

    The text is as high as the band less its PADDING. Each keeps its place from frame to frame, so
    the numbers do not dance.
    """
    height, width = band.shape[:2]
    mask = np.zeros((height, width), np.uint16)
    for i, text in enumerate(texts):
        written = _line(text, height - PADDING)[:, : width - 2 * MARGIN]
        room = width - 2 * MARGIN - written.shape[1]
        left = MARGIN + (room if i and i == len(texts) - 1 else i * width // 4)
        part = mask[:, left : left + written.shape[1]]
        np.maximum(part, written[:, : part.shape[1]], out=part)
    dark = band // np.uint8(4)
    # White over the darkened picture, by the mask's coverage.
    band[:] = dark + ((255 - dark.astype(np.uint16)) * mask[:, :, None] // 255).astype(np.uint8)


@lru_cache(maxsize=64)
def _line(text: str, size: int) -> NDArray[np.uint16]:
    return np.concatenate([_glyph(character, size) for character in text or " "], axis=1)


@lru_cache(maxsize=1024)
def _glyph(character: str, size: int) -> NDArray[np.uint16]:
    """A character's coverage, 0 to 255, as high as a band; digits are all equally wide."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=size)
    widest = max(font.getlength(digit) for digit in "0123456789")
    advance = widest if character.isdigit() else font.getlength(character)
    image = Image.new("L", (max(1, round(advance)), size + PADDING))
    offset = (advance - font.getlength(character)) / 2
    ImageDraw.Draw(image).text((offset, 4), character, fill=255, font=font)
    return np.asarray(image).astype(np.uint16)
