"""The live view of a benchmark: a table in a terminal, a line for each event elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from p2p.commands.console import err

if TYPE_CHECKING:
    from p2p.benchmark.records import Benchmark
    from p2p.benchmark.running import CaseNow

STATES = {
    "passed": "[green]passed[/]",
    "not_passed": "[yellow]not passed[/]",
    "error": "[red]error[/]",
    "unfinished": "[yellow]not finished[/]",
    "not_run": "[dim]not run[/]",
}
HEADER_LINES = 4
LOOK_S = 1.0
EXIT_INTERRUPTED = 130


def state_text(now: CaseNow) -> str:
    """How a case stands, in its colour."""
    if now.ended:
        return STATES[now.standing.outcome]
    if now.run == "pending":
        return "[dim]waits[/]"
    return "[cyan]starts[/]" if now.run == "starting" else "[cyan]runs[/]"


def score_text(now: CaseNow) -> str:
    """The best score so far; in brackets that of what is being trained."""
    best = "" if now.standing.score is None else f"{now.standing.score:.2f}"
    live = "" if now.live_score is None else f"({now.live_score:.2f})"
    return f"{best} {live}".strip()


def table(cases: Sequence[CaseNow], height: int) -> RenderableType:
    """As many cases as fit: first what runs, then what ended last in line, then what waits."""
    ended = [now for now in cases if now.ended]
    working = [now for now in cases if not now.ended and now.run != "pending"]
    waiting = [now for now in cases if now.run == "pending"]
    rows = [*working, *reversed(ended), *waiting][: max(1, height - HEADER_LINES)]
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    for title in ("case", "state", "iteration", "score", "environment"):
        made.add_column(title, no_wrap=True)
    made.add_column("prompt", no_wrap=True, overflow="ellipsis", ratio=1)
    for now in rows:
        case = now.standing.case
        made.add_row(
            str(case.number),
            state_text(now),
            str(now.standing.iterations or ""),
            score_text(now),
            escape(case.env_id),
            f"{escape(case.instruction)}  [dim]{'' if now.ended else escape(now.note)}[/]",
        )
    passed = sum(now.standing.outcome == "passed" for now in ended)
    counts = (
        f"{len(ended)} of {len(cases)} ended, {passed} passed, "
        f"{len(working)} running, {len(waiting)} waiting"
    )
    bar = Table.grid(expand=True)  # a bar alone would not end its line
    bar.add_row(ProgressBar(total=len(cases), completed=len(ended)))
    return Group(bar, counts, made)


class Lines:
    """For a file or a pipe: one line when a case begins an iteration or ends."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.told: set[tuple[int, str]] = set()
        self.notes: set[str] = {""}

    def update(self, cases: Sequence[CaseNow]) -> None:
        """Say what is new."""
        for now in cases:
            if now.run == "pending":
                if now.note not in self.notes:  # many may wait for the same
                    self.notes.add(now.note)
                    text = escape(f"case {now.standing.case.number} waits: {now.note}")
                    self.console.print(text, soft_wrap=True)
                continue
            case, score = now.standing.case, score_text(now) if now.ended else ""
            step = state_text(now) if now.ended else f"iteration {now.standing.iterations or 1}"
            key = (case.number, step)
            if key not in self.told:
                self.told.add(key)
                what = escape(f"{case.env_id}: {case.instruction}")
                why = escape(now.standing.message) if now.standing.outcome == "error" else ""
                line = f"case {case.number}  {what}  {step} {score} {why}".rstrip()
                self.console.print(line, soft_wrap=True)


def watch(made: Benchmark, folder: Path, again: str) -> None:
    """Show how it goes until every case has ended; Ctrl-C cancels or leaves it."""
    from p2p.benchmark.running import cancel, look
    from p2p.scheduler.service import ensure_scheduler, is_running
    from p2p.scheduler.store import Store

    lines = Lines(err)
    live = Live(console=err, transient=True, refresh_per_second=2)
    try:
        with closing(Store(folder)) as store:
            if err.is_terminal:
                live.start()
            while True:
                cases = look(store, made, folder / made.benchmark_id)
                lines.update([now for now in cases if now.ended or not err.is_terminal])
                if err.is_terminal:
                    live.update(table(cases, err.height))
                if all(now.ended for now in cases):
                    return
                if not is_running(folder):  # it was killed
                    ensure_scheduler(folder)
                time.sleep(LOOK_S)
    except KeyboardInterrupt:
        live.stop()
        if _wants_cancel():
            asked = cancel(made, folder)
            err.print(f"cancelled {asked} runs; go on with: {again}", soft_wrap=True)
        else:
            err.print(f"the benchmark goes on; watch it with: {again}", soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        live.stop()


def _wants_cancel() -> bool:
    """Ask where somebody can answer; elsewhere, to end the command is to end its work."""
    if not (sys.stdin.isatty() and err.is_terminal):
        return True
    try:
        return typer.confirm("cancel the benchmark? otherwise it goes on", default=False, err=True)
    except (typer.Abort, KeyboardInterrupt):
        return False
