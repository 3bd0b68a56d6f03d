"""Videos for models that look: as they are where the model takes them, as frames otherwise.

The asking itself goes through LLMClient, like any question.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from p2p.files import open_data, read_bytes
from p2p.inference.providers import BUILTIN, PROVIDERS, split_model
from p2p.inference.question import Media, RequestRejected

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from PIL import Image

MOST_INLINE_BYTES = 15_000_000
"""A video over this goes as frames: a Gemini request may have 20 MB, a third more in base64."""
LONGEST_SIDE = 768
JPEG_QUALITY = 85


def takes_video(model: str) -> bool:
    """Return whether this model is shown a whole video, and not its frames alone."""
    provider, _ = split_model(model)
    return provider != BUILTIN and PROVIDERS[provider].video_frames > 0


def whole_video(model: str, video: Path | None, fps: float) -> Media | None:
    """The video itself with how closely this model looks at it; None: it gets frames only.

    Raises RequestRejected for a model that cannot see, or a video that cannot be read.
    """
    provider, _ = split_model(model)
    if provider == BUILTIN:
        raise RequestRejected(
            "the built-in author has no vision: choose another model to judge videos"
        )
    most = PROVIDERS[provider].video_frames
    if video is None or not most or _file_size(video) > MOST_INLINE_BYTES:
        return None
    return Media(read_bytes(video), "video/mp4", round(min(fps, most / seconds_of(video)), 3))


def frames_of(video: Path) -> list[bytes]:
    """Return a video's frames as JPEGs; raises RequestRejected if it cannot be read."""
    _read_times(video)
    return [jpeg(picture) for picture in _read_pictures(video)]


def seconds_of(video: Path) -> float:
    times = _read_times(video)
    return times[-1] + _frame_seconds(times)


def _read_times(video: Path) -> list[float]:
    """Return the times of a video's frames, from the packets alone; the first is at zero."""
    import av

    try:
        with open_data(video) as data, av.open(data, "r") as container:
            stream = container.streams.video[0]
            base = float(stream.time_base or 0)
            stamps = sorted(p.pts for p in container.demux(stream) if p.pts is not None)
    except (OSError, IndexError, av.FFmpegError) as error:
        raise RequestRejected(f"{video} is not a video that can be read: {error}") from error
    if not stamps:
        raise RequestRejected(f"{video} has no frames")
    return [base * (stamp - stamps[0]) for stamp in stamps]


def _frame_seconds(times: list[float]) -> float:
    """Return how long a frame is shown."""
    return times[-1] / (len(times) - 1) if len(times) > 1 else 1.0


def _read_pictures(video: Path) -> Iterator[Image.Image]:
    import av
    from PIL import Image

    with open_data(video) as data, av.open(data, "r") as container:
        for frame in container.decode(video=0):
            yield Image.fromarray(frame.to_ndarray(format="rgb24"))


def jpeg(picture: Image.Image, longest_side: int = LONGEST_SIDE) -> bytes:
    """The picture as a JPEG, made smaller in place where a side is longer than this."""
    picture.thumbnail((longest_side, longest_side))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=JPEG_QUALITY)
    return stream.getvalue()


def _file_size(video: Path) -> int:
    try:
        return video.stat().st_size
    except OSError as error:
        raise RequestRejected(f"{video} cannot be read: {error.strerror}") from error
