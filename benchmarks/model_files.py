"""Environments from model files beside Gymnasium's own: stepping, and PPO with a Gymnasium class.

python benchmarks/model_files.py FOLDER [--rounds 5] [--write]

FOLDER has walker.xml and quadruped.xml of DM Control's suite with the files that they include
(`dm_control/suite` of the package's wheel). All processes of an environment live side by side and
take turns, as in ppo_throughput.py; CPU-seconds are those of all threads.

Physics differs from model to model, so each environment is compared with its own: the share is
steps per CPU-second over those of nothing but its physics, simulated by mujoco.rollout.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import ppo_throughput
from common import described, machine, table, write

PAIRS = (("walker.xml", "Walker2d-v5"), ("quadruped.xml", "Ant-v5"))
GOAL = 0.8
"""Of the share of Gymnasium's own, that a model file's environment reaches at least."""
TITLES = {
    "ceiling": "physics alone, C++, one thread",
    "stepping": "stepped in batches, no policy",
    "ours": "PPO, ours, one simulation thread",
    "sb3_dummy": "PPO, Stable-Baselines3 on the Gymnasium class",
}
REWARD = Path(__file__).parent / "rewards" / "calm.py"


def measure(env_id: str, names: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    """Turns of every contender in one environment."""
    settings = {
        "env_id": env_id, "width": 64, "envs": 8, "steps": 256, "torch_threads": 1,
        "reward": str(REWARD),
    }  # fmt: skip
    contenders = [ppo_throughput.Contender({**settings, "name": name}) for name in names]
    try:
        for _ in range(rounds):
            for contender in contenders:
                contender.rates.append(contender.work(contender.rollouts))
    finally:
        for contender in contenders:
            contender.close()
    return {each.name: {"turns": each.rates} for each in contenders}


def main() -> None:
    """Measure, print, and with --write keep the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contenders", nargs="+", default=list(TITLES)[1:], choices=TITLES)
    parser.add_argument("--write", action="store_true", help="keep the tables in results/")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    from p2p.training.model_files.adoption import adopt

    names = ["ceiling", *options.contenders]
    before, results = machine(), {}
    for file, gymnasium_id in PAIRS:
        results[file] = measure(adopt(options.folder / file), names, options.rounds)
        results[gymnasium_id] = measure(gymnasium_id, names, options.rounds)
    rows, goals = [], []
    share = ppo_throughput.ratio
    for name, measured in results.items():
        for contender, title in ((name, TITLES[name]) for name in names):
            rates = sorted(turn["per_cpu_s"] for turn in measured[contender]["turns"])
            part = share(measured, contender, "ceiling", "per_cpu_s")
            rows.append([name, title, f"{rates[len(rates) // 2]:,.0f}", f"{part:.2f}"])
    for file, gymnasium_id in PAIRS:
        for contender in (name for name in names if name in ("stepping", "ours")):
            parts = [
                share(results[n], contender, "ceiling", "per_cpu_s") for n in (file, gymnasium_id)
            ]
            verdict = "reached" if parts[0] / parts[1] >= GOAL else "missed"
            goals.append(
                [file, TITLES[contender], f"{parts[0] / parts[1]:.2f} of {gymnasium_id}'s", verdict]
            )
    given = f"--rounds {options.rounds} --contenders {' '.join(options.contenders)}"
    text = "\n".join(
        [
            "# Environments from model files",
            "",
            f"`python benchmarks/model_files.py FOLDER {given} --write`",
            "",
            *described(before, machine()),
            "",
            table(["environment", "", "steps per CPU-second", "share of its physics"], rows),
            "",
            f"Goal: {GOAL} of the share of Gymnasium's own.",
            "",
            table(["model file", "", "share", "goal"], goals),
        ]
    )
    print(text)
    if options.write:
        write("model_files", text)


if __name__ == "__main__":
    main()
