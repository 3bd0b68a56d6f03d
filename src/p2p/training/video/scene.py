"""Pictures of recorded states. Runs in the render process; needs a working OpenGL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import mujoco
import numpy as np

from p2p.training.envs.registry import quiet_loading
from p2p.training.video.camera import Camera, choose_camera

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from p2p.training.trajectory import Trajectory
    from p2p.training.video.encode import Frame

BACKGROUND = np.array((58, 70, 88), np.uint8)
"""Where a model has no sky."""
SHOWN_STATE = ("qpos", "mocap_pos", "mocap_quat")


class NotRenderableError(ValueError):
    """This environment or trajectory has nothing that MuJoCo could draw."""


def open_model(env_id: str) -> tuple[mujoco.MjModel, dict[str, Any]]:
    """The environment's model and its camera settings.

    Raises:
        NotRenderableError: the environment has no MuJoCo model.
    """
    import gymnasium

    with quiet_loading():
        env = gymnasium.make(env_id)
    try:
        inner: Any = env.unwrapped
        model = getattr(inner, "model", None)
        if not isinstance(model, mujoco.MjModel):
            raise NotRenderableError(f"{env_id} has no MuJoCo model to draw")
        renderer = getattr(inner, "mujoco_renderer", None)
        return model, dict(getattr(renderer, "default_cam_config", None) or {})
    finally:
        env.close()


def show_state(
    model: mujoco.MjModel, data: mujoco.MjData, trajectory: Trajectory, row: int
) -> None:
    """Put a recorded row into data and compute what drawing needs, and no more."""
    for name in SHOWN_STATE:
        if name in trajectory.columns:
            getattr(data, name)[:] = trajectory[name][row].reshape(getattr(data, name).shape)
    place(model, data)


def place(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Positions of everything that is drawn, from qpos: a fifth of the cost of mj_forward."""
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)
    mujoco.mj_tendon(model, data)


class Scene:
    """Draws one model off screen. Use as a context manager."""

    def __init__(self, model: mujoco.MjModel, camera: Camera, width: int, height: int) -> None:
        model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
        model.vis.global_.offheight = max(height, model.vis.global_.offheight)
        model.vis.quality.offsamples = 0  # antialiasing in software costs more than the picture
        model.vis.quality.numslices, model.vis.quality.numstacks = 14, 8  # half the triangles
        _light_up(model)
        _endless_ground(model)
        self._has_sky = mujoco.mjtTexture.mjTEXTURE_SKYBOX in model.tex_type
        self._model, self._camera = model, camera
        self._context = mujoco.GLContext(width, height)
        self._context.make_current()
        self._draw = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._draw)
        self._scene = mujoco.MjvScene(model, maxgeom=max(1000, 2 * model.ngeom))
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = 0
        self._options, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        self._pixels: NDArray[np.uint8] = np.empty((height, width, 3), np.uint8)

    def picture(self, data: mujoco.MjData) -> Frame:
        """What the camera sees of this state, as an array of its own."""
        mujoco.mjv_updateScene(
            self._model,
            data,
            self._options,
            self._perturb,
            self._camera.at(data),
            mujoco.mjtCatBit.mjCAT_ALL.value,
            self._scene,
        )
        mujoco.mjr_render(self._viewport, self._scene, self._draw)
        mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._draw)
        frame = np.ascontiguousarray(self._pixels[::-1])  # OpenGL counts rows from below
        if not self._has_sky:
            frame[~frame.any(axis=2)] = BACKGROUND
        return frame

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._draw.free()
        self._context.free()


def _light_up(model: mujoco.MjModel) -> None:
    """Several of Gymnasium's models are lit for a viewer with shadows and are dim without."""
    light = model.vis.headlight
    light.active = 1
    light.ambient[:] = np.maximum(light.ambient, 0.3)
    light.diffuse[:] = np.maximum(light.diffuse, 0.6)


def _endless_ground(model: mujoco.MjModel) -> None:
    """Draw ground planes without end, as physics has them: a fast runner leaves the drawn one.

    A material that is stretched over the plane is laid in tiles of the size it had.
    """
    for geom in np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE):
        half = model.geom_size[geom, :2].copy()
        material = model.geom_matid[geom]
        if material >= 0 and half.all() and not model.mat_texuniform[material]:
            model.mat_texuniform[material] = 1
            model.mat_texrepeat[material] /= 2 * half
        model.geom_size[geom, :2] = 0


def pictures(
    env_id: str, trajectory: Trajectory, rows: list[int], width: int, height: int
) -> Iterator[Frame]:
    """A picture of each of these rows.

    Raises:
        NotRenderableError: no model, or the trajectory's states are not states of this model.
    """
    model, camera_config = open_model(env_id)
    recorded = trajectory.columns.get("qpos")
    if recorded is None or recorded.shape[1:] != (model.nq,):
        shape = "no qpos" if recorded is None else f"qpos of {recorded.shape[1:]}"
        raise NotRenderableError(f"{env_id} has {model.nq} positions; the trajectory has {shape}")
    data = mujoco.MjData(model)
    show_state(model, data, trajectory, 0)
    camera = choose_camera(model, data, camera_config)
    with Scene(model, camera, width, height) as scene:
        for row in rows:
            show_state(model, data, trajectory, row)
            yield scene.picture(data)
