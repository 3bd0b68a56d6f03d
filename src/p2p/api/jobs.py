"""Jobs and nodes: what the scheduler runs, and where."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query

from p2p.api.problems import ResourceNotFound, Unavailable
from p2p.api.schemas import (
    ChangedRuns,
    JobDetail,
    JobLog,
    JobSummary,
    NodeCheck,
    NodeStatus,
    StartSessionResponse,
    SubmitJobRequest,
    fields_of,
)
from p2p.api.sessions import submit_session
from p2p.api.state import AppState, State
from p2p.benchmark.running import fitting_nodes
from p2p.scheduler.backends import BackendError, make_backend
from p2p.scheduler.controllers import JobOptions
from p2p.scheduler.job_files import read_output
from p2p.scheduler.records import JobRow, NodeConfig
from p2p.scheduler.service import ensure_scheduler
from p2p.scheduler.store import Store
from p2p.settings import redact

router = APIRouter(prefix="/api/scheduler", tags=["jobs"])
LOG_BYTES = 200_000
"""The most of a log in one answer."""


@router.get("/jobs", response_model=list[JobSummary])
def list_jobs(
    state: State,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    unended: bool = False,
) -> list[JobRow]:
    """Jobs, newest first."""
    with state.store() as store:
        return store.jobs(limit, unended=unended)


@router.post("/jobs", status_code=201)
def submit_job(state: State, body: SubmitJobRequest) -> StartSessionResponse:
    """Submit a session to nodes of your choice; it runs as soon as there is room."""

    def read_options() -> JobOptions:
        nodes = fitting_nodes(state.runs_dir, body.nodes, body.backend, body.cores)
        return body.job_options(nodes=nodes)

    return submit_session(state, body, read_options)


@router.get("/jobs/{job_id}", response_model=JobDetail)
def show_job(state: State, job_id: str) -> dict[str, Any]:
    """A job and its runs."""
    with state.store() as store:
        job, runs = _find_job(store, job_id), store.runs(job_id)
    own = {"nodes": job.nodes, "max_parallel": job.max_parallel, "runs": runs}
    return fields_of(JobSummary, job) | own


@router.get("/jobs/{job_id}/runs/{run_id}/log")
def show_log(
    state: State,
    job_id: str,
    run_id: str,
    attempt: Annotated[
        int | None, Query(ge=0, le=1_000_000, description="else the last one")
    ] = None,
    offset: Annotated[
        int | None, Query(ge=0, le=1 << 50, description="in bytes; else the end of it")
    ] = None,
) -> JobLog:
    """The output of a run; from another node, as far as it can be fetched."""
    with state.store() as store:
        run = store.run(run_id)
        if run is None or run.job_id != job_id:
            raise ResourceNotFound(f"job {job_id} has no run {run_id!r}")
        number = run.attempt if attempt is None else attempt
        try:
            output = read_output(store, run, number, offset or 0)
        except BackendError as error:
            raise Unavailable(str(error)) from error
    begin = max(0, len(output) - LOG_BYTES) if offset is None else 0
    part = output[begin : begin + LOG_BYTES]
    if begin:  # the rest of a character that begins before it
        part = part.lstrip(bytes(range(0x80, 0xC0)))
        begin = len(output) - len(part)
    start = (offset or 0) + begin
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(part)
    unfinished, _ = decoder.getstate()  # a character whose other bytes come with the next part
    return JobLog(
        run_id=run_id,
        attempt=number,
        offset=start,
        next_offset=start + len(part) - len(unfinished),
        text=redact(text),
    )


@router.post("/jobs/{job_id}/cancel")
def cancel_job(state: State, job_id: str) -> ChangedRuns:
    """Cancel the runs that have not ended."""
    return _change_runs(state, job_id, Store.cancel)


@router.post("/jobs/{job_id}/retry")
def retry_job(state: State, job_id: str) -> ChangedRuns:
    """Run again what failed, was cancelled or skipped."""
    return _change_runs(state, job_id, Store.retry)


def _change_runs(state: AppState, job_id: str, change: Callable[[Store, str], int]) -> ChangedRuns:
    with state.store() as store:
        _find_job(store, job_id)
        runs = change(store, job_id)
    if runs:
        ensure_scheduler(state.runs_dir)
    return ChangedRuns(job_id=job_id, runs=runs)


def _find_job(store: Store, job_id: str) -> JobRow:
    job = store.job(job_id)
    if job is None:
        raise ResourceNotFound(f"there is no job {job_id!r}")
    return job


@router.get("/nodes")
def list_nodes(state: State) -> list[NodeStatus]:
    """The nodes, and how much of them is in use."""
    with state.store() as store:
        nodes, in_use = store.nodes(), store.count_in_use()
    rows = []
    for node in nodes:
        runs, cores, gpus = in_use.get(node.node_id, (0, 0, 0))
        rows.append(
            NodeStatus(**node.model_dump(), runs_now=runs, cores_in_use=cores, gpus_in_use=gpus)
        )
    return rows


@router.post("/nodes", status_code=201)
def add_node(state: State, node: NodeConfig) -> NodeConfig:
    """Add a node; nothing runs there before a job asks for it."""
    with state.store(make=True) as store:
        store.add_node(node)
    return node


@router.post("/nodes/{node_id}/check")
async def check_node(state: State, node_id: str) -> NodeCheck:
    """Check whether a node can be used."""
    with state.store() as store:
        node, folder = store.node(node_id), store.folder
    if node is None:
        raise ResourceNotFound(f"there is no node {node_id!r}")
    try:
        backend = make_backend(node, folder)
        try:
            return NodeCheck(node_id=node_id, usable=True, message=await backend.check())
        finally:
            await backend.close()
    except BackendError as error:
        return NodeCheck(node_id=node_id, usable=False, message=str(error))


@router.delete("/nodes/{node_id}")
def remove_node(state: State, node_id: str) -> NodeCheck:
    """Remove a node; refused while there are runs on it."""
    with state.store(make=True) as store:
        if store.node(node_id) is None:
            raise ResourceNotFound(f"there is no node {node_id!r}")
        store.remove_node(node_id)
    return NodeCheck(node_id=node_id, usable=False, message="removed")
