"""What a ground truth is, and the episode in plain Gymnasium that is all it may look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Episode:
    """The state at the start and after each step: T steps are T + 1 states.

    Time that an episode does not last counts as time in which nothing was done: shares and speeds
    are over the whole time that there was.
    """

    qpos: Floats
    """(T + 1, number of position coordinates)."""
    xpos: Floats
    """(T + 1, bodies, 3): where each body is in the world."""
    rotation: Floats
    """(T + 1, 3, 3): how the first body after the world is turned."""
    foot_heights: Floats
    """(T + 1, feet): how high the lowest point of each is over the ground, at most 1 m."""
    bodies: tuple[str, ...]
    feet: tuple[str, ...]
    """Which bodies that is told of: all of them, where nobody says which are feet."""
    dt: float
    horizon: int
    """Steps that there were to use."""

    @property
    def steps(self) -> int:
        """Steps that were used."""
        return len(self.qpos) - 1

    @property
    def seconds(self) -> float:
        """The whole time that there was."""
        return self.horizon * self.dt

    @property
    def torso(self) -> Floats:
        """(T + 1, 3): where the first body after the world is."""
        return self.xpos[:, 1]

    @property
    def moved(self) -> Floats:
        """(T + 1, 2): how far the torso is from its start, on the ground."""
        return self.torso[:, :2] - self.torso[0, :2]

    @property
    def near(self) -> Mask:
        """(T + 1,): whether it is within a metre of its start."""
        within: Mask = np.linalg.norm(self.moved, axis=-1) < 1.0
        return within

    @property
    def pitch(self) -> Floats:
        """(T + 1,): how far the torso leans forward, in rad; it counts on over full turns."""
        return np.unwrap(np.arctan2(self.rotation[:, 0, 2], self.rotation[:, 2, 2]))

    @property
    def heading(self) -> Floats:
        """(T + 1,): where the torso points, counterclockwise in rad; it counts on."""
        return np.unwrap(np.arctan2(self.rotation[:, 1, 0], self.rotation[:, 0, 0]))

    @property
    def rise(self) -> Floats:
        """(T + 1,): the torso's height above that of its start."""
        above: Floats = self.torso[:, 2] - self.torso[0, 2]
        return above

    def body(self, name: str) -> Floats:
        """(T + 1, 3): where the body of this name is."""
        return self.xpos[:, self.bodies.index(name)]

    def foot_height(self, name: str) -> Floats:
        """(T + 1,): how high the foot of this name is, at its lowest point."""
        return self.foot_heights[:, self.feet.index(name)]

    def share(self, mask: Mask) -> float:
        """Return the share of the whole time in which this holds."""
        return float(np.count_nonzero(mask[1:])) / self.horizon

    def speed(self, along: Floats, while_: Mask | None = None) -> float:
        """Return the growth of a coordinate per second, over the steps that end in `while_`."""
        gained = np.diff(along)
        if while_ is not None:
            gained = gained[while_[1:]]
        return float(gained.sum()) / self.seconds

    def last_fifth(self, values: Floats, if_over: float) -> float:
        """The mean over the last fifth of the whole time; `if_over` for what is missing of it."""
        wanted = max(1, self.horizon // 5)
        there = values[1:][self.horizon - wanted :]
        return float(there.sum() + if_over * (wanted - len(there))) / wanted


def gap(one: Floats, other: Floats) -> Floats:
    """(T + 1,): the distance of two points."""
    distance: Floats = np.linalg.norm(one - other, axis=-1)
    return distance


def laps(points: Floats, centre: Floats, *, nearest: float, farthest: float = np.inf) -> float:
    """How often points go round a centre, counterclockwise; too near or too far does not count."""
    arm = points[:, :2] - centre[..., :2]
    far = np.linalg.norm(arm, axis=-1)
    turned = np.diff(np.unwrap(np.arctan2(arm[:, 1], arm[:, 0])))
    counts = (far >= nearest) & (far <= farthest)
    return float(turned[counts[1:] & counts[:-1]].sum()) / (2 * np.pi)


@dataclass(frozen=True)
class Truth:
    """A number that says how well a motion is done, read off the simulator."""

    measure: Callable[[Episode], float]
    unit: str
    says: str
    """What is measured, for people."""
    needs: tuple[str, ...] = ()
    """Bodies that the environment must have, by their names in its model."""
    better: Literal["at_least", "at_most"] = "at_least"
    """Which side of its threshold passes."""

    def passes(self, value: float, threshold: float) -> bool:
        """Return whether a value is on the right side."""
        return bool(value >= threshold if self.better == "at_least" else value <= threshold)

    def compute_attainment(self, value: float, threshold: float) -> float:
        """Return the attained share of the threshold, 0 to 1 for every truth."""
        if self.passes(value, threshold):
            return 1.0
        if self.better == "at_least":
            share = value / threshold if threshold > 0 else 0.0
        else:
            share = threshold / value if value > 0 else 0.0
        return min(max(share, 0.0), 1.0)
