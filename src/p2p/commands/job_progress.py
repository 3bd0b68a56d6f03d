"""The live views of jobs and benchmarks: what the scheduler's runs are doing."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import typer
from rich.console import Group
from rich.markup import escape

from p2p.commands.console import EXIT_INTERRUPTED, err
from p2p.commands.live import Bar, LiveView, bars, clock, plain_table, state_text
from p2p.scheduler.records import ENDED
from p2p.settings import command_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console, RenderableType
    from rich.table import Table

    from p2p.benchmark.records import Benchmark
    from p2p.benchmark.running import CaseNow
    from p2p.scheduler.records import JobKind, JobRow, RunRow, RunState
    from p2p.scheduler.store import Store

POLL_S = 0.5
SHOWN = 15
"""Runs in the live view; there may be thousands."""
HEADER_LINES = 4
ORDER: tuple[RunState, ...] = (
    "succeeded", "failed", "cancelled", "skipped", "starting", "running", "pending",
)  # fmt: skip


def counts_text(job: JobRow) -> str:
    """`3 succeeded, 1 running`."""
    counts = [(state, job.counts.get(state, 0)) for state in ORDER]
    return ", ".join(f"{count} {state}" for state, count in counts if count)


def exit_text(run: RunRow, kind: JobKind) -> str:
    if not run.exit_code:
        return ""
    if kind in ("session", "benchmark"):
        from p2p.records.statuses import EXIT_CODES

        meaning = {code: status for status, code in EXIT_CODES.items()}
        if run.exit_code in meaning:
            return meaning[run.exit_code].replace("_", " ")
    return f"exit code {run.exit_code}"


def runs_table(runs: Sequence[RunRow], kind: JobKind) -> Table:
    retried = any(run.attempt > 1 for run in runs)
    columns = ("run", "state", "node", "time", *(("attempt",) if retried else ()))
    table = plain_table(*columns, wide=" ")
    for run in runs:
        cancelling = run.cancel_requested and run.state not in ENDED
        seconds = (run.ended_at or time.time()) - run.started_at if run.started_at else None
        table.add_row(
            run.run_id,
            state_text(run.state),
            run.node_id or "",
            "" if seconds is None else clock(seconds),
            *((str(run.attempt),) if retried else ()),
            escape("cancelling" if cancelling else run.message or exit_text(run, kind)),
        )
    return table


class JobProgress(LiveView):
    def __init__(self, console: Console, job: JobRow) -> None:
        self.job = job
        self.runs: Sequence[RunRow] = ()
        super().__init__(console)

    def update(self, job: JobRow, runs: Sequence[RunRow]) -> None:
        self.job, self.runs = job, runs
        for run in () if self.console.is_terminal else runs:
            if run.state != "pending":
                node = f" on {run.node_id}" if run.node_id else ""
                text = f"{run.run_id}: {run.state}{node} {escape(run.message)}".rstrip()
                self.line(f"{run.run_id} {run.attempt} {run.state}", text)

    def region(self) -> RenderableType:
        done = sum(run.state in ENDED for run in self.runs)
        active = [run for run in self.runs if run.state in ("starting", "running")]
        waiting = [run for run in self.runs if run.state == "pending"]
        return Group(
            f"[bold]{escape(self.job.title or self.job.job_id)}[/]",
            bars([Bar("", done / max(1, len(self.runs)))]),
            counts_text(self.job),
            runs_table((active + waiting)[:SHOWN], self.job.kind),
        )


def follow(store: Store, job_id: str) -> None:
    """Show a job until it has ended; Ctrl-C stops watching, and the job continues."""
    job = store.job(job_id)
    if job is None:
        return
    try:
        with JobProgress(err, job) as view:
            while True:
                runs = store.runs(job_id)
                job = store.job(job_id) or job
                view.update(job, runs)
                if all(run.state in ENDED for run in runs):
                    return
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        cancel = command_in(store.runs_dir, f"p2p jobs cancel {job_id}")
        err.print(f"the job continues; cancel it with: {escape(cancel)}", soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        err.print(f"{job_id}: {counts_text(job)}", soft_wrap=True)


def _case_state(now: CaseNow) -> str:
    if now.ended:
        return state_text(now.status.outcome, now.status.outcome.replace("_", " "))
    return state_text(now.run)


def _case_score(now: CaseNow) -> str:
    """The best score so far; in brackets that of what is being trained."""
    from p2p.records.formatting import format_score

    best = "" if now.status.score is None else format_score(now.status.score)
    live = "" if now.live_score is None else f"({format_score(now.live_score)})"
    return f"{best} {live}".strip()


class BenchmarkProgress(LiveView):
    cases: Sequence[CaseNow] = ()

    def update(self, cases: Sequence[CaseNow]) -> None:
        """Show what has changed; in a terminal, only what has ended stays as a line."""
        self.cases = cases
        for now in cases:
            if now.ended or not self.console.is_terminal:
                self._print_case(now)

    def _print_case(self, now: CaseNow) -> None:
        case, status = now.status.case, now.status
        if now.run == "pending":
            if now.note:  # many may wait for the same
                self.line(now.note, escape(f"case {case.number} waits: {now.note}"))
            return
        what = escape(f"{case.env_id}: {case.instruction}")
        step = _case_state(now) if now.ended else f"iteration {status.iterations or 1}"
        score = _case_score(now) if now.ended else ""
        reason = escape(status.message) if status.outcome == "error" else ""
        text = f"case {case.number}  {what}  {step} {score} {reason}".rstrip()
        self.line(f"{case.number} {step}", text)

    def region(self) -> RenderableType:
        """As many cases as fit: first what runs, then what ended last in line, then what waits."""
        ended = [now for now in self.cases if now.ended]
        active = [now for now in self.cases if not now.ended and now.run != "pending"]
        waiting = [now for now in self.cases if now.run == "pending"]
        table = plain_table("case", "state", "iteration", "score", "environment", wide="prompt")
        room = max(1, self.console.height - HEADER_LINES)
        for now in [*active, *reversed(ended), *waiting][:room]:
            case = now.status.case
            table.add_row(
                str(case.number),
                _case_state(now),
                str(now.status.iterations or ""),
                _case_score(now),
                escape(case.env_id),
                f"{escape(case.instruction)}  [dim]{'' if now.ended else escape(now.note)}[/]",
            )
        outcomes = Counter(now.status.outcome for now in ended)
        counts = (
            f"{len(ended)} of {len(self.cases)} ended, {outcomes['passed']} passed, "
            f"{outcomes['unverified']} unverified, "
            f"{len(active)} running, {len(waiting)} waiting"
        )
        return Group(bars([Bar("", len(ended) / max(1, len(self.cases)))]), counts, table)


def watch(benchmark: Benchmark, folder: Path, again: str) -> None:
    """Show a benchmark until every case has ended; Ctrl-C cancels or leaves it."""
    from p2p.benchmark.running import cancel, look
    from p2p.scheduler.service import ensure_scheduler, is_running
    from p2p.scheduler.store import Store

    try:
        with closing(Store(folder)) as store, BenchmarkProgress(err) as view:
            while True:
                cases = look(store, benchmark, folder / benchmark.benchmark_id)
                view.update(cases)
                if all(now.ended for now in cases):
                    return
                if not is_running(folder):  # it was killed
                    ensure_scheduler(folder)
                time.sleep(2 * POLL_S)
    except KeyboardInterrupt:
        if _confirm_cancel():
            runs = cancel(benchmark, folder)
            err.print(f"cancelled {runs} runs; resume with: {again}", soft_wrap=True)
        else:
            err.print(f"the benchmark continues; watch it with: {again}", soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _confirm_cancel() -> bool:
    """Ask whether to cancel the job; without a terminal, return True."""
    if not (sys.stdin.isatty() and err.is_terminal):
        return True
    try:
        return typer.confirm(
            "cancel the benchmark? otherwise it continues", default=False, err=True
        )
    except (typer.Abort, KeyboardInterrupt):
        return False
