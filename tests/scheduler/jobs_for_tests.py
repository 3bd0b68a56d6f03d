"""Small jobs whose runs say, in a file of their folder, that they ran."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p2p.contracts import utc_now
from p2p.scheduler.job_scheduler import Scheduler
from p2p.scheduler.records import JobSpec, NodeConfig, RunRow, RunSpec
from p2p.scheduler.store import Store

SAY_SO = (
    "import os, sys, time; "
    "stream = os.open(os.path.join(sys.argv[1], 'ran.txt'), "
    "os.O_WRONLY | os.O_CREAT | os.O_APPEND); "
    "os.write(stream, (os.environ.get('P2P_LAUNCH_ID', '?') + '\\n').encode()); "
    "time.sleep(float(sys.argv[2])); "
    "sys.exit(int(sys.argv[3]))"
)


def saying(run_id: str, *, seconds: float = 0.0, code: int = 0, **fields: Any) -> RunSpec:
    """A run that adds a line to ran.txt, takes its time and ends so."""
    return RunSpec(
        run_id=run_id,
        folder=fields.pop("folder", run_id),
        command=("{python}", "-S", "-c", SAY_SO, "{folder}", str(seconds), str(code)),
        **fields,
    )


def job_of(job_id: str, runs: Sequence[RunSpec], **fields: Any) -> JobSpec:
    return JobSpec(job_id=job_id, kind="command", runs=tuple(runs), created_at=utc_now(), **fields)


def plain_job(job_id: str, count: int, *, seconds: float = 0.0, **fields: Any) -> JobSpec:
    return job_of(
        job_id, [saying(f"{job_id}-{n}", seconds=seconds) for n in range(count)], **fields
    )


def with_slots(runs_dir: Path, slots: int) -> Store:
    """A store whose machine counts as one of so many cores."""
    store = Store(runs_dir)
    store.add_node(NodeConfig(node_id="local", cores=slots), replace=True)
    return store


def launches(runs_dir: Path, folder: str) -> list[str]:
    """The launches that said that they ran in a folder."""
    path = runs_dir / folder / "ran.txt"
    return path.read_text().split() if path.exists() else []


def run_all(store: Store) -> None:
    """Schedule in this process until nothing is left to do."""

    async def work() -> None:
        await asyncio.wait_for(Scheduler(store).run(until_idle=True), 120)

    asyncio.run(work())


def the_run(store: Store, run_id: str) -> RunRow:
    run = store.run(run_id)
    assert run is not None
    return run


def states(store: Store, job_id: str) -> dict[str, str]:
    return {run.run_id: run.state for run in store.runs(job_id)}


def assert_each_ran_once(store: Store, job_id: str) -> None:
    """All its runs succeeded, each in its first attempt and once."""
    for run in store.runs(job_id):
        assert run.state == "succeeded", run
        assert launches(store.runs_dir, run.folder) == [f"{run.run_id}.1"]
