"""What the benchmarks share: CPU time of process trees, the machine in words, tables."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
REWARD = Path(__file__).parent / "rewards" / "six_terms.py"
PACKAGES = ("numpy", "mujoco", "gymnasium", "jax", "torch", "stable-baselines3", "sbx-rl")

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "NPROC": "1",  # XLA's CPU client
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
}
"""For all contenders alike: networks of this size are slower on several threads."""

PPO = {
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
"""Named alike in SB3, sbx and TrainConfig."""


def in_process(script: str, job: Sequence[Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Do one job of a benchmark as `script --one JOB`; the last line it prints is its result."""
    done = subprocess.run(
        [sys.executable, script, "--one", json.dumps(job)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    if done.returncode:
        raise SystemExit(f"{job} ended:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its living descendants, all threads, in nanosecond resolution."""
    return sum(time.clock_gettime((~one << 3) | 2) for one in (pid, *descendants(pid)))


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we were looking
        children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def peak_rss_mb(pid: int | str = "self") -> float:
    """The most memory that a process has had in use, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


def machine() -> dict[str, Any]:
    """Where and with what a benchmark ran."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((x.partition(":")[2].strip() for x in cpuinfo if x.startswith("model name")), "?")
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "missing"
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": f"Linux {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def described(at_start: dict[str, Any], at_end: dict[str, Any]) -> list[str]:
    """The machine as lines of Markdown."""
    libraries = ", ".join(f"{name} {number}" for name, number in at_start["versions"].items())
    loads = (", ".join(map(str, m["load_average"])) for m in (at_start, at_end))
    when = f"{at_start['date']} to {at_end['date']}"
    return [
        f"- {at_start['cpu']}, {at_start['cores']} cores, {at_start['system']}",
        f"- Python {at_start['python']}, {libraries}",
        f"- {when}; load average (1, 5, 15 minutes) {' before and '.join(loads)} after",
    ]


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(name: str, text: str, data: Any) -> None:
    """Keep a benchmark's table and its numbers in results/."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    print(f"written to {RESULTS / name}.md and .json")
