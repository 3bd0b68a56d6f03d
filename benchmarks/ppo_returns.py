"""What is learnt: Stable-Baselines3 and ours on the environments' own rewards, seed by seed.

python benchmarks/ppo_returns.py [--envs Ant-v5 ...] [--quick] [--jobs 2] [--write] [--fresh]

Both train with the same hyperparameters for the same number of steps. The final policies are then
played by the same code: deterministically, in plain Gymnasium, on the same fixed seeds, and
scored by the environment's own reward. With --write, runs that are done are kept in
results/ppo_returns.json and taken over by the next call, unless it is --fresh.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any

from common import PPO, Job, add_run_options, measure, table

if TYPE_CHECKING:
    from collections.abc import Callable

ENVS, STEPS, MINIBATCH, EPOCHS = 8, 256, 64, 10
SEEDS = range(1, 25)  # the seeds of one contender spread eightfold on Hopper
PLAN = {
    "Hopper-v5": (200_000, SEEDS),
    "InvertedDoublePendulum-v5": (100_000, SEEDS),
    "HalfCheetah-v5": (100_000, SEEDS),
    "Walker2d-v5": (100_000, SEEDS),
    "Ant-v5": (100_000, SEEDS),
}
EPISODES, FIRST_EVALUATION_SEED = 20, 10_000
SIGNIFICANT = 0.05
CONTENDERS = {"sb3": "SB3, DummyVecEnv", "ours": "ours"}


# --- one run, in a process of its own ---------------------------------------------------------


def train_sb3(env_id: str, seed: int, steps: int) -> Callable[[Any], Any]:
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    envs = VecNormalize(make_vec_env(env_id, ENVS, seed=seed))
    model = stable_baselines3.PPO(
        "MlpPolicy",
        envs,
        n_steps=STEPS,
        batch_size=MINIBATCH,
        n_epochs=EPOCHS,
        clip_range=0.2,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
        seed=seed,
        device="cpu",
        **PPO,
    )
    model.learn(steps)
    return lambda obs: model.predict(envs.normalize_obs(obs), deterministic=True)[0]


def train_ours(env_id: str, seed: int, steps: int) -> Callable[[Any], Any]:
    from p2p.config import TrainConfig
    from p2p.rewards import find_reward
    from p2p.training.policies.policy import Policy
    from p2p.training.training_loop import TrainContext
    from p2p.training.worker import train

    config = TrainConfig(
        env_id=env_id,
        seed=seed,
        total_timesteps=steps,
        num_envs=ENVS,
        num_steps=STEPS,
        num_minibatches=ENVS * STEPS // MINIBATCH,
        update_epochs=EPOCHS,
        clip_coef=0.2,
        net_arch=(64, 64),
        num_threads=1,
        num_evals=1,
        num_eval_envs=1,
        num_eval_rounds=1,
        **PPO,
    )
    reward = find_reward(f"{env_id.partition('-')[0].lower()}_default").read()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(TrainContext(config, reward, folder, lambda _: None))
        (file,) = folder.glob("policy_*.safetensors")
        policy = Policy.load(file)
    return lambda obs: policy.act(obs[None])[0]


def play(env_id: str, act: Callable[[Any], Any]) -> list[float]:
    """The return of each evaluation episode."""
    import gymnasium as gym

    env = gym.make(env_id)
    returns = []
    for seed in range(FIRST_EVALUATION_SEED, FIRST_EVALUATION_SEED + EPISODES):
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def one_run(contender: str, env_id: str, seed: int, steps: int) -> dict[str, Any]:
    began = time.process_time()
    act = {"sb3": train_sb3, "ours": train_ours}[contender](env_id, seed, steps)
    trained = time.process_time() - began
    returns = play(env_id, act)
    return {
        "contender": contender,
        "env_id": env_id,
        "seed": seed,
        "steps": steps,
        "cpu_s": round(trained, 1),
        "return": mean(returns),
        "returns": [round(x, 2) for x in returns],
    }


# --- all runs -----------------------------------------------------------------------------------


STEPS_PER_CPU_SECOND = {"sb3": 1_500, "ours": 6_000}
"""Roughly, to tell how long it takes."""


def seconds_of(job: Job) -> float:
    return 30 + int(job[3]) / STEPS_PER_CPU_SECOND[str(job[0])]


def job_of(run: dict[str, Any]) -> Job:
    return run["contender"], run["env_id"], run["seed"], run["steps"]


def verdict(ours: list[float], sb3: list[float]) -> str:
    """Means, and whether ours is lower by more than the luck of the seeds explains."""
    from scipy.stats import mannwhitneyu

    chance = float(mannwhitneyu(ours, sb3, alternative="less").pvalue)
    if mean(ours) >= mean(sb3):
        outcome = "not below"
    else:
        outcome = "BELOW" if chance < SIGNIFICANT else "lower, but within the luck of the seeds"
    return (
        f"ours {mean(ours):,.0f}, SB3 {mean(sb3):,.0f}: {outcome} "
        f"(rank test that ours is lower: p = {chance:.3f})"
    )


def report(runs: list[dict[str, Any]], plan: dict[str, Any], about: list[str]) -> str:
    rows, verdicts = [], []
    for env_id, (steps, seeds) in plan.items():
        by_contender: dict[str, list[float]] = {}
        for contender, title in CONTENDERS.items():
            mine = sorted(
                (r for r in runs if job_of(r)[:2] == (contender, env_id) and r["steps"] == steps),
                key=lambda run: run["seed"],
            )
            if not mine:
                continue
            by_contender[contender] = returns = [run["return"] for run in mine]
            spread = f"{stdev(returns):,.0f}" if len(returns) > 1 else ""
            rows.append(
                [
                    f"{env_id}, {steps:,} steps",
                    title,
                    f"{len(mine)} of {len(seeds)}",
                    f"{mean(returns):,.0f}",
                    spread,
                    f"{median(returns):,.0f}",
                    ", ".join(f"{x:,.0f}" for x in returns),
                    f"{mean(run['cpu_s'] for run in mine):,.0f}",
                ]
            )
        if len(by_contender) == len(CONTENDERS):
            verdicts.append(f"- {env_id}: {verdict(by_contender['ours'], by_contender['sb3'])}")
    header = [
        *("", "", "seeds", "mean return", "standard deviation", "median"),
        *("return of each seed", "training CPU-s"),
    ]
    how = (
        f"{ENVS} environments x {STEPS} steps, minibatches of {MINIBATCH}, {EPOCHS} epochs, "
        "64 x 64 networks, observations and rewards normalised, the environments' own rewards "
        "(ours: the built-in `<env>_default`). A seed's return is the mean of "
        f"{EPISODES} deterministic episodes of the final policy on fixed seeds, the same for "
        "both, in plain Gymnasium."
    )
    parts = ["# PPO returns", "", how, "", *about, "", "Goal: not below SB3.", "", *verdicts, ""]
    return "\n".join([*parts, table(header, rows), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", nargs="+", default=list(PLAN), choices=PLAN)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, one seed")
    add_run_options(parser)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_run(*json.loads(options.one))))
        return

    plan: dict[str, Any] = PLAN
    if options.quick:
        plan = {env_id: (steps // 10, [1]) for env_id, (steps, _) in PLAN.items()}
    # Seed by seed, so that an unfinished benchmark compares equally many of each.
    wanted = [
        (contender, env_id, seed, steps)
        for seed in SEEDS
        for env_id, (steps, seeds) in plan.items()
        if env_id in options.envs and seed in seeds
        for contender in CONTENDERS
    ]
    measure(
        options,
        __file__,
        "ppo_returns_quick" if options.quick else "ppo_returns",
        wanted,
        job_of=job_of,
        report=lambda runs, about: report(runs, plan, about),
        seconds_of=seconds_of,
    )


if __name__ == "__main__":
    main()
