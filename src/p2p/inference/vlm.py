"""Videos for models that look: as they are where the model takes them, as frames otherwise.

The asking itself goes through LLMClient, like any question.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from p2p.inference.providers import BUILTIN, PROVIDERS, split_model
from p2p.inference.question import Media, RequestRejected

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from PIL import Image

MOST_INLINE_BYTES = 15_000_000
"""A video over this goes as frames: a Gemini request may have 20 MB, a third more in base64."""
MOST_VIDEO_FRAMES = 200
"""That a model looks at in a video; each has its price."""
LONGEST_SIDE = 768
JPEG_QUALITY = 85


def media_for(model: str, video: Path, *, max_frames: int, fps: float) -> list[Media]:
    """What to show this model of a video: the video itself, or up to `max_frames` JPEGs.

    Raises RequestRejected for a model that cannot see, or a video that cannot be read.
    """
    provider, _ = split_model(model)
    if provider == BUILTIN:
        raise RequestRejected("the built-in author cannot see: choose another model to look")
    if PROVIDERS[provider].sees_video and _size(video) <= MOST_INLINE_BYTES:
        looked_at = min(fps, MOST_VIDEO_FRAMES / seconds_of(video))
        return [Media(video.read_bytes(), "video/mp4", round(looked_at, 3))]
    return [
        Media(jpeg, "image/jpeg") for _, jpeg in frames_of(video, max_frames=max_frames, fps=fps)
    ]


def frames_of(video: Path, *, max_frames: int, fps: float) -> list[tuple[float, bytes]]:
    """Seconds and JPEGs from the middle of equal intervals of a video, at most `fps` a second."""
    if max_frames < 1 or fps <= 0:
        raise ValueError(f"no frames can be taken: {max_frames=}, {fps=}")
    times = _times(video)
    count = max(1, min(max_frames, round(len(times) * _step(times) * fps), len(times)))
    chosen = {int((i + 0.5) * len(times) / count) for i in range(count)}
    return [(times[i], _jpeg(picture)) for i, picture in enumerate(_pictures(video)) if i in chosen]


def seconds_of(video: Path) -> float:
    times = _times(video)
    return times[-1] + _step(times)


def _times(video: Path) -> list[float]:
    """When each frame is shown, from the packets alone; the first is at zero."""
    import av

    try:
        with av.open(str(video)) as container:
            stream = container.streams.video[0]
            base = float(stream.time_base or 0)
            stamps = sorted(p.pts for p in container.demux(stream) if p.pts is not None)
    except (OSError, IndexError, av.FFmpegError) as error:
        raise RequestRejected(f"{video} is not a video that can be read: {error}") from error
    if not stamps:
        raise RequestRejected(f"{video} has no frames")
    return [base * (stamp - stamps[0]) for stamp in stamps]


def _step(times: list[float]) -> float:
    """How long a frame is shown."""
    return times[-1] / (len(times) - 1) if len(times) > 1 else 1.0


def _pictures(video: Path) -> Iterator[Image.Image]:
    import av
    from PIL import Image

    with av.open(str(video)) as container:
        for frame in container.decode(video=0):
            yield Image.fromarray(frame.to_ndarray(format="rgb24"))


def _jpeg(picture: Image.Image) -> bytes:
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=JPEG_QUALITY)
    return stream.getvalue()


def _size(video: Path) -> int:
    try:
        return video.stat().st_size
    except OSError as error:
        raise RequestRejected(f"{video} cannot be read: {error.strerror}") from error
