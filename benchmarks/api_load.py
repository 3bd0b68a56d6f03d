"""How the server bears many sessions and many clients.

A runs folder with many finished sessions is written with the project's own records, `p2p serve` is
started on it, and asked over HTTP: the list by page, filter and sort; what a session's page asks
for; a long run's curves; and hundreds of clients that each hold a stream open while a session
writes events. Beside the list stands the plain way to make it: reading every session's files for
every request, as a server without an index does.

python benchmarks/api_load.py [--sessions 10000] [--requests 1000] [--clients 300] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from common import cpu_seconds, described, machine, table, write

from p2p.api.index import read_entry, session_folders
from p2p.contracts import JudgmentResult, SessionResult, utc_now
from p2p.event_log import EventLog
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.loop_files import BestRun, IterationPlan
from p2p.session.request import loop_config
from p2p.session.start import create_session

TOKEN = "benchmark"  # noqa: S105 - of a server on loopback, for minutes
ENVS = ("HalfCheetah-v5", "Hopper-v5", "Ant-v5", "Walker2d-v5", "Swimmer-v5")
STATUSES = ("passed", "passed", "max_iterations", "cancelled", "error")
WORDS = ("run", "hop", "walk", "forward", "backward", "fast", "slowly", "low", "high", "straight")
LONG_RUN_STEPS, STEPS_OF_A_LINE = 10_000_000, 2048
GOAL_P99_MS = 50.0
READERS = 4
EVENTS = 20
LISTS = {
    "first page": "",
    "last page": "&offset={last}",
    "by status and environment": "&status=passed&env_id=Hopper-v5",
    "by words": "&q=hop+fast",
    "by score, ascending": "&sort=best_score&order=asc",
    "by cost": "&sort=cost_usd",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1000, help="of each kind")
    parser.add_argument("--clients", type=int, default=300, help="that hold a stream open")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    given = parser.parse_args()
    start = machine()
    with tempfile.TemporaryDirectory(prefix="api-load-") as folder:
        found = measure(Path(folder) / "runs", given)
    text = report(found, start, machine())
    print(text)
    if given.write:
        write("api_load", text)


# --- what there is to serve -----------------------------------------------------------------------


def fill(runs: Path, count: int) -> None:
    """One session with all that its page shows, and many with what a list shows."""
    watched(runs)
    random_ = random.Random(1)
    now = utc_now()
    loops = {env_id: loop_config(env_id, model="builtin") for env_id in ENVS}
    for number in range(count - 1):
        env_id, status = random_.choice(ENVS), random_.choice(STATUSES)
        folder = runs / f"session_20260101_{number:06d}_{number:08x}"
        (folder / "iter_1" / "base_seed_1").mkdir(parents=True)
        made = now - timedelta(minutes=number)
        asked = {
            "session_id": folder.name,
            "prompt": " ".join(random_.sample(WORDS, 4)),
            "loop": loops[env_id].model_dump(mode="json"),
            "created_at": made.isoformat(),
            "version": "0",
        }
        score = round(random_.random(), 3)
        result = {"status": status, "score": score, "iterations": 1, "cost_usd": score / 10}
        told = {"status": status, "updated_at": made.isoformat()}
        for name, content in (("session", asked), ("result", result), ("status", told)):
            # Not synced one by one: nobody needs them after a crash.
            (folder / f"{name}.json").write_text(json.dumps(content))


def watched(runs: Path) -> SessionRecord:
    """A session with a long run."""
    loop = loop_config("HalfCheetah-v5", model="builtin")
    session = create_session("run forward fast", loop, session_id="session_watched", runs_dir=runs)
    iteration = session.create_iteration()
    plan = IterationPlan(iteration=1, train=loop.train, configs=loop.configs, seeds=(1, 2, 3))
    iteration.plan.save(plan)
    for seed in plan.seeds:
        long_run(IterationRecord(iteration.path / f"base_seed_{seed}"), seed)
    iteration.save_judgment(JudgmentResult(intent_score=0.9, passed=True))
    iteration.best_run.save(BestRun(run_id="base_seed_1", step=100, score=0.9))
    session.result.save(SessionResult(status="passed", score=0.9, iterations=1))
    for number in range(200):
        EventLog(session.events_path).emit("something.happened", number=number)
    session.set_status("passed")
    return session


def long_run(run: IterationRecord, seed: int) -> None:
    """A run of millions of steps, with a line of twenty numbers for each rollout."""
    run.save_config(
        loop_config("HalfCheetah-v5").train.with_updates(seed=seed, total_timesteps=LONG_RUN_STEPS)
    )
    run.scalars_path.parent.mkdir(parents=True, exist_ok=True)
    with run.scalars_path.open("w") as file:
        for number in range(1, LONG_RUN_STEPS // STEPS_OF_A_LINE + 1):
            values = {f"metric_{n}": number * 0.01 + n for n in range(20)}
            head = {"type": "train", "global_step": number * STEPS_OF_A_LINE, "iteration": number}
            file.write(json.dumps({**head, **values}) + "\n")
    run.videos_dir.mkdir()
    (run.videos_dir / "eval_100_median.mp4").write_bytes(os.urandom(1_000_000))
    run.set_status("completed")


# --- the server -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """`p2p serve` in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    ready_s: float

    def memory_mb(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        line = next(line for line in lines if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024 / 1e6

    def cpu_s(self) -> float:
        return cpu_seconds(self.process.pid)


@contextmanager
def serving(runs: Path) -> Iterator[Server]:
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "p2p.cli", "serve", "--port", "0", "--runs-dir", str(runs)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "P2P_TOKEN": TOKEN},
        cwd=runs.parent,
    )
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if line.startswith("http://"))
        port = int(line.split(":")[2].split("/")[0])
        yield Server(process, port, time.perf_counter() - began)
    finally:
        process.terminate()
        process.wait()


class Client:
    """One connection that stays open."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def get(self, path: str, **headers: str) -> bytes:
        self.connection.request(
            "GET", path, headers={**headers, "Authorization": f"Bearer {TOKEN}"}
        )
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.status not in (200, 206):
            raise SystemExit(f"{path}: {answer.status} {body[:300]!r}")
        return body


# --- measuring ------------------------------------------------------------------------------------


def measure(runs: Path, given: argparse.Namespace) -> dict[str, Any]:
    fill(runs, given.sessions)
    naive = naive_lists(runs)
    with serving(runs) as server:
        began = time.perf_counter()
        Client(server.port).get("/api/sessions")
        found: dict[str, Any] = {
            "sessions": given.sessions,
            "ready_s": server.ready_s,
            "first_list_ms": 1000 * (time.perf_counter() - began),
            "all_listed_s": all_listed_s(server, given.sessions),
            "lists": lists(server, given),
            "naive_ms": naive,
            "envs_ms": timed(lambda: Client(server.port).get("/api/envs"), 1)[0],
            "long_run": long_run_times(Client(server.port)),
            "pages": pages(server, given.requests),
            "memory_mb": server.memory_mb(),
        }
        before = server.cpu_s()
        time.sleep(5)
        found["idle_cpu_share"] = (server.cpu_s() - before) / 5
        found["streams"] = asyncio.run(streams(server, runs, given.clients))
    return found


def all_listed_s(server: Server, sessions: int) -> float:
    """Seconds from the command until the list has all sessions: it is made anew at each start."""
    began, client = time.perf_counter(), Client(server.port)
    while client.get(f"/api/sessions?limit=1&offset={sessions - 1}") == b"[]":
        time.sleep(0.1)
    return server.ready_s + time.perf_counter() - began


def naive_lists(runs: Path) -> list[float]:
    """The first page, made from all files: what every request costs without an index."""

    def listed() -> None:
        folders = session_folders(runs).items()
        entries = [read_entry(name, Path(folder), changed) for name, (folder, changed) in folders]
        rows = [entry.row for entry in entries if entry is not None]
        page = sorted(rows, key=lambda row: row.created_at, reverse=True)[:50]
        json.dumps([row.model_dump(mode="json") for row in page])

    return timed(listed, 2)


def lists(server: Server, given: argparse.Namespace) -> dict[str, list[float]]:
    client = Client(server.port)
    last = max(0, given.sessions - 50)
    return {
        name: timed(
            lambda query=query: client.get(f"/api/sessions?limit=50{query.format(last=last)}"),
            given.requests,
        )
        for name, query in LISTS.items()
    }


def long_run_times(client: Client) -> dict[str, float]:
    path = "/api/sessions/session_watched/iterations/1/metrics"
    first, again = timed(lambda: client.get(path), 2)
    return {"first_ms": first, "again_ms": again, "bytes": len(client.get(path))}


def pages(server: Server, requests: int) -> dict[str, dict[str, float]]:
    """What a session's page asks for, by several clients at once."""
    there = "/api/sessions/session_watched"
    run = f"{there}/iterations/1/runs/base_seed_1"
    routes: dict[str, Callable[[Client], bytes]] = {
        "list": lambda client: client.get("/api/sessions"),
        "session": lambda client: client.get(there),
        "iterations": lambda client: client.get(f"{there}/loop-iterations"),
        "curves": lambda client: client.get(f"{there}/iterations/1/metrics"),
        "events": lambda client: client.get(f"{there}/events"),
        "64 kB of a video": lambda client: client.get(
            f"{run}/videos/eval_100_median.mp4", Range="bytes=0-65535"
        ),
    }
    return {name: together(server, ask, requests) for name, ask in routes.items()}


def together(server: Server, ask: Callable[[Client], bytes], requests: int) -> dict[str, float]:
    took: list[float] = []

    def reader() -> None:
        client = Client(server.port)
        took.extend(timed(lambda: ask(client), requests // READERS))

    threads = [threading.Thread(target=reader) for _ in range(READERS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    return {"per_s": len(took) / seconds, "p50_ms": at(took, 50), "p99_ms": at(took, 99)}


async def streams(server: Server, runs: Path, clients: int) -> dict[str, float]:
    """Clients that all watch one session, and how long its events take to each of them."""
    memory = server.memory_mb()
    arrived: dict[int, list[float]] = {}
    ready = asyncio.Semaphore(0)
    watching = [asyncio.create_task(watch(server, arrived, ready)) for _ in range(clients)]
    for _ in range(clients):
        await ready.acquire()
    log = EventLog(SessionRecord(runs / "session_watched").events_path)
    sent: dict[int, float] = {}
    cpu, began = server.cpu_s(), time.perf_counter()
    for _ in range(EVENTS):
        sent[log.emit("benchmark.event").seq] = time.perf_counter()
        await asyncio.sleep(1.0)
    while any(len(arrived.get(number, ())) < clients for number in sent):
        if time.perf_counter() - began > EVENTS + 60:
            raise SystemExit("some clients were not told of all events")
        await asyncio.sleep(0.1)
    share = (server.cpu_s() - cpu) / (time.perf_counter() - began)
    grown = server.memory_mb() - memory
    for task in watching:
        task.cancel()
    took = [1000 * (t - sent[number]) for number in sent for t in arrived[number]]
    last = [1000 * (max(arrived[number]) - min(arrived[number])) for number in sent]
    return {
        "clients": clients,
        "p50_ms": at(took, 50),
        "p99_ms": at(took, 99),
        "first_to_last_ms": statistics.median(last),
        "kb_each": 1000 * grown / clients,
        "memory_mb": server.memory_mb(),
        "cpu_share": share,
    }


async def watch(server: Server, arrived: dict[int, list[float]], ready: asyncio.Semaphore) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        "GET /api/sessions/session_watched/live?after=199 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    )
    told = False
    while line := await reader.readline():
        if line.startswith(b"id: "):
            arrived.setdefault(int(line[4:]), []).append(time.perf_counter())
        if line.startswith(b"id: 200") and not told:
            told = True
            ready.release()


def timed(ask: Callable[[], object], count: int) -> list[float]:
    """How many milliseconds each of so many calls took."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        ask()
        took.append(1000 * (time.perf_counter() - began))
    return took


def at(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


# --- telling --------------------------------------------------------------------------------------


def report(found: dict[str, Any], start: dict[str, Any], end: dict[str, Any]) -> str:
    naive = min(found["naive_ms"])
    listed = [
        [name, f"{at(took, 50):.1f} ms", f"{at(took, 99):.1f} ms", f"{max(took):.1f} ms"]
        for name, took in found["lists"].items()
    ]
    listed.append(["first page, every session's files read for it", f"{naive:,.0f} ms", "", ""])
    every = [one for took in found["lists"].values() for one in took]
    worst = at(every, 99)
    read = [
        [name, f"{got['per_s']:,.0f}", f"{got['p50_ms']:.1f} ms", f"{got['p99_ms']:.1f} ms"]
        for name, got in found["pages"].items()
    ]
    long, streamed = found["long_run"], found["streams"]
    about_lists = (
        f"{found['sessions']:,} sessions, pages of 50, one client, over HTTP on loopback. All "
        f"lists together: p99 {worst:.1f} ms (goal {GOAL_P99_MS:.0f} ms); without an index a page "
        f"takes {naive / at(every, 50):,.0f} times as long."
    )
    ready = (
        f"- Ready {found['ready_s']:.1f} s after the command, with the newest sessions listed; all "
        f"of them after {found['all_listed_s']:.1f} s. The first list "
        f"{found['first_list_ms']:.0f} ms, the environments {found['envs_ms']:.0f} ms."
    )
    curves = (
        f"- Curves of three runs of {LONG_RUN_STEPS:,} steps with twenty metrics: "
        f"{long['first_ms']:.0f} ms the first time, {long['again_ms']:.0f} ms then, "
        f"{long['bytes'] / 1000:.0f} kB."
    )
    live = (
        f"- {streamed['clients']} clients with a stream on one session: an event reaches them "
        f"after {streamed['p50_ms']:.0f} ms (p50) and {streamed['p99_ms']:.0f} ms (p99; files are "
        f"looked at twice a second), the last {streamed['first_to_last_ms']:.0f} ms after the "
        f"first; {streamed['kb_each']:.0f} kB each, {streamed['cpu_share']:.0%} of a core."
    )
    memory = (
        f"- Memory of the server {found['memory_mb']:.0f} MB, with the streams "
        f"{streamed['memory_mb']:.0f} MB; idle it takes {found['idle_cpu_share']:.1%} of a core."
    )
    answers = f"What a page of one session asks for, {READERS} clients at once:"
    lists_table = table(["list", "p50", "p99", "longest"], listed)
    read_table = table(["answer", "per second", "p50", "p99"], read)
    lines = ["# API under load", "", about_lists, "", lists_table, "", answers, "", read_table, ""]
    lines += [ready, curves, live, memory]
    return "\n".join([*lines, "", *described(start, end), ""])


if __name__ == "__main__":
    main()
