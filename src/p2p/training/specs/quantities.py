"""Named quantities of a robot: one table for rewards, criteria, judges and ground truths.

A quantity is a function of MjData's fields, (..., shape of the field): one state, a batch of
environments or the steps of an episode alike, as NumPy arrays or as tensors on any device. Whoever
steps environments puts the quantities into `info`, from where rewards read them and recordings keep
them, under the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import mujoco
import numpy as np

from p2p.training.env_spec import QuantityEntry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]  # or a tensor, which is called and computed with alike
    Field = Callable[[str], Array]
    """An MjData field by its name, with any number of axes before its own."""

_ROUND_SIZES: Mapping[int, tuple[int | None, int | None, int | None]] = {
    mujoco.mjtGeom.mjGEOM_SPHERE: (0, 0, 0),
    mujoco.mjtGeom.mjGEOM_CAPSULE: (0, 0, 0),
    mujoco.mjtGeom.mjGEOM_CYLINDER: (0, 0, None),
    mujoco.mjtGeom.mjGEOM_ELLIPSOID: (0, 1, 2),
}
"""Which of a shape's sizes are the radii of its round part, along its own axes."""
_STRAIGHT_SIZES: Mapping[int, tuple[int | None, int | None, int | None]] = {
    mujoco.mjtGeom.mjGEOM_CAPSULE: (None, None, 1),
    mujoco.mjtGeom.mjGEOM_CYLINDER: (None, None, 1),
    mujoco.mjtGeom.mjGEOM_BOX: (0, 1, 2),
}
"""Which are the half-lengths of the straight part that the round one is swept along."""
_FAR_DOWN = 0.75
"""A limb's end is a foot if it reaches this share of how far the farthest one reaches."""
_TOUCHING = 2e-3
"""Metres above where a shape comes to rest: soft contacts lift what stands by up to half of it."""
_AS_LOW = 0.01
"""Metres: what is so much above the lowest point of the start pose carries the robot, too."""
_ROUNDING = 1e-6
"""Metres: a model that passed through single precision has its limbs that much apart."""
_NEXT_TO_NOTHING = 1e-12


def _namespace(array: Any) -> Any:
    """NumPy, or torch for a tensor: the functions used here have the same names in both."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def _on(constant: Array, like: Any, kept: dict[Any, Any]) -> Any:
    """A model's constant where `like` lies; copied to a device once."""
    if isinstance(like, np.ndarray):
        return constant
    key = id(constant), like.device
    if key not in kept:
        xp = _namespace(like)
        dtype = like.dtype if constant.dtype.kind == "f" else xp.long
        # The constant is kept with it, so that its id is not given to another.
        kept[key] = xp.as_tensor(np.array(constant), dtype=dtype, device=like.device), constant
    return kept[key][0]


def _reduce_by_body(values: Any, first: Array, reduce: Any) -> Any:
    """Reduce the last axis from each of `first` to the next: `np.minimum` or `np.logical_or`."""
    if isinstance(values, np.ndarray):
        return reduce.reduceat(values, first, axis=-1)
    xp = _namespace(values)
    ends = [*first[1:].tolist(), values.shape[-1]]
    name = "amin" if reduce is np.minimum else "any"
    parts = [values[..., a:b] for a, b in zip(first.tolist(), ends, strict=True)]
    return xp.stack([getattr(part, name)(-1) for part in parts], -1)


@dataclass(frozen=True)
class Shapes:
    """Colliding shapes of some bodies, in the order of the bodies."""

    ids: Array
    first: Array
    """Where each body's shapes begin."""
    radii: Array
    halves: Array
    centres: Array
    """Of the shape in its geom's frame: zero but for meshes."""
    reach: Array
    """How far above the ground it comes to rest: contacts push from their margin on."""
    kept: dict[Any, Any] = dataclass_field(default_factory=dict, compare=False, repr=False)
    """These on other devices."""

    @classmethod
    def of(cls, model: mujoco.MjModel, bodies: Iterable[int], ground: int) -> Shapes:
        by_body = [_colliding(model, body) for body in bodies]
        ids = np.array([geom for geoms in by_body for geom in geoms], dtype=np.intp)
        sizes = [_sizes(model, int(geom)) for geom in ids]
        rest = model.geom_margin - model.geom_gap
        return cls(
            ids=ids,
            first=np.cumsum([0, *map(len, by_body)])[:-1],
            radii=np.array([size[0] for size in sizes]).reshape(-1, 3),
            halves=np.array([size[1] for size in sizes]).reshape(-1, 3),
            centres=np.array([size[2] for size in sizes]).reshape(-1, 3),
            reach=rest[ids] + rest[ground],
        )

    def gaps(self, field: Field, ground_height: float) -> Array:
        """(..., shapes): from where each comes to rest on the ground to its lowest point."""
        heights = self.heights(field)
        gaps: Array = heights - ground_height - _on(self.reach, heights, self.kept)
        return gaps

    def heights(self, field: Field) -> Array:
        """(..., shapes): z of the lowest point of each."""
        matrices = field("geom_xmat")
        xp, ids = _namespace(matrices), _on(self.ids, matrices, self.kept)
        down = -matrices[..., ids, 6:]
        # How far a convex shape goes down is its support along that direction.
        below = xp.sqrt(xp.sum(xp.square(down * _on(self.radii, down, self.kept)), axis=-1))
        if self.halves.any():
            below = below + xp.sum(xp.abs(down) * _on(self.halves, down, self.kept), axis=-1)
        if self.centres.any():
            below = below + xp.sum(down * _on(self.centres, down, self.kept), axis=-1)
        heights: Array = field("geom_xpos")[..., ids, 2] - below
        return heights

    def lowest(self, field: Field) -> Array:
        """(..., shapes, 3): the lowest point of each; the middle of them where it lies flat."""
        matrices = field("geom_xmat")
        xp, ids = _namespace(matrices), _on(self.ids, matrices, self.kept)
        matrix = matrices[..., ids, :]
        down = -matrix[..., 6:]
        radii, halves, centres = (
            _on(constant, down, self.kept) for constant in (self.radii, self.halves, self.centres)
        )
        scaled = down * radii
        length = xp.sqrt(xp.sum(xp.square(scaled), axis=-1, keepdims=True))
        own = scaled * radii / xp.clip(length, _NEXT_TO_NOTHING, None)
        own = own + xp.sign(down) * halves + centres
        turned = xp.einsum("...ij,...j->...i", matrix.reshape(*matrix.shape[:-1], 3, 3), own)
        points: Array = field("geom_xpos")[..., ids, :] + turned
        return points


def _colliding(model: mujoco.MjModel, body: int) -> list[int]:
    start, count = int(model.body_geomadr[body]), int(model.body_geomnum[body])
    return [
        geom
        for geom in range(start, start + count)
        if model.geom_contype[geom] or model.geom_conaffinity[geom]
    ]


def _sizes(model: mujoco.MjModel, geom: int) -> tuple[list[float], list[float], list[float]]:
    """Radii, half-lengths and centre of a shape; a mesh is taken by its bounding box."""
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    if kind not in _ROUND_SIZES and kind not in _STRAIGHT_SIZES:
        box = [float(value) for value in model.geom_aabb[geom]]
        return [0.0] * 3, box[3:], box[:3]
    none = (None, None, None)
    radii, halves = (
        [0.0 if k is None else float(size[k]) for k in table.get(kind, none)]
        for table in (_ROUND_SIZES, _STRAIGHT_SIZES)
    )
    return radii, halves, [0.0] * 3


def pulled_dofs(model: mujoco.MjModel) -> list[list[int]]:
    """Of each actuator: the degrees of freedom on which it has a lever, however it pulls."""
    data = mujoco.MjData(model)
    mujoco.mj_fwdPosition(model, data)
    rows = [
        slice(int(first), int(first + count))
        for first, count in zip(data.moment_rowadr, data.moment_rownnz, strict=True)
    ]
    levers, dofs = np.abs(data.actuator_moment), data.moment_colind
    return [dofs[row][levers[row] > _NEXT_TO_NOTHING].tolist() for row in rows]


@dataclass(frozen=True)
class Robot:
    """What of a model the quantities are about; read off the model alone."""

    model: mujoco.MjModel
    qpos: Array
    """The pose in which episodes begin, but for noise."""
    dt: float
    """Seconds between two actions."""
    kept: dict[Any, Any] = dataclass_field(default_factory=dict, compare=False, repr=False)
    """Its constants on other devices."""

    @classmethod
    def of(cls, env: Any) -> Robot:
        """The robot of a Gymnasium MuJoCo environment."""
        base = env.unwrapped
        qpos = np.asarray(getattr(base, "init_qpos", base.model.qpos0), dtype=np.float64)
        return cls(base.model, qpos, float(base.dt))

    @cached_property
    def root(self) -> int | None:
        """The body whose own joints carry the robot through the world; None: its base is fixed.

        What no actuator moves is not the robot but a thing about it.
        """
        model = self.model
        pulled = [int(model.dof_bodyid[dof]) for dofs in pulled_dofs(model) for dof in dofs]
        trees = {int(model.body_rootid[body]) for body in pulled}
        slide, free = mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_FREE
        for joint in range(model.njnt):
            body, kind = int(model.jnt_bodyid[joint]), int(model.jnt_type[joint])
            loose = not model.jnt_limited[joint] and not model.jnt_stiffness[joint]
            moves = kind == free or (kind == slide and loose)
            if moves and model.body_parentid[body] == 0 and (body in trees or not trees):
                return body
        return None

    @cached_property
    def turns(self) -> bool:
        """Whether the root can point anywhere."""
        model = self.model
        start = int(model.body_jntadr[self.root]) if self.root is not None else -1
        return start >= 0 and int(model.jnt_type[start]) == mujoco.mjtJoint.mjJNT_FREE

    @property
    def has_weight(self) -> bool:
        """Whether anything pulls it down."""
        off = int(self.model.opt.disableflags) & int(mujoco.mjtDisableBit.mjDSBL_GRAVITY)
        return not off and float(self.model.opt.gravity[2]) < 0

    @cached_property
    def falls(self) -> bool:
        """Whether the root can move up and down, and would come down by itself."""
        if self.root is None or not self.has_weight:
            return False
        start, count = self.model.body_jntadr[self.root], self.model.body_jntnum[self.root]
        axes = self.model.jnt_axis[start : start + count]
        slides = self.model.jnt_type[start : start + count] == mujoco.mjtJoint.mjJNT_SLIDE
        return self.turns or bool((slides & (np.abs(axes[:, 2]) > 0.99)).any())

    @cached_property
    def bodies(self) -> tuple[int, ...]:
        """The root and everything that it carries; without a root all bodies."""
        ids = range(1, self.model.nbody)
        if self.root is None:
            return tuple(ids)
        return tuple(b for b in ids if self.model.body_rootid[b] == self.root)

    @cached_property
    def ground(self) -> int | None:
        """The level plane to stand on, a geom; None: there is none, or nothing collides with it."""
        model = self.model
        fixed = [body for body in range(model.nbody) if model.body_weldid[body] == 0]
        planes = [
            geom
            for body in fixed
            for geom in _colliding(model, body)
            if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_PLANE
            and np.allclose(self._at_rest.geom_xmat[geom], np.eye(3).ravel())
        ]
        return max(planes, key=lambda geom: float(self._at_rest.geom_xpos[geom, 2]), default=None)

    @cached_property
    def _at_rest(self) -> mujoco.MjData:
        data = mujoco.MjData(self.model)
        mujoco.mj_kinematics(self.model, data)
        return data

    @cached_property
    def ground_height(self) -> float:
        return 0.0 if self.ground is None else float(self._at_rest.geom_xpos[self.ground, 2])

    @cached_property
    def feet(self) -> tuple[int, ...]:
        """The bodies to stand on: the ends of its limbs that reach farthest from the root."""
        ends, from_root = self._limb_ends
        if not ends:
            return ()
        far = from_root @ self._towards_feet
        if max(far) <= 0 and self._stands_on_ends:  # its origin may lie on the ground
            return tuple(end for end in ends if end in self._lowest)
        return tuple(
            end
            for end, reach in zip(ends, far, strict=True)
            if reach >= _FAR_DOWN * max(far) - _ROUNDING
        )

    @cached_property
    def starts_lying(self) -> bool:
        """Whether its feet are at its side in the start pose, not below it."""
        return bool(self.feet) and abs(float(self._towards_feet[2])) < 0.5

    @cached_property
    def _limb_ends(self) -> tuple[list[int], Array]:
        """The last colliding bodies of its branches, and where they are from the root."""
        if self.root is None or self.ground is None or not self.falls:
            return [], np.zeros((0, 3))
        data = mujoco.MjData(self.model)
        data.qpos[:] = self.qpos
        mujoco.mj_kinematics(self.model, data)
        parents = set(self.model.body_parentid[list(self.bodies)].tolist())
        ends = [b for b in self.bodies[1:] if b not in parents and _colliding(self.model, b)]
        return ends, data.xpos[ends] - data.xpos[self.root]

    @cached_property
    def _towards_feet(self) -> Array:
        """Down, or to the side of one that begins on its back."""
        middle = self._limb_ends[1].mean(axis=0)
        side = int(np.argmax(np.abs(middle)))
        aside = side != 2 and abs(middle[2]) < 0.5 * abs(middle[side])
        if aside and not self._stands_on_ends:
            return np.asarray(np.eye(3)[side] * np.sign(middle[side]))
        return np.array([0.0, 0.0, -1.0])

    @cached_property
    def _stands_on_ends(self) -> bool:
        """Whether three limbs or wheels carry it in the start pose, and not its root."""
        return self.root not in self._lowest and len(self._lowest & {*self._limb_ends[0]}) > 2

    @cached_property
    def supports(self) -> tuple[int, ...]:
        """The bodies that carry it in the start pose: its feet, and what is as low as they are."""
        if self.root is None or self.ground is None or not self.falls:
            return ()
        return tuple(sorted({*self.feet, *self._lowest}))

    @cached_property
    def _lowest(self) -> set[int]:
        """The bodies that are lowest in the start pose."""
        data = mujoco.MjData(self.model)
        data.qpos[:] = self.qpos
        mujoco.mj_kinematics(self.model, data)
        heights = self.shapes.heights(lambda name: np.asarray(getattr(data, name)))
        low = self.shapes.ids[heights <= heights.min() + _AS_LOW]
        return {int(self.model.geom_bodyid[geom]) for geom in low}

    @cached_property
    def foot_shapes(self) -> Shapes:
        assert self.ground is not None
        return Shapes.of(self.model, self.feet, self.ground)

    @cached_property
    def shapes(self) -> Shapes:
        assert self.ground is not None
        return Shapes.of(self.model, self.bodies, self.ground)

    @cached_property
    def shape_bodies(self) -> Array:
        """(shapes, bodies of the model): 1 where the shape belongs to the body."""
        owners = self.model.geom_bodyid[self.shapes.ids]
        return np.asarray(owners[:, None] == np.arange(self.model.nbody), dtype=np.float64)

    @cached_property
    def body_ids(self) -> Array:
        return np.array(self.bodies, dtype=np.intp)

    @cached_property
    def foot_ids(self) -> Array:
        return np.array(self.feet, dtype=np.intp)

    @cached_property
    def all_ids(self) -> Array:
        return np.arange(self.model.nbody)

    @cached_property
    def root_ids(self) -> Array:
        """Of each body: where its tree begins."""
        return np.array(self.model.body_rootid, dtype=np.intp)

    @cached_property
    def mass_shares(self) -> Array:
        """Of each of its bodies."""
        masses: Array = self.model.body_mass[list(self.bodies)]
        return np.asarray(masses / masses.sum())

    def body_name(self, body: int) -> str:
        """Return a body's name, or else that of its first shape."""
        model = self.model
        if name := model.body(body).name:
            return str(name)
        geom = model.geom(int(model.body_geomadr[body])).name if model.body_geomnum[body] else ""
        return str(geom).removesuffix("_geom") or f"body{body}"


# --- the functions --------------------------------------------------------------------------------


def _foot_height(robot: Robot, field: Field) -> Array:
    shapes = robot.foot_shapes
    gaps = shapes.gaps(field, robot.ground_height)
    lowest: Array = _reduce_by_body(gaps, shapes.first, np.minimum)
    return lowest


def _foot_lowest_point(robot: Robot, field: Field) -> Array:
    shapes = robot.foot_shapes
    points: Any = shapes.lowest(field)
    xp = _namespace(points)
    ends = [*shapes.first[1:], len(shapes.ids)]
    take = np.take_along_axis if xp is np else xp.take_along_dim
    feet = []
    for first, end in zip(shapes.first, ends, strict=True):
        own = points[..., first:end, :]
        lowest = xp.argmin(own[..., 2], axis=-1)[..., None, None]
        feet.append(take(own, lowest, -2))
    joined: Array = xp.concatenate(feet, axis=-2)
    return joined


def _touching(robot: Robot, shapes: Shapes, field: Field) -> Any:
    return shapes.gaps(field, robot.ground_height) < _TOUCHING


def _foot_contact(robot: Robot, field: Field) -> Array:
    shapes = robot.foot_shapes
    contact: Array = _reduce_by_body(_touching(robot, shapes, field), shapes.first, np.logical_or)
    return contact


def _foot_force(robot: Robot, field: Field) -> Array:
    forces = field("cfrc_ext")
    xp, feet = _namespace(forces), _on(robot.foot_ids, forces, robot.kept)
    sizes: Array = xp.sqrt(xp.sum(xp.square(forces[..., feet, 3:]), axis=-1))
    return sizes


def _airborne(robot: Robot, field: Field) -> Array:
    airborne: Array = ~_touching(robot, robot.shapes, field).any(-1)
    return airborne


def _ground_contact(robot: Robot, field: Field) -> Array:
    touching: Any = _touching(robot, robot.shapes, field)
    like = field("geom_xpos")
    ones = touching.astype(like.dtype) if isinstance(touching, np.ndarray) else touching.to(like)
    contact: Array = ones @ _on(robot.shape_bodies, like, robot.kept) > 0
    return contact


def _penetration(robot: Robot, field: Field) -> Array:
    heights: Any = robot.shapes.heights(field)
    lowest = heights.min(-1) if isinstance(heights, np.ndarray) else heights.amin(-1)
    depth: Array = (robot.ground_height - lowest).clip(0)
    return depth


def _velocities(robot: Robot, field: Field, bodies: Array, points: Array) -> Any:
    """Of points that are fixed to bodies; cvel is about the centre of mass of a whole tree."""
    motions: Any = field("cvel")
    xp, kept = _namespace(motions), robot.kept
    chosen = _on(bodies, motions, kept)
    motion = motions[..., chosen, :]
    roots = _on(robot.root_ids, motions, kept)[chosen]
    arm = points - field("subtree_com")[..., roots, :]
    cross = np.cross if xp is np else xp.linalg.cross
    return motion[..., 3:] + cross(motion[..., :3], arm)


def _body_velocity(robot: Robot, field: Field) -> Array:
    velocities: Array = _velocities(robot, field, robot.all_ids, field("xpos"))
    return velocities


def _com(robot: Robot, field: Field) -> Array:
    return field("subtree_com")[..., robot.root, :]


def _com_velocity(robot: Robot, field: Field) -> Array:
    places = field("xipos")
    points = places[..., _on(robot.body_ids, places, robot.kept), :]
    velocities = _velocities(robot, field, robot.body_ids, points)
    shares = _on(robot.mass_shares, velocities, robot.kept)[:, None]
    velocity: Array = _namespace(velocities).sum(velocities * shares, axis=-2)
    return velocity


def _heading(robot: Robot, field: Field) -> Array:
    turn = field("xmat")[..., robot.root, :]
    heading: Array = _namespace(turn).arctan2(turn[..., 3], turn[..., 0])
    return heading


def _energy(robot: Robot, field: Field) -> Array:
    forces = field("actuator_force")
    xp = _namespace(forces)
    work: Array = xp.sum(xp.abs(forces * field("actuator_velocity")), axis=-1) * robot.dt
    return work


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedQuantity:
    """A row of the table."""

    unit: str
    shape: tuple[Literal["feet", "bodies", "xyz"], ...]
    meaning: str
    fields: tuple[str, ...]
    """The MjData fields that it is computed from. `cfrc_ext` costs most: see `RowEngine`."""
    compute: Callable[[Robot, Field], Array]
    exists: Callable[[Robot], object] = lambda _: True


QUANTITIES: Mapping[str, NamedQuantity] = {
    "foot_contact": NamedQuantity(
        "", ("feet",), "whether the foot touches the ground",
        ("geom_xpos", "geom_xmat"), _foot_contact, lambda robot: robot.feet),
    "ground_contact": NamedQuantity(
        "", ("bodies",), "whether the body touches the ground",
        ("geom_xpos", "geom_xmat"), _ground_contact,
        lambda robot: robot.falls and robot.ground is not None),
    "penetration": NamedQuantity(
        "m", (), "how deep the robot's lowest point is in the ground",
        ("geom_xpos", "geom_xmat"), _penetration,
        lambda robot: robot.falls and robot.ground is not None),
    "foot_contact_force": NamedQuantity(
        "N", ("feet",), "size of the contact force on the foot",
        ("cfrc_ext",), _foot_force, lambda robot: robot.feet),
    "foot_height": NamedQuantity(
        "m", ("feet",), "height of the foot's lowest point over the ground; 0 where it stands",
        ("geom_xpos", "geom_xmat"), _foot_height, lambda robot: robot.feet),
    "foot_lowest_point": NamedQuantity(
        "m", ("feet", "xyz"), "the foot's lowest point in the world; it jumps between "
        "heel and toe as the foot tilts: where a foot is, body_com tells",
        ("geom_xpos", "geom_xmat"), _foot_lowest_point, lambda robot: robot.feet),
    "airborne": NamedQuantity(
        "", (), "whether no part of the robot touches the ground",
        ("geom_xpos", "geom_xmat"), _airborne,
        lambda robot: robot.falls and robot.ground is not None),
    "com": NamedQuantity(
        "m", ("xyz",), "centre of mass of the robot",
        ("subtree_com",), _com, lambda robot: robot.root is not None),
    "com_velocity": NamedQuantity(
        "m/s", ("xyz",), "velocity of the centre of mass",
        ("cvel", "subtree_com", "xipos"), _com_velocity, lambda robot: robot.root is not None),
    "heading": NamedQuantity(
        "rad", (), "where the root's own x axis points, counterclockwise from +x",
        ("xmat",), _heading, lambda robot: robot.turns),
    "energy": NamedQuantity(
        "J", (), "work of the actuators in this step, braking counted as work",
        ("actuator_force", "actuator_velocity"), _energy),
    "body_position": NamedQuantity(
        "m", ("bodies", "xyz"), "origin of the body's frame in the world, not its lowest point",
        ("xpos",), lambda _, field: field("xpos")),
    "body_com": NamedQuantity(
        "m", ("bodies", "xyz"), "centre of the body's own mass, the middle of its shape",
        ("xipos",), lambda _, field: field("xipos")),
    "body_velocity": NamedQuantity(
        "m/s", ("bodies", "xyz"), "velocity of the body's origin in the world",
        ("cvel", "subtree_com", "xpos"), _body_velocity),
    "body_up": NamedQuantity(
        "", ("bodies", "xyz"), "the body's own z axis in the world: (0, 0, 1) where it is upright",
        ("xmat",), lambda _, field: field("xmat")[..., 2::3]),
}  # fmt: skip
"""By name. Bodies are counted as MuJoCo does, 0 is the world; feet as `Robot.feet`."""


def names_of(robot: Robot) -> tuple[str, ...]:
    """The quantities that this robot has."""
    return tuple(name for name, quantity in QUANTITIES.items() if quantity.exists(robot))


def entries_of(robot: Robot) -> dict[str, QuantityEntry]:
    """The robot's quantities as its environment's facts hold them."""
    lengths = {"feet": len(robot.feet), "bodies": robot.model.nbody, "xyz": 3}
    return {
        name: QuantityEntry(
            unit=QUANTITIES[name].unit,
            axes=QUANTITIES[name].shape,
            shape=tuple(lengths[axis] for axis in QUANTITIES[name].shape),
            meaning=QUANTITIES[name].meaning,
        )
        for name in names_of(robot)
    }


def compute(robot: Robot, names: Iterable[str], field: Field) -> dict[str, Array]:
    """These quantities of the states whose fields are given, in arrays of their own."""
    return {name: np.array(QUANTITIES[name].compute(robot, field)) for name in names}


def measure(robot: Robot, names: Iterable[str], field: Callable[[str], Any]) -> dict[str, Any]:
    """These quantities of states whose fields are tensors; they may be views of those."""
    return {name: QUANTITIES[name].compute(robot, field) for name in names}


def of_state(robot: Robot, data: mujoco.MjData) -> dict[str, Array]:
    """Return all quantities of one state."""
    return compute(robot, names_of(robot), lambda name: np.asarray(getattr(data, name)))


class Meter:
    """Measures some quantities of a robot: those of `names` that it has."""

    def __init__(self, robot: Robot, names: Collection[str]) -> None:
        self.robot = robot
        self.names = tuple(name for name in names_of(robot) if name in names)
        fields = (field for name in self.names for field in QUANTITIES[name].fields)
        self.fields = tuple(dict.fromkeys(fields))
        """The MjData fields to keep of a state, to measure it by."""

    def info(self, reported: dict[str, Array], field: Field) -> Mapping[str, Array]:
        """Return what a step reported and its quantities; what the environment reports comes first.

        Fields are kept as they are now, which must not change any more.
        """
        if not self.names:
            return reported
        return MeasuredInfo(self, reported, {name: field(name) for name in self.fields})


class MeasuredInfo(Mapping[str, "Array"]):
    """Info with quantities that are computed when they are read.

    A numpy call on a few rows costs as much as one on hundreds. So whoever has many steps joins
    them first.
    """

    def __init__(self, meter: Meter, reported: dict[str, Array], fields: dict[str, Array]) -> None:
        self.meter, self.reported, self.fields = meter, reported, fields
        self._measured: dict[str, Array] = {}
        self._names = dict.fromkeys((*reported, *meter.names))

    def __getitem__(self, name: str) -> Array:
        if name in self.reported:
            return self.reported[name]
        if name not in self._measured and name in self._names:
            self._measured |= compute(self.meter.robot, [name], self.fields.__getitem__)
        return self._measured[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @classmethod
    def join(cls, infos: Sequence[MeasuredInfo]) -> MeasuredInfo:
        """Join the info of several steps of the same environments."""
        reported = _concatenate([info.reported for info in infos])
        return cls(infos[0].meter, reported, _concatenate([info.fields for info in infos]))


def _concatenate(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def join_infos(infos: Sequence[Mapping[str, Array]]) -> Mapping[str, Array] | None:
    """The info of many steps as that of one; None where they differ in their keys."""
    names = set(infos[0])
    if any(set(info) != names for info in infos):
        return None
    measured = [info for info in infos if isinstance(info, MeasuredInfo)]
    if len(measured) == len(infos):
        return MeasuredInfo.join(measured)
    return _concatenate(infos)
