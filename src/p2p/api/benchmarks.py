"""Benchmarks read off their folders, cases again only where something has changed."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2p.api.benchmark_schemas import (
    BenchmarkCase,
    BenchmarkRunDetail,
    BenchmarkRunSummary,
    BenchmarkStage,
    BenchmarkState,
    CaseState,
    StageState,
)
from p2p.api.problems import NotFound
from p2p.api.views import video_at
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

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from p2p.scheduler.records import JobRow, RunRow
    from p2p.scheduler.store import Store

Stamp = tuple[int | None, ...]
_WAITS: dict[str, CaseState] = {
    "pending": "waiting", "starting": "starting", "running": "running",
}  # fmt: skip
UNENDED: frozenset[CaseState] = frozenset({"waiting", "starting", "running"})


@dataclass
class _Kept:
    """What was read of a benchmark."""

    benchmark: Benchmark
    stamp: int | None
    cases: dict[int, tuple[Stamp, CaseReport]] = field(default_factory=dict)


class BenchmarkReader:
    """The benchmarks of a runs folder; any number of threads may use one."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Their ids, newest first; those in the trash too."""
        found = (path.parent.name for path in self.runs_dir.glob(f"bm_*/{FILE}"))
        return sorted((name for name in found if BENCHMARK_ID.fullmatch(name)), reverse=True)

    def folder(self, benchmark_id: str) -> Path:
        """Where it lies; raises NotFound."""
        folder = self.runs_dir / benchmark_id
        if (
            not BENCHMARK_ID.fullmatch(benchmark_id)
            or not (folder / FILE).is_file()
            or not folder.resolve().is_relative_to(self.runs_dir.resolve())
        ):
            raise NotFound(f"there is no benchmark {benchmark_id!r}")
        return folder

    def benchmark(self, benchmark_id: str) -> Benchmark:
        """What it is made of; raises NotFound."""
        with self._lock:
            return self._open(benchmark_id, self.folder(benchmark_id)).benchmark

    def _open(self, benchmark_id: str, folder: Path) -> _Kept:
        stamp = _changed(folder / FILE)
        kept = self._kept.get(benchmark_id)
        if kept is None or kept.stamp != stamp:
            made = read_benchmark(folder)
            if made is None:
                raise NotFound(f"{benchmark_id}/{FILE} cannot be read")
            kept = self._kept[benchmark_id] = _Kept(made, stamp)
        return kept

    def cases(self, benchmark_id: str, store: Store) -> list[BenchmarkCase]:
        """All cases, as they stand now; raises NotFound."""
        folder = self.folder(benchmark_id)
        runs = {run.run_id: run for run in store.runs(benchmark_id)}
        with self._lock:
            kept = self._open(benchmark_id, folder)
            made = kept.benchmark
            gates = tuple(
                _changed(folder / gate_folder(stage) / "gate.json")
                for stage in range(len(made.stages) - 1)
            )
            reports = [self._report(kept, folder, case.number, gates) for case in made.cases]
        return [
            _case(made, folder, found, runs.get(case_id(benchmark_id, found.case.number)))
            for found in reports
        ]

    def case(self, benchmark_id: str, number: int, store: Store) -> BenchmarkCase:
        """One case; raises NotFound."""
        found = self.cases(benchmark_id, store)
        for case in found:
            if case.case.number == number:
                return case
        raise NotFound(f"benchmark {benchmark_id} has no case {number}")

    def _report(self, kept: _Kept, folder: Path, number: int, gates: Stamp) -> CaseReport:
        there = _changed(case_record(folder, number).path)
        stamp = (there, _changed(truth_path(folder, number)), *gates)
        before, found = kept.cases.get(number, (None, None))
        if found is None or before != stamp or found.status == "running":  # it may have died
            now = case_status(kept.benchmark, folder, number)
            found = case_report(folder, now, play=False)
            kept.cases[number] = (stamp, found)
        return found

    def summaries(self, store: Store) -> list[BenchmarkRunSummary]:
        """All that are not in the trash, newest first."""
        found = []
        for name in self.names():
            if SessionRecord(self.runs_dir / name).read_metadata().deleted_at is None:
                with suppress(NotFound):  # removed at this moment, or its file is damaged
                    detail = self.detail(name, store)
                    fields = {key: getattr(detail, key) for key in BenchmarkRunSummary.model_fields}
                    found.append(BenchmarkRunSummary(**fields))
        return found

    def detail(
        self, benchmark_id: str, store: Store, cases: Sequence[BenchmarkCase] | None = None
    ) -> BenchmarkRunDetail:
        """All of it but the cases, which may be given where they are known; raises NotFound."""
        made, folder = self.benchmark(benchmark_id), self.folder(benchmark_id)
        if cases is None:
            cases = self.cases(benchmark_id, store)
        said = findings(made, folder, cases)
        job = store.job(benchmark_id)
        measuring = store.run_in(f"{benchmark_id}/{REPORT_FOLDER}") is not None
        return BenchmarkRunDetail(
            **{name: getattr(said, name) for name in Findings.model_fields},
            benchmark_id=benchmark_id,
            suite=made.suite,
            mode=made.mode,
            model=str(made.options.get("model", "")),
            state=_state(cases, said, job),
            created_at=made.created_at,
            counts=dict(Counter(case.state for case in cases)),
            cost_usd=sum(case.cost_usd for case in cases),
            unmeasured=sum(case.truth_note == NOT_YET for case in cases),
            measuring=measuring,
            has_job=job is not None,
            benchmark=made,
            stages=tuple(_stage(made, number, cases, said) for number in range(len(made.stages))),
            **SessionRecord(folder).read_metadata().model_dump(),
        )


def _case(made: Benchmark, folder: Path, found: CaseReport, run: RunRow | None) -> BenchmarkCase:
    number = found.case.number
    state: CaseState = found.outcome if run is None else _WAITS.get(run.state, found.outcome)
    session_id = case_id(made.benchmark_id, number)
    working = state in ("starting", "running")
    videos = (video_at(session_id, path.partition("/")[2]) for path in found.videos)
    return BenchmarkCase(
        **{name: getattr(found, name) for name in CaseReport.model_fields},
        benchmark_id=made.benchmark_id,
        session_id=session_id,
        state=state,
        passed=found.outcome == "passed" if found.finished else None,
        true_pass=found.truly_passed,
        live_score=live_score(case_record(folder, number)) if working else None,
        node=(run.node_id or "") if run else "",
        note=run.message if run else "",
        media=tuple(video for video in videos if video is not None),
    )


def _state(cases: Sequence[BenchmarkCase], said: Findings, job: JobRow | None) -> BenchmarkState:
    if any(case.state in UNENDED for case in cases):
        return "queued" if job is not None and job.state == "pending" else "running"
    closed = _closed(said)
    left = [case for case in cases if not case.finished and case.stage < closed]
    if not left:
        return "completed"
    stopped = job is not None and job.counts.get("cancelled", 0) > 0
    return "cancelled" if stopped else "incomplete"


def _stage(
    made: Benchmark, number: int, cases: Sequence[BenchmarkCase], said: Findings
) -> BenchmarkStage:
    mine = [case for case in cases if case.stage == number]
    ended = sum(case.state not in UNENDED for case in mine)
    state: StageState
    if number >= _closed(said):
        state = "closed"
    elif ended == len(mine):
        state = "ended"
    else:
        state = "waiting" if all(case.state == "waiting" for case in mine) else "running"
    return BenchmarkStage(stage=number, state=state, cases=made.stages[number], ended=ended)


def _closed(said: Findings) -> float:
    """The first stage that a gate did not let begin."""
    return min((gate.stage + 1 for gate in said.gates if not gate.passed), default=float("inf"))


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
