"""Plain prompts on DM Control's models against its own rewards, on the same trainer and steps.

python benchmarks/dmc_suite.py [--models FOLDER] [--minutes M] [--jobs N] [--steps N] [--write]

Each row of dmc_suite.csv is trained twice: from its prompt by a session with the built-in author
(`p2p run PROMPT --env FILE --model builtin --iterations 1`), and from the native reward as a reward
file (the oracle, `p2p train`), on one core each. Both policies are played for ten episodes on seeds
of their own, and measured by the native return (`dmc_returns.py`), 0 to 1000. A run is
kept as soon as it is measured, and no run starts that would end after --minutes. With --write the
table is results/dmc_suite.md.

The model files are those of the installed package dm_control (which itself need not run), or of a
folder. What its tasks change in them before they begin is done to copies: see `Task.edit`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from textwrap import indent
from typing import Any

import mujoco
import numpy as np
from common import Job, add_run_options, measure, table
from dmc_returns import native_return

NAME = "dmc_suite"
PROMPTS = Path(__file__).with_suffix(".csv")
STEPS = 500_000
EPISODES, FIRST_SEED = 10, 70_000
CONTENDERS = ("prompt", "oracle")
MODELS, WORK = "P2P_DMC_MODELS", "P2P_DMC_WORK"
"""Environment variables that take --models and --folder to a run's own process."""
REFUSED = re.compile("refus|keyless author cannot")
ENDED = {0, 3, 7, 11}
"""Exit statuses of sessions that came to a verdict, or refused."""
GOOD, COUNTS = 0.9, 200.0
"""The share of the oracle's return that a prompt is to reach, where the oracle's counts."""

Row = dict[str, Any]


# --- the models -----------------------------------------------------------------------------------


Edit = Callable[[mujoco.MjSpec], None]


@dataclass(frozen=True)
class Task:
    """What a task changes in its model file, and its reward over a batch of steps."""

    oracle: str
    """Lines of code that set `reward`, of the names that `ORACLE` makes; {x} are ids of bodies."""
    edit: Edit | None = None
    start: dict[str, float] | None = None
    """Joints that begin elsewhere than in the file."""
    orientation: tuple[float, float, float, float] | None = None
    """Of a free body, where it begins otherwise turned."""
    ranges: dict[str, tuple[float, float]] | None = None
    """Joints that begin anywhere between two values."""
    heading: bool = False
    """Whether the policy sees where it is and heads."""


def movable_target(*axes: str, reach: float) -> Edit:
    """Make the target a body that begins anywhere: nothing moves it, and it touches nothing."""

    def edit(spec: mujoco.MjSpec) -> None:
        shape = spec.geom("target")
        place = np.where([axis in axes for axis in "xyz"], 0.0, shape.pos)
        size, colour = shape.size.copy(), shape.rgba.copy()
        spec.delete(shape)
        body = spec.worldbody.add_body(name="target", pos=place)
        for axis in axes:
            body.add_joint(
                name=f"target_{axis}",
                type=mujoco.mjtJoint.mjJNT_SLIDE,
                axis=[float(axis == other) for other in "xyz"],
                range=[-reach, reach],
                limited=mujoco.mjtLimited.mjLIMITED_TRUE,
                damping=[1.0, 0.0, 0.0],
                armature=1.0,
            )
        body.add_geom(
            name="target", type=mujoco.mjtGeom.mjGEOM_SPHERE, size=size, rgba=colour, mass=1e-3,
            contype=0, conaffinity=0,
        )  # fmt: skip

    return edit


def loosen_spinner(spec: mujoco.MjSpec) -> None:
    spec.joint("hinge").damping = [0.03, 0.0, 0.0]


def clear_arena(spec: mujoco.MjSpec) -> None:
    """Only the robot and the floor."""
    for name in ("wall_px", "wall_py", "wall_nx", "wall_ny", "terrain"):
        spec.delete(spec.geom(name))
    spec.delete(spec.body("ball"))
    spec.delete(spec.site("target"))
    for sensor in list(spec.sensors):
        if sensor.type == mujoco.mjtSensor.mjSENS_RANGEFINDER:
            spec.delete(sensor)


def swim_to(target: Edit, body: str, part: str) -> Edit:
    """With a body where the part is that has to get there."""

    def edit(spec: mujoco.MjSpec) -> None:
        target(spec)
        spec.body(body).add_body(name=part, pos=middle_of(spec.geom(part)))

    return edit


def middle_of(geom: Any) -> Any:
    ends = np.array(geom.fromto)
    return (ends[:3] + ends[3:]) / 2 if np.isfinite(ends).all() else geom.pos


def six_links(spec: mujoco.MjSpec) -> None:
    """The head and five links, a motor on each joint between them."""
    parent = spec.body("head")
    for i in range(5):
        parent = parent.add_body(name=f"segment_{i}", pos=[0.0, 0.1, 0.0])
        parent.add_joint(
            name=f"joint_{i}", type=mujoco.mjtJoint.mjJNT_HINGE, pos=[0, -0.05, 0], axis=[0, 0, 1],
            range=[-np.pi / 3, np.pi / 3], limited=mujoco.mjtLimited.mjLIMITED_TRUE, armature=1e-6,
            solref_limit=[0.05, 1], solimp_limit=[0, 0.8, 0.1, 0.5, 2],
        )  # fmt: skip
        parent.add_geom(
            type=mujoco.mjtGeom.mjGEOM_CAPSULE, size=[0.01, 0, 0], mass=0, rgba=[0.7, 0.5, 0.3, 1],
            fromto=[0, -0.05, 0, 0, 0.05, 0],
        )  # fmt: skip
        parent.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.001, 0.05, 0.01], mass=0.01, rgba=[0, 0, 0, 0]
        )
        motor = spec.add_actuator(
            name=f"motor_{i}", trntype=mujoco.mjtTrn.mjTRN_JOINT, target=f"joint_{i}",
            ctrlrange=[-1, 1], ctrllimited=mujoco.mjtLimited.mjLIMITED_TRUE,
        )  # fmt: skip
        motor.gear[0] = 5e-4


def swim_far(spec: mujoco.MjSpec) -> None:
    six_links(spec)
    swim_to(movable_target("x", "y", reach=2.0), "head", "nose")(spec)


ORACLE = '''"""The native reward of {task}."""

import numpy as np


def near(value, low, high, margin, at_margin=0.1, falloff="gaussian"):
    away = np.maximum(np.maximum(low - value, value - high), 0.0) / margin
    if falloff == "linear":
        return np.maximum(1.0 - (1.0 - at_margin) * away, 0.0)
    if falloff == "quadratic":
        return np.maximum(1.0 - (1.0 - at_margin) * away**2, 0.0)
    if falloff == "long_tail":
        return 1.0 / (1.0 + (1.0 / at_margin - 1.0) * away**2)
    return at_margin ** (away**2)


def reward_fn(obs, action, next_obs, info):
    """The native reward of {task}.

    Terms:
        reward: the native reward, 0 to 1
    """
    action = np.clip(action, -1.0, 1.0)
    spent = near(action, 0.0, 0.0, 1.0, 0.0, "quadratic")
    little_control = (4.0 + np.mean(spent, axis=-1)) / 5.0
{body}
    return reward, {{"reward": reward}}
'''


def walker(speed: float) -> str:
    moves = f"""
moves = near(info["com_velocity"][..., 0], {speed}, np.inf, {speed / 2}, 0.5, "linear")
reward = stands * (5 * moves + 1) / 6"""
    return f"""
high = near(info["body_position"][..., {{torso}}, 2], 1.2, np.inf, 0.6)
stands = (3 * high + (1 + info["body_up"][..., {{torso}}, 2]) / 2) / 4
{moves if speed else "reward = stands"}"""


def hopper(speed: float) -> str:
    moves = f'near(info["com_velocity"][..., 0], {speed}, np.inf, {speed / 2}, 0.5, "linear")'
    return f"""
above = info["body_com"][..., {{torso}}, 2] - info["body_com"][..., {{foot}}, 2]
reward = 1.0 * ((above >= 0.6) & (above <= 2)) * {moves if speed else "little_control"}"""


def humanoid(speed: float) -> str:
    still = "np.mean(near(across, 0, 0, 2.0), axis=-1)"
    moves = f'(5 * near(pace, {speed}, np.inf, {speed}, 0.0, "linear") + 1) / 6'
    return f"""
high = near(info["body_position"][..., {{head}}, 2], 1.4, np.inf, 0.35)
up = near(info["body_up"][..., {{torso}}, 2], 0.9, np.inf, 1.9, 0.0, "linear")
across = info["com_velocity"][..., :2]
pace = np.sqrt(np.sum(across**2, axis=-1))
reward = little_control * high * up * {moves if speed else still}"""


def quadruped(speed: float) -> str:
    return f"""
up = near(info["body_up"][..., {{torso}}, 2], 1.0, np.inf, 2.0, 0.0, "linear")
ahead = next_obs[..., {{own_velocity_x}}]
reward = up * near(ahead, {speed}, np.inf, {speed}, 0.5, "linear")"""


CARTPOLE = """
middle = (1 + near(info["body_position"][..., {cart}, 0], 0, 0, 2.0)) / 2
slow = (1 + near(next_obs[..., {hinge_1_angular_velocity}], 0, 0, 5.0)) / 2
reward = (info["body_up"][..., {pole_1}, 2] + 1) / 2 * little_control * slow * middle"""
ACROBOT = """
tip = info["body_position"][..., {lower_arm}, :] + info["body_up"][..., {lower_arm}, :]
away = tip - np.array([0.0, 0.0, 4.0])
reward = near(np.sqrt(np.sum(away**2, axis=-1)), 0.0, 0.2, 1.0)"""
REACHER = """
away = info["body_position"][..., {finger}, :2] - info["body_position"][..., {target}, :2]
reward = 1.0 * (np.sqrt(np.sum(away**2, axis=-1)) <= 0.06)"""
FISH = """
away = info["body_position"][..., {mouth}, :] - info["body_position"][..., {target}, :]
there = near(np.sqrt(np.sum(away**2, axis=-1)), 0.0, 0.045, 0.09)
reward = (7 * there + (info["body_up"][..., {torso}, 2] + 1) / 2) / 8"""
SWIMMER = """
away = info["body_position"][..., {nose}, :2] - info["body_position"][..., {target}, :2]
reward = near(np.sqrt(np.sum(away**2, axis=-1)), 0.0, 0.1, 0.5, 0.1, "long_tail")"""
CUP = """
away = info["body_position"][..., {ball}, :] - info["body_position"][..., {cup}, :]
reward = 1.0 * (np.abs(away[..., 0]) < 0.025) * (np.abs(away[..., 2] + 0.05) < 0.025)"""
POINT_MASS = """
away = info["body_position"][..., {pointmass}, :] - np.array([0.0, 0.0, 0.01])
reward = near(np.sqrt(np.sum(away**2, axis=-1)), 0.0, 0.015, 0.015) * little_control"""

CONTROL_STEPS = {
    "walker.xml": 0.025, "humanoid.xml": 0.025, "cheetah.xml": 0.01, "cartpole.xml": 0.01,
    "acrobot.xml": 0.01, "fish.xml": 0.04, "swimmer.xml": 0.03,
}  # fmt: skip
"""Seconds between two actions, where not 0.02; an episode has 1,000 of them."""
TASKS: dict[str, Task] = {
    "walker-stand": Task(walker(0)),
    "walker-walk": Task(walker(1)),
    "walker-run": Task(walker(8)),
    "cheetah-run": Task('reward = np.clip(info["com_velocity"][..., 0] / 10.0, 0.0, 1.0)'),
    "hopper-stand": Task(hopper(0)),
    "hopper-hop": Task(hopper(2)),
    "humanoid-stand": Task(humanoid(0)),
    "humanoid-walk": Task(humanoid(1)),
    "humanoid-run": Task(humanoid(10)),
    "quadruped-walk": Task(quadruped(0.5), clear_arena),
    "quadruped-run": Task(quadruped(5), clear_arena),
    "cartpole-balance": Task(CARTPOLE),
    "cartpole-swingup": Task(CARTPOLE, start={"hinge_1": np.pi}),
    "pendulum-swingup": Task(
        'reward = 1.0 * (info["body_up"][..., {pole}, 2] >= np.cos(np.radians(8)))',
        start={"hinge": np.pi},
    ),
    "acrobot-swingup": Task(ACROBOT, start={"shoulder": np.pi}),
    "reacher-easy": Task(
        REACHER, movable_target("x", "y", reach=0.15),
        ranges={"target_x": (-0.14, 0.14), "target_y": (-0.14, 0.14)},
    ),
    "finger-spin": Task(
        "reward = 1.0 * (next_obs[..., {hinge_angular_velocity}] <= -15)", loosen_spinner
    ),
    "fish-upright": Task(
        'reward = near(info["body_up"][..., {torso}, 2], 1.0, 1.0, 1.0)',
        orientation=(0.0, 0.0, 1.0, 0.0),
    ),
    "fish-swim": Task(
        FISH, swim_to(movable_target("x", "y", reach=0.4), "torso", "mouth"), heading=True,
        ranges={"target_x": (-0.4, 0.4), "target_y": (-0.4, 0.4)},
    ),
    "swimmer6-swim": Task(
        SWIMMER, swim_far, heading=True, ranges={"target_x": (-0.6, 0.6), "target_y": (-0.6, 0.6)}
    ),
    "ball_in_cup-catch": Task(CUP),
    "point_mass-easy": Task(
        POINT_MASS, ranges={"root_x": (-0.29, 0.29), "root_y": (-0.29, 0.29)}
    ),
}  # fmt: skip


def models_folder() -> Path:
    """Where the model files are: --models, or in the installed package, which is not imported."""
    if given := os.environ.get(MODELS):
        return Path(given)
    package = find_spec("dm_control")
    if package is None or not package.submodule_search_locations:
        raise SystemExit(
            "there is no package dm_control here: give the folder of its model files with --models"
        )
    return Path(package.submodule_search_locations[0]) / "suite"


def write_model(task: str, file: str, folder: Path) -> Path:
    """Write the task's model file, and beside it what the file does not say."""
    change = TASKS[task]
    spec = mujoco.MjSpec.from_file(str(models_folder() / file))
    if change.edit:
        change.edit(spec)
    spec.compile()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task.replace('-', '_')}.xml"
    path.write_text(spec.to_xml())
    step = CONTROL_STEPS.get(file, 0.02)
    lines = [
        f"control_step = {step}", f"episode = {1000 * step:g}",
        f"observe_heading = {str(change.heading).lower()}", "[start]",
        *([f"orientation = {list(change.orientation)}"] if change.orientation else []),
        "[start.joints]", *(f"{joint} = {value}" for joint, value in (change.start or {}).items()),
        "[start.ranges]",
        *(f"{joint} = {list(ends)}" for joint, ends in (change.ranges or {}).items()),
    ]  # fmt: skip
    path.with_suffix(".toml").write_text("\n".join(lines) + "\n")
    return path


# --- one run --------------------------------------------------------------------------------------


def prompts() -> dict[str, Row]:
    with PROMPTS.open(newline="", encoding="utf-8") as file:
        return {row["task"]: dict(row) for row in csv.DictReader(file)}


def run_one(job: list[Any]) -> Row:
    """Train and measure one contender of one task."""
    task, contender, steps = str(job[0]), str(job[1]), int(job[2])
    case = prompts()[task]
    home = Path(os.environ[WORK]) / f"{task}-{contender}"
    home.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    env_id = adopted(write_model(task, case["model"], home / "model"))
    if contender == "prompt":
        row = by_prompt(case["instruction"], env_id, steps, home)
    else:
        row = by_reward(task, env_id, steps, home)
    policy = row.pop("policy")
    row |= {"minutes": round((time.monotonic() - began) / 60, 2)}
    if policy is not None:
        row["returns"] = [round(value, 1) for value in native_returns(task, env_id, policy)]
        row["value"] = round(fmean(row["returns"]), 1)
    return {"task": task, "contender": contender, "steps": steps, **row}


def adopted(path: Path) -> str:
    from p2p.training.model_files.adoption import adopt

    return adopt(path)


def by_prompt(prompt: str, env_id: str, steps: int, home: Path) -> Row:
    from p2p.benchmark.measuring import policy_file
    from p2p.records.iteration_record import SessionRecord
    from p2p.records.statuses import STATUS

    runs = Path(tempfile.mkdtemp(prefix="runs_", dir=home))
    command = [
        sys.executable, "-m", "p2p.cli", "run", prompt, "--env", env_id, "--model", "builtin",
        "--iterations", "1", "--no-videos", "--runs-dir", str(runs), "--steps", str(steps),
        "--seeds", "1", "--cores-per-run", "1", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    sessions = sorted(runs.glob("session_*"))
    if done.returncode not in ENDED or not sessions:
        return {
            "outcome": "refused" if REFUSED.search(done.stdout + done.stderr) else "error",
            "message": (done.stdout + done.stderr)[-1500:],
            "policy": None,
        }
    result = SessionRecord(sessions[-1]).result.read()
    assert result is not None
    return {
        "outcome": STATUS[result.status].outcome,
        "message": result.message or "",
        "score": result.score,
        "unchecked": list(result.unchecked_words),
        "policy": policy_file(sessions[-1], result),
    }


def by_reward(task: str, env_id: str, steps: int, home: Path) -> Row:
    from p2p.training.hp_presets import quick_config

    reward, config, runs = home / "reward.py", home / "config.json", home / "runs"
    reward.write_text(oracle(task, env_id))
    config.write_text(quick_config(env_id, total_timesteps=steps).model_dump_json())
    command = [
        sys.executable, "-m", "p2p.cli", "train", str(reward), "--env", env_id,
        "--config", str(config), "--no-videos", "--runs-dir", str(runs), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{task}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return {
        "outcome": "trained",
        "policy": Path(json.loads(done.stdout)["policy"]).with_name("policy.safetensors"),
    }


def oracle(task: str, env_id: str) -> str:
    """The native reward as the source of a reward."""
    from p2p.training.env_spec import get_env_spec

    spec = get_env_spec(env_id)
    places = {body.name: str(body.id) for body in spec.bodies}
    places |= {entry.name.replace(" ", "_"): str(entry.index) for entry in spec.observation}
    body = TASKS[task].oracle.strip().format(**places)
    return ORACLE.format(task=task, body=indent(body, "    "))


def native_returns(task: str, env_id: str, policy_file: Path) -> Iterator[float]:
    """Of ten deterministic episodes on seeds that no training or judging used."""
    from p2p.config import EnvOptions
    from p2p.training.envs.registry import make_single
    from p2p.training.policies.policy import Policy

    policy = Policy.load(policy_file)
    env = make_single(EnvOptions(env_id, observe_time=policy.observe_time))
    model, data = env.unwrapped.model, env.unwrapped.data
    horizon = env.spec.max_episode_steps
    for seed in range(FIRST_SEED, FIRST_SEED + EPISODES):
        obs, _ = env.reset(seed=seed)
        states, over = [], False
        while not over:
            obs, _, terminated, truncated, _ = env.step(policy.act(obs[None])[0])
            states.append((data.qpos.copy(), data.qvel.copy(), data.ctrl.copy()))
            over = terminated or truncated
        qpos, qvel, ctrl = (np.stack(part) for part in zip(*states, strict=True))
        yield native_return(task, model, qpos, qvel, ctrl, horizon)
    env.close()


# --- the table ------------------------------------------------------------------------------------


def report(rows: list[Row], about: list[str]) -> str:
    cases = prompts()
    by_run = {(row["task"], row["contender"]): row for row in rows}
    lines, met, counted, false_passes, stricter, refused = [], 0, 0, 0, 0, []
    for task, case in cases.items():
        ours, best = by_run.get((task, "prompt")), by_run.get((task, "oracle"))
        if ours is None and best is None:
            continue
        value, most = (None if row is None else row.get("value") for row in (ours, best))
        outcome = "not run" if ours is None else str(ours["outcome"]).replace("_", " ")
        truth = value is not None and value >= float(case["threshold"])
        if ours is not None and ours["outcome"] == "refused":
            refused.append((task, ours["message"]))
        false_passes += outcome == "passed" and not truth
        stricter += truth and outcome == "not passed"
        share = ""
        if most is not None and most > COUNTS and ours is not None:
            counted += 1
            met += (value or 0.0) >= GOOD * most
            share = f"{(value or 0.0) / most:.0%}"
        numbers = ("" if number is None else f"{number:.0f}" for number in (value, most))
        wanted = f"{case['threshold']}: {'met' if truth else 'missed'}" if ours else ""
        lines.append([f"{task}: {case['instruction']}", *numbers, share, outcome, wanted])
    header = ["task: prompt", "prompt", "oracle", "share", "verdict", "native return asked"]
    text = [
        "# DM Control's tasks from plain prompts", "",
        *(__doc__ or "").split("\n\n")[2].splitlines(), "", *about, "",
        f"- Tasks where the prompt reaches {GOOD:.0%} of the oracle's return: {met} of {counted}.",
        f"- Counted are those where the oracle exceeds {COUNTS:.0f}.",
        f"- False passes: {false_passes}. Not passed though the return is met: {stricter}.",
        f"- Refused: {len(refused)}.",
        "", table(header, lines), "",
    ]  # fmt: skip
    text += [f"- {task}: {' '.join(message.split())[:400]}" for task, message in refused]
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_run_options(parser)
    parser.add_argument("--models", type=Path, help="folder of DM Control's model files")
    parser.add_argument("--folder", type=Path, default=Path("outputs/dmc_suite"))
    parser.add_argument("--steps", type=int, default=STEPS, help="of every training")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--expected-minutes", type=float, default=4.0, help="that a run takes")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(json.loads(options.one))))
        return
    if options.models:
        os.environ[MODELS] = str(options.models.resolve())
    os.environ[WORK] = str(options.folder.resolve())
    wanted: list[Job] = [
        (task, contender, options.steps)
        for task in options.tasks
        for contender in options.contenders
    ]
    measure(
        options, __file__, NAME, wanted,
        job_of=lambda row: (row["task"], row["contender"], row["steps"]),
        report=report,
        seconds_of=lambda _: 60 * options.expected_minutes,
    )  # fmt: skip


if __name__ == "__main__":
    main()
