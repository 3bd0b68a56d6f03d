"""Pictures of recorded states, by a camera that keeps the agent in frame; needs OpenGL to draw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import mujoco
import numpy as np
from numpy.typing import NDArray

from p2p.training.envs.registry import quiet_loading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from p2p.training.trajectory import RecordedEpisode
    from p2p.training.video.encode import Frame


Vector = NDArray[np.float64]

SIDE_AZIMUTH = 90.0
"""Looking along +y: the world's +x, which locomotion tasks call forward, points right."""
SIDE_ELEVATION = -15.0
ARM_AZIMUTH, ARM_ELEVATION = 140.0, -40.0
"""For what stands in its place and reaches around."""
TOP_ELEVATION = -75.0
"""For motion in the horizontal plane. Not -90: a little slant shows which way is up."""
SLACK = 0.12
"""Height change, as a share of the distance, that the camera lets pass: a jump looks like one."""


@dataclass(frozen=True, slots=True)
class Camera:
    """A view of a model. With a tracked body it moves along with that body's centre of mass."""

    azimuth: float
    elevation: float
    distance: float
    lookat: tuple[float, float, float]
    tracked_body: int | None

    def at(self, data: mujoco.MjData) -> mujoco.MjvCamera:
        """The view of this state; needs kinematics and centres of mass computed."""
        view = mujoco.MjvCamera()
        view.type = mujoco.mjtCamera.mjCAMERA_FREE
        view.azimuth, view.elevation, view.distance = self.azimuth, self.elevation, self.distance
        view.lookat[:] = self.lookat
        if self.tracked_body is not None:
            x, y, z = data.subtree_com[self.tracked_body]
            slack = SLACK * self.distance
            rise = z - self.lookat[2]
            view.lookat[:] = (x, y, z - float(np.clip(rise, -slack, slack)))
        return view


def choose_camera(
    model: mujoco.MjModel, data: mujoco.MjData, config: Mapping[str, Any] | None = None
) -> Camera:
    """A camera for the model.

    What travels is followed, at the distance that the environment's own settings name (`config`, as
    Gymnasium keeps them). What stays in its place is shown whole: there the settings are often
    meant for another window. Their tracked body is not taken over: for several environments it
    names the world. `data` is the initial state, with kinematics and centres of mass computed.
    """
    config = config or {}
    low, high = _bounds(model, data)
    tracked = _root_that_travels(model)
    whole = float(np.max(high - low)) / 2 / math.tan(math.radians(model.vis.global_.fovy) / 2)
    flat = _moves_in_plane(model, data, normal=2)
    # An arm's swing is larger than the box around its first posture; and from the side its base
    # would stand before what it reaches for.
    arm = tracked is None and not flat and not _moves_in_plane(model, data, normal=1)
    if tracked is None:
        centre, distance = (low + high) / 2, (1.6 if arm else 1.25) * whole
    else:
        centre, distance = data.subtree_com[tracked], float(config.get("distance", 2.0 * whole))
    azimuth, elevation = (ARM_AZIMUTH, ARM_ELEVATION) if arm else (SIDE_AZIMUTH, SIDE_ELEVATION)
    return Camera(
        azimuth=float(config.get("azimuth", azimuth)),
        elevation=TOP_ELEVATION if flat else float(config.get("elevation", elevation)),
        distance=distance,
        lookat=(float(centre[0]), float(centre[1]), float(centre[2])),
        tracked_body=tracked,
    )


def _bounds(model: mujoco.MjModel, data: mujoco.MjData) -> tuple[Vector, Vector]:
    """The box around all geoms but unbounded and very large ones (floors)."""
    shown = (model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE) & (model.geom_rbound < 5.0)
    if not shown.any():
        return np.full(3, -1.0), np.full(3, 1.0)
    turn = data.geom_xmat[shown].reshape(-1, 3, 3)
    offset, half = model.geom_aabb[shown, :3], model.geom_aabb[shown, 3:]
    centre = data.geom_xpos[shown] + np.einsum("gij,gj->gi", turn, offset)
    reach = np.einsum("gij,gj->gi", np.abs(turn), half)
    return (centre - reach).min(axis=0), (centre + reach).max(axis=0)


def _root_that_travels(model: mujoco.MjModel) -> int | None:
    """The first body on the world that can leave its place: a free joint or a slide without limits.

    An object lying on a table has such joints, too; an agent is the tree that is driven.
    """
    driven = {int(model.body_rootid[model.jnt_bodyid[joint]]) for joint in _driven_joints(model)}
    for body in range(1, model.nbody):
        if model.body_parentid[body] != 0 or (driven and body not in driven):
            continue
        first = model.body_jntadr[body]
        for joint in range(first, first + model.body_jntnum[body]):
            kind = model.jnt_type[joint]
            if kind == mujoco.mjtJoint.mjJNT_FREE:
                return body
            if kind == mujoco.mjtJoint.mjJNT_SLIDE and not model.jnt_limited[joint]:
                return body
    return None


def _driven_joints(model: mujoco.MjModel) -> list[int]:
    return [
        int(model.actuator_trnid[i, 0])
        for i in range(model.nu)
        if model.actuator_trntype[i]
        in (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)
    ]


def _moves_in_plane(model: mujoco.MjModel, data: mujoco.MjData, normal: int) -> bool:
    """Whether every joint moves within the plane that this world axis is normal to."""
    if not model.njnt:
        return False
    along = np.abs(data.xaxis[:, normal])
    hinge = model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE
    slide = model.jnt_type == mujoco.mjtJoint.mjJNT_SLIDE
    return bool(np.all((hinge & (along > 0.99)) | (slide & (along < 0.01))))


BACKGROUND = np.array((58, 70, 88), np.uint8)
"""Where a model has no sky."""
SHOWN_STATE = ("qpos", "mocap_pos", "mocap_quat")


class NotRenderableError(ValueError):
    """This environment or trajectory has nothing that MuJoCo could draw."""


def open_model(env_id: str) -> tuple[mujoco.MjModel, dict[str, Any]]:
    """The environment's model and its camera settings; NotRenderableError if there is no model."""
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
    model: mujoco.MjModel, data: mujoco.MjData, trajectory: RecordedEpisode, row: int
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

    def __init__(
        self, model: mujoco.MjModel, camera: Camera, width: int, height: int, max_geoms: int = 1000
    ) -> None:
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
        self._scene = mujoco.MjvScene(model, maxgeom=max(max_geoms, 2 * model.ngeom))
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = 0
        self._options, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        self._pixels: NDArray[np.uint8] = np.empty((height, width, 3), np.uint8)

    def picture(self, data: mujoco.MjData) -> Frame:
        """What the camera sees of this state, as an array of its own."""
        self._update(data, self._camera.at(data), mujoco.mjtCatBit.mjCAT_ALL)
        return self._drawn()

    def _update(self, data: mujoco.MjData, view: mujoco.MjvCamera, kinds: mujoco.mjtCatBit) -> None:
        mujoco.mjv_updateScene(
            self._model, data, self._options, self._perturb, view, kinds.value, self._scene
        )

    def _drawn(self) -> Frame:
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
    env_id: str, trajectory: RecordedEpisode, rows: list[int], width: int, height: int
) -> Iterator[Frame]:
    """A picture of each row; NotRenderableError where the trajectory is not of such a model."""
    model, data, camera = open_episode(env_id, trajectory)
    with Scene(model, camera, width, height) as scene:
        for row in rows:
            show_state(model, data, trajectory, row)
            yield scene.picture(data)


def open_episode(
    env_id: str, trajectory: RecordedEpisode
) -> tuple[mujoco.MjModel, mujoco.MjData, Camera]:
    """The model with the episode's first row in its data, and a camera for it.

    Raises NotRenderableError where the trajectory is not of such a model.
    """
    model, camera_config = open_model(env_id)
    recorded = trajectory.columns.get("qpos")
    if recorded is None or recorded.shape[1:] != (model.nq,):
        shape = "no qpos" if recorded is None else f"qpos of {recorded.shape[1:]}"
        raise NotRenderableError(f"{env_id} has {model.nq} positions; the trajectory has {shape}")
    data = mujoco.MjData(model)
    show_state(model, data, trajectory, 0)
    return model, data, choose_camera(model, data, camera_config)
