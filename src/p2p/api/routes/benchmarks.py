"""Benchmarks: started, watched, stopped, put away; those of `p2p benchmark` as well."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, get_args

from fastapi import APIRouter
from sse_starlette import EventSourceResponse

from p2p.api.benchmark_schemas import (
    BenchmarkCase,
    BenchmarkOptionsResponse,
    BenchmarkRunDetail,
    BenchmarkRunSummary,
    ReportJob,
    ResumeBenchmarkResponse,
    StartBenchmarkRequest,
    StartBenchmarkResponse,
    StopBenchmarkResponse,
    SuiteInfo,
)
from p2p.api.benchmarks import UNENDED
from p2p.api.house import House, TheHouse
from p2p.api.live import STREAMED, benchmark_stream, benchmarks_stream, stream
from p2p.api.problems import BadRequest, WrongState
from p2p.api.routes.starting import check_remote
from p2p.api.schemas import StopResponse, UpdateMetadataRequest, UpdateMetadataResponse
from p2p.benchmark.planning import plan
from p2p.benchmark.records import Mode
from p2p.benchmark.running import ask_for_report, cancel, fitting_nodes, resume, start
from p2p.benchmark.suite import (
    DIFFICULTIES,
    OPTIONAL,
    REQUIRED,
    Case,
    chosen,
    load_suite,
    parse_suite,
    shipped_suites,
)
from p2p.benchmark.truth import TRUTHS
from p2p.contracts import describe_errors, utc_now
from p2p.inference.question import InferenceError
from p2p.records.iteration_record import SessionRecord

router = APIRouter(prefix="/api/benchmarks", tags=["benchmarks"])
OPTIONS = ("num_envs", "side_info", "hp_tuning", "use_code_judge")
"""Settings of every session that are fields of their own."""


@router.get("/options")
def show_options(house: TheHouse) -> BenchmarkOptionsResponse:
    """Our suites with all their prompts, and what else can be chosen."""
    with house.store() as store:
        nodes = tuple(node.node_id for node in store.nodes() if node.enabled)
    return BenchmarkOptionsResponse(
        suites=tuple(SuiteInfo(name=n, cases=shipped_cases(n)) for n in sorted(shipped_suites())),
        modes=get_args(Mode),
        difficulties=DIFFICULTIES,
        truths=tuple(TRUTHS),
        columns=(*REQUIRED, *OPTIONAL),
        nodes=nodes,
    )


@lru_cache(maxsize=32)
def shipped_cases(name: str) -> tuple[Case, ...]:
    """The prompts of a suite of ours; checked once, which takes a while."""
    return load_suite(name)


@router.post("", status_code=201)
def start_benchmark(house: TheHouse, wanted: StartBenchmarkRequest) -> StartBenchmarkResponse:
    """Start a suite: a session of each prompt, run by the scheduler, measured in the end."""
    try:
        made = plan(
            _cases(wanted),
            wanted.suite,
            _options(wanted),
            mode=wanted.mode,
            num_stages=wanted.num_stages,
            gate_threshold=wanted.gate_threshold,
            cores_per_run=wanted.cores_per_run,
            max_parallel=wanted.max_parallel,
            nodes=fitting_nodes(house.runs_dir, wanted.nodes, wanted.backend, wanted.cores_per_run),
        )
    except InferenceError as error:  # an unknown model, or a key that is missing
        raise BadRequest(f"model, vlm_model: {error}") from error
    except ValueError as error:
        raise BadRequest(describe_errors(error)) from error
    start(made, house.runs_dir, report=True)
    name = made.benchmark_id
    return StartBenchmarkResponse(benchmark_id=name, job_id=name, cases=len(made.cases))


def _cases(wanted: StartBenchmarkRequest) -> tuple[Case, ...]:
    if wanted.csv is not None:
        cases = parse_suite(wanted.csv, wanted.suite)
    elif wanted.suite in shipped_suites():  # a name, never a file of the server's machine
        cases = shipped_cases(wanted.suite)
    else:
        known = ", ".join(sorted(shipped_suites()))
        raise BadRequest(f"suite: there is none of the name {wanted.suite!r}, only {known}")
    return chosen(
        cases,
        envs=wanted.filter_envs,
        categories=wanted.filter_categories,
        difficulties=wanted.filter_difficulties,
    )


def _options(wanted: StartBenchmarkRequest) -> dict[str, Any]:
    check_remote(wanted)
    further = {name: getattr(wanted, name) for name in OPTIONS}
    return {"videos": True, **wanted.with_models().options(), **further}


@router.get("")
def list_benchmarks(house: TheHouse) -> list[BenchmarkRunSummary]:
    """All that are not in the trash, newest first."""
    with house.store() as store:
        return house.benchmarks.summaries(store)


@router.get("/live", response_class=EventSourceResponse, responses=STREAMED)
def live_benchmarks(house: TheHouse) -> EventSourceResponse:
    """Server-sent events: `benchmarks`, the whole list when something in it has changed."""
    return stream(benchmarks_stream(house))


@router.get("/{benchmark_id}")
def show_benchmark(house: TheHouse, benchmark_id: str) -> BenchmarkRunDetail:
    """How far it is, and what its cases say together; nothing is measured for it."""
    with house.store() as store:
        return house.benchmarks.detail(benchmark_id, store)


@router.get("/{benchmark_id}/cases")
def list_cases(house: TheHouse, benchmark_id: str) -> list[BenchmarkCase]:
    """Its cases, by number."""
    with house.store() as store:
        return house.benchmarks.cases(benchmark_id, store)


@router.get("/{benchmark_id}/cases/{number}")
def show_case(house: TheHouse, benchmark_id: str, number: int) -> BenchmarkCase:
    """One case."""
    with house.store() as store:
        return house.benchmarks.case(benchmark_id, number, store)


@router.get("/{benchmark_id}/live", response_class=EventSourceResponse, responses=STREAMED)
def live_benchmark(house: TheHouse, benchmark_id: str) -> EventSourceResponse:
    """Server-sent events: `benchmark` and `case`, each when it changes; all of them at first."""
    house.benchmarks.folder(benchmark_id)
    return stream(benchmark_stream(house, benchmark_id))


@router.post("/{benchmark_id}/stop")
def stop_benchmark(house: TheHouse, benchmark_id: str) -> StopBenchmarkResponse:
    """End all of it that has not ended; what is done stays, and it can be resumed."""
    made = house.benchmarks.benchmark(benchmark_id)
    runs = cancel(made, house.runs_dir) if _has_job(house, benchmark_id) else 0
    if not runs:
        raise WrongState(f"nothing of benchmark {benchmark_id} is running")
    return StopBenchmarkResponse(benchmark_id=benchmark_id, runs=runs)


@router.post("/{benchmark_id}/resume")
def resume_benchmark(house: TheHouse, benchmark_id: str) -> ResumeBenchmarkResponse:
    """Go on with the cases that have no verdict."""
    made = house.benchmarks.benchmark(benchmark_id)
    _not_in_the_trash(house, benchmark_id)
    return ResumeBenchmarkResponse(benchmark_id=benchmark_id, runs=resume(made, house.runs_dir))


@router.post("/{benchmark_id}/report", status_code=202)
def make_benchmark_report(house: TheHouse, benchmark_id: str) -> ReportJob:
    """Measure the policies that are not measured yet, and write the report's files."""
    made = house.benchmarks.benchmark(benchmark_id)
    _not_in_the_trash(house, benchmark_id)
    job_id = ask_for_report(made, house.runs_dir)
    if job_id is None:
        raise WrongState(f"benchmark {benchmark_id} is being measured")
    return ReportJob(benchmark_id=benchmark_id, job_id=job_id)


@router.patch("/{benchmark_id}")
def update_benchmark(
    house: TheHouse, benchmark_id: str, wanted: UpdateMetadataRequest
) -> UpdateMetadataResponse:
    """Give it another name, a star, tags."""
    record = SessionRecord(house.benchmarks.folder(benchmark_id))
    now = record.update_metadata(**wanted.model_dump(exclude_none=True))
    return UpdateMetadataResponse(
        id=benchmark_id, alias=now.alias, starred=now.starred, tags=now.tags
    )


@router.delete("/{benchmark_id}")
def trash_benchmark(house: TheHouse, benchmark_id: str) -> StopResponse:
    """Put it and its cases away; it can be restored."""
    folder = house.benchmarks.folder(benchmark_id)
    with house.store() as store:
        if any(case.state in UNENDED for case in house.benchmarks.cases(benchmark_id, store)):
            raise WrongState(f"benchmark {benchmark_id} is running: stop it first")
    SessionRecord(folder).update_metadata(deleted_at=utc_now())
    house.index.refresh()
    return StopResponse(id=benchmark_id, status="deleted")


@router.post("/{benchmark_id}/restore")
def restore_benchmark(house: TheHouse, benchmark_id: str) -> StopResponse:
    """Take it out of the trash."""
    record = SessionRecord(house.benchmarks.folder(benchmark_id))
    if record.read_metadata().deleted_at is None:
        raise WrongState(f"benchmark {benchmark_id} is not in the trash")
    record.update_metadata(deleted_at=None)
    house.index.refresh()
    return StopResponse(id=benchmark_id, status="restored")


def _has_job(house: House, benchmark_id: str) -> bool:
    with house.store() as store:
        return store.job(benchmark_id) is not None


def _not_in_the_trash(house: House, benchmark_id: str) -> None:
    folder = house.benchmarks.folder(benchmark_id)
    if SessionRecord(folder).read_metadata().deleted_at is not None:
        raise WrongState(f"benchmark {benchmark_id} is in the trash: restore it first")
