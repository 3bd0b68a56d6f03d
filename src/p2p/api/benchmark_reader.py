"""Benchmarks over HTTP: how what is answered is read from their folders.

A case is read again only where something has changed.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2p.api.problems import ResourceNotFound
from p2p.api.schemas import (
    BenchmarkCase,
    BenchmarkRunDetail,
    BenchmarkRunSummary,
    BenchmarkStage,
    BenchmarkState,
    CaseState,
    StageState,
    fields_of,
)
from p2p.benchmark.measuring import NOT_YET, truth_path
from p2p.benchmark.planning import REPORT_FOLDER
from p2p.benchmark.records import (
    BENCHMARK_ID,
    FILE,
    Benchmark,
    case_id,
    case_record,
    case_status,
    gate_folder,
    live_score,
    read_benchmark,
)
from p2p.benchmark.report import CaseReport, Findings, case_report, findings
from p2p.records.iteration_record import SessionRecord
from p2p.records.session_view import Video

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from p2p.scheduler.records import JobRow, RunRow
    from p2p.scheduler.store import Store

Stamp = tuple[int | None, ...]
_WAITS: dict[str, CaseState] = {
    "pending": "waiting", "starting": "starting", "running": "running",
}  # fmt: skip
UNENDED = frozenset(_WAITS.values())


@dataclass
class _ReadBenchmark:
    """A benchmark as it was last read."""

    benchmark: Benchmark
    stamp: int | None
    cases: dict[int, tuple[Stamp, CaseReport]] = field(default_factory=dict)


class BenchmarkReader:
    """The benchmarks of a runs folder; any number of threads may use one."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._kept: dict[str, _ReadBenchmark] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Their ids, newest first; those in the trash too."""
        names = (path.parent.name for path in self.runs_dir.glob(f"bm_*/{FILE}"))
        return sorted((name for name in names if BENCHMARK_ID.fullmatch(name)), reverse=True)

    def folder(self, benchmark_id: str) -> Path:
        """The folder of a benchmark; raises NotFound."""
        folder = self.runs_dir / benchmark_id
        if (
            not BENCHMARK_ID.fullmatch(benchmark_id)
            or not (folder / FILE).is_file()
            or not folder.resolve().is_relative_to(self.runs_dir.resolve())
        ):
            raise ResourceNotFound(f"there is no benchmark {benchmark_id!r}")
        return folder

    def benchmark(self, benchmark_id: str) -> Benchmark:
        """The record of a benchmark; raises NotFound."""
        with self._lock:
            return self._open(benchmark_id, self.folder(benchmark_id)).benchmark

    def _open(self, benchmark_id: str, folder: Path) -> _ReadBenchmark:
        stamp = _modified_at(folder / FILE)
        kept = self._kept.get(benchmark_id)
        if kept is None or kept.stamp != stamp:
            benchmark = read_benchmark(folder)
            if benchmark is None:
                raise ResourceNotFound(f"{benchmark_id}/{FILE} cannot be read")
            kept = self._kept[benchmark_id] = _ReadBenchmark(benchmark, stamp)
        return kept

    def cases(self, benchmark_id: str, store: Store) -> list[BenchmarkCase]:
        """Return all cases in their present state; raises ResourceNotFound."""
        folder = self.folder(benchmark_id)
        runs = {run.run_id: run for run in store.runs(benchmark_id)}
        with self._lock:
            kept = self._open(benchmark_id, folder)
            benchmark = kept.benchmark
            gates = tuple(
                _modified_at(folder / gate_folder(stage) / "gate.json")
                for stage in range(len(benchmark.stages) - 1)
            )
            reports = [
                self._read_report(kept, folder, case.number, gates) for case in benchmark.cases
            ]
        return [
            _make_case(
                benchmark, folder, report, runs.get(case_id(benchmark_id, report.case.number))
            )
            for report in reports
        ]

    def _read_report(
        self, kept: _ReadBenchmark, folder: Path, number: int, gates: Stamp
    ) -> CaseReport:
        there = _modified_at(case_record(folder, number).path)
        stamp = (there, _modified_at(truth_path(folder, number)), *gates)
        before, report = kept.cases.get(number, (None, None))
        if report is None or before != stamp or report.status == "running":  # it may have died
            now = case_status(kept.benchmark, folder, number)
            report = case_report(folder, now, play=False)
            kept.cases[number] = (stamp, report)
        return report

    def summaries(self, store: Store) -> list[BenchmarkRunSummary]:
        """Return all benchmarks that are not in the trash, newest first."""
        rows = []
        for name in self.names():
            if SessionRecord(self.runs_dir / name).read_metadata().deleted_at is None:
                with suppress(ResourceNotFound):  # removed at this moment, or its file is damaged
                    detail = self.detail(name, store)
                    rows.append(BenchmarkRunSummary(**fields_of(BenchmarkRunSummary, detail)))
        return rows

    def detail(
        self, benchmark_id: str, store: Store, cases: Sequence[BenchmarkCase] | None = None
    ) -> BenchmarkRunDetail:
        """Return a benchmark's details without its cases; raises ResourceNotFound."""
        benchmark, folder = self.benchmark(benchmark_id), self.folder(benchmark_id)
        if cases is None:
            cases = self.cases(benchmark_id, store)
        summary = findings(benchmark, folder, cases)
        job = store.job(benchmark_id)
        measuring = store.run_in(f"{benchmark_id}/{REPORT_FOLDER}") is not None
        return BenchmarkRunDetail(
            **fields_of(Findings, summary),
            benchmark_id=benchmark_id,
            suite=benchmark.suite,
            mode=benchmark.mode,
            model=str(benchmark.options.get("model", "")),
            state=_state_of(cases, summary, job),
            created_at=benchmark.created_at,
            counts=dict(Counter(case.state for case in cases)),
            cost_usd=sum(case.cost_usd for case in cases),
            unmeasured=sum(case.truth_note == NOT_YET for case in cases),
            measuring=measuring,
            has_job=job is not None,
            benchmark=benchmark,
            stages=tuple(
                _make_stage(benchmark, number, cases, summary)
                for number in range(len(benchmark.stages))
            ),
            **SessionRecord(folder).read_metadata().model_dump(),
        )


def _make_case(
    benchmark: Benchmark, folder: Path, report: CaseReport, run: RunRow | None
) -> BenchmarkCase:
    number = report.case.number
    state: CaseState = report.outcome if run is None else _WAITS.get(run.state, report.outcome)
    session_id = case_id(benchmark.benchmark_id, number)
    working = state in ("starting", "running")
    return BenchmarkCase(
        **fields_of(CaseReport, report),
        benchmark_id=benchmark.benchmark_id,
        session_id=session_id,
        state=state,
        passed=report.outcome == "passed"
        if report.finished and report.outcome != "unverified"
        else None,
        true_pass=report.truly_passed,
        live_score=live_score(case_record(folder, number)) if working else None,
        node=(run.node_id or "") if run else "",
        note=run.message if run else "",
        media=tuple(Video.at(folder / path) for path in report.videos),
    )


def _state_of(
    cases: Sequence[BenchmarkCase], summary: Findings, job: JobRow | None
) -> BenchmarkState:
    if any(case.state in UNENDED for case in cases):
        return "queued" if job is not None and job.state == "pending" else "running"
    closed = _first_closed_stage(summary)
    left = [case for case in cases if not case.finished and case.stage < closed]
    if not left:
        return "completed"
    stopped = job is not None and job.counts.get("cancelled", 0) > 0
    return "cancelled" if stopped else "incomplete"


def _make_stage(
    benchmark: Benchmark, number: int, cases: Sequence[BenchmarkCase], summary: Findings
) -> BenchmarkStage:
    mine = [case for case in cases if case.stage == number]
    ended = sum(case.state not in UNENDED for case in mine)
    state: StageState
    if number >= _first_closed_stage(summary):
        state = "closed"
    elif ended == len(mine):
        state = "ended"
    else:
        state = "waiting" if all(case.state == "waiting" for case in mine) else "running"
    return BenchmarkStage(stage=number, state=state, cases=benchmark.stages[number], ended=ended)


def _first_closed_stage(summary: Findings) -> float:
    """The first stage that a gate did not let begin."""
    return min((gate.stage + 1 for gate in summary.gates if not gate.passed), default=float("inf"))


def _modified_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
