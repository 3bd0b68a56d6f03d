"""What is learnt for how much CPU time: our PPO and SAC, beside SB3's and sbx's algorithms.

python benchmarks/algorithms.py [--cpu-seconds 440] [--seeds 1-6] [--envs Ant-v5 ...]
    [--only ppo sac ...] [--jobs 16] [--minutes 25] [--dry-run] [--write] [--fresh]

Every contender trains on the environment's own reward in one process with one thread. Whenever a
quarter, a half and all of the CPU-seconds of training are spent (compiling included), its policy
plays the same episodes, deterministically; that does not count. Runs that are done are kept in
results/algorithms.json with --write and taken over by the next call. Ours may have other settings,
fields of TrainConfig or constants of p2p.training.sac, to find out what they are worth:
`--only sac sac:updates_per_step=0.5:net_arch=[64,64] sac:STEPS_OF_RETURN=1`.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from pathlib import Path
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any

from common import Job, add_run_options, measure, table

if TYPE_CHECKING:
    from collections.abc import Callable

    Act = Callable[[Any], Any]

ENVS = ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5")
SEEDS = "1-6"
CPU_SECONDS = 440
MARKS = (0.25, 0.5, 1.0)
"""Shares of the CPU-seconds after which a policy is played."""
EPISODES, FIRST_EVALUATION_SEED = 10, 10_000
CONTENDERS = {
    "ppo": "our PPO",
    "sac": "our SAC",
    "sb3_ppo": "SB3 PPO",
    "sb3_sac": "SB3 SAC",
    "sbx_sac": "sbx SAC",
    "crossq": "sbx CrossQ",
}
GOAL, GOAL_ENVS = 2.0, 3


# --- one run, in a process of its own ---------------------------------------------------------


def spent() -> float:
    """CPU time of this process, its threads and its ended children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Curve:
    """Returns of a policy when so much CPU time has been spent on its training."""

    def __init__(self, env_id: str, cpu_seconds: int) -> None:
        self.env_id = env_id
        self.marks = [share * cpu_seconds for share in MARKS]
        self.points: list[dict[str, Any]] = []
        self._not_counted = spent()

    def over(self, steps: int, policy: Callable[[], Act]) -> bool:
        """Play the policy where it is time; says whether that was the last."""
        before = spent()
        trained = before - self._not_counted
        if self.marks and trained >= self.marks[0]:
            returns = play(self.env_id, policy())
            point = {"cpu_s": round(trained, 1), "steps": steps, "return": returns}
            while self.marks and trained >= self.marks[0]:
                self.marks.pop(0)
                self.points.append(point)
            self._not_counted += spent() - before
        return not self.marks


def play(env_id: str, act: Act) -> float:
    """The mean return of one episode in each of the evaluation environments."""
    import numpy as np

    from p2p.config import EnvOptions
    from p2p.training.vec_env import make_batched_env

    env = make_batched_env(EnvOptions(env_id), EPISODES)
    obs = env.reset_batch(FIRST_EVALUATION_SEED)
    total, alive = np.zeros(EPISODES), np.ones(EPISODES, np.bool_)
    while alive.any():
        step = env.step_batch(act(obs))
        total += np.where(alive, step.reward, 0)
        alive &= ~(step.terminated | step.truncated)
        obs = step.obs
    env.close()
    return float(total.mean())


def settings_of(contender: str) -> tuple[str, dict[str, Any]]:
    """The algorithm and the settings in its name."""
    algorithm, *settings = contender.split(":")
    pairs = (setting.partition("=") for setting in settings)
    return algorithm, {name: json.loads(value) for name, _, value in pairs}


def train_ours(contender: str, env_id: str, seed: int, cpu_seconds: int) -> Curve:
    """With the settings of sessions."""
    from p2p.rewards import find_reward
    from p2p.training import sac
    from p2p.training.hp_presets import quick_config
    from p2p.training.ppo import PPOLearner
    from p2p.training.training_loop import TrainContext, TrainingLoop

    algorithm, settings = settings_of(contender)
    for name in [name for name in settings if name.isupper()]:
        setattr(sac, name, settings.pop(name))
    endless = {"total_timesteps": 10**9, "num_evals": 1, "checkpoint_interval": 10**9}
    config = quick_config(
        env_id, **{"algorithm": algorithm, "seed": seed, "num_threads": 1, **endless, **settings}
    )
    reward = find_reward(f"{env_id.partition('-')[0].lower()}_default").read()
    with tempfile.TemporaryDirectory() as folder:
        context = TrainContext(config, reward, Path(folder), lambda _: None)
        curve = Curve(env_id, cpu_seconds)
        loop = TrainingLoop(context, sac.SACLearner if algorithm == "sac" else PPOLearner)
        while not curve.over(loop.step, lambda: loop.learner.policy().act):
            loop.iterate()
    return curve


def train_peer(contender: str, env_id: str, seed: int, cpu_seconds: int) -> Curve:
    """With the peers' defaults; PPO normalised, as they advise."""
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            return bool(self.n_calls % 100) or not curve.over(self.num_timesteps, lambda: act)

    def act(obs: Any) -> Any:
        seen = envs.normalize_obs(obs) if isinstance(envs, VecNormalize) else obs
        return model.predict(seen, deterministic=True)[0]

    envs: Any = make_vec_env(env_id, 8 if contender == "sb3_ppo" else 1, seed=seed)
    options: dict[str, Any] = {"seed": seed, "device": "cpu"}
    algorithm: Any
    if contender == "sb3_ppo":
        envs, algorithm = VecNormalize(envs), stable_baselines3.PPO
        options["n_steps"] = 256
    elif contender == "sb3_sac":
        algorithm = stable_baselines3.SAC
    else:
        import sbx

        algorithm = {"sbx_sac": sbx.SAC, "crossq": sbx.CrossQ}[contender]
    curve = Curve(env_id, cpu_seconds)
    model: Any = algorithm("MlpPolicy", envs, **options)
    model.learn(10**9, callback=Watch())
    return curve


def one_run(contender: str, env_id: str, seed: int, cpu_seconds: int) -> dict[str, Any]:
    ours = contender.partition(":")[0] in ("ppo", "sac")
    curve = (train_ours if ours else train_peer)(contender, env_id, seed, cpu_seconds)
    return {
        "contender": contender,
        "env_id": env_id,
        "seed": seed,
        "cpu_seconds": cpu_seconds,
        "curve": curve.points,
    }


# --- all runs -----------------------------------------------------------------------------------


def job_of(run: dict[str, Any]) -> Job:
    return run["contender"], run["env_id"], run["seed"], run["cpu_seconds"]


def seconds_of(job: Job) -> float:
    """Training, and beside it: imports, three evaluations."""
    return 1.1 * int(job[3]) + 25


def title_of(contender: str) -> str:
    name, _, settings = contender.partition(":")
    return f"{CONTENDERS[name]}, {settings.replace(':', ', ')}" if settings else CONTENDERS[name]


def report(runs: list[dict[str, Any]], cpu_seconds: int, about: list[str]) -> str:
    mine = [run for run in runs if run["cpu_seconds"] == cpu_seconds]
    order = [*CONTENDERS, *sorted({r["contender"] for r in mine} - CONTENDERS.keys())]
    rows, ratios = [], dict[str, float]()
    for env_id in ENVS:
        reference = None
        for contender in order:
            curves = [
                run["curve"]
                for run in sorted(mine, key=lambda run: run["seed"])
                if (run["contender"], run["env_id"]) == (contender, env_id)
            ]
            if not curves:
                continue
            last = [curve[-1]["return"] for curve in curves]
            reference = mean(last) if contender == "ppo" else reference
            ratio = mean(last) / reference if reference and reference > 0 else None
            if contender == "sac" and ratio is not None:
                ratios[env_id] = ratio
            early = (mean(c[i]["return"] for c in curves) for i in range(len(MARKS) - 1))
            rows.append(
                [
                    env_id,
                    title_of(contender),
                    str(len(last)),
                    *(f"{value:,.0f}" for value in early),
                    f"**{mean(last):,.0f}**",
                    f"{stdev(last):,.0f}" if len(last) > 1 else "",
                    f"{median(last):,.0f}",
                    f"{ratio:.2f}" if ratio is not None else "",
                    f"{mean(curve[-1]['steps'] for curve in curves) / 1e3:,.0f}k",
                ]
            )
    early_marks = (f"at {share * cpu_seconds:.0f} CPU-s" for share in MARKS[:-1])
    header = [
        *("", "", "seeds", *early_marks, f"at {cpu_seconds} CPU-s"),
        *("standard deviation", "median", "ratio to our PPO", "steps"),
    ]
    how = (
        f"Mean return over seeds, each of {EPISODES} deterministic episodes on the environment's "
        "own reward, when a process with one thread has spent so much CPU time on training. "
        "Standard deviation, median, ratio and steps are those at the end. Ours have the settings "
        "of sessions (`quick_config`), the others their own defaults."
    )
    reached = sum(ratio >= GOAL for ratio in ratios.values())
    goal = (
        f"Goal: our SAC at {GOAL:g} times our PPO on {GOAL_ENVS} of {len(ENVS)}; it is on "
        f"{reached} of the {len(ratios)} measured."
    )
    return "\n".join(["# Algorithms", "", how, "", *about, "", goal, "", table(header, rows), ""])


def seeds_in(text: str) -> list[int]:
    """`1-3,7` as numbers."""
    ends = (part.partition("-") for part in text.split(","))
    return [n for low, _, high in ends for n in range(int(low), int(high or low) + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu-seconds", type=int, default=CPU_SECONDS, help="of training, per run")
    parser.add_argument("--only", nargs="+", default=list(CONTENDERS), help=", ".join(CONTENDERS))
    parser.add_argument("--envs", nargs="+", default=ENVS, choices=ENVS)
    parser.add_argument("--seeds", type=seeds_in, default=SEEDS, help="such as 1-3,7")
    parser.add_argument("--quick", action="store_true", help="one environment and seed, 20 s")
    add_run_options(parser)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_run(*json.loads(options.one))))
        return
    if unknown := [name for name in options.only if settings_of(name)[0] not in CONTENDERS]:
        parser.error(f"--only: no {', '.join(unknown)}; there are {', '.join(CONTENDERS)}")
    if options.quick:
        options.cpu_seconds, options.seeds, options.envs = 20, [1], options.envs[:1]
    # Seed by seed, so that an unfinished benchmark compares equally many of each.
    wanted = [
        (contender, env_id, seed, options.cpu_seconds)
        for seed in options.seeds
        for env_id in options.envs
        for contender in options.only
    ]
    measure(
        options,
        __file__,
        "algorithms_quick" if options.quick else "algorithms",
        wanted,
        job_of=job_of,
        report=lambda runs, about: report(runs, options.cpu_seconds, about),
        seconds_of=seconds_of,
    )


if __name__ == "__main__":
    main()
