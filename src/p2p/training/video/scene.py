"""Pictures of recorded states, by a camera that keeps the agent in frame; needs OpenGL to draw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import mujoco
import numpy as np
from numpy.typing import NDArray

from p2p.config import engine_of
from p2p.training.engines.facts import facts_folder
from p2p.training.engines.table import is_engine
from p2p.training.envs.registry import quiet_loading
from p2p.training.model_files.store import folder_of, is_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from p2p.training.trajectory import RecordedEpisode


Vector = NDArray[np.float64]
Frame = NDArray[np.uint8]
"""(height, width, 3), RGB; height and width even."""

WIDTH, HEIGHT = 640, 480
"""Of every video: what a page shows at its own size, drawn in software fast enough."""

SIDE_AZIMUTH = 90.0
"""Looking along +y: the world's +x, which locomotion tasks call forward, points right."""
SIDE_ELEVATION = -12.0
AROUND_AZIMUTH, AROUND_ELEVATION = 65.0, -22.0
"""For what moves in all directions: a little from behind shows depth, and forward stays right."""
ARM_AZIMUTH, ARM_ELEVATION = 140.0, -40.0
"""For what stands in its place and reaches around."""
TOP_ELEVATION = -75.0
"""For motion in the horizontal plane. Not -90: a little slant shows which way is up."""
FILL = 0.58
"""Share of the picture's height or width that the agent takes up in its first posture."""
STILL_FILL = 0.85
"""The same for what stays in its place, with all that stands around it."""
SLACK = 0.05
"""Height change, as a share of the distance, that the camera lets pass: a jump looks like one."""
SMOOTHING_S = 0.25
"""The camera follows the agent's path averaged over this time before and after each moment."""


@dataclass(frozen=True, slots=True)
class Camera:
    """A view of a model. With a tracked body it moves along with that body's centre of mass."""

    azimuth: float
    elevation: float
    distance: float
    lookat: tuple[float, float, float]
    tracked_body: int | None
    start_height: float = 0.0
    """Of the tracked body's centre of mass, before it moved."""

    def at(self, data: mujoco.MjData) -> mujoco.MjvCamera:
        """Return the view of this state; needs kinematics and centres of mass computed."""
        return self.towards(
            None if self.tracked_body is None else data.subtree_com[self.tracked_body]
        )

    def towards(self, point: Vector | None) -> mujoco.MjvCamera:
        """Return the view of an agent with this centre of mass; None: of a fixed one."""
        view = mujoco.MjvCamera()
        view.type = mujoco.mjtCamera.mjCAMERA_FREE
        view.azimuth, view.elevation, view.distance = self.azimuth, self.elevation, self.distance
        view.lookat[:] = self.lookat
        if point is not None:
            slack = SLACK * self.distance
            rise = point[2] - self.start_height
            followed = rise - float(np.clip(rise, -slack, slack))
            view.lookat[:] = (point[0], point[1], self.lookat[2] + followed)
        return view


def choose_camera(
    model: mujoco.MjModel, data: mujoco.MjData, config: Mapping[str, Any] | None = None
) -> Camera:
    """A camera for the model, so far away that the agent fills much of the picture.

    What travels is followed, what stays in its place is shown whole. Of the environment's own
    settings (`config`, as Gymnasium keeps them) only the direction counts: their distance is meant
    for another window, and their tracked body names the world for several environments. `data` is
    the initial state, with kinematics and centres of mass computed.
    """
    config = config or {}
    tracked = _find_moving_root(model)
    low, high = _bounds(model, data, tracked)
    flat = _moves_in_plane(model, data, normal=2)
    upright = _moves_in_plane(model, data, normal=1)
    # From the side an arm's base would stand before what it reaches for.
    arm = tracked is None and not flat and not upright
    if arm:
        azimuth, elevation = ARM_AZIMUTH, ARM_ELEVATION
    elif flat or upright:
        azimuth, elevation = SIDE_AZIMUTH, SIDE_ELEVATION
    else:
        azimuth, elevation = AROUND_AZIMUTH, AROUND_ELEVATION
    azimuth = float(config.get("azimuth", azimuth))
    elevation = TOP_ELEVATION if flat else float(config.get("elevation", elevation))
    centre = (low + high) / 2
    fill = STILL_FILL if tracked is None else FILL
    half_angle = math.radians(model.vis.global_.fovy) / 2
    return Camera(
        azimuth=azimuth,
        elevation=elevation,
        distance=_half_height(low, high, azimuth, elevation) / (fill * math.tan(half_angle)),
        lookat=(float(centre[0]), float(centre[1]), float(centre[2])),
        tracked_body=tracked,
        start_height=0.0 if tracked is None else float(data.subtree_com[tracked, 2]),
    )


def _half_height(low: Vector, high: Vector, azimuth: float, elevation: float) -> float:
    """Of the smallest picture that a box seen from there fits into."""
    turn, tilt = math.radians(azimuth), math.radians(elevation)
    right = np.array([math.sin(turn), -math.cos(turn), 0.0])
    forward = np.array(
        [math.cos(tilt) * math.cos(turn), math.cos(tilt) * math.sin(turn), math.sin(tilt)]
    )
    half = (high - low) / 2
    upwards, across = np.abs(np.cross(right, forward)) @ half, np.abs(right) @ half
    return max(float(upwards), float(across) * HEIGHT / WIDTH, 0.05)


def _bounds(model: mujoco.MjModel, data: mujoco.MjData, root: int | None) -> tuple[Vector, Vector]:
    """Return the box around the geoms of a body tree; None: of all but floors and the like."""
    shown = (model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE) & (model.geom_rbound < 5.0)
    if root is not None:
        shown &= model.body_rootid[model.geom_bodyid] == root
    if not shown.any():
        return np.full(3, -1.0), np.full(3, 1.0)
    turn = data.geom_xmat[shown].reshape(-1, 3, 3)
    offset, half = model.geom_aabb[shown, :3], model.geom_aabb[shown, 3:]
    centre = data.geom_xpos[shown] + np.einsum("gij,gj->gi", turn, offset)
    reach = np.einsum("gij,gj->gi", np.abs(turn), half)
    return (centre - reach).min(axis=0), (centre + reach).max(axis=0)


def _find_moving_root(model: mujoco.MjModel) -> int | None:
    """Find the first body on the world with a free joint or a slide without limits.

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
    """Return whether every joint moves within the plane that this world axis is normal to."""
    if not model.njnt:
        return False
    along = np.abs(data.xaxis[:, normal])
    hinge = model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE
    slide = model.jnt_type == mujoco.mjtJoint.mjJNT_SLIDE
    return bool(np.all((hinge & (along > 0.99)) | (slide & (along < 0.01))))


SLICES, STACKS = 20, 10
"""Of round shapes. MuJoCo's 28 by 16 look the same at this size and take a fifth longer."""
EDGE = 20
"""Difference of neighbouring pixels, of 255, from which they are an edge to be smoothed."""
NOT_DRAWN = (
    mujoco.mjtRndFlag.mjRND_SHADOW,
    mujoco.mjtRndFlag.mjRND_REFLECTION,
    mujoco.mjtRndFlag.mjRND_SKYBOX,
    mujoco.mjtRndFlag.mjRND_HAZE,
)
"""Each would double the time of a picture, and the sky is the same in all of them."""
SEGMENTATION = (mujoco.mjtRndFlag.mjRND_SEGMENT, mujoco.mjtRndFlag.mjRND_IDCOLOR)
GROUND = np.array(((132, 142, 152), (156, 166, 176)), np.float64)
"""Dark and light of a patterned ground: enough to see speed by, too little to flicker."""
PLAIN_GROUND = (0.62, 0.66, 0.70, 1.0)
GROUND_HALF_M = 150.0
LYING_M = 0.01
"""What is no higher above the ground than this casts no shadow."""
SHADOW_M = 0.002
SHADOW = (0.25, 0.27, 0.30, 1.0)
SKY = np.array(((96, 130, 170), (206, 218, 230)), np.float64)
"""At the top of the picture and at its bottom."""
SHOWN_STATE = ("qpos", "mocap_pos", "mocap_quat")


class NotRenderableError(ValueError):
    """This environment or trajectory has nothing that MuJoCo could draw."""


def open_model(env_id: str) -> tuple[mujoco.MjModel, dict[str, Any]]:
    """The environment's model and its camera settings; NotRenderableError if there is no model."""
    import gymnasium

    if is_engine(engine := engine_of(env_id)):
        scene = facts_folder(engine, env_id) / "model" / "scene.xml"
        if not scene.exists():
            raise NotRenderableError(f"{env_id}: its model has not been read yet (`p2p envs ID`)")
        with quiet_loading():
            return mujoco.MjModel.from_xml_path(str(scene)), {}
    if is_model(env_id):
        return mujoco.MjModel.from_binary_path(str(folder_of(env_id) / "model.mjb")), {}
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
    model: mujoco.MjModel, data: mujoco.MjData, trajectory: RecordedEpisode, row: float
) -> None:
    """Put a recorded row into data and compute what drawing needs, and no more.

    Between two rows (3.4) the positions are those on the way from the one to the other.
    """
    before = int(row)
    for name in SHOWN_STATE:
        if name in trajectory.columns:
            getattr(data, name)[:] = trajectory[name][before].reshape(getattr(data, name).shape)
    share = row - before
    if share > 0 and before + 1 < trajectory.length:
        velocity = np.zeros(model.nv)
        after = trajectory["qpos"][before + 1].astype(np.float64)
        mujoco.mj_differentiatePos(model, velocity, 1.0, data.qpos, after)
        mujoco.mj_integratePos(model, data.qpos, velocity, share)
    place(model, data)


def place(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Positions of everything that is drawn, from qpos: a fifth of the cost of mj_forward."""
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)
    mujoco.mj_tendon(model, data)


class Scene:
    """Draws one model off screen. Use as a context manager. The model is changed for drawing."""

    def __init__(self, model: mujoco.MjModel, width: int, height: int) -> None:
        model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
        model.vis.global_.offheight = max(height, model.vis.global_.offheight)
        # Multisampling in software takes twice the time of all the rest; see smooth_edges.
        model.vis.quality.offsamples = 0
        model.vis.quality.numslices, model.vis.quality.numstacks = SLICES, STACKS
        _light_up(model)
        self._moving = _moving_geoms(model)
        self._ground = _lay_ground(model)
        self._model = model
        self._context = mujoco.GLContext(width, height)
        self._context.make_current()
        self._draw = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._draw)
        self._scene = mujoco.MjvScene(model, maxgeom=max(1000, 2 * model.ngeom))
        for flag in NOT_DRAWN:
            self._scene.flags[flag] = 0
        self._options, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        self._pixels: NDArray[np.uint8] = np.empty((height, width, 3), np.uint8)
        self._sky = np.linspace(SKY[0], SKY[1], height).astype(np.uint8)

    def picture(self, data: mujoco.MjData, view: mujoco.MjvCamera) -> Frame:
        """Return what the camera sees of this state, as an array of its own."""
        self._draw_scene(data, view)
        return self._read_frame()

    def _read_frame(self) -> Frame:
        mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._draw)
        frame = np.ascontiguousarray(self._pixels[::-1])  # OpenGL counts rows from below
        empty = frame[..., 1] == 0
        above = np.flatnonzero(empty.any(axis=1))
        if len(above):  # a channel at a time, and rows of sky alone: half the time
            sky = slice(above[0], above[-1] + 1)
            part, empty = frame[sky], empty[sky]
            empty &= (part[..., 0] == 0) & (part[..., 2] == 0)
            for channel in range(3):
                np.copyto(part[..., channel], self._sky[sky, None, channel], where=empty)
        smooth_edges(frame)
        return frame

    def agent_mask(self, data: mujoco.MjData, view: mujoco.MjvCamera) -> NDArray[np.bool_]:
        """Return where in the picture there is anything that can move."""
        for flag in SEGMENTATION:
            self._scene.flags[flag] = 1
        self._draw_scene(data, view)
        mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._draw)
        for flag in SEGMENTATION:
            self._scene.flags[flag] = 0
        number = self._pixels[::-1].astype(np.int64) @ (1, 1 << 8, 1 << 16)
        moves = np.zeros(self._scene.ngeom + 1, np.bool_)
        for geom in self._scene.geoms[: self._scene.ngeom]:
            if geom.objtype == mujoco.mjtObj.mjOBJ_GEOM:
                moves[geom.segid + 1] = geom.objid in self._moving
        mask: NDArray[np.bool_] = moves[number]
        return mask

    def _draw_scene(self, data: mujoco.MjData, view: mujoco.MjvCamera) -> None:
        self._update(data, view, mujoco.mjtCatBit.mjCAT_ALL)
        if self._ground and not self._scene.flags[mujoco.mjtRndFlag.mjRND_SEGMENT]:
            self._cast_shadows(data)
        mujoco.mjr_render(self._viewport, self._scene, self._draw)

    def _update(self, data: mujoco.MjData, view: mujoco.MjvCamera, kinds: mujoco.mjtCatBit) -> None:
        for geom, period in self._ground:
            # The ground goes along under the camera, by whole tiles.
            axes = data.geom_xmat[geom].reshape(3, 3)
            away = (np.array(view.lookat) - data.geom_xpos[geom]) @ axes
            data.geom_xpos[geom] += axes @ np.array(
                [*(period * np.round(away[:2] / period)), -self._model.geom_size[geom, 2]]
            )
        mujoco.mjv_updateScene(
            self._model, data, self._options, self._perturb, view, kinds.value, self._scene
        )

    def _cast_shadows(self, data: mujoco.MjData) -> None:
        """Lay a flat dark shape on the ground under each part: where and how high it is shows.

        MuJoCo's own shadows more than double the time of a picture.
        """
        floor = max(data.geom_xpos[geom][2] for geom, _ in self._ground)
        turn = data.geom_xmat[self._moving].reshape(-1, 3, 3)
        half = self._model.geom_aabb[self._moving, 3:]
        spread = np.einsum("gik,gk,gjk->gij", turn[:, :2], half**2, turn[:, :2])
        squares, axes = np.linalg.eigh(spread)
        centres = data.geom_xpos[self._moving]
        depth = np.sqrt(np.einsum("gk,gk->g", turn[:, 2] ** 2, half**2))
        above = centres[:, 2] - depth > floor + LYING_M
        for place, sizes, axis in zip(
            centres[above], np.sqrt(np.maximum(squares[above], 0)), axes[above], strict=True
        ):
            if self._scene.ngeom >= self._scene.maxgeom:
                break
            flat = np.eye(3)
            flat[:2, :2] = axis
            flat[2, 2] = np.linalg.det(axis)
            mujoco.mjv_initGeom(
                self._scene.geoms[self._scene.ngeom],
                mujoco.mjtGeom.mjGEOM_ELLIPSOID,
                np.array([*sizes, SHADOW_M]),
                np.array([*place[:2], floor + 2 * SHADOW_M]),
                flat.ravel(),
                np.array(SHADOW, np.float32),
            )
            self._scene.ngeom += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._draw.free()
        self._context.free()


def _light_up(model: mujoco.MjModel) -> None:
    """Several of Gymnasium's models are lit for a viewer with shadows and are dim without."""
    light = model.vis.headlight
    light.active = 1
    light.ambient[:] = np.maximum(light.ambient, 0.3 if model.nlight else 0.5)
    light.diffuse[:] = np.maximum(light.diffuse, 0.6)


def smooth_edges(frame: Frame) -> None:
    """Mix the pixels on either side of an edge, in place, so that it does not look like stairs.

    Far cheaper than multisampling in software.
    """
    green = np.ascontiguousarray(frame[..., 1])
    edge = np.zeros(green.shape, np.bool_)
    across = _differ(green[:, 1:], green[:, :-1])
    edge[:, 1:] |= across
    edge[:, :-1] |= across
    along = _differ(green[1:], green[:-1])
    edge[1:] |= along
    edge[:-1] |= along
    edge[[0, -1]] = edge[:, [0, -1]] = False
    here, row = np.flatnonzero(edge), frame.shape[1]
    pixels = frame.reshape(-1, 3)
    mixed = 2 * pixels[here].astype(np.uint16)
    for offset in (-1, 1, -row, row):
        mixed += pixels[here + offset]
    pixels[here] = mixed // 6


def _differ(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.maximum(a, b) - np.minimum(a, b) > EDGE  # bytes alone: several at once


def _moving_geoms(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Return the visible geoms of body trees that have joints."""
    roots = model.body_rootid[model.geom_bodyid]
    return np.flatnonzero((model.body_dofnum[roots] > 0) & (model.geom_group < 3))


def _lay_ground(model: mujoco.MjModel) -> list[tuple[int, Vector]]:
    """Turn planes into wide flat boxes: drawn in software they cost a third of a plane.

    Returns each with the size of its pattern, by which it may be moved unseen. Physics has
    ground without end, and a fast runner would leave a box that lies still. A strong pattern
    flickers when it moves, so it is drawn in two shades of grey.
    """
    ground = []
    for geom in map(int, np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)):
        half = model.geom_size[geom, :2].copy()
        material = int(model.geom_matid[geom])
        period = np.ones(2)
        if material >= 0:
            if half.all() and not model.mat_texuniform[material]:
                model.mat_texuniform[material] = 1
                model.mat_texrepeat[material] /= 2 * half
            period = 1 / model.mat_texrepeat[material].astype(np.float64)
            model.mat_rgba[material] = 1.0
            model.mat_specular[material] = model.mat_reflectance[material] = 0.0
            _soften(model, int(model.mat_texid[material, mujoco.mjtTextureRole.mjTEXROLE_RGB]))
        else:
            model.geom_rgba[geom] = PLAIN_GROUND
        model.geom_type[geom] = mujoco.mjtGeom.mjGEOM_BOX
        model.geom_size[geom] = (GROUND_HALF_M, GROUND_HALF_M, 0.0005)
        ground.append((geom, period))
    return ground


def _soften(model: mujoco.MjModel, texture: int) -> None:
    if texture < 0:
        return
    begin = model.tex_adr[texture]
    size = model.tex_height[texture] * model.tex_width[texture] * model.tex_nchannel[texture]
    pixels = model.tex_data[begin : begin + size].reshape(-1, model.tex_nchannel[texture])
    bright = pixels[:, :3].mean(axis=1)
    low, high = float(bright.min()), float(bright.max())
    share = (bright - low) / max(high - low, 1.0)
    pixels[:, :3] = GROUND[0] + share[:, None] * (GROUND[1] - GROUND[0])


def pictures(
    env_id: str, trajectory: RecordedEpisode, rows: list[float], width: int, height: int
) -> Iterator[Frame]:
    """A picture of each row; NotRenderableError where the trajectory is not of such a model."""
    model, data, camera = open_episode(env_id, trajectory)
    views = _views(model, data, camera, trajectory)
    with Scene(model, width, height) as scene:
        for row in rows:
            show_state(model, data, trajectory, row)
            yield scene.picture(data, views(row))


def open_episode(
    env_id: str, trajectory: RecordedEpisode
) -> tuple[mujoco.MjModel, mujoco.MjData, Camera]:
    """The environment's model, data and camera; NotRenderableError if the episode is not of it."""
    model, camera_config = open_model(env_id)
    recorded = trajectory.columns.get("qpos")
    if recorded is None or recorded.shape[1:] != (model.nq,):
        shape = "no qpos" if recorded is None else f"qpos of {recorded.shape[1:]}"
        raise NotRenderableError(f"{env_id} has {model.nq} positions; the trajectory has {shape}")
    data = mujoco.MjData(model)
    place(model, data)
    return model, data, choose_camera(model, data, camera_config)


def _views(
    model: mujoco.MjModel, data: mujoco.MjData, camera: Camera, trajectory: RecordedEpisode
) -> Callable[[float], mujoco.MjvCamera]:
    """The view of each moment; what travels is followed along its path without the bumps."""
    if camera.tracked_body is None:
        return lambda _: camera.towards(None)
    path = np.empty((trajectory.length, 3))
    for row in range(trajectory.length):
        show_state(model, data, trajectory, row)
        path[row] = data.subtree_com[camera.tracked_body]
    times = trajectory["timestamp"].astype(np.float64)
    reach = max(1, round(SMOOTHING_S / max(float(times[-1]) / max(len(times) - 1, 1), 1e-6)))
    ends = np.arange(len(path))
    sums = np.concatenate([np.zeros((1, 3)), np.cumsum(path, axis=0)])
    # As far before as after each moment, or the ends would lag.
    wide = np.minimum(reach, np.minimum(ends, ends[::-1]))
    smooth = (sums[ends + wide + 1] - sums[ends - wide]) / (2 * wide + 1)[:, None]
    return lambda row: camera.towards(
        np.array([np.interp(row, ends, smooth[:, axis]) for axis in range(3)])
    )
