"""Finds out what each number of an observation is, by experiment.

`StateLibrary` lists every number of MuJoCo's state that an observation may hold. The environment's
own observation code is shown made-up states in which every one of them is random, so that each
observed number points to one place and to the range it is clipped to. Real steps then have to
agree. Where the observation code cannot be called alone, real steps are all there is.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from p2p.training.env_spec import ObservationEntry
from p2p.training.specs.spec_text import body_words, direction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import mujoco
    from numpy.typing import NDArray

    from p2p.training.env_spec import BodyEntry, GeomEntry, JointEntry, OpenRange


XYZ = ("x", "y", "z")
WXYZ = ("w", "x", "y", "z")


Row = tuple[str, str, str]
"""Name, unit and description of a number of the state."""


class StateNumber(NamedTuple):
    name: str
    unit: str
    description: str
    source: str


def _qpos(joints: Sequence[JointEntry]) -> list[Row]:
    rows: list[Row] = []
    for j in joints:
        if j.type == "free":
            rows += [(f"{j.name}_{a}", "m", f"{a} coordinate of {j.body} (world)") for a in XYZ]
        if j.type in ("free", "ball"):
            text = f"orientation of {j.body}, quaternion component"
            rows += [(f"{j.name}_quat_{a}", "", f"{text} {a}") for a in WXYZ]
        elif j.type == "slide":
            where = f"position of {j.body} along {direction(j.axis or ())}"
            if j.height_offset is not None:
                where = f"height of {j.body}"
                if j.height_offset:
                    where += f" minus {j.height_offset:g} m"
            rows.append((f"{j.name}_position", "m", where))
        else:
            text = f"angle of {j.body} against {j.parent}; {j.sign}"
            rows.append((f"{j.name}_angle", "rad", text))
    return rows


def _qvel(joints: Sequence[JointEntry]) -> list[Row]:
    rows: list[Row] = []
    for j in joints:
        if j.type == "free":
            text = f"velocity of {j.body} along world"
            rows += [(f"{j.name}_velocity_{a}", "m/s", f"{text} {a}") for a in XYZ]
        if j.type in ("free", "ball"):
            text = f"angular velocity of {j.body} about its own"
            rows += [(f"{j.name}_angular_velocity_{a}", "rad/s", f"{text} {a}") for a in XYZ]
        elif j.type == "slide":
            text = f"velocity of {j.body} towards {direction(j.axis or ())}"
            rows.append((f"{j.name}_velocity", "m/s", text))
        else:
            text = f"rate of the angle of {j.body} against {j.parent}, same sign"
            rows.append((f"{j.name}_angular_velocity", "rad/s", text))
    return rows


def _effort(suffix: str, words: str) -> Callable[[Sequence[JointEntry]], list[Row]]:
    """A generalised force: one number for each degree of freedom."""

    def rows(joints: Sequence[JointEntry]) -> list[Row]:
        out: list[Row] = []
        for j in joints:
            if j.type in ("slide", "hinge"):
                unit = "N" if j.type == "slide" else "N m"
                out.append((f"{j.name}_{suffix}", unit, f"{words} on joint {j.name}, same sign"))
            if j.type == "free":
                out += [(f"{j.name}_{suffix}_force_{a}", "N", f"{words}, force {a}") for a in XYZ]
            if j.type in ("free", "ball"):
                out += [
                    (f"{j.name}_{suffix}_torque_{a}", "N m", f"{words}, torque {a}") for a in XYZ
                ]
        return out

    return rows


_AT_CENTRE = "at the robot's centre of mass"
_Parts = tuple[Row, ...]


def _xyz(name: str, unit: str, words: str) -> _Parts:
    return tuple((f"{name}_{a}", unit, f"{words} {a}") for a in XYZ)


_INERTIA: _Parts = (
    *(
        (f"inertia_{a}", "kg m^2", f"rotational inertia {a} (world axes, {_AT_CENTRE})")
        for a in ("xx", "yy", "zz", "xy", "xz", "yz")
    ),
    *_xyz("mass_offset", "kg m", "mass times offset from the robot's centre of mass along"),
    ("mass", "kg", "mass"),
)
_VELOCITY: _Parts = (
    *_xyz("spatial_angular_velocity", "rad/s", "angular velocity about world"),
    *_xyz("spatial_velocity", "m/s", f"velocity, taken {_AT_CENTRE}, along world"),
)
_CONTACT: _Parts = (
    *_xyz("contact_torque", "N m", f"torque of external contacts, taken {_AT_CENTRE}, about world"),
    *_xyz("contact_force", "N", "force of external contacts along world"),
)
_POSITION: _Parts = _xyz("position", "m", "position along world")
_CENTRE: _Parts = _xyz("mass_centre", "m", "centre of mass along world")
_SUBTREE: _Parts = _xyz(
    "subtree_mass_centre", "m", "centre of mass of it and what it carries, along world"
)
_QUAT: _Parts = tuple((f"quat_{a}", "", f"orientation, quaternion component {a}") for a in WXYZ)

_BODY_FIELDS = {
    "xpos": _POSITION,
    "xquat": _QUAT,
    "cvel": _VELOCITY,
    "cfrc_ext": _CONTACT,
    "cinert": _INERTIA,
    "xipos": _CENTRE,
    "subtree_com": _SUBTREE,
}
_DOF_FIELDS = {
    "qpos": _qpos,
    "qvel": _qvel,
    "qfrc_actuator": _effort("actuator_effort", "effort of the actuators"),
    "qfrc_constraint": _effort("constraint_effort", "effort of contacts and limits"),
}
_OTHER_FIELDS = {
    "ctrl": "control of actuator",
    "actuator_force": "force of actuator",
    "ten_length": "length of tendon",
    "ten_velocity": "velocity of tendon",
    "sensordata": "reading of sensor value",
}
_POINT_FIELDS = {"site_xpos": "site", "geom_xpos": "geom"}
FIELDS = (*_DOF_FIELDS, *_BODY_FIELDS, *_POINT_FIELDS, *_OTHER_FIELDS)
"""The fields of MjData that are looked at, in order of preference."""


class StateLibrary:
    """The quantities of one model: `quantities[c]` describes column c of `values(...)`."""

    def __init__(
        self,
        model: mujoco.MjModel,
        joints: Sequence[JointEntry],
        bodies: Sequence[BodyEntry],
        geoms: Sequence[GeomEntry],
    ) -> None:
        self.quantities: list[StateNumber] = []
        self._column: dict[str, int] = {}
        for field, rows in _DOF_FIELDS.items():
            for i, row in enumerate(rows(joints)):
                self._add(row, f"{field}[{i}]")
        for field, parts in _BODY_FIELDS.items():
            for body in bodies:
                words = body_words(body, bodies, geoms)
                for k, (part, unit, text) in enumerate(parts):
                    self._add(
                        (f"{body.name}_{part}", unit, f"{words}: {text}"),
                        f"{field}[{body.id}, {k}]",
                    )
        self._add_points(model)
        self._base = len(self.quantities)
        self._angles = self._add_angles(joints)
        self._pairs = self._add_differences(bodies)

    def _add(self, row: Row, source: str) -> None:
        self._column[source] = len(self.quantities)
        self.quantities.append(StateNumber(*row, source))

    def _add_points(self, model: mujoco.MjModel) -> None:
        for field, kind in _POINT_FIELDS.items():
            for i in range(getattr(model, f"n{kind}")):
                label = getattr(model, kind)(i).name or str(i)
                for k, (part, unit, text) in enumerate(_POSITION):
                    self._add(
                        (f"{kind}_{label}_{part}", unit, f"{kind} {label}: {text}"),
                        f"{field}[{i}, {k}]",
                    )
        sizes = {"ctrl": model.nu, "actuator_force": model.nu, "ten_length": model.ntendon,
                 "ten_velocity": model.ntendon, "sensordata": model.nsensordata}  # fmt: skip
        for field, words in _OTHER_FIELDS.items():
            for i in range(sizes[field]):
                self._add((f"{field}_{i}", "", f"{words} {i}"), f"{field}[{i}]")

    def _add_angles(self, joints: Sequence[JointEntry]) -> list[int]:
        columns = [self._column[f"qpos[{j.qpos_address}]"] for j in joints if j.type == "hinge"]
        for function, words in (("sin", "sine"), ("cos", "cosine")):
            for c in columns:
                of = self.quantities[c]
                row = (f"{function}_{of.name}", "", f"{words} of the {of.description}")
                self._add(row, f"{function}({of.source})")
        return columns

    def _add_differences(self, bodies: Sequence[BodyEntry]) -> NDArray[np.intp]:
        pairs = []
        for a, b in permutations(bodies[1:], 2):
            for k, axis in enumerate(XYZ):
                row = (
                    f"{a.name}_minus_{b.name}_{axis}",
                    "m",
                    f"{axis} from {b.name} to {a.name} (world)",
                )
                first, second = f"xpos[{a.id}, {k}]", f"xpos[{b.id}, {k}]"
                pairs.append((self._column[first], self._column[second]))
                self._add(row, f"{first} - {second}")
        return np.asarray(pairs, dtype=np.intp).reshape(-1, 2)

    def snapshot(self, data: mujoco.MjData) -> NDArray[np.float64]:
        """The plain fields of one state, flat; rows of what `values` takes."""
        return np.concatenate(
            [np.array(getattr(data, field), dtype=float).ravel() for field in FIELDS]
        )

    def values(self, snapshots: NDArray[np.float64]) -> NDArray[np.float64]:
        """Snapshots (S, ...) to every quantity (S, C)."""
        angles = snapshots[:, self._angles]
        differences = snapshots[:, self._pairs[:, 0]] - snapshots[:, self._pairs[:, 1]]
        return np.concatenate([snapshots, np.sin(angles), np.cos(angles), differences], axis=1)


def scramble(data: Any, rng: np.random.Generator, scale: float) -> None:
    """Write independent random numbers of this size over every field of FIELDS."""
    for field in FIELDS:
        view = getattr(data, field)
        view[...] = scale * rng.uniform(-1.0, 1.0, size=view.shape)


MADE_UP_STATES = 64
REAL_STEPS = 200
RELATIVE_TOLERANCE = 1e-6
"""Observations may be cast to float32."""
ABSOLUTE_TOLERANCE = 1e-9
ENOUGH_DISTINCT_VALUES = 8
"""Fewer different values than this do not identify a number."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Observations (S, D), and every quantity of the states that they were made from (S, C)."""

    observations: NDArray[np.float64]
    values: NDArray[np.float64]


def made_up_samples(env: Any, library: StateLibrary, rng: np.random.Generator) -> Samples | None:
    """Observations of random states; None where the environment offers no way to ask for them."""
    base = env.unwrapped
    observe = getattr(base, "_get_obs", None)
    if observe is None or inspect.signature(observe).parameters:
        return None
    observations, snapshots = [], []
    # Small states show where a number comes from, large ones whether it is clipped.
    for scale in np.geomspace(0.01, 1e3, MADE_UP_STATES):
        scramble(base.data, rng, float(scale))
        try:
            observation = observe()
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return None  # an impossible state is no fault of the environment
        observations.append(np.array(observation, dtype=float))
        snapshots.append(library.snapshot(base.data))
    if observations[0].shape != env.observation_space.shape:
        return None  # a wrapper makes something else of it
    return Samples(np.stack(observations), library.values(np.stack(snapshots)))


def real_samples(env: Any, library: StateLibrary, seed: int) -> Samples:
    env.action_space.seed(seed)
    env.reset(seed=seed)
    observations, snapshots = [], []
    for _ in range(REAL_STEPS):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        observations.append(np.array(observation, dtype=float))
        snapshots.append(library.snapshot(env.unwrapped.data))
        if terminated or truncated:
            env.reset()
    return Samples(np.stack(observations), library.values(np.stack(snapshots)))


def _close(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.bool_]:
    near = np.isclose(a, b, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE)
    return np.asarray(near.all(axis=0))


def match(samples: Samples, index: int) -> tuple[int, OpenRange] | None:
    """The first quantity that explains an observed number, and the range it is clipped to."""
    observed = samples.observations[:, index, None]
    low, high = float(observed.min()), float(observed.max())
    inside = (samples.values > low) & (samples.values < high)
    explains = _close(np.clip(samples.values, low, high), observed)
    explains &= inside.sum(axis=0) >= ENOUGH_DISTINCT_VALUES
    if not explains.any():
        return None
    column = int(np.argmax(explains))
    values = samples.values[:, column]
    margin = RELATIVE_TOLERANCE * max(abs(low), abs(high)) + ABSOLUTE_TOLERANCE
    return column, (
        low if values.min() < low - margin else None,
        high if values.max() > high + margin else None,
    )


def _agrees(column: int, clip: OpenRange, index: int, real: Samples) -> bool:
    low, high = (-np.inf if clip[0] is None else clip[0]), (np.inf if clip[1] is None else clip[1])
    expected = np.clip(real.values[:, column], low, high)
    return bool(_close(expected, real.observations[:, index]))


def read_layout(
    made_up: Samples | None, real: Samples, library: StateLibrary
) -> tuple[ObservationEntry, ...]:
    """Return every entry of the observation, in order."""
    entries = []
    for index in range(real.observations.shape[1]):
        explanation = match(made_up or real, index)
        if explanation is None or not _agrees(*explanation, index, real):
            seen = real.observations[:, index]
            text = f"not identified; between {seen.min():.4g} and {seen.max():.4g} in random play"
            entry = ObservationEntry(
                index=index, name=f"obs[{index}]", source=None, description=text
            )
        else:
            column, clip = explanation
            quantity = library.quantities[column]._asdict()
            bounds = None if clip == (None, None) else clip
            entry = ObservationEntry(index=index, clip=bounds, **quantity)
        entries.append(entry)
    return tuple(entries)
