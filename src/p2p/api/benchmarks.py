"""Benchmarks: started, watched, stopped, resumed; those of `p2p benchmark` as well."""

from __future__ import annotations

from functools import lru_cache
from typing import get_args

from fastapi import APIRouter
from sse_starlette import EventSourceResponse

from p2p.api.live import STREAMED, Stamps, stream
from p2p.api.problems import BadRequest, WrongState
from p2p.api.schemas import (
    BenchmarkCase,
    BenchmarkOptionsResponse,
    BenchmarkPlanResponse,
    BenchmarkRunDetail,
    BenchmarkRunSummary,
    ReportJob,
    ResumeBenchmarkResponse,
    StartBenchmarkRequest,
    StartBenchmarkResponse,
    StopBenchmarkResponse,
    SuiteInfo,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from p2p.api.state import AppState, State
from p2p.benchmark.planning import plan, workload
from p2p.benchmark.records import Benchmark, Mode
from p2p.benchmark.running import (
    ask_for_report,
    cancel,
    fitting_nodes,
    parallel_prompts,
    resume,
    start,
)
from p2p.benchmark.suite import (
    DIFFICULTIES,
    OPTIONAL,
    REQUIRED,
    SHIPPED,
    Case,
    filter_cases,
    load_suite,
    parse_suite,
    shipped_suites,
)
from p2p.benchmark.truth import TRUTHS
from p2p.contracts import describe_errors
from p2p.inference.question import InferenceError
from p2p.records.iteration_record import SessionRecord

router = APIRouter(prefix="/api/benchmarks", tags=["benchmarks"])


@router.get("/options")
def show_options(state: State) -> BenchmarkOptionsResponse:
    """The built-in suites with all their prompts, and the other options."""
    with state.store() as store:
        nodes = tuple(node.node_id for node in store.nodes() if node.enabled)
    # The default first: the page offers the first one, and it runs on every machine.
    names = sorted(shipped_suites(), key=lambda name: (name != SHIPPED, name))
    return BenchmarkOptionsResponse(
        suites=tuple(SuiteInfo(name=name, cases=shipped_cases(name)) for name in names),
        modes=get_args(Mode),
        difficulties=DIFFICULTIES,
        truths=tuple(TRUTHS),
        columns=(*REQUIRED, *OPTIONAL),
        nodes=nodes,
    )


@lru_cache(maxsize=32)
def shipped_cases(name: str) -> tuple[Case, ...]:
    """The prompts of a built-in suite; checked once, which takes a while."""
    return load_suite(name)


@router.post("", status_code=201)
def start_benchmark(state: State, body: StartBenchmarkRequest) -> StartBenchmarkResponse:
    """Start a suite: a session of each prompt, run by the scheduler, measured in the end."""
    benchmark = _plan(state, body)
    start(benchmark, state.runs_dir, report=True)
    name = benchmark.benchmark_id
    return StartBenchmarkResponse(benchmark_id=name, job_id=name, cases=len(benchmark.cases))


@router.post("/plan")
def plan_benchmark(state: State, body: StartBenchmarkRequest) -> BenchmarkPlanResponse:
    """Estimate the steps, time and cost of a suite; nothing is started."""
    benchmark = _plan(state, body)
    try:
        needed = workload(benchmark, parallel_prompts(benchmark, state.runs_dir))
    except InferenceError as error:
        raise BadRequest(f"P2P_PRICES: {error}") from error
    return BenchmarkPlanResponse(workload=needed, lines=needed.lines)


def _plan(state: AppState, body: StartBenchmarkRequest) -> Benchmark:
    try:
        nodes = fitting_nodes(state.runs_dir, body.nodes, body.backend, body.cores_per_run)
        return plan(_read_cases(body), body.suite, body.with_models(), nodes)
    except InferenceError as error:  # an unknown model, or a missing key
        raise BadRequest(f"model, vlm_model: {error}") from error
    except ValueError as error:
        raise BadRequest(describe_errors(error)) from error


def _read_cases(body: StartBenchmarkRequest) -> tuple[Case, ...]:
    if body.csv is not None:
        cases = parse_suite(body.csv, body.suite)
    elif body.suite in shipped_suites():  # a name, never a file of the server's machine
        cases = shipped_cases(body.suite)
    else:
        known = ", ".join(sorted(shipped_suites()))
        raise BadRequest(f"suite: unknown suite {body.suite!r}; known: {known}")
    return filter_cases(
        cases,
        envs=body.filter_envs,
        categories=body.filter_categories,
        difficulties=body.filter_difficulties,
    )


@router.get("")
def list_benchmarks(state: State) -> list[BenchmarkRunSummary]:
    """Return all benchmarks that are not in the trash, newest first."""
    with state.store() as store:
        return state.benchmarks.summaries(store)


@router.get("/live", response_class=EventSourceResponse, responses=STREAMED)
def live_benchmarks(state: State) -> EventSourceResponse:
    """Server-sent events: `benchmarks`, when the list has changed."""

    def look() -> Stamps:
        with state.store() as store:
            return {"benchmarks": state.benchmarks.summaries(store)}

    return stream(state.watcher.messages("benchmarks", look))


@router.get("/{benchmark_id}")
def show_benchmark(state: State, benchmark_id: str) -> BenchmarkRunDetail:
    """How far it is, and what its cases say together; nothing is measured for it."""
    with state.store() as store:
        return state.benchmarks.detail(benchmark_id, store)


@router.get("/{benchmark_id}/cases")
def list_cases(state: State, benchmark_id: str) -> list[BenchmarkCase]:
    """The cases of a benchmark, by number."""
    with state.store() as store:
        return state.benchmarks.cases(benchmark_id, store)


@router.get("/{benchmark_id}/live", response_class=EventSourceResponse, responses=STREAMED)
def live_benchmark(state: State, benchmark_id: str) -> EventSourceResponse:
    """Server-sent events: `benchmark`, when it or one of its cases has changed."""
    state.benchmarks.folder(benchmark_id)

    def look() -> Stamps:
        with state.store() as store:
            cases = state.benchmarks.cases(benchmark_id, store)
            return {"benchmark": (cases, state.benchmarks.detail(benchmark_id, store, cases))}

    return stream(state.watcher.messages(f"benchmark {benchmark_id}", look))


@router.post("/{benchmark_id}/stop")
def stop_benchmark(state: State, benchmark_id: str) -> StopBenchmarkResponse:
    """Cancel what has not ended; finished work stays, and it can be resumed."""
    benchmark = state.benchmarks.benchmark(benchmark_id)
    with state.store() as store:
        has_job = store.job(benchmark_id) is not None
    runs = cancel(benchmark, state.runs_dir) if has_job else 0
    if not runs:
        raise WrongState(f"nothing of benchmark {benchmark_id} is running")
    return StopBenchmarkResponse(benchmark_id=benchmark_id, runs=runs)


@router.post("/{benchmark_id}/resume")
def resume_benchmark(state: State, benchmark_id: str) -> ResumeBenchmarkResponse:
    """Resume the cases that have no verdict."""
    runs = resume(_find_benchmark(state, benchmark_id), state.runs_dir)
    return ResumeBenchmarkResponse(benchmark_id=benchmark_id, runs=runs)


@router.post("/{benchmark_id}/report", status_code=202)
def make_benchmark_report(state: State, benchmark_id: str) -> ReportJob:
    """Measure the policies that are not measured yet, and write the report's files."""
    job_id = ask_for_report(_find_benchmark(state, benchmark_id), state.runs_dir)
    if job_id is None:
        raise WrongState(f"benchmark {benchmark_id} is being measured")
    return ReportJob(benchmark_id=benchmark_id, job_id=job_id)


@router.patch("/{benchmark_id}")
def update_benchmark(
    state: State, benchmark_id: str, body: UpdateMetadataRequest
) -> UpdateMetadataResponse:
    """Change its name, star or tags."""
    record = SessionRecord(state.benchmarks.folder(benchmark_id))
    metadata = record.update_metadata(**body.model_dump(exclude_none=True))
    return UpdateMetadataResponse(id=benchmark_id, **metadata.model_dump(exclude={"deleted_at"}))


def _find_benchmark(state: AppState, benchmark_id: str) -> Benchmark:
    folder = state.benchmarks.folder(benchmark_id)
    if SessionRecord(folder).read_metadata().deleted_at is not None:
        raise WrongState(f"benchmark {benchmark_id} is in the trash: restore it first")
    return state.benchmarks.benchmark(benchmark_id)
