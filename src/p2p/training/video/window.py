"""A recorded episode in a window on the screen."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from p2p.training.trajectory import RecordedEpisode

CLOSING_SECONDS = 10.0


class NoWindowError(Exception):
    """There is no display here, or no window can be opened on it."""


def has_display() -> bool:
    """Whether the environment names a display; it may still turn out to be unusable."""
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
