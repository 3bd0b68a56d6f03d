"""What the benchmarks share: CPU time of process trees, the machine in words, tables."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Job = tuple[str | int, ...]
"""What identifies a run of a benchmark, as its script takes it after `--one`."""

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
        raise RunFailed(f"{job} ended:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--minutes", type=float, help="start no run that would end later")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, and stop")
    parser.add_argument("--fresh", action="store_true", help="do not take over finished runs")
    parser.add_argument("--write", action="store_true", help="keep runs and table in results/")
    parser.add_argument("--one", help=argparse.SUPPRESS)


def measure(
    options: argparse.Namespace,
    script: str,
    name: str,
    wanted: Sequence[Job],
    *,
    job_of: Callable[[dict[str, Any]], Job],
    report: Callable[[list[dict[str, Any]], list[str]], str],
    seconds_of: Callable[[Job], float],
) -> None:
    """Do the wanted runs, each in a process of its own, and print their table.

    With `--write` a run is kept as it ends, so that a benchmark which was interrupted goes on where
    it stopped, on the same machine with the same libraries. A run that fails does not end the
    others.
    """
    before, runs = _taken_over(RESULTS / f"{name}.json")
    if options.fresh:
        runs = [run for run in runs if job_of(run) not in set(wanted)]
    done = {job_of(run) for run in runs}
    left = [job for job in wanted if job not in done]
    minutes = sum(map(seconds_of, left)) / options.jobs / 60
    print(
        f"{len(wanted) - len(left)} runs taken over, {len(left)} to do: about {minutes:.0f} "
        f"minutes on {options.jobs} free cores",
        flush=True,
    )
    if options.dry_run:
        return
    end = time.monotonic() + 60 * options.minutes if options.minutes else math.inf
    one = partial(_in_time, script, seconds_of, end)
    failures, text = 0, report(runs, described(before, machine()))
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(one, job) for job in left]):
            run = future.result()
            if isinstance(run, RunFailed):
                failures += 1
                print(run, file=sys.stderr, flush=True)
            elif run is not None:
                runs.append(run)
                print(json.dumps(run), flush=True)
                after = machine()
                text = report(runs, described(before, after))
                if options.write:
                    write(name, text, {"before": before, "after": after, "runs": runs})
    print(text)
    if failures:
        raise SystemExit(f"{failures} runs failed")


def _in_time(
    script: str, seconds_of: Callable[[Job], float], end: float, job: Job
) -> dict[str, Any] | RunFailed | None:
    """A run's result or failure; None where it would end too late."""
    if time.monotonic() + seconds_of(job) > end:
        return None
    try:
        return in_process(script, job, ONE_THREAD)
    except RunFailed as error:
        return error


def _taken_over(kept: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The machine and the runs of an earlier call, where that was on this very machine."""
    now = machine()
    if kept.exists():
        earlier = json.loads(kept.read_text())
        if all(earlier["before"][k] == now[k] for k in ("cpu", "cores", "python", "versions")):
            return earlier["before"], earlier["runs"]
    return now, []


class RunFailed(Exception):
    """A process of a benchmark ended without a result; the message has its errors."""


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
    cpu = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout.splitlines()
    model = next((x.partition(":")[2].strip() for x in cpu if x.startswith("Model name")), "?")
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


def write(name: str, text: str, data: Any = None) -> None:
    """Keep a benchmark's table in results/, and `data` as JSON where a later call reads it."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
    if data is not None:
        (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    print(f"written to {RESULTS / name}.md")
