"""PPO end to end: Stable-Baselines3, sbx and ours, interleaved, in steps per CPU-second.

python benchmarks/ppo_throughput.py [--quick] [--rounds 7] [--write]

Every contender trains in a process of its own with the same hyperparameters and the same custom
reward. All processes of a table live side by side, and in every round each has its turn while
the others wait, so that a change of the machine's speed hits all alike. The first rollouts of
each (start-up, compilation) are not counted. CPU-seconds are those of all threads and child
processes, in kernel and user mode.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from common import ONE_THREAD, cpu_seconds, described, machine, table, write

HERE = Path(__file__).parent
ENVIRONMENTS = ("HalfCheetah-v5", "Ant-v5", "Humanoid-v5")
TITLES = {
    "sb3_subproc": "SB3, SubprocVecEnv",
    "sb3_dummy": "SB3, DummyVecEnv",
    "sbx_dummy": "sbx (JAX), DummyVecEnv",
    "ours": "ours, one simulation thread",
    "ours_all_cores": "ours, one thread per core (default)",
    "ceiling": "physics alone, C++, one thread",
}
WARM_UP = 2
TURN_CPU_SECONDS = 0.6
"""A quick contender does several rollouts in a turn: a turn of milliseconds measures little."""
CORE_GOALS = {
    ("HalfCheetah-v5", "sb3_dummy"): 6.0,
    ("HalfCheetah-v5", "sb3_subproc"): 9.0,
    ("HalfCheetah-v5", "ceiling"): 0.45,
    ("Ant-v5", "ceiling"): 0.80,
    ("Humanoid-v5", "ceiling"): 0.80,
}
MEMORY_GOAL_MB = 1500


class Contender:
    """A process that trains when it is told to."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.name = settings["name"]
        self.batch = settings["envs"] * settings["steps"]
        self.rates: list[dict[str, float]] = []
        self.complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "contenders.py"), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            env=os.environ | ONE_THREAD,
        )
        self._wait()
        rate = [self.work(1)["per_cpu_s"] for _ in range(WARM_UP)][-1]
        self.rollouts = max(1, round(TURN_CPU_SECONDS * rate / self.batch))

    def work(self, rollouts: int) -> dict[str, float]:
        """One turn, measured."""
        cpu, wall = cpu_seconds(self.process.pid), time.perf_counter()
        self.process.stdin.write(f"{rollouts}\n")
        self.process.stdin.flush()
        self._wait()
        wall, cpu = time.perf_counter() - wall, cpu_seconds(self.process.pid) - cpu
        steps = rollouts * self.batch
        return {"per_cpu_s": steps / cpu, "per_s": steps / wall}

    def close(self) -> None:
        """Let it end."""
        self.process.stdin.close()
        self.process.wait(60)
        self.complaints.close()

    def _wait(self) -> None:
        for line in self.process.stdout:
            if line == "ready\n":
                return
        self.complaints.seek(0)
        raise SystemExit(f"{self.name} ended:\n{self.complaints.read()}")


def compare(env_id: str, width: int, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """One table: a round is one turn of every contender."""
    settings = {
        "env_id": env_id,
        "width": width,
        "envs": options.envs,
        "steps": options.steps,
        "torch_threads": options.torch_threads,
    }
    with ExitStack() as stack:
        contenders = []
        for name in options.contenders:
            contenders.append(Contender({**settings, "name": name}))
            stack.callback(contenders[-1].close)
        for _ in range(options.rounds):
            for contender in contenders:
                contender.rates.append(contender.work(contender.rollouts))
    result = {}
    for contender in contenders:
        rates: dict[str, Any] = {"turns": contender.rates}
        for rate in ("per_cpu_s", "per_s"):
            values = [turn[rate] for turn in contender.rates]
            rates[rate] = median(values)
            rates[f"{rate}_range"] = [min(values), max(values)]
        result[contender.name] = rates
    return result


def ratio(results: dict[str, dict[str, Any]], name: str, base: str, rate: str) -> float | None:
    """Median over rounds of the ratio within a round: both had the same machine."""
    if name not in results or base not in results:
        return None
    pairs = zip(results[name]["turns"], results[base]["turns"], strict=True)
    return median(mine[rate] / theirs[rate] for mine, theirs in pairs)


def rows_of(results: dict[str, dict[str, Any]]) -> list[list[str]]:
    def show(name: str, base: str, rate: str) -> str:
        value = ratio(results, name, base, rate)
        return "" if value is None else f"{value:.2f}"

    return [
        [
            TITLES[name],
            f"{one['per_cpu_s']:,.0f}",
            "{:,.0f} to {:,.0f}".format(*one["per_cpu_s_range"]),
            show(name, "sb3_dummy", "per_cpu_s"),
            show(name, "sb3_subproc", "per_cpu_s"),
            show(name, "ceiling", "per_cpu_s"),
            f"{one['per_s']:,.0f}",
            show(name, "sb3_dummy", "per_s"),
        ]
        for name, one in results.items()
    ]


def goals(results: dict[str, dict[str, dict[str, Any]]], memory: dict[str, float]) -> list[str]:
    lines = []
    for (env_id, base), goal in CORE_GOALS.items():
        value = ratio(results.get(env_id, {}), "ours", base, "per_cpu_s")
        if value is not None:
            verdict = "met" if value >= goal else "MISSED"
            what = "of the physics alone" if base == "ceiling" else f"of {TITLES[base]}"
            lines.append(f"- {env_id}: {value:.2f} {what}, goal {goal:g}: {verdict}")
    for env_id, peak in memory.items():
        verdict = "met" if peak < MEMORY_GOAL_MB else "MISSED"
        lines.append(
            f"- {env_id}: {peak:,.0f} MB at most with 64 environments, evaluation included, goal "
            f"under {MEMORY_GOAL_MB:,}: {verdict}"
        )
    return lines


def peak_memory(env_id: str) -> float:
    settings = {"name": "memory", "env_id": env_id, "width": 64, "envs": 64, "steps": 256}
    done = subprocess.run(
        [sys.executable, str(HERE / "contenders.py"), json.dumps(settings)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | ONE_THREAD,
    )
    return float(done.stdout)


def how(options: argparse.Namespace) -> str:
    return (
        f"{options.envs} environments x {options.steps} steps, minibatches of 64, 10 epochs, "
        "observations and rewards normalised, one custom reward of six terms for all (ours "
        "calls it on whole batches, with all checks; the others once per environment, through "
        f"the least of wrappers). Medians of {options.rounds} interleaved turns; ratios are "
        "medians of the ratios within a round. Start-up and compilation are not counted. "
        "CPU-seconds: all threads and child processes. OMP_NUM_THREADS=1, "
        f"{options.torch_threads} torch thread(s), one XLA thread for all."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of every contender")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=256, help="per environment and rollout")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--environments", nargs="+", default=list(ENVIRONMENTS))
    parser.add_argument("--contenders", nargs="+", default=list(TITLES), choices=list(TITLES))
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two rounds, 64 x 64, no memory")
    parser.add_argument("--write", action="store_true", help="keep the tables in results/")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.widths = 2, [64]

    before = machine()
    header = [
        *("", "steps per CPU-s", "lowest to highest", "x SB3 Dummy", "x SB3 Subproc"),
        *("of physics alone", "steps per s", "x SB3 Dummy (s)"),
    ]
    results: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    parts: list[str] = []
    for width in options.widths:
        results[str(width)] = {}
        for env_id in options.environments:
            one = results[str(width)][env_id] = compare(env_id, width, options)
            part = f"## {env_id}, {width} x {width}\n\n{table(header, rows_of(one))}\n"
            parts.append(part)
            print(part, flush=True)
    memory = {} if options.quick else {e: peak_memory(e) for e in options.environments}
    after = machine()

    lines = ["# PPO throughput", "", how(options), "", *described(before, after), ""]
    lines += ["Goals, 64 x 64, per CPU-second:", "", *goals(results.get("64", {}), memory), ""]
    text = "\n".join([*lines, *parts])
    print(text)
    if options.write:
        data = {"before": before, "after": after, "memory_mb": memory, "tables": results}
        write("ppo_throughput", text, data | {"options": vars(options)})


if __name__ == "__main__":
    main()
