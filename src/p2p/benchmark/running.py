"""Handing a benchmark to the scheduler, and seeing how far it is."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from p2p.benchmark.planning import job_of, prepare
from p2p.benchmark.records import Benchmark, case_id, case_record, gate_id
from p2p.benchmark.standing import Standing, live_score, standing
from p2p.scheduler.records import ENDED, NodeConfig, RunState
from p2p.scheduler.service import ensure_scheduler
from p2p.scheduler.store import Store


def start(benchmark: Benchmark, runs_dir: Path) -> Path:
    """Make its folders and hand it to the scheduler, once; returns its folder."""
    folder = prepare(benchmark, runs_dir)
    with closing(Store(runs_dir)) as store:
        if store.job(benchmark.benchmark_id) is None:
            store.submit(job_of(benchmark, runs_dir))
    ensure_scheduler(runs_dir)
    return folder


def resume(benchmark: Benchmark, runs_dir: Path) -> int:
    """Let all cases without a verdict go on; returns how many runs are begun again.

    What runs or waits already is left alone, and so is a case that was judged.
    """
    folder = prepare(benchmark, runs_dir)
    again = 0
    with closing(Store(runs_dir)) as store:
        if store.job(benchmark.benchmark_id) is None:
            store.submit(job_of(benchmark, runs_dir))
        states = run_states(store, benchmark)
        wanted = [
            name for name in _without_a_verdict(benchmark, folder)
            if states[name] in ENDED and states[name] != "succeeded"
        ]  # fmt: skip
        if wanted:
            again = store.retry(benchmark.benchmark_id, wanted)
    ensure_scheduler(runs_dir)
    return again


def _without_a_verdict(benchmark: Benchmark, folder: Path) -> list[str]:
    """Runs of cases that nobody judged to the end, and gates: those look again at no cost."""
    name = benchmark.benchmark_id
    cases = [
        case_id(name, case.number)
        for case in benchmark.cases
        if standing(benchmark, folder, case.number).outcome not in ("passed", "not_passed")
    ]
    return [*cases, *(gate_id(name, stage) for stage in range(len(benchmark.stages) - 1))]


def cancel(benchmark: Benchmark, runs_dir: Path) -> int:
    """Ask for the end of all that has not ended; returns of how many runs."""
    with closing(Store(runs_dir)) as store:
        asked = store.cancel(benchmark.benchmark_id)
    ensure_scheduler(runs_dir)
    return asked


@dataclass(frozen=True)
class CaseNow:
    """A case while the benchmark goes on."""

    standing: Standing
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


def run_states(store: Store, benchmark: Benchmark) -> dict[str, RunState]:
    """Where the scheduler is with each run."""
    return {run.run_id: run.state for run in store.runs(benchmark.benchmark_id)}


def look(store: Store, benchmark: Benchmark, folder: Path) -> list[CaseNow]:
    """How each case stands now."""
    runs = {run.run_id: run for run in store.runs(benchmark.benchmark_id)}
    found = []
    for case in benchmark.cases:
        run = runs[case_id(benchmark.benchmark_id, case.number)]
        working = run.state in ("starting", "running")
        found.append(
            CaseNow(
                standing=standing(benchmark, folder, case.number),
                run=run.state,
                node=run.node_id or "",
                live_score=live_score(case_record(folder, case.number)) if working else None,
                note=run.message,
            )
        )
    return found


def fitting_nodes(
    runs_dir: Path, names: tuple[str, ...], backend: str | None, cores: int
) -> tuple[str, ...]:
    """The nodes that were named, or all of a backend; empty: all there are.

    Raises ValueError for a name that nobody knows, and where no run would ever fit.
    """
    with closing(Store(runs_dir)) as store:
        known = {node.node_id: node for node in store.nodes()}
    for name in names:
        if name not in known:
            there = ", ".join(known)
            raise ValueError(f"--nodes: there is no node {name}, only {there}")
    if backend is not None:
        of_it = tuple(n.node_id for n in known.values() if n.backend == backend and n.enabled)
        names = tuple(name for name in names if name in of_it) if names else of_it
        if not names:
            raise ValueError(f"--backend: no such node is enabled for {backend}: p2p nodes list")
    usable = [known[name] for name in names or known]
    _check_room(usable, cores)
    return names


def _check_room(nodes: list[NodeConfig], cores: int) -> None:
    enabled = [node for node in nodes if node.enabled]
    if not enabled:
        raise ValueError("--nodes: none of them is enabled: p2p nodes list")
    most = max(node.cores for node in enabled)
    if cores > most:
        raise ValueError(f"--cores-per-run {cores}: the largest node has {most}")
