"""Where the camera stands, for any MuJoCo model, so that the agent is seen and stays in frame."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    What travels is followed, at the distance that the environment's own settings name. What stays
    in its place is shown whole: there the settings are often meant for another window.

    Args:
        model: The model.
        data: Its initial state, with kinematics and centres of mass computed.
        config: The environment's default camera, as Gymnasium keeps it. Its tracked body is not
            taken over: for several environments it names the world.
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
