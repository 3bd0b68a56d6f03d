"""Robots with legs: which way, how fast, on what, and in which gait.

All of it is read off positions (qpos) and the robot's model by plain MuJoCo. Directions are those
of the robot as it stands at each moment; turns are the world's. What is done lying, sitting or on
the hands does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import mujoco
import numpy as np

from p2p.benchmark.truth.episode import Episode, Floats, Mask, Truth

TOUCH_M = 0.003
"""Nearer than this to the ground is on it."""
FOOT_M = 0.03
"""Parts that are within this of the lowest part in the first state are feet."""
UPRIGHT = float(np.cos(np.pi / 4))
STANDING, CROUCHED = 0.7, 0.85
"""Shares of the first height: lower is not standing, lower is crouched."""
WINDOW_S = 1.0
"""Speeds are means over this time: a stride makes them sway."""
SWING_S = 0.06
"""A foot that is up for less than this has not stepped."""
PHASE = 0.15
"""How far, in cycles, a leg may be from where its gait has it."""
Legs = tuple[float, float, float]
TROT, PACE, BOUND = (0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.0, 0.5, 0.5)
"""Touch-downs of front right, hind left and hind right, in cycles after front left."""


@dataclass(frozen=True)
class LeggedEpisode(Episode):
    """An episode with what touches the ground in each state."""

    foot_contact: Mask
    """(T + 1, feet): front left, front right, hind left, hind right; or left, right."""
    other_contact: Mask
    """(T + 1,): whether anything but a foot touches the ground."""

    @property
    def on_feet(self) -> Mask:
        """(T + 1,): upright, and nothing but feet on the ground."""
        on_feet: Mask = (self.rotation[:, 2, 2] > UPRIGHT) & ~self.other_contact
        return on_feet

    @property
    def stands(self) -> Mask:
        """(T + 1,): on its feet, and about as high as at first."""
        high: Mask = self.torso[:, 2] > STANDING * self.torso[0, 2]
        return self.on_feet & high

    @property
    def velocity(self) -> Floats:
        """(T + 1, 2): forward and to the left, as the robot faces, in m/s."""
        moved = np.gradient(self.torso[:, :2], self.dt, axis=0)
        along, across = np.cos(self.heading), np.sin(self.heading)
        forward = moved[:, 0] * along + moved[:, 1] * across
        left = moved[:, 1] * along - moved[:, 0] * across
        return np.stack([self._smooth(forward), self._smooth(left)], axis=-1)

    def _smooth(self, values: Floats) -> Floats:
        window = min(max(1, round(WINDOW_S / self.dt)), len(values))
        total = np.convolve(values, np.ones(window), mode="same")
        return total / np.convolve(np.ones(len(values)), np.ones(window), mode="same")

    def landings(self, contact: Mask) -> list[int]:
        """The states in which contact begins that was missing for the time of a step."""
        swing, since, found = max(1, round(SWING_S / self.dt)), 0, []
        for i, touches in enumerate(contact):
            if touches and since >= swing:
                found.append(i)
            since = 0 if touches else since + 1
        return found

    @property
    def steps_with_all(self) -> bool:
        """Whether every foot steps, at least once in two seconds while the episode lasts."""
        least = min(len(self.landings(foot)) for foot in self.foot_contact.T)
        return least >= 0.5 * self.steps * self.dt


def follow(model: mujoco.MjModel, qpos: Floats, dt: float, horizon: int) -> LeggedEpisode:
    """The episode of a robot with a free joint that went through these positions."""
    data = mujoco.MjData(model)
    root = int(model.jnt_bodyid[np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)[0]])
    solid = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    ground = np.flatnonzero(solid & (model.body_weldid[model.geom_bodyid] == 0)).tolist()
    parts = np.flatnonzero(solid & (model.body_rootid[model.geom_bodyid] == root))
    if not ground or not len(parts):
        raise ValueError("the model has no ground, or no robot that could touch it")
    xpos, rotation, gaps = [], [], []
    for state in qpos:
        data.qpos[:] = state
        mujoco.mj_kinematics(model, data)
        xpos.append(data.xpos[root:].copy())
        rotation.append(data.xmat[root].reshape(3, 3).copy())
        gaps.append([gap(model, data, ground, int(part)) for part in parts])
    gap_of = np.array(gaps)
    is_foot = gap_of[0] < gap_of[0].min() + FOOT_M
    owners = model.geom_bodyid[parts]
    seen = (xpos[0] - xpos[0][0]) @ rotation[0]  # from the robot: forward, left, up
    feet = sorted(set(owners[is_foot]), key=lambda body: _place(seen[body - root]))
    touches = gap_of < TOUCH_M
    contact = np.stack(
        [touches[:, is_foot & (owners == body)].any(axis=1) for body in feet], axis=-1
    )
    names = tuple(model.body(body).name for body in range(root, model.nbody))
    world = np.zeros((len(qpos), 1, 3))
    return LeggedEpisode(
        qpos=qpos,
        xpos=np.concatenate([world, np.stack(xpos)], axis=1),
        rotation=np.stack(rotation),
        foot_heights=np.stack(
            [gap_of[:, is_foot & (owners == body)].min(axis=1) for body in feet], axis=-1
        ),
        bodies=("world", *names),
        feet=tuple(model.body(body).name for body in feet),
        dt=dt,
        horizon=horizon,
        foot_contact=contact,
        other_contact=np.logical_or.reduce(touches[:, ~is_foot], axis=1),
    )


def gap(model: mujoco.MjModel, data: mujoco.MjData, ground: Sequence[int], part: int) -> float:
    """Return how far a geom is from those of the ground, at most a metre."""
    gaps = (float(mujoco.mj_geomDistance(model, data, g, part, 1.0, None)) for g in ground)
    return min(gaps, default=1.0)


def _place(foot: Floats) -> tuple[float, float]:
    """Sorts feet: front before hind, left before right."""
    return (-float(np.sign(np.round(foot[0], 1))), -float(np.sign(foot[1])))


# --- measures -------------------------------------------------------------------------------------


def _measure(of: Callable[[LeggedEpisode], float]) -> Callable[[Episode], float]:
    def measure(episode: Episode) -> float:
        if not isinstance(episode, LeggedEpisode):
            raise TypeError("the episode has no contacts: this truth is for robots of an engine")
        return of(episode)

    return measure


def _is_at_speed(e: LeggedEpisode, speed: float, direction: tuple[float, float]) -> Mask:
    """Return where it moves at the asked speed, within 30 %, and not sideways."""
    along = e.velocity @ np.array(direction)
    across = e.velocity @ np.array((-direction[1], direction[0]))
    near: Mask = (np.abs(along - speed) < 0.3 * speed) & (np.abs(across) < 0.5 * speed)
    return e.stands & near


def _share_at_speed(
    e: LeggedEpisode, speed: float, direction: tuple[float, float], gait: Legs | None = None
) -> float:
    if not e.steps_with_all:
        return 0.0
    at_speed = _is_at_speed(e, speed, direction)
    return e.share(at_speed if gait is None else at_speed & _is_in_gait(e, gait))


def _speed(e: LeggedEpisode, direction: tuple[float, float], gait: Legs | None = None) -> float:
    if not e.steps_with_all:
        return 0.0
    counted = e.stands if gait is None else e.stands & _is_in_gait(e, gait)
    return float((e.velocity @ np.array(direction))[1:][counted[1:]].sum()) / e.horizon


def _is_in_gait(e: LeggedEpisode, gait: Legs) -> Mask:
    """Return where each leg lands in the gait's order within its cycle, (T + 1,)."""
    inside: Mask = np.zeros(len(e.qpos), np.bool_)
    if e.foot_contact.shape[1] != 4:
        return inside
    first, *others = (np.array(e.landings(foot)) for foot in e.foot_contact.T)
    for begin, end in pairwise(first):
        period = end - begin
        if period * e.dt > 2.0:
            continue
        fits = []
        for landings, wanted in zip(others, gait, strict=True):
            phases = (landings - begin) / period - wanted
            # A leg that lands with the first one may do so a little before it.
            fits.append(np.count_nonzero(np.abs(phases) <= PHASE) == 1)
        inside[begin:end] = all(fits)
    return inside


def _turning(e: LeggedEpisode, sign: float) -> float:
    if not e.steps_with_all:
        return 0.0
    return e.speed(sign * e.heading, e.stands & e.near)


def _standing(e: LeggedEpisode) -> float:
    slow = np.linalg.norm(e.velocity, axis=-1) < 0.15
    return e.share(e.stands & e.near & slow)


def _crouching(e: LeggedEpisode) -> float:
    height = e.torso[:, 2] / e.torso[0, 2]
    return e.share(e.on_feet & (height < CROUCHED) & (height > 0.35) & e.near)


def _hops(e: LeggedEpisode) -> float:
    flights = e.landings(np.logical_or.reduce(e.foot_contact, axis=1))
    return sum(bool(e.stands[i] and e.near[i]) for i in flights) / e.seconds


def _walk_and_stop(e: LeggedEpisode) -> float:
    if e.steps < e.horizon:
        return 0.0
    forward, half = e.velocity[:, 0], e.horizon // 2
    going = np.where(e.stands, np.clip(forward, 0.0, None), 0.0)[1:]
    quarter = float(np.sort(going[:half])[-(half // 4) :].mean())
    after = np.linalg.norm(e.velocity, axis=-1)[-(e.horizon // 4) :]
    stood = e.stands[-(e.horizon // 4) :].mean()
    return float(quarter - 2 * after.mean()) if stood > 0.9 else 0.0


FORWARD, BACKWARD, LEFT, RIGHT = (1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)
ON_FEET = "upright, on its feet alone and not sunk"
AT_SPEED = f"within 30 % of the speed asked, over a second each; {ON_FEET}, every foot steps"


def _make_pace_truth(
    speed: float, direction: tuple[float, float], gait: Legs | None = None
) -> Truth:
    measure = partial(_share_at_speed, speed=speed, direction=direction, gait=gait)
    legs = "" if gait is None else "; in cycles whose touch-downs are those of the gait"
    return Truth(_measure(measure), "share of the time", AT_SPEED + legs)


def _moving(direction: tuple[float, float], which: str, gait: Legs | None = None) -> Truth:
    measure = partial(_speed, direction=direction, gait=gait)
    legs = "" if gait is None else ", in cycles whose touch-downs are those of the gait"
    says = f"mean speed {which}, counted while {ON_FEET}{legs}; every foot steps"
    return Truth(_measure(measure), "m/s", says)


LEGGED = {
    **{
        f"walks_{name}_at_{speed:g}": _make_pace_truth(speed, direction)
        for name, direction, speeds in (
            ("forward", FORWARD, (0.3, 0.4, 1.0, 2.0)), ("backward", BACKWARD, (0.5,)),
            ("left", LEFT, (0.3,)), ("right", RIGHT, (0.4,)),
        )
        for speed in speeds
    },
    "trots_forward_at_1.5": _make_pace_truth(1.5, FORWARD, TROT),
    "walks_forward": _moving(FORWARD, "ahead"),
    "walks_backward": _moving(BACKWARD, "backward"),
    "walks_left": _moving(LEFT, "to its left"),
    "trots_forward": _moving(FORWARD, "ahead", TROT),
    "paces_forward": _moving(FORWARD, "ahead", PACE),
    "bounds_forward": _moving(FORWARD, "ahead", BOUND),
    "turns_left": Truth(
        _measure(partial(_turning, sign=1.0)), "rad/s",
        f"heading gained within 1 m of the start, counterclockwise, while {ON_FEET}; "
        "every foot steps",
    ),
    "turns_right": Truth(
        _measure(partial(_turning, sign=-1.0)), "rad/s",
        f"heading gained within 1 m of the start, clockwise, while {ON_FEET}; every foot steps",
    ),
    "stands_on_feet": Truth(
        _measure(_standing), "share of the time",
        f"{ON_FEET}, slower than 0.15 m/s and within 1 m of the start",
    ),
    "crouches_on_feet": Truth(
        _measure(_crouching), "share of the time",
        "upright, on its feet alone, 35 to 85 % of its first height, within 1 m of the start",
    ),
    "hops_on_feet": Truth(
        _measure(_hops), "1/s",
        f"landings after a flight of all feet, {ON_FEET}, within 1 m of the start",
    ),
    "walks_and_stops": Truth(
        _measure(_walk_and_stop), "m/s",
        "best quarter of the first half ahead, less twice the speed in the last quarter; it stands",
    ),
}  # fmt: skip
