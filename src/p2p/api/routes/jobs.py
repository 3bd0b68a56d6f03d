"""Jobs and nodes: what the scheduler runs, and where."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from p2p.api.benchmark_schemas import JobCase
from p2p.api.house import House, TheHouse
from p2p.api.problems import NotFound, Problem
from p2p.api.schemas import (
    ChangedRuns,
    JobDetail,
    JobLog,
    JobRun,
    JobSummary,
    NodeCheck,
    NodeStatus,
)
from p2p.benchmark.records import BENCHMARK_ID
from p2p.scheduler.backends import BackendError, make_backend
from p2p.scheduler.job_files import read_output
from p2p.scheduler.records import JobRow, NodeConfig, RunRow
from p2p.scheduler.service import ensure_scheduler
from p2p.scheduler.store import Store
from p2p.settings import is_benchmark_case, redact

router = APIRouter(prefix="/api", tags=["jobs"])
LOG_BYTES = 200_000
"""The most of a log in one answer."""


@router.get("/scheduler/jobs")
def list_jobs(
    house: TheHouse,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    unended: bool = False,
) -> list[JobSummary]:
    """Jobs, newest first."""
    with house.store() as store:
        return [_summary(job) for job in store.jobs(limit, unended=unended)]


@router.get("/scheduler/jobs/{job_id}")
def show_job(house: TheHouse, job_id: str) -> JobDetail:
    """A job and its runs."""
    with house.store() as store:
        job = store.job(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id!r}")
        return JobDetail(
            **_summary(job).model_dump(),
            nodes=job.nodes,
            max_parallel=job.max_parallel,
            runs=tuple(_run(run) for run in store.runs(job_id)),
        )


@router.get("/scheduler/jobs/{job_id}/cases/{index}")
def show_job_case(house: TheHouse, job_id: str, index: int) -> JobCase:
    """A case of a job: of a benchmark the case of that number, of another job its run so far."""
    with house.store() as store:
        if store.job(job_id) is None:
            raise NotFound(f"there is no job {job_id!r}")
        runs = store.runs(job_id)
        if BENCHMARK_ID.fullmatch(job_id):
            case = house.benchmarks.case(job_id, index, store)
            run = next((run for run in runs if run.run_id == case.session_id), None)
        else:
            case, run = None, runs[index] if 0 <= index < len(runs) else None
    if run is None:
        raise NotFound(f"job {job_id} has no case {index}")
    return JobCase(
        job_id=job_id, index=index, run=_run(run), session_id=_session(house, run.folder), case=case
    )


def _session(house: House, folder: str) -> str | None:
    """The id of the session in a run's folder; None if it works on no session."""
    name = folder.replace("/", "_")
    if not is_benchmark_case(name):
        name = folder.partition("/")[0]
    try:
        house.session(name)
    except NotFound:
        return None
    return name


@router.get("/scheduler/jobs/{job_id}/runs/{run_id}/log")
def show_log(
    house: TheHouse,
    job_id: str,
    run_id: str,
    attempt: Annotated[int | None, Query(ge=0, le=1_000_000, description="the last one")] = None,
    offset: Annotated[
        int | None, Query(ge=0, le=1 << 50, description="in bytes; else the end of it")
    ] = None,
) -> JobLog:
    """What a run wrote; from another machine as far as it has come back, or can be asked for."""
    with house.store() as store:
        run = store.run(run_id)
        if run is None or run.job_id != job_id:
            raise NotFound(f"job {job_id} has no run {run_id!r}")
        number = run.attempt if attempt is None else attempt
        try:
            written = read_output(store, run, number, offset or 0)
        except BackendError as error:
            raise Problem(503, str(error)) from error
    begin = max(0, len(written) - LOG_BYTES) if offset is None else 0
    part = written[begin : begin + LOG_BYTES]
    start = (offset or 0) + begin
    return JobLog(
        run_id=run_id,
        attempt=number,
        offset=start,
        next_offset=start + len(part),
        text=redact(part.decode("utf-8", "replace")),
    )


@router.post("/scheduler/jobs/{job_id}/cancel")
def cancel_job(house: TheHouse, job_id: str) -> ChangedRuns:
    """End what of it has not ended."""
    return _change(house, job_id, Store.cancel)


@router.post("/scheduler/jobs/{job_id}/retry")
def retry_job(house: TheHouse, job_id: str) -> ChangedRuns:
    """Run again what failed, was cancelled or skipped."""
    return _change(house, job_id, Store.retry)


def _change(house: House, job_id: str, change: Callable[[Store, str], int]) -> ChangedRuns:
    with house.store() as store:
        if store.job(job_id) is None:
            raise NotFound(f"there is no job {job_id!r}")
        runs = change(store, job_id)
    if runs:
        ensure_scheduler(house.runs_dir)
    return ChangedRuns(job_id=job_id, runs=runs)


@router.get("/scheduler/nodes")
def list_nodes(house: TheHouse) -> list[NodeStatus]:
    """The nodes, and what of them is in use."""
    with house.store() as store:
        nodes, used = store.nodes(), store.in_use()
    found = []
    for node in nodes:
        runs, cores, gpus = used.get(node.node_id, (0, 0, 0))
        found.append(
            NodeStatus(**node.model_dump(), runs_now=runs, cores_in_use=cores, gpus_in_use=gpus)
        )
    return found


@router.post("/scheduler/nodes", status_code=201)
def add_node(house: TheHouse, node: NodeConfig) -> NodeConfig:
    """Take a node in; nothing is run there before a job asks for it."""
    with house.store() as store:
        store.add_node(node)
    return node


@router.post("/scheduler/nodes/{node_id}/check")
async def check_node(house: TheHouse, node_id: str) -> NodeCheck:
    """Look whether a node can be used."""
    with house.store() as store:
        node, folder = store.node(node_id), store.folder
    if node is None:
        raise NotFound(f"there is no node {node_id!r}")
    try:
        backend = make_backend(node, folder)
        try:
            return NodeCheck(node_id=node_id, usable=True, message=await backend.check())
        finally:
            await backend.close()
    except BackendError as error:
        return NodeCheck(node_id=node_id, usable=False, message=str(error))


@router.delete("/scheduler/nodes/{node_id}")
def remove_node(house: TheHouse, node_id: str) -> NodeCheck:
    """Forget a node; refused while there are runs on it."""
    with house.store() as store:
        if store.node(node_id) is None:
            raise NotFound(f"there is no node {node_id!r}")
        store.remove_node(node_id)
    return NodeCheck(node_id=node_id, usable=False, message="removed")


def _summary(job: JobRow) -> JobSummary:
    return JobSummary(
        job_id=job.job_id,
        kind=job.kind,
        title=job.title,
        state=job.state,
        priority=job.priority,
        created_at=datetime.fromtimestamp(job.created_at, UTC),
        counts={str(state): count for state, count in job.counts.items()},
    )


def _run(run: RunRow) -> JobRun:
    return JobRun(
        run_id=run.run_id,
        state=run.state,
        attempt=run.attempt,
        cancel_requested=run.cancel_requested,
        node_id=run.node_id,
        cores=run.cores,
        gpus=run.gpus,
        exit_code=run.exit_code,
        message=run.message,
        folder=run.folder,
        started_at=_time(run.started_at),
        ended_at=_time(run.ended_at),
    )


def _time(stamp: float | None) -> datetime | None:
    return None if stamp is None else datetime.fromtimestamp(stamp, UTC)
