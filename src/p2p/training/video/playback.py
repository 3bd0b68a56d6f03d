"""A recorded episode as an MP4 file that every browser plays, or in a window on the screen."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from p2p.training.trajectory import RecordedEpisode
    from p2p.training.video.scene import Frame


FPS = 25
"""Of videos of whole episodes. They play in real time."""
CRF = 26
"""x264's quality: about 60 kB for each second of a running HalfCheetah at 640 x 480."""
PRESET = "superfast"


def partial_path(path: Path) -> Path:
    """Return where a video lies while it is being made."""
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
    """Return the recorded rows to show and the frame rate, so that the video runs in real time.

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


CLOSING_SECONDS = 10.0


class NoWindowError(Exception):
    """There is no display here, or no window can be opened on it."""


def has_display() -> bool:
    """Return whether the environment names a display; it may still turn out to be unusable."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def play_in_window(env_id: str, trajectory: RecordedEpisode) -> None:
    """Play the episode in MuJoCo's viewer, in real time, over and over until it is closed.

    Raises:
        NoWindowError: a window cannot be opened.
    """
    if not has_display():
        raise NoWindowError("there is no display here")
    import glfw

    with warnings.catch_warnings(action="ignore"):
        usable = glfw.init()  # where it fails, the viewer would hang
    if not usable:
        raise NoWindowError(f"the display {os.environ.get('DISPLAY', '')!r} cannot be used")
    import mujoco
    import mujoco.viewer

    from p2p.training.video.scene import choose_camera, open_model, show_state

    model, camera_config = open_model(env_id)
    data = mujoco.MjData(model)
    show_state(model, data, trajectory, 0)
    camera = choose_camera(model, data, camera_config)
    others = set(threading.enumerate())
    viewer: Any = None
    try:
        with _interrupts_held_back():
            viewer = mujoco.viewer.launch_passive(
                model, data, show_left_ui=False, show_right_ui=False
            )
        viewer.cam.azimuth, viewer.cam.elevation = camera.azimuth, camera.elevation
        viewer.cam.distance, viewer.cam.lookat[:] = camera.distance, camera.lookat
        if camera.tracked_body is not None:
            viewer.cam.type = mujoco.mjtCamera.mjCAMERA_TRACKING
            viewer.cam.trackbodyid = camera.tracked_body
        while viewer.is_running():
            _play_once(viewer, lambda row: show_state(model, data, trajectory, row), trajectory)
    finally:
        # The viewer draws in threads of its own; the process must not end under them.
        if viewer is not None:
            viewer.close()
        for thread in set(threading.enumerate()) - others:
            thread.join(CLOSING_SECONDS)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C while the viewer opens would crash it: it counts once the viewer is there."""
    seen: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if seen:
        raise KeyboardInterrupt


def _play_once(viewer: Any, show: Callable[[int], None], trajectory: RecordedEpisode) -> None:
    times = trajectory["timestamp"]
    begin = time.monotonic() - float(times[0])
    for row in range(trajectory.length):
        if not viewer.is_running():
            return
        show(row)
        viewer.sync()
        time.sleep(max(0.0, begin + float(times[row]) - time.monotonic()))
