"""Jobs and nodes: what the scheduler runs, and where."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from p2p.api.house import House, TheHouse
from p2p.api.problems import NotFound
from p2p.api.schemas import ChangedRuns, JobDetail, JobRun, JobSummary, NodeCheck, NodeStatus
from p2p.scheduler.backends import BackendError, make_backend
from p2p.scheduler.records import NodeConfig
from p2p.scheduler.rows import JobRow, RunRow
from p2p.scheduler.service import ensure_scheduler
from p2p.scheduler.store import Store

router = APIRouter(prefix="/api", tags=["jobs"])


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
