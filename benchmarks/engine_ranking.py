"""Do two engines agree on what rewards are good for? Ten rewards on MuJoCo's and Isaac Lab's ant.

The question is a user's: whoever compares rewards on one engine wants to choose as they would on
the other. Ten reward files for the ant (rewards/ant) are the candidates; the very same text is used
on both, through the named quantities of `info`.

1. Rewards by what they teach. Each is trained on Ant-v5 and on Isaac-Ant with our trainers, with
   the same settings and the same number of steps. The policy then acts without noise from 128
   starts. Its mean velocity along +x over 5 s, the whole of every episode, is its score: it means
   the same on both engines and is no reward's own value. The ten scores give a ranking on each
   engine; Spearman's coefficient compares the two (first seeds). Other seeds on MuJoCo alone say
   how much of a disagreement is chance: engines can hardly agree more than two seeds of one do.
   Several rewards ask for no motion along x (stand, rest, sideways, jump): their order among each
   other is chance, and counts like every other.
2. Behaviours by what rewards say of them, as the mean per step. Spearman over behaviours says for
   each reward whether it prefers the same ones on both engines. It needs no luck in training. The
   behaviours are thirteen scripted motions, the same actions at the same times, so that physics is
   all that differs; and the ten policies, no action and random actions. Those were trained on each
   engine for itself, so that one name need not be one motion.

Episodes end after 5 s and not before, on both. Ant-v5 acts at 20 Hz and Isaac-Ant at 60 Hz, so
equal steps are a third of the simulated time there; masses agree, actuators, damping and contacts
do not.

The rewards are our own files, and the processes are not sandboxed. Isaac Lab must be installed.

python benchmarks/engine_ranking.py [--write] [--minutes M] [--steps N] [--seeds N] [--dry-run]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Job, RunFailed, add_run_options, measure, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from p2p.config import TrainConfig
    from p2p.training.envs.batched_env import BatchedEnv
    from p2p.training.policies.policy import Policy

REWARDS = Path(__file__).parent / "rewards" / "ant"
NAMES = ("run", "run_gently", "walk", "stroll", "stand", "rest", "sideways", "jump", "back_off",
         "run_backward")  # fmt: skip
UNTRAINED = ("zero", "random")
LEGS = 4
"""Front left, front right, back left, back right: for each hip and ankle, as both models have their
joints."""
ACTUATORS = [6, 7, 0, 1, 2, 3, 4, 5]
"""Where Ant-v5 takes them from: its actuators begin with the last leg."""


def swing(
    hips: Sequence[float],
    ankles: Sequence[float],
    *,
    rate: float = 1.5,
    hip_phases: Sequence[float] = (0, 0, 0, 0),
    ankle_phases: Sequence[float] = (0, 0, 0, 0),
) -> Callable[[float], list[float]]:
    """Actions over time: each leg's sine, with its height and its phase as a share of a turn.

    A rate of 0 holds the height.
    """

    def at(height: float, phase: float, seconds: float) -> float:
        return height * (math.sin(2 * math.pi * (rate * seconds + phase)) if rate else 1.0)

    def actions(seconds: float) -> list[float]:
        return [
            value
            for leg in range(LEGS)
            for value in (
                at(hips[leg], hip_phases[leg], seconds),
                at(ankles[leg], ankle_phases[leg], seconds),
            )
        ]

    return actions


OUT = (1, -1, -1, 1)
"""Ankles: what stretches each leg; the joints of two legs are mirrored."""
SCRIPTS: dict[str, Callable[[float], list[float]]] = {
    "nothing": swing((0,) * LEGS, (0,) * LEGS, rate=0),
    "stretch": swing((0,) * LEGS, OUT, rate=0),
    "fold": swing((0,) * LEGS, [-a for a in OUT], rate=0),
    "bounce": swing((0,) * LEGS, OUT, rate=2),
    "push_up": swing((0,) * LEGS, [0.4 * a for a in OUT], rate=1),
    "trot": swing(
        (1,) * LEGS, OUT, hip_phases=(0, 0.5, 0.5, 0), ankle_phases=(0.25, 0.75, 0.75, 0.25)
    ),
    "trot_back": swing(
        (1,) * LEGS, OUT, hip_phases=(0, 0.5, 0.5, 0), ankle_phases=(0.75, 0.25, 0.25, 0.75)
    ),
    "gentle_trot": swing(
        (0.4,) * LEGS,
        [0.4 * a for a in OUT],
        hip_phases=(0, 0.5, 0.5, 0),
        ankle_phases=(0.25, 0.75, 0.75, 0.25),
    ),
    "bound": swing((1, -1, -1, 1), OUT, ankle_phases=(0.25, 0.25, 0.75, 0.75)),
    "twist": swing((1,) * LEGS, (0,) * LEGS, rate=1),
    "turn": swing((1,) * LEGS, OUT, ankle_phases=(0.25,) * LEGS),
    "left_legs": swing((1, 0, 1, 0), (1, 0, -1, 0), hip_phases=(0, 0, 0.5, 0)),
    "shake": swing((1,) * LEGS, OUT, rate=5),
}
"""Motions without any feedback: the same actions at the same times on both."""
ENVIRONMENTS = {"mujoco": ("Ant-v5", 20), "isaaclab": ("Isaac-Ant", 60)}
"""By engine: the id, and actions a second."""
SECONDS = 5
QUANTITIES = frozenset({"com", "com_velocity", "body_up"})
SETTINGS: dict[str, Any] = {
    "num_envs": 128,
    "num_steps": 16,
    "num_minibatches": 8,
    "update_epochs": 5,
    "learning_rate": 1e-3,
    "gamma": 0.97,
    "net_arch": [64, 64],
    "normalize_obs": True,
    "normalize_reward": True,
    "terminate_when_unhealthy": False,
    "num_evals": 1,
}
STEPS = 98_304
GOAL = 0.9
"""Of Spearman's coefficient between the engines, with the first seeds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="of each training")
    parser.add_argument("--seeds", type=int, default=2, help="on MuJoCo; Isaac Lab has one")
    add_run_options(parser)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*json.loads(options.one))))
        return
    # What the comparison needs comes first, so that little time gives a whole one.
    wanted: list[Job] = [
        (engine, name, 1, options.steps) for name in NAMES for engine in ENVIRONMENTS
    ]
    wanted += [(engine, name, 0, 0) for name in ("scripts", *UNTRAINED) for engine in ENVIRONMENTS]
    wanted += [
        ("mujoco", name, seed, options.steps)
        for seed in range(2, options.seeds + 1)
        for name in NAMES
    ]
    measure(
        options,
        __file__,
        "engine_ranking",
        wanted,
        job_of=lambda run: (run["engine"], run["behaviour"], run["seed"], run["steps"]),
        report=lambda runs, lines: report(
            [r for r in runs if r["steps"] in {0, options.steps}], lines
        ),
        seconds_of=lambda job: seconds(str(job[0]), int(job[3])),
    )


def seconds(engine: str, steps: int) -> float:
    return 40 + steps / 1500 if engine == "isaaclab" else 15 + steps / 2500


# --- one run --------------------------------------------------------------------------------------


def one(engine: str, behaviour: str, seed: int, steps: int) -> dict[str, Any]:
    """Train a reward, or take a behaviour that needs no training, and measure what it does."""
    from p2p.training.engines.table import installed, is_engine

    if is_engine(engine) and "P2P_INSIDE" not in os.environ:
        return in_engine(engine, installed(engine).python, [engine, behaviour, seed, steps])
    with redirect_stdout(sys.stderr):  # the last line is the result
        began = time.process_time()
        env = make_env(engine)
        act: Any = behaviour
        if steps:
            act = train(engine, behaviour, seed, steps)
        trained = time.process_time()
        result = play_scripts(env, engine) if behaviour == "scripts" else play(env, engine, act)
    return {
        "engine": engine,
        "behaviour": behaviour,
        "seed": seed,
        "steps": steps,
        **result,
        "train_cpu_s": trained - began,
        "play_cpu_s": time.process_time() - trained,
        "versions": versions(),
    }


def in_engine(engine: str, python: Path, job: list[Any]) -> dict[str, Any]:
    """The same in the engine's own Python, with its compiled kernels and assets."""
    import p2p
    from p2p.training.engines.table import engine_folder, get_engine

    home = engine_folder(engine)
    done = subprocess.run(
        [python, __file__, "--one", json.dumps(job)],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            **{name: value.format(home=home) for name, value in get_engine(engine).env.items()},
            "WARP_CACHE_PATH": str(home / "kernels"),
            "PYTHONPATH": str(Path(p2p.__file__).parents[1]),
            "P2P_INSIDE": "1",
        },
    )
    if done.returncode:
        raise RunFailed(f"{job} ended:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("isaaclab", "newton", "mujoco-warp", "warp-lang", "mujoco", "rsl-rl-lib", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def configuration(engine: str, seed: int, steps: int) -> TrainConfig:
    from p2p.config import TrainConfig

    env_id, rate = ENVIRONMENTS[engine]
    return TrainConfig(
        env_id=env_id,
        engine=engine,
        seed=seed,
        total_timesteps=steps,
        max_episode_steps=SECONDS * rate,
        device="cpu",
        num_threads=1,
        **SETTINGS,
    )


def make_env(engine: str) -> BatchedEnv:
    """Where policies are measured. Made first: Isaac Lab's training then shares its simulation."""
    from dataclasses import replace

    from p2p.training.engines.table import is_engine

    config = configuration(engine, 0, STEPS)
    options = replace(config.env_options(), side_info=True, quantities=QUANTITIES)
    if is_engine(engine):
        from p2p.training.engines.engine_env import make_engine_env

        return make_engine_env(options, config.num_envs)
    from p2p.training.vec_env import make_batched_env

    return make_batched_env(options, config.num_envs)


def train(engine: str, name: str, seed: int, steps: int) -> Policy:
    """The last policy of a training. It is measured here, so the trainer does not evaluate it."""
    from importlib import import_module

    from p2p.training.base_trainer import TrainContext
    from p2p.training.worker import BACKENDS, choose_backend

    config, code = configuration(engine, seed, steps), (REWARDS / f"{name}.py").read_text()
    module = import_module(BACKENDS[choose_backend(config)])
    trainer_class = module.FastTrainer if engine == "mujoco" else module.RslRlTrainer
    policies: list[Policy] = []

    class Trainer(trainer_class):  # type: ignore[misc,valid-type]
        def _evaluate(self, policy: Policy) -> None:
            policies.append(policy)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trainer = Trainer(TrainContext(config, code, Path(folder), lambda _: None))
        print(trainer.note)
        trainer.run()
    return policies[-1]


def play(env: BatchedEnv, engine: str, act: Policy | str) -> dict[str, Any]:
    """One episode of each row: where it went, and what each reward says of it per step."""
    from p2p.training.evaluation import acting

    choose = acting(act, env, 0)
    rows = roll(env, engine, lambda obs, _: choose(obs))
    forward = rows["forward"]
    motion = {name: float(rows[name].mean()) for name in ("forward", "left", "height", "upright")}
    scores = {name: float(rows[name].mean()) for name in NAMES}
    return {**motion, "forward_std": float(forward.std()), "scores": scores}


def play_scripts(env: BatchedEnv, engine: str) -> dict[str, Any]:
    """Every script in rows of its own: what each reward says of it per step."""
    import numpy as np

    each = env.num_envs // len(SCRIPTS)
    of_row = [min(row // each, len(SCRIPTS) - 1) for row in range(env.num_envs)]
    scripts = list(SCRIPTS.values())

    def choose(_: Any, seconds: float) -> Any:
        joints = np.array([script(seconds) for script in scripts])
        if engine == "mujoco":
            joints = joints[:, ACTUATORS]
        return joints[of_row].astype(np.float32)

    rows = roll(env, engine, choose)
    parts = {name: np.equal(of_row, i) for i, name in enumerate(SCRIPTS)}
    return {
        "forward": float(rows["forward"].mean()),
        "scripts": {
            script: {name: float(values[part].mean()) for name, values in rows.items()}
            for script, part in parts.items()
        },
    }


def roll(env: BatchedEnv, engine: str, choose: Callable[[Any, float], Any]) -> dict[str, Any]:
    """Means over an episode of each row, (rows,): of its motion, and of every reward per step."""
    import numpy as np

    from p2p.training.evaluation import evaluation_seed
    from p2p.training.reward_runner import RewardRunner, Transition

    runners = {
        name: RewardRunner(
            (REWARDS / f"{name}.py").read_text(), env.num_envs, batched=True, engine=engine
        )
        for name in NAMES
    }
    steps = env.max_episode_steps
    sums = dict.fromkeys(("forward", "left", "height", "upright", *NAMES), np.zeros(env.num_envs))
    obs, start = env.reset_batch(evaluation_seed()), np.ones(env.num_envs, np.bool_)
    for t in range(steps):
        action = choose(obs, t * env.dt)
        step = env.step_batch(action)
        seen = Transition(obs, action, step.next_obs, step.info, start)
        velocity = step.info["com_velocity"]
        values = {
            "forward": velocity[:, 0],
            "left": velocity[:, 1],
            "height": step.info["com"][:, 2],
            "upright": step.info["body_up"][:, 1, 2] > 0,
            **{name: runner(seen)[0] for name, runner in runners.items()},
        }
        sums = {name: total + values[name] for name, total in sums.items()}
        obs, start = step.obs, step.terminated | step.truncated
    return {name: total / steps for name, total in sums.items()}


# --- the table ------------------------------------------------------------------------------------


def ranks(values: Sequence[float]) -> list[float]:
    """1 is the highest; equal ones, but for rounding, share the mean of their ranks."""
    rounded = [round(value, 6) for value in values]
    return [sum(b > a for b in rounded) + (1 + rounded.count(a)) / 2 for a in rounded]


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    return statistics.correlation(ranks(first), ranks(second))


def forward(runs: list[dict[str, Any]], engine: str, seed: int) -> dict[str, float]:
    return {
        run["behaviour"]: run["forward"]
        for run in runs
        if (run["engine"], run["seed"]) == (engine, seed) and run["steps"]
    }


def report(runs: list[dict[str, Any]], machine_lines: list[str]) -> str:
    about = (
        "`python benchmarks/engine_ranking.py --write`: ten reward files on MuJoCo's Ant-v5 and on "
        "Isaac Lab's Isaac-Ant, both on the CPU. What is ranked, and why, is in the script's first "
        "lines; the files are in `benchmarks/rewards/ant`."
    )
    parts = [
        "# Ten rewards on two ants",
        about,
        "\n".join([*machine_lines, *engine_lines(runs)]),
        *learned(runs),
        *valued(runs),
    ]
    return "\n\n".join(parts) + "\n"


def engine_lines(runs: list[dict[str, Any]]) -> list[str]:
    lines = []
    for engine, (env_id, _) in ENVIRONMENTS.items():
        own = [run for run in runs if run["engine"] == engine]
        if not own:
            continue
        libraries = ", ".join(f"{name} {number}" for name, number in own[0]["versions"].items())
        cpu = sum(run["train_cpu_s"] + run["play_cpu_s"] for run in own) / 60
        steps = max(run["steps"] for run in own)
        lines.append(
            f"- {env_id}: {libraries}; {steps:,} steps a training, {cpu:.0f} minutes of CPU"
        )
    return lines


def learned(runs: list[dict[str, Any]]) -> list[str]:
    """Reading 1."""
    seeds = sorted({run["seed"] for run in runs if run["engine"] == "mujoco" and run["steps"]})
    columns = [("isaaclab", 1), *(("mujoco", seed) for seed in seeds)]
    speeds = {column: forward(runs, *column) for column in columns}
    complete = [c for c in columns if set(speeds[c]) == set(NAMES)]
    header = ["reward", *(f"{ENVIRONMENTS[e][0]}, seed {s}" for e, s in columns)]
    rows = []
    for name in NAMES:
        cells = []
        for column in columns:
            value = speeds[column].get(name)
            if value is None:
                cells.append("")
                continue
            place = ranks(list(speeds[column].values()))[list(speeds[column]).index(name)]
            cells.append(f"{value:+.2f} ({place:g})")
        rows.append([name, *cells])

    def agreement(a: tuple[str, int], b: tuple[str, int]) -> float:
        return spearman([speeds[a][n] for n in NAMES], [speeds[b][n] for n in NAMES])

    text = ["## 1. What each reward teaches", "Mean velocity along +x in m/s, and its rank."]
    text.append(table(header, rows))
    lines = []
    mujoco = [c for c in complete if c[0] == "mujoco"]
    for column in mujoco if ("isaaclab", 1) in complete else ():
        figure = agreement(("isaaclab", 1), column)
        goal = f" ({'meets' if figure >= GOAL else 'misses'} the goal of {GOAL})"
        lines.append(
            f"- Isaac-Ant and Ant-v5, seeds 1 and {column[1]}: Spearman {figure:.3f}"
            + (goal if column[1] == 1 else "")
        )
    for i, a in enumerate(mujoco):
        lines += [
            f"- Ant-v5 alone, seeds {a[1]} and {b[1]}: {agreement(a, b):.3f}"
            for b in mujoco[i + 1 :]
        ]
    return [*text, "\n".join(lines)] if lines else text


def valued(runs: list[dict[str, Any]]) -> list[str]:
    """Reading 2."""
    scripts = {run["engine"]: run["scripts"] for run in runs if run["behaviour"] == "scripts"}
    policies: dict[str, dict[str, Any]] = {engine: {} for engine in ENVIRONMENTS}
    for run in runs:
        if run["seed"] in {0, 1} and run["behaviour"] != "scripts":
            policies[run["engine"]][run["behaviour"]] = run["scores"]
    parts = []
    names = [env_id for env_id, _ in ENVIRONMENTS.values()]
    for title, by_engine in (("the same scripted motions", scripts), ("policies", policies)):
        both = list(scripts["mujoco"]) if by_engine is scripts else [*NAMES, *UNTRAINED]
        if len(by_engine) < len(names) or any(set(own) != set(both) for own in by_engine.values()):
            continue
        rows, figures = [], []
        for name in NAMES:
            values = [[by_engine[engine][n][name] for n in both] for engine in ENVIRONMENTS]
            figures.append(spearman(*values))
            best = [both[max(range(len(both)), key=v.__getitem__)] for v in values]
            rows.append([name, f"{figures[-1]:.3f}", *best])
        parts += [
            f"### Of {title}",
            table(["reward", f"Spearman over {len(both)}", *(f"best, {n}" for n in names)], rows),
            f"Median {statistics.median(figures):.3f}, lowest {min(figures):.3f}.",
        ]
    return ["## 2. What each reward says of behaviours", *parts] if parts else []


if __name__ == "__main__":
    main()
