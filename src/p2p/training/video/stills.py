"""Single pictures of a recorded episode: its first frame with names on it, and all of it in one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import mujoco
import numpy as np
from numpy.typing import NDArray

from p2p.training.specs.spec_text import image_axes
from p2p.training.video.scene import Camera, Scene, open_episode, place, show_state

if TYPE_CHECKING:
    from PIL import ImageDraw, ImageFont

    from p2p.training.trajectory import RecordedEpisode
    from p2p.training.video.scene import Frame

POSES = 12
"""Of a motion trail, at equal times from the first step to the last."""
FARTHEST = 4.0
"""The most a motion trail is seen from farther away than a video is; then travel is shortened."""
FIRST, LAST = np.array((0.20, 0.45, 1.0)), np.array((1.0, 0.25, 0.15))
"""Tints of a trail's first and last pose."""
TINT = 0.6
FAINTEST = 0.3
TEXT_SIZE = 15
AXES = {"+x": "forward", "+y": "left", "+z": "up"}
SLANTED = 0.7
"""Share of an axis along the line of sight from which on it is said that it goes there."""

Points = NDArray[np.float64]


def motion_trail(env_id: str, trajectory: RecordedEpisode, width: int, height: int) -> Frame:
    """Poses of the whole episode over one background, from blue to red, with their times.

    What travels farther than the picture is wide is drawn with its travel shortened, the same for
    every pose; heights and postures are never changed. Raises NotRenderableError.
    """
    from PIL import Image, ImageDraw

    model, data, camera = open_episode(env_id, trajectory)
    rows = trail_rows(trajectory.length)
    path = np.zeros((len(rows), 3))
    if camera.tracked_body is not None:
        for i, row in enumerate(rows):
            show_state(model, data, trajectory, row)
            path[i] = data.subtree_com[camera.tracked_body]
    fovy = float(model.vis.global_.fovy)
    camera, drawn = _fit_camera(camera, path, fovy, width / height)
    spacing = np.linalg.norm(np.diff(drawn, axis=0), axis=1).mean() if len(rows) > 1 else 0.0
    alpha = float(np.clip(4 * spacing / camera.distance, FAINTEST, 1.0))
    with _PoseScene(model, width, height) as scene:
        scene.begin(data, camera.towards(None))
        for i, row in enumerate(rows):
            show_state(model, data, trajectory, row)
            share = i / max(1, len(rows) - 1)
            tint = (1 - share) * FIRST + share * LAST
            scene.add(data, drawn[i] - path[i], tint, 1.0 if i == len(rows) - 1 else alpha)
        frame = scene.end()
    picture = Image.fromarray(frame)
    pen = ImageDraw.Draw(picture)
    places = project_points(drawn, camera, fovy, width, height)
    written: list[float] = []
    for i in sorted(range(len(rows)), key=lambda i: i not in (0, len(rows) - 1)):
        text = f"{trajectory['timestamp'][rows[i]]:.2f} s"
        length = pen.textlength(text, font=_font())
        x = float(np.clip(places[i, 0] - length / 2, 0, width - length))
        if all(abs(x - other) > length + TEXT_SIZE for other in written):
            _write(pen, (x, height - 2 * TEXT_SIZE), text)
            written.append(x)
    return np.asarray(picture)


def trail_rows(length: int) -> list[int]:
    """The rows of a trail's poses."""
    return sorted({round(i) for i in np.linspace(0, length - 1, min(POSES, length))})


def _fit_camera(camera: Camera, path: Points, fovy: float, aspect: float) -> tuple[Camera, Points]:
    """A still camera that has all poses in view, and where on the way to draw each of them."""
    across = np.array(list(image_axes(camera.azimuth, camera.elevation).values()))
    high = 2 * camera.distance * np.tan(np.radians(fovy) / 2)
    room = high * np.array((aspect, 1.0, 3.0))  # to the right, upwards, away
    itself = high * np.array((1.1, 0.75, 0.0))
    extent = np.ptp(path @ across, axis=0)
    far = float(np.clip(((extent + itself) / room).max(), 1.0, FARTHEST))
    kept = min(1.0, float(((far * room - itself) / np.maximum(extent, 1e-9)).min()))
    drawn = path.copy()
    drawn[:, :2] *= kept
    rise = np.array((0.0, 0.0, camera.lookat[2] - path[0, 2] if camera.start_height else 0.0))
    middle = (drawn.min(axis=0) + drawn.max(axis=0)) / 2 + rise
    if camera.tracked_body is None:
        middle = np.array(camera.lookat)
    still = replace(
        camera,
        distance=far * camera.distance,
        lookat=(float(middle[0]), float(middle[1]), float(middle[2])),
        tracked_body=None,
    )
    return still, drawn


def initial_frame(env_id: str, trajectory: RecordedEpisode, width: int, height: int) -> Frame:
    """The first frame with the names of the bodies and the directions of the world's axes.

    Raises NotRenderableError.
    """
    from PIL import Image, ImageDraw

    model, data, camera = open_episode(env_id, trajectory)
    show_state(model, data, trajectory, 0)
    view = camera.at(data)
    with Scene(model, width, height) as scene:
        picture = Image.fromarray(scene.picture(data, view))
    looking = replace(camera, lookat=(view.lookat[0], view.lookat[1], view.lookat[2]))
    fovy = float(model.vis.global_.fovy)
    pen = ImageDraw.Draw(picture)
    bodies = range(1, model.nbody)
    shown = [body for body in bodies if model.body_geomnum[body] and model.body(body).name]
    places = project_points(data.xipos[shown], looking, fovy, width, height)
    _write_names(pen, [model.body(body).name for body in shown], places, width, height)
    corner, length = np.array((70.0, height - 60.0)), height / 6
    for axis, (right, up, away) in image_axes(camera.azimuth, camera.elevation).items():
        end = corner + length * np.array((right, -up))
        pen.line([*corner, *end], fill=(255, 220, 0), width=3)
        slant = "" if abs(away) < SLANTED else ", away" if away > 0 else ", towards you"
        _write(pen, (end[0] + 4, end[1] - TEXT_SIZE / 2), f"{axis} {AXES[axis]}{slant}")
    return np.asarray(picture)


def project_points(points: Points, camera: Camera, fovy: float, width: int, height: int) -> Points:
    """Project points of the world to pixels of a camera's picture, from its upper left."""
    axes = np.array(list(image_axes(camera.azimuth, camera.elevation).values()))
    right, up, away = ((points - np.array(camera.lookat)) @ axes).T
    scale = height / 2 / np.tan(np.radians(fovy) / 2) / np.maximum(away + camera.distance, 1e-6)
    return np.stack([width / 2 + right * scale, height / 2 - up * scale], axis=1)


class _PoseScene(Scene):
    """Several states of one model in one picture."""

    def begin(self, data: mujoco.MjData, view: mujoco.MjvCamera) -> None:
        """What does not move: the ground and the lights."""
        place(self._model, data)
        self._update(data, view, mujoco.mjtCatBit.mjCAT_STATIC)

    def add(self, data: mujoco.MjData, shift: Points, tint: Points, alpha: float) -> None:
        before = self._scene.ngeom
        mujoco.mjv_addGeoms(
            self._model,
            data,
            self._options,
            self._perturb,
            mujoco.mjtCatBit.mjCAT_DYNAMIC.value,
            self._scene,
        )
        for geom in self._scene.geoms[before : self._scene.ngeom]:
            geom.pos[:] += shift
            geom.rgba[:3] = (1 - TINT) * geom.rgba[:3] + TINT * tint
            geom.rgba[3] *= alpha

    def end(self) -> Frame:
        mujoco.mjr_render(self._viewport, self._scene, self._draw)
        return self._read_frame()


def _write_names(
    pen: ImageDraw.ImageDraw, names: list[str], places: Points, width: int, height: int
) -> None:
    """Each name beside the picture's edge that is nearer, from top to bottom, with a line to it."""
    for on_left in (True, False):
        side = [i for i in np.argsort(places[:, 1]) if (places[i, 0] < width / 2) == on_left]
        y = 0.0
        for k, i in enumerate(side):
            lowest = height - 130 - (len(side) - k) * (TEXT_SIZE + 5)
            y = max(y, min(places[i, 1] - TEXT_SIZE, lowest), 10)
            length = pen.textlength(names[i], font=_font())
            x = width * 0.12 if on_left else width * 0.88 - length
            edge = x + length + 3 if on_left else x - 3
            pen.line([edge, y + TEXT_SIZE / 2, *places[i]], fill=(255, 255, 255))
            pen.ellipse([*(places[i] - 3), *(places[i] + 3)], fill=(255, 60, 60))
            _write(pen, (x, y), names[i])
            y += TEXT_SIZE + 5


def _write(pen: ImageDraw.ImageDraw, place: tuple[float, float], text: str) -> None:
    pen.text(place, text, fill="white", font=_font(), stroke_width=2, stroke_fill="black")


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(size=TEXT_SIZE)
