"""Episodes for the judge exam: trained policies, scripted controllers and kinematic playback.

Playback puts the simulator into a scripted pose at every step; everything else (observations, info,
the end of an episode) is what Gymnasium's own code makes of that state. A judge reads recorded
arrays only, so a trick need not be learnt to be shown to it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from p2p.config import EnvOptions
from p2p.training.envs.registry import make_single
from p2p.training.policies.policy import Policy
from p2p.training.specs.quantities import QUANTITIES, Meter, Robot, compute
from p2p.training.trajectory import ENGINE_COLUMNS, ENV_REWARD, NAMES_KEY, RecordedEpisode

Floats = NDArray[np.float64]
Control = Callable[[Any, Floats, float], Floats]
"""(environment, observation, seconds) to an action."""

TRAINED = {
    "halfcheetah_run_forward": 120_000,
    "invertedpendulum_balance": 30_000,
    "swimmer_swim_forward": 60_000,
}
"""Built-in rewards and the steps that they are trained for: under a minute of one core each."""
OPTIONS = ("num_envs=16", "num_eval_rounds=1", "num_eval_envs=4")
POLICIES = Path("policies")


def train(folder: Path, reward: str) -> None:
    """Train on a built-in reward, unless that was done before."""
    if checkpoints(folder, reward):
        return
    options = [part for option in OPTIONS for part in ("--set", option)]
    command = (sys.executable, "-m", "p2p.cli", "train", reward, "--steps", str(TRAINED[reward]))
    runs = folder / POLICIES / reward
    subprocess.run((*command, *options, "--no-videos", "--runs-dir", str(runs)), check=True)


def checkpoints(folder: Path, reward: str) -> list[Path]:
    """The policies of a finished training, the first one first."""
    runs = sorted((folder / POLICIES / reward).glob("*/iter_1"))
    ended = [run for run in runs if (run / "summary.json").is_file()]
    files = ended[-1].glob("checkpoints/*/policy.safetensors") if ended else ()
    return sorted(files, key=lambda file: int(file.parent.name.rpartition("_")[2]))


# --- recording ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """What a path is written for: the environment, its first pose and its time."""

    base: Any
    start: Floats
    t: Floats
    """(T + 1,): seconds."""

    @property
    def s(self) -> Floats:
        """(T + 1,): share of the time."""
        return self.t / self.t[-1]

    def hold(self) -> Floats:
        """(T + 1, nq): the first pose, all the time."""
        return np.tile(self.start, (len(self.t), 1))

    def grounded(self, poses: Floats, clearance: Floats | float = 0.0) -> Floats:
        """With the lowest point so far over the ground."""
        model, data = self.base.model, mujoco.MjData(self.base.model)
        z = 2 if model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE else 1
        for pose, gap in zip(poses, np.broadcast_to(clearance, len(poses)), strict=True):
            data.qpos[:] = pose
            mujoco.mj_kinematics(model, data)
            pose[z] += gap - min(lowest(model, data, body) for body in range(1, model.nbody))
        return poses


Path_ = Callable[[Stage], Floats]


@dataclass(frozen=True)
class Played:
    """Poses along a path."""

    path: Path_


@dataclass(frozen=True)
class Trained:
    """A checkpoint of a trained policy."""

    reward: str
    number: int = -1


Motion = Played | Trained | Control


def lowest(model: Any, data: Any, body: int) -> float:
    """Height of the lowest point of a body's capsules, spheres and boxes."""
    heights = [np.inf]
    first = model.body_geomadr[body]
    for geom in range(first, first + model.body_geomnum[body]):
        size, down = model.geom_size[geom], np.abs(data.geom_xmat[geom, 6:])
        kind = model.geom_type[geom]
        if kind == mujoco.mjtGeom.mjGEOM_BOX:
            reach = float(down @ size)
        else:
            length = size[1] if kind != mujoco.mjtGeom.mjGEOM_SPHERE else 0.0
            reach = float(size[0] + down[2] * length)
        heights.append(data.geom_xpos[geom, 2] - reach)
    return min(heights)


def record(env_id: str, motion: Motion, seed: int, cache: Path) -> tuple[RecordedEpisode, Floats]:
    """One episode as judges get it, and its positions from the start on, (T + 1, nq)."""
    env = make_single(EnvOptions(env_id))
    base: Any = env.unwrapped
    assert env.spec is not None
    assert env.spec.max_episode_steps is not None
    horizon = env.spec.max_episode_steps
    act: Control
    if isinstance(motion, Played):
        _follow(base, motion.path, horizon)
        act = zero
    elif isinstance(motion, Trained):
        policy = Policy.load(checkpoints(cache, motion.reward)[motion.number])
        act = lambda _, obs, __: policy.act(obs[None])[0]  # noqa: E731
    else:
        act = motion
    base.exam_rng = np.random.default_rng(seed)
    meter = Meter(Robot.of(env), QUANTITIES)
    names = dict.fromkeys((*ENGINE_COLUMNS, *meter.fields))
    obs, _ = env.reset(seed=seed)
    start = base.data.qpos.copy()
    rows: list[dict[str, Any]] = []
    infos: list[dict[str, Any]] = []
    over = False
    while not over:
        action = np.clip(
            act(base, obs, len(rows) * base.dt), base.action_space.low, base.action_space.high
        )
        next_obs, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        rows.append(
            {
                "obs": obs,
                "action": action,
                "next_obs": next_obs,
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
                **{name: getattr(base.data, name).copy() for name in names},
            }
        )
        infos.append(info)
        obs = next_obs
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    steps = np.arange(len(rows))
    episode = {
        **{name: np.array([info[name] for info in infos]) for name in infos[0]},
        **compute(meter.robot, meter.names, columns.__getitem__),
        **{name: column for name, column in columns.items() if name not in meter.fields},
        **{name: columns[name] for name in ENGINE_COLUMNS},
        "step": steps,
        "timestamp": (steps + 1) * base.dt,
        "cumulative_reward": np.cumsum(columns["reward"]),
        ENV_REWARD: columns["reward"],
        NAMES_KEY: np.array([], dtype=np.str_),
    }
    env.close()
    return RecordedEpisode.from_arrays(episode), np.concatenate([start[None], columns["qpos"]])


def _follow(base: Any, path: Path_, steps: int) -> None:
    """Let the environment go along a path instead of simulating."""
    begin = base.reset_model
    poses: list[Floats] = []

    def reset_model() -> Any:
        begin()
        stage = Stage(base, base.data.qpos.copy(), np.arange(steps + 1) * base.dt)
        poses[:] = path(stage)
        base.set_state(poses[0], np.zeros(base.model.nv))
        return base._get_obs()  # noqa: SLF001

    def do_simulation(ctrl: Any, _: int) -> None:
        velocity = np.zeros(base.model.nv)
        mujoco.mj_differentiatePos(base.model, velocity, base.dt, base.data.qpos, poses[1])
        del poses[0]
        base.data.ctrl[:] = ctrl
        base.set_state(poses[0], velocity)
        mujoco.mj_rnePostConstraint(base.model, base.data)

    base.reset_model, base.do_simulation = reset_model, do_simulation


# --- scripted controllers -------------------------------------------------------------------------


def zero(base: Any, _: Floats, __: float) -> Floats:
    return np.zeros(base.model.nu)


def random(base: Any, _: Floats, __: float) -> Floats:
    space = base.action_space
    return np.asarray(base.exam_rng.uniform(space.low, space.high))


def sines(
    amplitude: float, hertz: float, phase: float, bias: float = 0.0, until: float = np.inf
) -> Control:
    """Swimmer: a wave through its two joints."""

    def control(base: Any, _: Floats, t: float) -> Floats:
        wave = 2 * np.pi * hertz * t
        on = amplitude * float(t < until)
        # Around a bent or straight posture.
        hold = 0.5 * (bias - base.data.qpos[3:5])
        return on * np.sin([wave, wave + phase]) + (hold if bias else 0.0)

    return control


@cache
def _balancing_gain(env_id: str) -> Floats:
    """Of a linear-quadratic regulator around the upright pole."""
    import gymnasium as gym

    base: Any = gym.make(env_id).unwrapped
    size, nudge = 2 * base.model.nv, 1e-5

    def after(state: Floats, action: float) -> Floats:
        base.set_state(*np.split(state, 2))
        base.do_simulation(np.full(base.model.nu, action), base.frame_skip)
        return np.concatenate([base.data.qpos, base.data.qvel])

    base.reset()
    nudges = nudge * np.eye(size)
    a = np.stack([after(n, 0.0) - after(-n, 0.0) for n in nudges], axis=1) / (2 * nudge)
    b = ((after(np.zeros(size), nudge) - after(np.zeros(size), -nudge)) / (2 * nudge))[:, None]
    cost = np.eye(size)
    value = cost
    for _ in range(2000):
        gain = np.linalg.solve(b.T @ value @ b + 5.0, b.T @ value @ a)
        value = cost + a.T @ value @ (a - b @ gain)
    return np.asarray(gain)


def balance(target: Callable[[float], float], until: float = np.inf, shake: float = 0.0) -> Control:
    """Cart and poles: keep the poles up and the cart at a place that may change."""

    def control(base: Any, _: Floats, t: float) -> Floats:
        if t >= until:
            return np.zeros(base.model.nu)
        state = np.concatenate([base.data.qpos, base.data.qvel])
        state[0] -= target(t)
        noise = shake * base.exam_rng.normal(size=base.model.nu)
        return -_balancing_gain(base.spec.id) @ state + noise

    return control


def fingertip(place: Callable[[Floats, float], Floats]) -> Control:
    """Reacher: bring the fingertip to where `place(target, seconds)` says."""

    def control(base: Any, _: Floats, t: float) -> Floats:
        x, y = place(base.data.qpos[2:4].copy(), t)
        reach = np.clip(np.hypot(x, y), 0.02, 0.2095)
        bend = np.arccos(np.clip((reach**2 - 0.1**2 - 0.11**2) / (2 * 0.1 * 0.11), -1, 1))
        if base.data.qpos[1] < 0:
            bend = -bend
        aim = np.arctan2(y, x) - np.arctan2(0.11 * np.sin(bend), 0.1 + 0.11 * np.cos(bend))
        error = np.array([aim, bend]) - base.data.qpos[:2]
        error = (error + np.pi) % (2 * np.pi) - np.pi
        return 0.6 * error - 0.05 * base.data.qvel[:2]

    return control


# --- paths ----------------------------------------------------------------------------------------


def steady(speed: float) -> Callable[[Stage], Floats]:
    return lambda stage: speed * stage.t


def burst(speed: float, share: float) -> Callable[[Stage], Floats]:
    """All of the way in the first part of the time."""
    return lambda stage: speed * stage.t[-1] * np.minimum(stage.s, share)


def ramp(stage: Stage, first: float, last: float) -> Floats:
    """0 before a share of the time, 1 after another."""
    return np.clip((stage.s - first) / (last - first), 0.0, 1.0)


Track = Callable[[Stage], Floats]
Wave = Callable[[Stage], Floats]


def still(_: Stage) -> Floats:
    return np.zeros(1)


def alternate(size: float) -> Wave:
    """To and fro from step to step."""
    return lambda stage: size * (-1.0) ** np.arange(len(stage.t))


def swing(size: float, seconds: float) -> Wave:
    return lambda stage: size * np.sin(2 * np.pi * stage.t / seconds)


def cheetah(x: Track = still, pitch: Wave = still, trot: float = 0.0, up: Wave = still) -> Played:
    """Gallop-like legs under a torso that goes along x with a pitch (positive: nose down)."""

    def path(stage: Stage) -> Floats:
        poses = stage.hold()
        poses[:, 0] += x(stage)
        poses[:, 2] += pitch(stage)
        legs = trot * np.sin(4 * np.pi * stage.t)
        moving = np.abs(np.gradient(poses[:, 0], stage.t)) > 0.1
        poses[:, 3] += legs * moving
        poses[:, 6] -= legs * moving
        return stage.grounded(poses, up(stage))

    return Played(path)


def flip(turns: float, begin: float = 2.0, seconds: float = 1.0, height: float = 0.6) -> Played:
    """Leap and turn; backward turns are positive."""

    def path(stage: Stage) -> Floats:
        phase = np.clip((stage.t - begin) / seconds, 0.0, max(1.0, abs(turns)))
        whole = abs(turns) >= 1
        angle = np.sign(turns) * (phase if whole else phase * abs(turns)) * 2 * np.pi
        poses = stage.hold()
        poses[:, 2] -= angle
        air = height * np.abs(np.sin(np.pi * phase))
        return stage.grounded(poses, air)

    return Played(path)


def hopper(
    speed: float = 0.0, rate: float = 0.0, height: float = 0.12, bob: float = 0.0,
    once: float = 0.0, falls_at: float = 2.0, x: Track | None = None,
) -> Played:  # fmt: skip
    """Hops a second of a height; `bob` bends the leg without leaving the ground."""

    def path(stage: Stage) -> Floats:
        poses = stage.hold()
        poses[:, 0] += speed * stage.t if x is None else x(stage)
        wave = np.sin(2 * np.pi * rate * stage.t)
        if once:
            wave = np.where(stage.t < once, np.sin(2 * np.pi * stage.t / once), 0.0)
        bend = 0.1 + 0.35 * np.maximum(-wave, 0.0) + bob * (1 - np.cos(4 * np.pi * stage.t)) / 2
        poses[:, 3] -= bend
        poses[:, 4] -= 2 * bend
        poses[:, 5] = np.clip(3 * bend, 0.0, 0.78)  # the foot flat
        air = height * np.maximum(wave, 0.0)
        return toppled(stage, stage.grounded(poses, air), falls_at)

    return Played(path)


def toppled(stage: Stage, poses: Floats, falls_at: float) -> Floats:
    """Of a planar robot: tips over from a share of the time on."""
    poses[:, 2] += 1.5 * ramp(stage, falls_at, falls_at + 0.03)
    return poses


def walker(
    speed: float = 0.0, right: float = 0.0, left: float = 0.0, hertz: float = 1.0,
    raised: str = "", rate: float = 0.0, falls_at: float = 2.0, lean: float = 0.0,
    reverse: bool = False,
) -> Played:  # fmt: skip
    """Legs swing by `right` and `left` rad, against each other where their signs are the same."""

    def path(stage: Stage) -> Floats:
        poses = stage.hold()
        poses[:, 0] += speed * stage.t
        poses[:, 2] += lean
        wave = np.sin(2 * np.pi * hertz * stage.t)
        rise = np.cos(2 * np.pi * hertz * stage.t)
        poses[:, 3] += -0.25 + right * wave
        poses[:, 4] += -0.1 - right * np.maximum(rise, 0.0)
        poses[:, 6] += -0.25 - left * wave
        poses[:, 7] += -0.1 - abs(left) * np.maximum(-np.sign(left) * rise, 0.0)
        for first in (3, 6):  # the foot flat
            poses[:, first + 2] = np.clip(-poses[:, first] - poses[:, first + 1], -0.78, 0.78)
        for first, side in ((3, "right"), (6, "left")):
            if raised == side:
                poses[:, first : first + 2] = (-0.9, -1.5)
            if raised == f"{side} slightly":
                poses[:, first : first + 2] += (-0.03, -0.06)
            if raised == f"{side} toes":
                poses[:, first + 2] = 0.78
        air = 0.1 * np.maximum(np.sin(2 * np.pi * rate * stage.t), 0.0)
        poses = toppled(stage, stage.grounded(poses, air), falls_at)
        return poses[::-1].copy() if reverse else poses

    return Played(path)


def _turned(roll: Floats, heading: Floats) -> Floats:
    """Quaternions of a roll about the own x axis, then a heading about z."""
    ones = np.ones(max(len(np.atleast_1d(roll)), len(np.atleast_1d(heading))))
    r, h = roll * ones / 2, heading * ones / 2
    (ch, sh), (cr, sr) = ((np.cos(angle), np.sin(angle)) for angle in (h, r))
    return np.stack([ch * cr, ch * sr, sh * sr, sh * cr], axis=-1)


def ant(
    x: Track = still, y: Track = still, heading: Wave = still, roll: Wave = still,
    trot: float = 0.25, carried: int | None = None,
) -> Played:  # fmt: skip
    """Legs that trot under a body that goes and turns as it likes; one may be carried along."""

    def path(stage: Stage) -> Floats:
        poses = stage.hold()
        poses[:, 0] += x(stage)
        poses[:, 1] += y(stage)
        poses[:, 3:7] = _turned(roll(stage), heading(stage))
        legs = trot * np.sin(4 * np.pi * stage.t)
        for number, ankle in enumerate((0.8, -0.8, -0.8, 0.8)):
            poses[:, 7 + 2 * number] = 0.0 if number == carried else legs * (-1) ** number
            poses[:, 8 + 2 * number] = 0.5 * ankle if number == carried else ankle
        return stage.grounded(poses)

    return Played(path)


def swimmer(x: Track = still, y: Track = still, heading: Wave = still, wave: float = 0.5) -> Played:
    def path(stage: Stage) -> Floats:
        poses = stage.hold()
        poses[:, 0] += x(stage)
        poses[:, 1] += y(stage)
        poses[:, 2] = heading(stage)
        poses[:, 3] = wave * np.sin(2 * np.pi * stage.t)
        poses[:, 4] = wave * np.sin(2 * np.pi * stage.t + 1.5)
        return poses

    return Played(path)


def _arm_to(stage: Stage, pose: Floats, place: Floats) -> Floats:
    """Pusher: joints that bring the hand to a place, or as near as it gets."""
    model, data = stage.base.model, mujoco.MjData(stage.base.model)
    body, jac = model.body("tips_arm").id, np.zeros((3, model.nv))
    data.qpos[:] = pose
    for _ in range(60):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        gap = place - data.xpos[body]
        mujoco.mj_jacBody(model, data, jac, None, body)
        arm = jac[:, :7]
        step = arm.T @ np.linalg.solve(arm @ arm.T + 1e-3 * np.eye(3), gap)
        data.qpos[:7] += np.clip(step, -0.2, 0.2)
        data.qpos[:7] = np.clip(data.qpos[:7], *model.jnt_range[:7].T)
    return np.asarray(data.qpos[:7].copy())


def pusher(ways: tuple[float, ...], hand: tuple[float, ...], goal_hand: bool = False) -> Played:
    """The object goes these shares of the way to the goal; the hand keeps these distances to it.

    Both are given at evenly spaced times, and linear in between.
    """

    def path(stage: Stage) -> Floats:
        model, data = stage.base.model, mujoco.MjData(stage.base.model)
        data.qpos[:] = stage.start
        mujoco.mj_kinematics(model, data)
        thing, goal = (data.xpos[model.body(name).id].copy() for name in ("object", "goal"))
        way = np.interp(stage.s, np.linspace(0, 1, len(ways)), ways)
        away = np.interp(stage.s, np.linspace(0, 1, len(hand)), hand)
        poses = stage.hold()
        poses[:, 7] += way * (goal - thing)[1]
        poses[:, 8] += way * (goal - thing)[0]
        pose = poses[0].copy()
        back = (thing - goal) / np.linalg.norm(thing - goal)
        for row, share, gap in zip(poses, way, away, strict=True):
            place = goal if goal_hand else thing + share * (goal - thing)
            pose[:7] = _arm_to(stage, pose, place + gap * back)
            row[:7] = pose[:7]
        return poses

    return Played(path)


Posture = Mapping[str, float]


def humanoid(
    *postures: tuple[float, Posture], x: Track = still, y: Track = still, shake: float = 0.0,
    pitch: tuple[tuple[float, float], ...] = ((0.0, 0.0),), raised: str = "",
) -> Played:  # fmt: skip
    """Postures (joint angles by name) at shares of the time, linear in between.

    `pitch`: how far the whole leans from its first pose at shares of the time, in rad.
    `raised` holds up an arm: right or left; with a share behind it, only for that of each second.
    """

    def path(stage: Stage) -> Floats:
        model = stage.base.model
        poses = stage.hold()
        poses[:, 3:7] = (1, 0, 0, 0)
        poses[:, 7:] = 0
        times = [time for time, _ in postures]
        for name in {name for _, posture in postures for name in posture}:
            values = [posture.get(name, 0.0) for _, posture in postures]
            poses[:, model.joint(name).qposadr[0]] = np.interp(stage.s, times, values)
        side, _, share = raised.partition(" ")
        if side:
            arm = _arm_up(stage, side)
            now = (stage.t % 2.0) < 2.0 * float(share or 1.0)
            poses[np.ix_(now, list(arm))] = list(arm.values())
        half = np.interp(stage.s, *zip(*pitch, strict=True)) / 2
        poses[:, 3], poses[:, 5] = np.cos(half), np.sin(half)
        poses[:, 0] += x(stage)
        poses[:, 1] += y(stage)
        poses[:, 7:] += alternate(shake)(stage)[:, None]
        return stage.grounded(poses)

    return Played(path)


def _arm_up(stage: Stage, side: str) -> dict[int, float]:
    """Shoulder angles that bring the elbow highest, by address."""
    model, data = stage.base.model, mujoco.MjData(stage.base.model)
    joints = [model.joint(f"{side}_shoulder{number}") for number in (1, 2)]
    best: tuple[float, dict[int, float]] = (-np.inf, {})
    for angles in product(*(np.linspace(*joint.range, 9) for joint in joints)):
        data.qpos[:] = 0
        data.qpos[2:4] = (1.4, 1.0)
        chosen = {int(j.qposadr[0]): float(a) for j, a in zip(joints, angles, strict=True)}
        for address, angle in chosen.items():
            data.qpos[address] = angle
        mujoco.mj_kinematics(model, data)
        height = float(data.body(f"{side}_lower_arm").xpos[2])
        best = max(best, (height, chosen), key=lambda each: each[0])
    return best[1]


def knees(bend: float) -> Posture:
    """Both legs bent, the feet below the hips."""
    joints: dict[str, float] = {}
    for side in ("right", "left"):
        joints |= {f"{side}_hip_y": -bend, f"{side}_knee": -2 * bend}
    return joints


def hips(bend: float) -> Posture:
    return {"right_hip_y": -bend, "left_hip_y": -bend}
