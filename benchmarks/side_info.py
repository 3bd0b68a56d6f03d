"""What it costs to train on a reward that looks at the simulator, in CPU-seconds.

python benchmarks/side_info.py [--rounds 9] [--write]

For each environment the same reward trains in four forms that live side by side and take turns of
one iteration, a rollout and its update: from the observation alone, with side information switched
on but not read, with named quantities, and with the simulator's own state. The first iterations of
each (start-up, compilation) are not counted.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from common import ONE_THREAD, described, machine, table, write

ENVIRONMENTS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
WARM_UP = 2
LIMIT = 0.10
"""Side information is on by default where it costs less than this share of training."""
REWARD = """
import numpy as np

def reward_fn(obs, action, next_obs, info):
    speed = np.minimum(info["x_velocity"], 5.0)
    effort = -0.05 * np.sum(np.square(action), axis=-1)
    seen = {seen}
    return speed + effort + seen, {{"speed": speed, "effort": effort, "seen": seen}}
"""
FORMS = {
    "observation": (False, "0.1 * next_obs[..., 0]"),
    "not read": (True, "0.1 * next_obs[..., 0]"),
    "foot_height": (True, '0.1 * np.sum(info["foot_height"], axis=-1)'),
    "five quantities": (
        True,
        (
            '0.1 * np.sum(info["foot_height"] + info["foot_contact"], axis=-1) + info["airborne"]'
            ' + info["body_up"][..., 1, 2] + info["com_velocity"][..., 2]'
        ),
    ),
    "foot_contact_force": (True, '1e-4 * np.sum(info["foot_contact_force"], axis=-1)'),
    "mj_data": (True, '0.1 * info["mj_data"].xpos[..., 1, 2]'),
}
"""By name: whether side information is on, and what the reward reads."""


def iterations(env_id: str, rounds: int) -> dict[str, list[float]]:
    """CPU-seconds of each iteration of each form."""
    from p2p.config import TrainConfig
    from p2p.training.ppo import PPO
    from p2p.training.training_loop import TrainContext, TrainingLoop

    seconds: dict[str, list[float]] = {name: [] for name in FORMS}
    with tempfile.TemporaryDirectory() as folder:
        trainers = {}
        for name, (side_info, seen) in FORMS.items():
            config = TrainConfig(env_id=env_id, side_info=side_info, num_threads=1)
            context = TrainContext(config, REWARD.format(seen=seen), Path(folder), lambda _: None)
            trainers[name] = TrainingLoop(context, PPO)
        for turn in range(WARM_UP + rounds):
            for name, trainer in trainers.items():
                began = time.process_time()
                trainer.iterate()
                if turn >= WARM_UP:
                    seconds[name].append(time.process_time() - began)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    options = parser.parse_args()
    os.environ.update(ONE_THREAD)
    before = machine()
    costs: dict[str, dict[str, float]] = {}
    rows = []
    for env_id in ENVIRONMENTS:
        seconds = iterations(env_id, options.rounds)
        # Turns of one round were taken at the same speed of the machine.
        costs[env_id] = {
            name: median(t / o for t, o in zip(times, seconds["observation"], strict=True)) - 1
            for name, times in seconds.items()
        }
        rows.append([env_id, *(f"{100 * costs[env_id][name]:+.1f} %" for name in [*FORMS][1:])])
        print(rows[-1], flush=True)
    text = "\n".join(
        [
            "# What side information costs",
            "",
            "CPU time of an iteration (rollout and update; 8 environments, 256 steps, one thread)",
            "over that of a reward that reads the observation alone; median of several rounds.",
            f"Below {LIMIT:.0%} side information is on by default.",
            "",
            *described(before, machine()),
            "",
            table(["environment", *[*FORMS][1:]], rows),
            "",
        ]
    )
    print(text)
    if options.write:
        write("side_info", text, costs)


if __name__ == "__main__":
    main()
