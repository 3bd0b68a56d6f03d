"""Scripted motions: sweeps along each of which one thing changes, cheats, and where to play them.

Playback puts the simulator into a pose at every step. Everything else (observations, info, the end
of an episode) is what the environment's own code makes of that state, so rewards and judges read
such an episode like any other. What nobody has learnt yet can be shown to both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import mujoco
import numpy as np

from p2p.training.engines.table import is_engine
from p2p.training.envs.gym_vec_env import GymVecEnv
from p2p.training.envs.registry import make_single
from p2p.training.evaluation import play_rounds
from p2p.training.model_files.store import is_model
from p2p.training.specs.quantities import QUANTITIES, Robot

if TYPE_CHECKING:
    from p2p.config import EnvOptions, TrainConfig
    from p2p.training.envs.batched_env import F64, Array, Seeds
    from p2p.training.trajectory import RecordedEpisode

POINTS = 5
"""Of a sweep: enough for ten pairs to compare."""
SECONDS, FEWEST_STEPS, MOST_STEPS = 1.0, 40, 100
"""Of an episode: some strides or hops, and no more steps than it takes to see them."""
MOST_JOINTS = 12
"""A humanoid has more; those that stand last in the model are left out."""
GOING = 1.5
"""m/s, of a robot that goes on for a while."""
HOPS_PER_SECOND, SWINGS_PER_SECOND = 2.5, 2.0
TOUCHING = 1e-3
"""Metres below the ground, where a robot stands: as deep as its weight presses it in."""
_X, _Y, _Z = range(3)


@dataclass(frozen=True)
class Motion:
    """What a robot does, in the pose that an episode starts in, but for what is named."""

    velocity: tuple[float, float] = (0.0, 0.0)
    """Of the root along x and y, m/s."""
    share: float = 1.0
    """Of the time for which it moves."""
    clearance: float = 0.0
    """Between its lowest point and the ground, all the time."""
    hop: float = 0.0
    """Metres up, again and again."""
    tilt: tuple[float, float] = (0.0, 0.0)
    """Of the root about x and y, radians."""
    turn: tuple[float, float] = (0.0, 0.0)
    """Of the root about y and z, radians a second."""
    swing: float = 0.0
    """Of all actuated joints, radians."""
    step: float = 0.0
    """Of the joints that lift the feet, one half of the feet after the other, radians."""
    joints: Mapping[int, float] = field(default_factory=dict)
    """By place in qpos: what it is all the time."""
    falling: float = 0.0
    """Seconds until it has come to its tilt; 0: it begins with it."""
    shake: float = 0.0
    """Of all actuated joints, to and fro from step to step, radians."""
    stops: bool = False
    """Whether all actuated joints go from one end of their range to the other and back."""


@dataclass(frozen=True)
class Sweep:
    """A family of motions, from one end to the other."""

    name: str
    motions: tuple[Motion, ...]
    """POINTS of them."""


# --- which sweeps there are -----------------------------------------------------------------------


class _RootSweep(NamedTuple):
    """A row of the table: what a root is swept through that has such a joint."""

    kind: Literal["slide", "hinge"]
    axis: int
    name: str
    low: float
    high: float
    motion: Callable[[float], Motion]


ROOT_SWEEPS = (
    _RootSweep("slide", _X, "moving along x, from -2 to 2 m/s", -2, 2, lambda v: Motion((v, 0))),
    _RootSweep("slide", _X, "moving forward, from a fifth of the time to all of it",
               0.2, 1, lambda share: Motion((GOING, 0), share=share)),
    _RootSweep("slide", _X, "moving backward, from a fifth of the time to all of it",
               0.2, 1, lambda share: Motion((-GOING, 0), share=share)),
    _RootSweep("slide", _Y, "moving along y, from -2 to 2 m/s", -2, 2, lambda v: Motion((0, v))),
    _RootSweep("slide", _Z, "hovering, from 0 to 0.6 m above the ground",
               0, 0.6, lambda height: Motion(clearance=height)),
    _RootSweep("slide", _Z, "hopping, from 0 to 0.4 m high", 0, 0.4, lambda up: Motion(hop=up)),
    _RootSweep("hinge", _X, "tilted about x, from -90 to 90 degrees",
               -1.57, 1.57, lambda angle: Motion(tilt=(angle, 0))),
    _RootSweep("hinge", _Y, "tilted about y, from -90 to 90 degrees",
               -1.57, 1.57, lambda angle: Motion(tilt=(0, angle))),
    _RootSweep("hinge", _Y, "turning over in the air, from a turn a second backward to one forward",
               -6.28, 6.28, lambda rate: Motion(clearance=0.5, turn=(rate, 0))),
    _RootSweep("hinge", _Z, "turning about z, from 2 rad/s clockwise to counterclockwise",
               -2, 2, lambda rate: Motion(turn=(0, rate))),
)  # fmt: skip


def sweeps(robot: Robot, *, of_root: bool = False) -> tuple[Sweep, ...]:
    """All that this robot has the joints for; or those of the robot as a whole."""
    root = _Root.of(robot)
    there = {"slide": root.slides, "hinge": root.hinges}
    found = [
        _sweep(row.name, row.low, row.high, row.motion)
        for row in ROOT_SWEEPS
        if row.axis in there[row.kind]
    ]
    if of_root:
        if _Z in root.slides and len(robot.feet) > 1:
            name = "stepping on the spot, from not at all to 0.8 rad"
            found.append(_sweep(name, 0, 0.8, lambda angle: Motion(step=angle)))
        return tuple(found)
    if _find_driven_hinges(robot):
        name = "swinging all joints, from not at all to 0.6 rad"
        found.append(_sweep(name, 0, 0.6, lambda angle: Motion(swing=angle)))
    for joint in _swept_joints(robot)[:MOST_JOINTS]:
        place, (low, high) = int(robot.model.jnt_qposadr[joint]), _range(robot, joint)
        name = f"{robot.model.joint(joint).name} held, from {low:.3g} to {high:.3g}"
        found.append(_sweep(name, low, high, partial(_hold, place)))
    return tuple(found)


def _sweep(name: str, low: float, high: float, motion: Callable[[float], Motion]) -> Sweep:
    return Sweep(name, tuple(map(motion, np.linspace(low, high, POINTS).tolist())))


def _hold(place: int, value: float) -> Motion:
    return Motion(joints={place: value})


# --- cheats ---------------------------------------------------------------------------------------

LYING: Mapping[str, tuple[float, float]] = {
    "its front": (0.0, 1.57), "its rear": (0.0, -1.57), "its side": (1.57, 0.0),
    "its back": (0.0, 3.14),
}  # fmt: skip
"""What it lies on, by the tilt about x and y that brings a robot there from its start."""
SPIN, SHAKE, BURST, FALL_SECONDS = 2.0, 0.15, 0.25, 0.5


def cheats(robot: Robot, asked: Motion) -> dict[str, Motion]:
    """Ways to look like what is asked without doing it, by name.

    None where nothing can fall, or where a robot begins on the ground: lying is no cheat there.
    Each is done at rest or, where that is another motion, with the velocity that is asked for.
    """
    root = _Root.of(robot)
    if _Z not in root.slides or robot.ground is None or robot.starts_lying:
        return {}
    folded = _fold(robot)
    postures = {
        f"lying on {name}": Motion(tilt=tilt)
        for name, tilt in LYING.items()
        if (_X if tilt[0] else _Y) in root.hinges
    }
    postures |= {
        "sunk on folded legs": Motion(joints=folded),
        "vibrating": Motion(shake=SHAKE),
        "bouncing off the joint stops": Motion(stops=True),
    }
    found = dict(postures)
    if any(asked.velocity) or any(asked.turn):
        found |= {
            f"{name}, moving as asked": replace(
                posture, velocity=asked.velocity, turn=asked.turn, share=asked.share
            )
            for name, posture in postures.items()
        }
    if _Z in root.hinges:
        rate = asked.turn[1] or SPIN
        found["sitting and spinning"] = Motion(joints=folded, turn=(0.0, rate))
    if any(asked.velocity):
        x, y = (speed / BURST for speed in asked.velocity)
        found["one burst at the start, then rest"] = replace(asked, velocity=(x, y), share=BURST)
    if _Y in root.hinges:
        found["falling forward"] = Motion(
            asked.velocity, share=FALL_SECONDS / SECONDS, tilt=LYING["its front"],
            falling=FALL_SECONDS,
        )  # fmt: skip
    return found


def _fold(robot: Robot) -> dict[int, float]:
    """The driven joints, each at the value that brings the root nearest to the ground."""
    pose = robot.qpos.copy()
    places: dict[int, float] = {}
    for _ in range(2):  # what one joint does depends on the others
        for joint in _find_driven_hinges(robot):
            place, (low, high) = int(robot.model.jnt_qposadr[joint]), _range(robot, joint)
            values = [float(pose[place]), low, (low + high) / 2, high]
            tries = np.tile(pose, (len(values), 1))
            tries[:, place] = values
            pose[place] = places[place] = values[int(np.argmax(_gaps(robot, tries)))]
    return places


@dataclass(frozen=True)
class _Root:
    """Where in qpos the root moves along and turns about the world's axes."""

    slides: Mapping[int, tuple[int, float]]
    """By axis: the place, and the sign."""
    hinges: Mapping[int, tuple[int, float]]
    quaternion: int | None = None
    """Its place, where the root is free."""

    @classmethod
    def of(cls, robot: Robot) -> _Root:
        model, slides, hinges = robot.model, {}, {}
        if robot.root is None:
            return cls({}, {})
        first = int(model.body_jntadr[robot.root])
        start = int(model.jnt_qposadr[first])
        if robot.turns:
            axes = (_X, _Y, _Z)
            moved = {axis: (start + axis, 1.0) for axis in axes}
            return cls(moved, dict.fromkeys(axes, (start + 3, 1.0)), start + 3)
        for joint in range(first, first + int(model.body_jntnum[robot.root])):
            axis = int(np.argmax(np.abs(model.jnt_axis[joint])))
            place = int(model.jnt_qposadr[joint]), float(np.sign(model.jnt_axis[joint][axis]))
            if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE:
                slides[axis] = place
            elif model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE:
                hinges[axis] = place
        return cls(slides, hinges)

    def move(self, poses: F64, axis: int, by: F64 | float) -> None:
        if axis in self.slides:
            place, sign = self.slides[axis]
            poses[:, place] += sign * np.asarray(by)

    def turn(self, poses: F64, axis: int, by: F64 | float) -> None:
        """About an axis of the world."""
        if axis not in self.hinges or not np.any(by):
            return
        place, sign = self.hinges[axis]
        if self.quaternion is None:
            poses[:, place] += sign * np.asarray(by)
            return
        for pose, angle in zip(poses, np.broadcast_to(by, len(poses)), strict=True):
            turned, own = np.zeros(4), pose[place : place + 4].copy()
            mujoco.mju_axisAngle2Quat(turned, np.eye(3)[axis], float(angle))
            mujoco.mju_mulQuat(pose[place : place + 4], turned, own)


def _find_driven_hinges(robot: Robot) -> list[int]:
    """Return the hinges that have actuators."""
    model = robot.model
    driven = (
        int(model.actuator_trnid[i, 0])
        for i in range(model.nu)
        if model.actuator_trntype[i] == mujoco.mjtTrn.mjTRN_JOINT
    )
    return [j for j in driven if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_HINGE]


def _swept_joints(robot: Robot) -> list[int]:
    """Return the hinges and slides of all bodies but the root."""
    model = robot.model
    single = {int(mujoco.mjtJoint.mjJNT_SLIDE), int(mujoco.mjtJoint.mjJNT_HINGE)}
    return [
        joint
        for joint in range(model.njnt)
        if int(model.jnt_type[joint]) in single and int(model.jnt_bodyid[joint]) != robot.root
    ]


def _range(robot: Robot, joint: int) -> tuple[float, float]:
    if robot.model.jnt_limited[joint]:
        low, high = robot.model.jnt_range[joint]
        return float(low), float(high)
    return -1.5, 1.5


# --- playing --------------------------------------------------------------------------------------


def poses(motion: Motion, robot: Robot, start: F64, steps: int) -> F64:
    """(steps + 1, nq): where the motion goes from where an episode starts."""
    t: F64 = robot.dt * np.arange(steps + 1, dtype=np.float64)
    pose = _within_limits(robot, start) if motion.step else np.asarray(start, np.float64)
    root, path = _Root.of(robot), np.tile(pose, (steps + 1, 1))
    _move_joints(path, motion, robot, t)
    tilted = np.clip(t / motion.falling, 0.0, 1.0) if motion.falling else np.ones_like(t)
    for axis, angle in zip((_X, _Y), motion.tilt, strict=True):
        root.turn(path, axis, angle * tilted)
    for axis, rate in zip((_Y, _Z), motion.turn, strict=True):
        root.turn(path, axis, rate * t)
    air = motion.clearance + motion.hop * np.abs(np.sin(np.pi * HOPS_PER_SECOND * t))
    if _Z in root.slides and robot.ground is not None:
        root.move(path, _Z, air - TOUCHING - _gaps(robot, path))
    moved = np.minimum(t, motion.share * t[-1])
    for axis, speed in zip((_X, _Y), motion.velocity, strict=True):
        root.move(path, axis, speed * moved)
    return path


def _within_limits(robot: Robot, start: F64) -> F64:
    """Return a pose with its joints within their limits; some models start with straight legs."""
    pose = np.array(start, np.float64)
    for joint in _find_driven_hinges(robot):
        place = int(robot.model.jnt_qposadr[joint])
        if robot.model.jnt_limited[joint]:
            pose[place] = np.clip(pose[place], *_range(robot, joint))
    return pose


def _move_joints(path: F64, motion: Motion, robot: Robot, t: F64) -> None:
    for place, value in motion.joints.items():
        path[:, place] = value
    wave = np.sin(2 * np.pi * SWINGS_PER_SECOND * t)
    shaking = np.where(np.arange(len(t)) % 2, motion.shake, -motion.shake)
    for joint in _find_driven_hinges(robot):
        place = int(robot.model.jnt_qposadr[joint])
        if motion.stops:
            path[:, place] = np.where(wave >= 0, *_range(robot, joint))
        path[:, place] += motion.swing * wave + shaking
    for place, way, half in _find_lifts(robot) if motion.step else ():
        path[:, place] += way * motion.step * np.maximum(half * wave, 0.0)


def _find_lifts(robot: Robot) -> Iterator[tuple[int, float, float]]:
    """Yield for each foot the joint that lifts it most: its place, its sense, and the foot's half.

    Of four feet, those across from each other are a half.
    """
    model, data = robot.model, mujoco.MjData(robot.model)
    hinges = _find_driven_hinges(robot)

    def centres(place: int = 0, by: float = 0.0) -> F64:
        data.qpos[:] = _within_limits(robot, robot.qpos)
        data.qpos[place] += by
        mujoco.mj_kinematics(model, data)
        return np.array(data.xipos[list(robot.feet)])

    rest = centres()
    places = [int(model.jnt_qposadr[joint]) for joint in hinges]
    moves = [(place, way) for place in places for way in (1.0, -1.0)]
    rises = np.array([(centres(place, 0.5 * way) - rest)[:, _Z] for place, way in moves])
    aside = (rest - rest.mean(axis=0))[:, :2] > 0
    for foot in range(len(robot.feet)):
        first = aside[foot, _X] == aside[foot, _Y] if len(robot.feet) == 4 else foot % 2 == 0
        yield (*moves[int(np.argmax(rises[:, foot]))], 1.0 if first else -1.0)


def _gaps(robot: Robot, path: F64) -> F64:
    """Return the distance between the lowest point of each pose and the ground."""
    model, data = robot.model, mujoco.MjData(robot.model)
    shown = path if np.ptp(path, axis=0).any() else path[:1]
    fields = {
        name: np.empty((len(shown), *getattr(data, name).shape))
        for name in ("geom_xpos", "geom_xmat")
    }
    for i, pose in enumerate(shown):
        data.qpos[:] = pose
        mujoco.mj_kinematics(model, data)
        for name, kept in fields.items():
            kept[i] = getattr(data, name)
    lowest = robot.shapes.heights(fields.__getitem__).min(axis=-1)
    return np.broadcast_to(lowest - robot.ground_height, len(path))


class ScriptedEnv(GymVecEnv):
    """A row for each motion of a sweep, all from the same start; actions move nothing."""

    def __init__(self, options: EnvOptions) -> None:
        super().__init__(options, POINTS)
        self.robot = Robot.of(self.envs[0])
        self._motions: tuple[Motion, ...] = (Motion(),) * POINTS
        self._paths: dict[int, F64] = {}
        self._over: dict[int, tuple[Any, Any, bool, bool, dict[str, Any]]] = {}
        for row, base in enumerate(self._bases):
            self._follow(row, base)

    def each_sweep(self, *, of_root: bool = False) -> Iterator[Sweep]:
        """Yield the sweeps one after the other; the next play has the motions of the last one."""
        for sweep in sweeps(self.robot, of_root=of_root):
            self._motions = sweep.motions
            yield sweep

    def each_batch(self, motions: Sequence[Motion]) -> Iterator[int]:
        """Yield batches of as many motions as rows, with the number of rows that count."""
        for first in range(0, len(motions), POINTS):
            batch = motions[first : first + POINTS]
            self._motions = (*batch, *(Motion(),) * (POINTS - len(batch)))
            yield len(batch)

    def make_screened_motions(self, asked: tuple[str, int]) -> dict[str, Motion]:
        """Return a point of a sweep under "", and the ways to cheat at it under their names."""
        points = {sweep.name: sweep.motions for sweep in sweeps(self.robot, of_root=True)}
        motion = points[asked[0]][asked[1]]
        return {"": motion, **cheats(self.robot, motion)}

    def reset_batch(self, seed: Seeds = None) -> F64:
        """Unlike others, with the same seed for every row."""
        self._paths.clear()
        self._over.clear()
        for i, env in enumerate(self.envs):
            self._obs[i] = env.reset(seed=seed if isinstance(seed, int) else None)[0]
        self._show(range(self.num_envs))
        return self._obs.copy()

    def step_row(self, row: int, action: Array) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step a row; a row whose episode is over keeps its last state."""
        if row in self._over:
            return self._over[row]
        step = super().step_row(row, action)
        if step[2] or step[3]:
            self._over[row] = step
        return step

    def begin_again(self, ended: Sequence[int]) -> None:
        """Nothing: one episode of each row is played."""

    def _follow(self, row: int, base: Any) -> None:
        """Move a row along its path instead of simulating."""
        begin, steps = base.reset_model, self.max_episode_steps
        at = 0

        def reset_model() -> Any:
            nonlocal at
            begin()
            if row not in self._paths:  # what comes after the end of an episode is not looked at
                start = base.data.qpos.copy()
                self._paths[row] = poses(self._motions[row], self.robot, start, steps)
            at = 0
            base.set_state(self._paths[row][0], np.zeros(base.model.nv))
            return base._get_obs()  # noqa: SLF001

        def do_simulation(ctrl: Any, _: int) -> None:
            nonlocal at
            at += 1
            before, pose = self._paths[row][at - 1 : at + 1]
            velocity = np.zeros(base.model.nv)
            mujoco.mj_differentiatePos(base.model, velocity, base.dt, before, pose)
            base.data.ctrl[:] = ctrl
            base.set_state(pose, velocity)
            mujoco.mj_rnePostConstraint(base.model, base.data)

        base.reset_model, base.do_simulation = reset_model, do_simulation


def play_scripts(
    config: TrainConfig, asked: Mapping[str, Any], *, seed: int
) -> Iterator[tuple[str, RecordedEpisode]]:
    """Scripted motions with their names, in the sandbox where they are those of a model file.

    `asked` is {"of_root": bool}, for all sweeps, or {"motion": (sweep, point)}, for that one, as
    "", and the cheats at it. None are played where the environment cannot be put into poses.
    """
    if is_model(config.env_id):
        from p2p.training.model_files.playing import play_scripts_in_sandbox

        yield from play_scripts_in_sandbox(config, asked, seed=seed)
    else:
        yield from play_scripts_here(config, asked, seed=seed)


def play_scripts_here(
    config: TrainConfig, asked: Mapping[str, Any], *, seed: int
) -> Iterator[tuple[str, RecordedEpisode]]:
    """Play them in this process."""
    env = scripted_env(config, QUANTITIES)
    if env is None:
        return
    for names in _named_batches(env, asked):
        episodes = play_rounds(env, "zero", episodes=len(names), seed=seed)
        yield from zip(names, episodes, strict=True)
    env.close()


def _named_batches(env: ScriptedEnv, asked: Mapping[str, Any]) -> Iterator[list[str]]:
    """The names of the motions that are played next."""
    if "motion" not in asked:
        for sweep in env.each_sweep(of_root=asked["of_root"]):
            yield [sweep.name] * POINTS
        return
    name, place = asked["motion"]
    motions = env.make_screened_motions((name, place))
    names = iter(motions)
    for count in env.each_batch([*motions.values()]):
        yield [next(names) for _ in range(count)]


def script_steps(dt: float, horizon: int) -> int:
    """Return how long an episode of a script is."""
    return min(int(np.clip(SECONDS / dt, FEWEST_STEPS, MOST_STEPS)), horizon)


def scripted_env(config: TrainConfig, quantities: Collection[str] = ()) -> ScriptedEnv | None:
    """None where the environment cannot be put into poses: it is no MuJoCo one of Gymnasium's kind.

    That of a model file loads the model: in the sandbox only. `quantities` stand in the info of
    every step, as in `make_batched_env`.
    """
    from gymnasium.envs.mujoco import MujocoEnv

    if is_engine(config.engine):
        return None
    options = replace(config.env_options(), quantities=quantities)
    env: Any = make_single(options)
    base, horizon = env.unwrapped, int(env.spec.max_episode_steps)
    env.close()
    if not isinstance(base, MujocoEnv):
        return None
    return ScriptedEnv(replace(options, max_episode_steps=script_steps(base.dt, horizon)))
