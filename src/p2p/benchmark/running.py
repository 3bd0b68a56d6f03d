"""Handing a benchmark to the scheduler, and seeing how far it is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from p2p.benchmark.planning import REPORT_FOLDER, job_of, make_report_run, prepare
from p2p.benchmark.records import (
    JUDGED,
    Benchmark,
    CaseStatus,
    case_id,
    case_record,
    case_status,
    gate_id,
    live_score,
    report_id,
)
from p2p.contracts import field_error
from p2p.records.session_view import SessionView
from p2p.resource_auto import detect_machine
from p2p.scheduler.controllers import JobOptions, one_run_job
from p2p.scheduler.records import ENDED, NodeConfig, RunState
from p2p.scheduler.service import ensure_scheduler
from p2p.scheduler.store import Store
from p2p.session.publishing import deliver
from p2p.settings import command_in


def start(benchmark: Benchmark, runs_dir: Path, *, report: bool = False) -> Path:
    """Make its folders and hand it to the scheduler, once; returns its folder.

    `report`: the scheduler also measures and writes the report in the end.
    """
    folder = prepare(benchmark, runs_dir)
    with closing(Store(runs_dir)) as store:
        if store.job(benchmark.benchmark_id) is None:
            store.submit(job_of(benchmark, runs_dir, report=report))
    ensure_scheduler(runs_dir)
    return folder


def resume(benchmark: Benchmark, runs_dir: Path) -> int:
    """Resume all cases without a verdict; returns how many runs begin again.

    What runs or waits already is left alone, and so is a case that was judged.
    """
    folder = prepare(benchmark, runs_dir)
    again = 0
    with closing(Store(runs_dir)) as store:
        if store.job(benchmark.benchmark_id) is None:
            store.submit(job_of(benchmark, runs_dir))
        states = {run.run_id: run.state for run in store.runs(benchmark.benchmark_id)}
        wanted = [
            name for name in _list_unjudged_runs(benchmark, folder)
            if name in states and states[name] in ENDED and states[name] != "succeeded"
        ]  # fmt: skip
        if wanted:
            again = store.retry(benchmark.benchmark_id, wanted)
    ensure_scheduler(runs_dir)
    return again


def _list_unjudged_runs(benchmark: Benchmark, folder: Path) -> list[str]:
    """Runs of cases that nobody judged to the end; gates and report: they look again for free."""
    name = benchmark.benchmark_id
    cases = [
        case_id(name, case.number)
        for case in benchmark.cases
        if case_status(benchmark, folder, case.number).outcome not in JUDGED
    ]
    gates = (gate_id(name, stage) for stage in range(len(benchmark.stages) - 1))
    return [*cases, *gates, report_id(name)]


def ask_for_report(benchmark: Benchmark, runs_dir: Path) -> str | None:
    """Submit a job that measures and reports; None where one is at work."""
    name = benchmark.benchmark_id
    with closing(Store(runs_dir)) as store:
        if store.run_in(f"{name}/{REPORT_FOLDER}") is not None:
            return None
        used = {job.job_id for job in store.jobs(prefix=report_id(name))}
        run_id = next(n for k in count(2) if (n := f"{report_id(name)}.{k}") not in used)
        run = make_report_run(name, run_id)
        store.submit(one_run_job("command", run, JobOptions(title=f"report of {name}")))
    ensure_scheduler(runs_dir)
    return run_id


def deliver_cases(benchmark: Benchmark, folder: Path) -> None:
    """Export and draw the best policy of each judged case, on all cores at once.

    It is done with the report, when no prompt waits for a core any more.
    """
    cases = [case_status(benchmark, folder, case.number) for case in benchmark.cases]
    judged = [each.case.number for each in cases if each.outcome in JUDGED]
    views = (SessionView(case_record(folder, number)) for number in judged)
    with ThreadPoolExecutor(detect_machine().cores) as pool:
        list(pool.map(deliver, views))


def cancel(benchmark: Benchmark, runs_dir: Path) -> int:
    """Ask for the end of all that has not ended; returns of how many runs."""
    with closing(Store(runs_dir)) as store:
        asked = store.cancel(benchmark.benchmark_id)
    ensure_scheduler(runs_dir)
    return asked


@dataclass(frozen=True)
class CaseNow:
    """A case while the benchmark goes on."""

    status: CaseStatus
    run: RunState
    node: str
    live_score: float | None
    """Of what is being trained; None: nothing is judged of it yet."""
    note: str
    """What the scheduler has to say."""

    @property
    def ended(self) -> bool:
        """Whether the scheduler is done with it."""
        return self.run in ENDED


def look(store: Store, benchmark: Benchmark, folder: Path) -> list[CaseNow]:
    """Return how each case stands now."""
    name = benchmark.benchmark_id
    runs = {run.run_id: run for run in store.runs(name)}
    # What a stage waits for, its gate may wait for in vain.
    notes = {
        number: runs[gate_id(name, stage - 1)].message
        for stage, numbers in enumerate(benchmark.stages)
        for number in numbers
        if stage and runs[gate_id(name, stage - 1)].state == "pending"
    }
    cases = []
    for case in benchmark.cases:
        run = runs[case_id(name, case.number)]
        working = run.state in ("starting", "running")
        cases.append(
            CaseNow(
                status=case_status(benchmark, folder, case.number),
                run=run.state,
                node=run.node_id or "",
                live_score=live_score(case_record(folder, case.number)) if working else None,
                note=run.message or notes.get(case.number, ""),
            )
        )
    return cases


def parallel_prompts(benchmark: Benchmark, runs_dir: Path) -> int:
    """Return how many prompts its nodes and its own limit let run at a time."""
    with closing(Store(runs_dir)) as store:
        nodes = [node for node in store.nodes() if node.enabled]
    usable = [node for node in nodes if not benchmark.nodes or node.node_id in benchmark.nodes]
    fit = sum(node.cores // benchmark.cores_per_run for node in usable)
    return max(1, min(fit, benchmark.max_parallel or fit, len(benchmark.cases)))


def fitting_nodes(
    runs_dir: Path, names: tuple[str, ...], backend: str | None, cores: int
) -> tuple[str, ...]:
    """The nodes that were named, or all of a backend; empty: all there are.

    Raises ValueError for an unknown name, and where no run would ever fit.
    """
    with closing(Store(runs_dir)) as store:
        known = {node.node_id: node for node in store.nodes()}
    for name in names:
        if name not in known:
            there = ", ".join(known)
            raise field_error("nodes", f"unknown node {name}; known: {there}")
    if backend is not None:
        of_it = tuple(n.node_id for n in known.values() if n.backend == backend and n.enabled)
        names = tuple(name for name in names if name in of_it) if names else of_it
        if not names:
            hint = command_in(runs_dir, "p2p nodes list")
            raise field_error("backend", f"no node of {backend} is enabled: {hint}")
    usable = [known[name] for name in names or known]
    if not any(node.enabled for node in usable):
        hint = command_in(runs_dir, "p2p nodes list")
        raise field_error("nodes", f"none of them is enabled: {hint}")
    _check_room(usable, cores)
    return names


def _check_room(nodes: list[NodeConfig], cores: int) -> None:
    most = max(node.cores for node in nodes if node.enabled)
    if cores > most:
        raise field_error("cores_per_run", f"{cores} are asked for, the largest node has {most}")
