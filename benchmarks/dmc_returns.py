"""The return of DM Control's tasks, 0 to 1000, of a robot that went through recorded states.

The rewards are those that its authors publish, 0 to 1 a step, computed by plain MuJoCo from
positions, velocities and controls. They use the names of its model files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import mujoco
import numpy as np

from p2p.benchmark.truth.episode import Floats

FULL_RETURN = 1000.0
Falloff = Literal["gaussian", "linear", "quadratic", "long_tail"]


def closeness(
    value: float,
    low: float,
    high: float,
    *,
    margin: float = 0.0,
    at_margin: float = 0.1,
    falloff: Falloff = "gaussian",
) -> float:
    """1 from `low` to `high`, and less outside: `at_margin` where it is `margin` away."""
    outside = max(low - value, value - high, 0.0)
    if outside == 0.0:
        return 1.0
    if margin == 0.0:
        return 0.0
    away = outside / margin
    if falloff == "gaussian":
        return float(at_margin ** (away**2))
    if falloff == "long_tail":
        return 1.0 / (1.0 + (1.0 / at_margin - 1.0) * away**2)
    power = 1 if falloff == "linear" else 2
    return max(0.0, 1.0 - (1.0 - at_margin) * away**power)


def at_least(value: float, low: float, margin: float, at_margin: float) -> float:
    """1 from `low` on, falling in a straight line below it."""
    return closeness(value, low, np.inf, margin=margin, at_margin=at_margin, falloff="linear")


@dataclass(frozen=True)
class State:
    """One moment of a model; everything is computed that follows from its positions."""

    model: mujoco.MjModel
    data: mujoco.MjData

    def up(self, body: str) -> float:
        """The vertical part of a body's own z axis: 1 upright, -1 upside down."""
        return float(self.data.body(body).xmat[8])

    def velocity(self, body: str) -> Floats:
        """Return the velocity of the mass of a body and its descendants, in the world."""
        return np.array(self.data.subtree_linvel[self.data.body(body).id])

    def gap(self, geom: str, other: str) -> float:
        """Return the distance between the middles of two shapes."""
        return float(np.linalg.norm(self.data.geom(geom).xpos - self.data.geom(other).xpos))

    def radii(self, *geoms: str) -> float:
        return float(sum(self.model.geom(geom).size[0] for geom in geoms))

    @property
    def small_control(self) -> float:
        """From 1 without any control to 0.8 with all of it."""
        values = [closeness(u, 0, 0, margin=1, at_margin=0, falloff="quadratic") for u in self.ctrl]
        return (4 + float(np.mean(values))) / 5

    @property
    def ctrl(self) -> list[float]:
        return [float(u) for u in self.data.ctrl]


def walk_planar(state: State, *, speed: float) -> float:
    """Torso 1.2 m high and upright, and at this speed; 0: standing is enough."""
    high = closeness(float(state.data.body("torso").xpos[2]), 1.2, np.inf, margin=0.6)
    stands = (3 * high + (1 + state.up("torso")) / 2) / 4
    if speed == 0:
        return stands
    moves = at_least(float(state.velocity("torso")[0]), speed, speed / 2, 0.5)
    return stands * (5 * moves + 1) / 6


def run_cheetah(state: State) -> float:
    return at_least(float(state.velocity("torso")[0]), 10, 10, 0)


def hop(state: State, *, speed: float) -> float:
    """Torso 0.6 to 2 m above the foot, at this speed; 0: with little control."""
    above = float(state.data.body("torso").xipos[2] - state.data.body("foot").xipos[2])
    stands = closeness(above, 0.6, 2)
    if speed == 0:
        return stands * state.small_control
    return stands * at_least(float(state.velocity("torso")[0]), speed, speed / 2, 0.5)


def walk_humanoid(state: State, *, speed: float) -> float:
    """Head 1.4 m high, torso upright, little control, at this speed; 0: standing still."""
    high = closeness(float(state.data.body("head").xpos[2]), 1.4, np.inf, margin=0.35)
    stands = high * at_least(state.up("torso"), 0.9, 1.9, 0) * state.small_control
    across = state.velocity("torso")[:2]
    if speed == 0:
        return stands * float(np.mean([closeness(float(v), 0, 0, margin=2) for v in across]))
    return stands * (5 * at_least(float(np.linalg.norm(across)), speed, speed, 0) + 1) / 6


def walk_quadruped(state: State, *, speed: float) -> float:
    """Torso upright, at this speed along its own x axis."""
    torso = state.data.body("torso")
    velocity = np.zeros(6)
    kind = mujoco.mjtObj.mjOBJ_XBODY
    mujoco.mj_objectVelocity(state.model, state.data, kind, torso.id, velocity, 1)
    moves = at_least(float(velocity[3]), speed, speed, 0.5)
    return at_least(state.up("torso"), 1, 2, 0) * moves


def balance_pole(state: State) -> float:
    """Pole upright and slow, cart in the middle, little control."""
    middle = (1 + closeness(float(state.data.joint("slider").qpos[0]), 0, 0, margin=2)) / 2
    slow = (1 + closeness(float(state.data.joint("hinge_1").qvel[0]), 0, 0, margin=5)) / 2
    return (state.up("pole_1") + 1) / 2 * state.small_control * slow * middle


def raise_pendulum(state: State) -> float:
    return float(state.up("pole") >= np.cos(np.radians(8)))


def raise_acrobot(state: State) -> float:
    gap = float(np.linalg.norm(state.data.site("target").xpos - state.data.site("tip").xpos))
    return closeness(gap, 0, float(state.model.site("target").size[0]), margin=1)


def reach(state: State) -> float:
    flat = state.data.geom("target").xpos[:2] - state.data.geom("finger").xpos[:2]
    return float(np.linalg.norm(flat) <= state.radii("target", "finger"))


def spin(state: State) -> float:
    """At 15 rad/s in one of the two directions."""
    return float(state.data.joint("hinge").qvel[0] <= -15)


def right_fish(state: State) -> float:
    return closeness(state.up("torso"), 1, 1, margin=1)


def swim_fish(state: State) -> float:
    """Mouth at the target; an eighth for being upright."""
    radii = state.radii("mouth", "target")
    there = closeness(state.gap("mouth", "target"), 0, radii, margin=2 * radii)
    return (7 * there + (state.up("torso") + 1) / 2) / 8


def swim_snake(state: State) -> float:
    """Nose at the target, in the plane."""
    size = state.radii("target")
    flat = state.data.geom("target").xpos[:2] - state.data.geom("nose").xpos[:2]
    away = float(np.linalg.norm(flat))
    return closeness(away, 0, size, margin=5 * size, falloff="long_tail")


def catch(state: State) -> float:
    """The whole ball is within the cup, seen from the side."""
    away = np.abs(state.data.site("target").xpos - state.data.body("ball").xpos)[[0, 2]]
    room = state.model.site("target").size[[0, 2]] - state.radii("ball")
    return float(np.all(away < room))


def rest_at_target(state: State) -> float:
    size = state.radii("target")
    there = closeness(state.gap("target", "pointmass"), 0, size, margin=size)
    return there * state.small_control


NATIVE_REWARDS: dict[str, Callable[[State], float]] = {
    "walker-stand": partial(walk_planar, speed=0),
    "walker-walk": partial(walk_planar, speed=1),
    "walker-run": partial(walk_planar, speed=8),
    "cheetah-run": run_cheetah,
    "hopper-stand": partial(hop, speed=0),
    "hopper-hop": partial(hop, speed=2),
    "humanoid-stand": partial(walk_humanoid, speed=0),
    "humanoid-walk": partial(walk_humanoid, speed=1),
    "humanoid-run": partial(walk_humanoid, speed=10),
    "quadruped-walk": partial(walk_quadruped, speed=0.5),
    "quadruped-run": partial(walk_quadruped, speed=5),
    "cartpole-balance": balance_pole,
    "cartpole-swingup": balance_pole,
    "pendulum-swingup": raise_pendulum,
    "acrobot-swingup": raise_acrobot,
    "reacher-easy": reach,
    "finger-spin": spin,
    "fish-upright": right_fish,
    "fish-swim": swim_fish,
    "swimmer6-swim": swim_snake,
    "ball_in_cup-catch": catch,
    "point_mass-easy": rest_at_target,
}
"""The reward of a state, by the task's name."""


def native_return(
    task: str, model: mujoco.MjModel, qpos: Floats, qvel: Floats, ctrl: Floats, horizon: int
) -> float:
    """The return of the states after each step, as if the task had 1,000 steps.

    Steps that are missing from the `horizon` count nothing.
    """
    state = State(model, mujoco.MjData(model))
    total = 0.0
    for positions, velocities, controls in zip(qpos, qvel, ctrl, strict=True):
        state.data.qpos[:], state.data.qvel[:] = positions, velocities
        state.data.ctrl[:] = controls
        mujoco.mj_kinematics(model, state.data)
        mujoco.mj_comPos(model, state.data)
        mujoco.mj_comVel(model, state.data)
        mujoco.mj_subtreeVel(model, state.data)
        total += NATIVE_REWARDS[task](state)
    return FULL_RETURN * total / horizon
