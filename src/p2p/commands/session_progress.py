"""The live view of a session: what is done stands above, what goes on moves below."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self, TypeVar

from rich.console import Group
from rich.markup import escape
from rich.spinner import Spinner

from p2p.commands.live import (
    Bar,
    Countdown,
    LiveView,
    bars,
    format_estimate,
    number,
    plain_table,
    share_text,
)
from p2p.contracts import utc_now
from p2p.records.formatting import criterion_results, format_score
from p2p.records.session_view import SessionView, training_left
from p2p.records.time_left import session_left
from p2p.session.verdict import iteration_line, words_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

    from p2p.contracts import Criterion, Intent
    from p2p.records.formatting import CriterionResult
    from p2p.records.iteration_record import SessionRecord
    from p2p.records.session_view import IterationView, RunView

Answer = TypeVar("Answer")

POLL_S = 0.5
START_S = 10.0
"""What a run takes to start where a core is free."""
READING_SHARE = 20
"""Reading is followed by a pause of at least this many times its length."""
BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 16
PARTS = 4
"""In how many parts the progress of a run is told where there is no terminal."""
MARKS = {"passed": "[green]✓[/]", "unverified": "[magenta]?[/]", "not_passed": "[yellow]·[/]"}
PHASES = {
    "intent": "deriving criteria from the prompt",
    "authoring": "writing the reward and the judge",
    "training": "training",
    "judging": "judging",
    "confirming": "confirming on unseen episodes",
    "revising": "revising",
    "ended": "done",
}


def sparkline(values: Sequence[float], width: int = CURVE_WIDTH) -> str:
    """A curve in a line of blocks; the last values when there are more than fit, thinned out."""
    if not values:
        return ""
    step = max(1, -(-len(values) // width))
    kept = [values[i] for i in range(len(values) - 1, -1, -step)][::-1]
    low, high = min(kept), max(kept)
    span = (high - low) or 1.0
    return "".join(BARS[round((v - low) / span * (len(BARS) - 1))] for v in kept)


def criteria_table(now: SessionView) -> Table:
    """Return a table of the criteria and their measured values."""
    results = criterion_results(now, now.best)
    judged = any(each.met is not None for each in results)
    table = plain_table("", "asked", *(("measured", "score") if judged else ()))
    table.columns[1].no_wrap = False  # it gives way, not the numbers
    for each in results:
        row = [kind_text(each), escape(each.demand)]
        if judged:
            row += [escape(each.measured), format_score(each.score)]
        table.add_row(*row)
    return table


def kind_text(criterion: Criterion | CriterionResult) -> str:
    """Return a criterion's category, and whether it is soft: `task`, `efficiency, soft`."""
    style = "bold" if criterion.category == "task" else "dim" if criterion.soft_reason else "none"
    return f"[{style}]{criterion.category}{', soft' if criterion.soft_reason else ''}[/]"


class SessionProgress(LiveView):
    """Follows a session's folder, and prints what is new.

    It only reads, so it can follow a session of another process as well.
    """

    def __init__(self, console: Console, record: SessionRecord) -> None:
        self.record = record
        self.now: SessionView | None = None
        self.headline = ""
        self._phase = ""
        self._times: list[str] = []
        self._countdowns = {"training": Countdown(), "session": Countdown()}
        self._spinner = Spinner("dots")
        super().__init__(console)
        self._reading = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        super().__exit__()
        self.update()  # what came after the last look

    def pause_display(self, ask: Callable[[Answer], Answer]) -> Callable[[Answer], Answer]:
        """Wrap a function so that the live display pauses while it runs."""

        def ask_paused(question: Answer) -> Answer:
            with self._reading:
                self.live.stop()
                try:
                    return ask(question)
                finally:
                    if self.has_region:
                        self.live.start()

        return ask_paused

    def _follow(self) -> None:
        least = pause = POLL_S if self.has_region else 2 * POLL_S
        while not self._stop.wait(pause):
            began = time.monotonic()
            with self._reading:
                self.update()
            # Long curves take long to read: looking on must not cost what training needs.
            pause = max(least, READING_SHARE * (time.monotonic() - began))

    def update(self) -> None:
        """Read the folder once, and print the news."""
        now = SessionView(self.record)
        self.headline, self.now = self._headline(now), now
        if now.env_reason:
            reason = escape(now.env_reason)
            self.line("environment", f"environment: [bold]{escape(now.env_id)}[/] ({reason})")
        if now.intent is not None:
            task = [c for c in now.intent.criteria if c.category == "task"]
            targets = escape(", ".join(c.demand for c in task))
            soft = sum(not c.hard for c in now.intent.criteria)
            count = f"{len(now.intent.criteria)} criteria{f' ({soft} soft)' if soft else ''}"
            lines = intent_lines(now.intent)
            key = f"intent, final: {now.intent.final}"
            self.line(key, f"[green]✓[/] {count}; the task: {targets}", *lines)
        if now.phase in ("intent", "authoring"):
            self._print_progress(now)
        if now.judge is not None:
            valid = now.judge.valid
            text = "[green]✓[/] judge written and tested" if valid else "[red]✗[/] no usable judge"
            self.line("judge", text)
        for iteration in now.iterations.values():
            self._print_iteration(now, iteration)
        self._print_progress(now)

    def _print_iteration(self, now: SessionView, iteration: IterationView) -> None:
        n = iteration.number
        if (reward := iteration.reward) is not None:
            mark = "[green]✓[/]" if reward.valid else "[red]✗[/]"
            first = (reward.explanation.splitlines() or [""])[0]
            text = f"reward. {escape(first)}" if first else "reward"
            self.line(f"reward{n}", f"{mark} iteration {n}: {text}")
        if error := iteration.early_judge_error:
            text = f"a checkpoint could not be judged, training continues: {error}"
            self.line(f"early{n}", f"[yellow]![/] iteration {n}: {escape(text)}")
        confirming = now.phase == "confirming" and n == max(now.iterations)
        if not confirming and (sentence := iteration_line(now, iteration)):
            mark = MARKS[now.outcome_of(iteration)]
            self.line(f"verdict{n}", f"{mark} iteration {n}: {escape(sentence)}")
        if (revision := iteration.revision) is not None:
            notes = [f"  [dim]{escape(note)}[/]" for note in revision.notes]
            self.line(f"revision{n}", f"[cyan]↻[/] next: {escape(revision.changes)}", *notes)

    def region(self) -> RenderableType:
        if self.now is None:
            return ""
        text = f"[dim]{self.format_elapsed():>5}[/]  {escape(self.headline)}"
        if self.now.waiting:
            text += f"  [yellow]{escape(self.now.waiting)}[/]"
        parts: list[RenderableType] = [self._spinner]
        self._spinner.update(text=text)
        if self.now.phase == "training" and self.now.current is not None:
            parts.append(bars([_bar(run) for run in self.now.current.runs]))
        return Group(*parts)

    def _headline(self, now: SessionView) -> str:
        """`iteration 1 of at most 5 · training 40 s left · at most 6 min in all`."""
        phase, current = PHASES[now.phase], now.current
        if now.drawing:
            return f"{phase} · drawing {now.drawing}; the verdict is final, Ctrl-C skips the video"
        runs = current.runs if current is not None and now.phase == "training" else ()
        search = current.search if current is not None else None
        left = self._countdowns["training"].seconds_left(training_left(runs, search))
        most = self._countdowns["session"].seconds_left(session_left(now))
        self._times = [
            *([] if left is None else [f"{format_estimate(left)} left"]),
            *([] if most is None else [f"at most {format_estimate(most)} in all"]),
        ]
        if current is None or now.phase in ("intent", "ended"):
            return phase
        parts = [f"iteration {current.number} of at most {now.loop.max_iterations}", phase]
        if left is not None:
            parts[-1] += f" {format_estimate(left)} left"
        elif runs and not now.waiting and all(_is_queued_long(run) for run in runs):
            parts.append("waiting for a free core")
        if most is not None:
            what = "left in all" if left is None else "in all"
            parts.append(f"at most {format_estimate(most)} {what}")
        return " · ".join(parts)

    def _print_progress(self, now: SessionView) -> None:
        """Print the progress as lines, where there is no live display."""
        if now.drawing:
            self.line("drawing", f"[dim]drawing {escape(now.drawing)} ...[/]")
        if self.has_region or now.phase == "ended":
            return
        n = len(now.iterations)
        if now.phase != self._phase:
            self._phase = now.phase
            self.console.print(f"{PHASES[now.phase]} ...")
        if now.waiting:
            self.line(f"{n}{now.waiting}", f"  {escape(now.waiting)}")
        for run in now.current.runs if now.phase == "training" and now.current else ():
            part = int(run.progress * PARTS)
            if 0 < part < PARTS:
                last = number(run.training_returns[-1] if run.training_returns else None)
                share = share_text(run.progress, run.total_timesteps).strip()
                parts = (f"  {run.run_id}: {share}, return {last}", *self._times)
                self.line(f"{n}{run.run_id}{part}", ", ".join(parts))


def intent_lines(intent: Intent, hint: str = "") -> Iterator[str]:
    """Why criteria are soft, what to know and was assumed, and what of the prompt nobody checks."""
    for reason in dict.fromkeys(c.soft_reason for c in intent.criteria if c.soft_reason):
        titles = ", ".join(c.title for c in intent.criteria if c.soft_reason == reason)
        yield f"[dim]soft, they only move the score: {escape(titles)} ({escape(reason)})[/]"
    if intent.note:
        yield f"note: {escape(intent.note)}"
    for text in intent.assumptions:
        yield f"assumed: {escape(text)}"
    if intent.unused_words:
        text = escape(words_text(intent.unused_words))
        yield f"[magenta]not checked: {text} (no criterion measures it){hint}[/]"


def _is_queued_long(run: RunView) -> bool:
    """Return whether it has been queued for longer than a process takes to start."""
    status = run.record.read_status()
    if status is None or status.status != "queued":
        return False
    return (utc_now() - status.updated_at).total_seconds() > START_S


def _progress(run: RunView) -> str:
    """As wide whatever it says."""
    share = share_text(run.progress, run.total_timesteps)
    if run.status in ("queued", "pending"):
        return f"{'waiting':<{len(share)}}"
    if run.status == "running" and run.progress >= 1:
        return f"{'finishing':<{len(share)}}"
    return share


def _bar(run: RunView) -> Bar:
    last = number(run.training_returns[-1] if run.training_returns else None)
    curve = f"{sparkline(run.training_returns):<{CURVE_WIDTH}}"
    return Bar(run.run_id, run.progress, (_progress(run), f"return {last:>7}", curve))
