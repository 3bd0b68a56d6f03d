"""What a scheduled run costs: decisions, lists, bytes, and processes of a second each.

The store is the real one. In the simulation its runs are fake: they are assigned, noted as running
and ended as fast as the store allows. The programs of the last part are real, on this machine.
CPU times do not depend on what else the machine does; wall times do.

python benchmarks/scheduler.py [--runs 100000] [--programs 500] [--seconds 1] [--session FOLDER]
    [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import described, machine, table, write

from p2p.contracts import utc_now
from p2p.scheduler.job_scheduler import Scheduler
from p2p.scheduler.records import JobSpec, NodeConfig, RunSpec
from p2p.scheduler.store import Store
from p2p.scheduler.writer import Writer

RUNS_OF_A_JOB = 100
NODES, CORES_OF_A_NODE = 50, 40
LISTED = 10_000
ON_DISK = 1000
SLOTS = 4


@dataclass
class Clock:
    wall: float = 0.0
    cpu: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.wall += time.perf_counter() - wall
            self.cpu += time.process_time() - cpu


def job(name: str, count: int, command: tuple[str, ...] = ("true",)) -> JobSpec:
    runs = tuple(
        RunSpec(
            run_id=f"{name}.case{n}",
            folder=f"{name}/case{n}",
            command=command,
            secrets=("ANTHROPIC_API_KEY",),
            tags={"env_id": "HalfCheetah-v5", "difficulty": "easy"},
        )
        for n in range(count)
    )
    return JobSpec(job_id=name, kind="benchmark", runs=runs, created_at=utc_now())


def simulate(folder: Path, runs: int, jobs: int, *, on_disk: bool) -> dict[str, float]:
    """All runs of many jobs through the store of a cluster, one end and one start at a time."""
    store = Store(folder)
    if not on_disk:
        store.connection.execute("PRAGMA synchronous = OFF")
    store.remove_node("local")
    for n in range(NODES):
        store.add_node(NodeConfig(node_id=f"node{n}", cores=CORES_OF_A_NODE))
    submitting, deciding = Clock(), Clock()
    for n in range(jobs):
        made = job(f"bm_{n:06}", runs // jobs)
        with submitting.running():
            store.submit(made)
    writer = Writer(store)
    writer.take_jobs()
    done = longest = 0
    live = writer.assign()
    with deciding.running():
        while live:
            run = live.pop(0)
            writer.mark_running(run)
            writer.finish(run, "succeeded", "", 0)
            done += 1
            began = time.process_time()
            live += writer.assign()
            longest = max(longest, time.process_time() - began)
    assert done == runs, (done, runs)
    assert not store.jobs(1, unended=True)
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    found = {
        "runs": runs,
        "jobs": jobs,
        "submit_us": 1e6 * submitting.cpu / runs,
        "run_us": 1e6 * deciding.cpu / runs,
        "runs_per_s": runs / deciding.wall,
        "runs_per_cpu_s": runs / deciding.cpu,
        "longest_ms": 1e3 * longest,
        "bytes": store.path.stat().st_size / runs,
    }
    writer.close()
    store.close()
    return found


def list_runs(folder: Path) -> dict[str, float]:
    """Lists of the runs and jobs of a store that holds many ended ones."""
    store = Store(folder)
    for n in range(LISTED // RUNS_OF_A_JOB):
        store.submit(job(f"bm_{n:06}", RUNS_OF_A_JOB))
    found: dict[str, float] = {}
    lists = {"runs_ms": store.runs, "jobs_ms": store.jobs, "newest_ms": lambda: store.jobs(20)}
    for name, look in lists.items():
        times = []
        for _ in range(5):
            began = time.process_time()
            look()
            times.append(time.process_time() - began)
        found[name] = 1e3 * min(times)
    store.close()
    return found


def real_programs(folder: Path, count: int, seconds: float) -> dict[str, float]:
    """Programs on this machine, from their submission to the end of the last."""
    store = Store(folder)
    store.add_node(NodeConfig(node_id="local", cores=SLOTS), replace=True)
    say_so = ("sh", "-c", f"echo x >> ran.txt; sleep {seconds}")
    store.submit(job("many", count, say_so))
    clock = Clock()
    with clock.running():
        asyncio.run(Scheduler(store).run(until_idle=True))
    runs = store.runs()
    ran = [(folder / run.folder / "ran.txt").read_text().count("x") for run in runs]
    launches = list((store.folder / "launches").rglob("*"))
    found = {
        "programs": count,
        "seconds": seconds,
        "lost": sum(run.state != "succeeded" for run in runs) + ran.count(0),
        "twice": sum(times > 1 for times in ran),
        "wall_s": clock.wall,
        "programs_per_s": count / clock.wall,
        "scheduler_cpu_ms": 1e3 * clock.cpu / count,
        "control_bytes": sum(p.lstat().st_blocks * 512 for p in launches) / count,
    }
    store.close()
    return found


def session_size(folder: Path) -> dict[str, float]:
    """What a session leaves on disk."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        "iterations": len(list(folder.glob("iter_*"))),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        jobs = max(1, arguments.runs // RUNS_OF_A_JOB)
        few = min(ON_DISK, arguments.runs)
        return {
            "lists": list_runs(folder / "lists"),
            "suites": simulate(folder / "suites", arguments.runs, jobs, on_disk=False),
            "sessions": simulate(
                folder / "sessions", arguments.runs, arguments.runs, on_disk=False
            ),
            "on_disk": simulate(folder / "on_disk", few, max(1, few // 100), on_disk=True),
            "programs": real_programs(folder / "real", arguments.programs, arguments.seconds),
            "session": session_size(arguments.session) if arguments.session else None,
        }


def report(found: dict[str, Any], start: dict[str, Any], end: dict[str, Any]) -> str:
    rows = []
    titles = {
        "suites": f"jobs of {RUNS_OF_A_JOB} runs",
        "sessions": "jobs of one run",
        "on_disk": f"jobs of {RUNS_OF_A_JOB} runs, every commit forced to disk",
    }
    for key, title in titles.items():
        got = found[key]
        rows.append(
            [
                title,
                f"{got['runs']:,}",
                f"{got['runs_per_cpu_s']:,.0f}",
                f"{got['runs_per_s']:,.0f}",
                f"{got['longest_ms']:.0f} ms",
                f"{got['submit_us']:.0f} µs",
                f"{got['bytes']:.0f}",
            ]
        )
    header = [
        "fake runs through the store", "runs", "runs per CPU second", "per second here",
        "longest decision", "to submit one", "bytes each",
    ]  # fmt: skip
    lists, programs = found["lists"], found["programs"]
    first = (
        f"A run is three transactions: it is given to one of {NODES} nodes with "
        f"{CORES_OF_A_NODE} cores, noted as running, and ended."
    )
    listing = (
        f"- A list of {LISTED:,} runs: {lists['runs_ms']:.0f} ms of CPU time (goal 50); of "
        f"their {LISTED // RUNS_OF_A_JOB} jobs {lists['jobs_ms']:.1f} ms, the newest 20 "
        f"{lists['newest_ms']:.2f} ms."
    )
    processes = (
        f"- {programs['programs']} programs of {programs['seconds']:g} s on this machine's "
        f"cores with {SLOTS} slots: {programs['lost']} lost, {programs['twice']} twice, "
        f"{programs['wall_s']:.0f} s, {programs['programs_per_s']:.2f} programs/s; "
        f"{programs['scheduler_cpu_ms']:.0f} ms of the scheduler's CPU time and "
        f"{programs['control_bytes'] / 1024:.0f} KiB on disk for each."
    )
    session = found["session"]
    left = (
        f"- A session of {session['iterations']} iteration(s) leaves {session['files']} files, "
        f"{session['bytes'] / 1e6:.1f} MB."
        if session
        else ""
    )
    shown = ["# Scheduler", "", first, "", table(header, rows), "", listing, processes, left]
    return "\n".join([*shown, "", *described(start, end), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--session", type=Path, help="a session whose files to count")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    arguments = parser.parse_args()
    start = machine()
    found = measure(arguments)
    end = machine()
    text = report(found, start, end)
    print(text)
    if arguments.write:
        write("scheduler", text)


if __name__ == "__main__":
    main()
