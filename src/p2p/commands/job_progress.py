"""The live view of a job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from p2p.commands.console import err
from p2p.commands.progress import clock
from p2p.scheduler.records import ENDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2p.scheduler.records import JobKind, JobRow, RunRow, RunState
    from p2p.scheduler.store import Store

COLOURS = {
    "pending": "dim",
    "starting": "cyan",
    "running": "cyan",
    "succeeded": "green",
    "cancelled": "yellow",
    "skipped": "yellow",
    "failed": "red",
}
POLL_S = 0.5
SHOWN = 15
"""Runs in the live view; there may be thousands."""
ORDER: tuple[RunState, ...] = (
    "succeeded",
    "failed",
    "cancelled",
    "skipped",
    "starting",
    "running",
    "pending",
)


def state_text(state: str) -> str:
    """A state in its colour."""
    return f"[{COLOURS[state]}]{state}[/]"


def counts_text(job: JobRow) -> str:
    """`3 succeeded, 1 running`."""
    known = [(state, job.counts.get(state, 0)) for state in ORDER]
    return ", ".join(f"{count} {state}" for state, count in known if count)


def took(run: RunRow) -> str:
    """How long it has run, or ran."""
    if run.started_at is None:
        return ""
    return clock((run.ended_at or time.time()) - run.started_at)


def exit_text(run: RunRow, kind: JobKind) -> str:
    """What its exit code says."""
    if not run.exit_code:
        return ""
    if kind in ("session", "benchmark"):
        from p2p.records.statuses import EXIT_CODES

        meaning = {code: status for status, code in EXIT_CODES.items()}
        if run.exit_code in meaning:
            return meaning[run.exit_code].replace("_", " ")
    return f"exit code {run.exit_code}"


def runs_table(runs: Sequence[RunRow], kind: JobKind) -> Table:
    """A line for each run."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title in ("run", "state", "node", "time", "attempt"):
        table.add_column(title, no_wrap=True)
    table.add_column("", overflow="ellipsis", no_wrap=True, ratio=1)
    for run in runs:
        told = "asked to end" if run.cancel_requested and run.state not in ENDED else run.message
        table.add_row(
            run.run_id,
            state_text(run.state),
            run.node_id or "",
            took(run),
            str(run.attempt) if run.attempt > 1 else "",
            escape(told or exit_text(run, kind)),
        )
    return table


def follow(store: Store, job_id: str) -> None:
    """Show the job until it has ended; Ctrl-C leaves off watching, and the job goes on."""
    said: dict[str, str] = {}
    live = Live(console=err, transient=True, refresh_per_second=4)
    if err.is_terminal:
        live.start()
    try:
        while True:
            runs = store.runs(job_id)
            job = store.job(job_id)
            if job is None:
                return
            if err.is_terminal:
                live.update(_view(job, runs))
            else:
                _say(runs, said)
            if all(run.state in ENDED for run in runs):
                return
            time.sleep(POLL_S)
    finally:
        live.stop()
        err.print(f"{job_id}: {counts_text(job) if job else ''}", soft_wrap=True)


def _view(job: JobRow, runs: Sequence[RunRow]) -> RenderableType:
    done = sum(run.state in ENDED for run in runs)
    bar = ProgressBar(total=max(1, len(runs)), completed=done, width=40)
    live = [run for run in runs if run.state in ("starting", "running")]
    waiting = [run for run in runs if run.state == "pending"]
    chosen = (live + waiting)[:SHOWN]
    return Group(
        f"[bold]{escape(job.title or job.job_id)}[/]",
        bar,
        counts_text(job),
        runs_table(chosen, job.kind),
    )


def _say(runs: Sequence[RunRow], said: dict[str, str]) -> None:
    """In a file or a pipe: a line for each change."""
    for run in runs:
        if said.get(run.run_id, "pending") != run.state:
            said[run.run_id] = run.state
            where = f" on {run.node_id}" if run.node_id else ""
            err.print(
                f"{run.run_id}: {run.state}{where} {escape(run.message)}".rstrip(), soft_wrap=True
            )
