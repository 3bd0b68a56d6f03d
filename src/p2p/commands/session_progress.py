"""The live view of a session: what is done stands above, what goes on moves below."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self, TypeVar

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from p2p.commands.progress import clock, number
from p2p.records.session_view import SessionView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from p2p.contracts import Criterion, Intent, JudgmentResult
    from p2p.records.iteration_record import SessionRecord
    from p2p.records.session_view import IterationView, RunView

Answer = TypeVar("Answer")

POLL_S = 0.5
PLAIN_INTERVAL_S = 15.0
LOOKING_SHARE = 20
"""A look is followed by a pause of so many times its length, at least."""
BARS = "▁▂▃▄▅▆▇█"
DOING = {
    "intent": "reading the sentence",
    "authoring": "writing the reward and the judge",
    "training": "training",
    "judging": "judging",
    "confirming": "confirming on fresh starts",
    "revising": "revising",
    "ended": "done",
}
SIGNS = {"at_least": "≥", "at_most": "≤"}


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """A curve in a line of blocks; the last values when there are more than fit, thinned out."""
    if not values:
        return ""
    step = max(1, -(-len(values) // width))
    kept = [values[i] for i in range(len(values) - 1, -1, -step)][::-1]
    low, high = min(kept), max(kept)
    span = (high - low) or 1.0
    return "".join(BARS[round((v - low) / span * (len(BARS) - 1))] for v in kept)


def target(criterion: Criterion) -> str:
    """What a criterion asks for: `≥ 3 m/s`."""
    return f"{SIGNS[criterion.comparison]} {criterion.threshold:g} {criterion.unit}".rstrip()


def criteria_table(intent: Intent, judgment: JudgmentResult | None = None) -> Table:
    """The rubric, and how well each part is met."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    scores = {found.id: found for found in judgment.criteria} if judgment else {}
    for criterion in intent.criteria:
        found = scores.get(criterion.id)
        row = [
            f"[bold]{criterion.category}[/]"
            if criterion.category == "task"
            else criterion.category,
            escape(criterion.title),
            escape(target(criterion)),
        ]
        if judgment is not None:
            value = "" if found is None or found.value is None else f"{found.value:.3g}"
            row += [value, score_text(found.score if found else None)]
        table.add_row(*row)
    return table


def score_text(score: float | None, std: float | None = None) -> str:
    """`0.83 ± 0.05`; a judgement that could not be made is not a zero."""
    if score is None:
        return "not judged"
    return f"{score:.2f}" + (f" ± {std:.2f}" if std is not None else "")


class SessionProgress:
    """Follows a session's folder until told to stop; shows what changed.

    In a terminal the current phase is a live region; in a file or a pipe it is a line now and
    then. It only reads, so it can follow a session of another process just as well.
    """

    def __init__(self, console: Console, record: SessionRecord) -> None:
        self.console = console
        self.record = record
        self.began = time.monotonic()
        self.told: set[str] = set()
        self.last_line = 0.0
        self.live = Live(console=console, transient=True, refresh_per_second=4)
        self._looking = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.live.stop()
        self.update()  # what came after the last look

    def held(self, ask: Callable[[Answer], Answer]) -> Callable[[Answer], Answer]:
        """The function, with the live region out of the way while it runs."""

        def asking(given: Answer) -> Answer:
            with self._looking:
                self.live.stop()
                try:
                    return ask(given)
                finally:
                    if self.console.is_terminal:
                        self.live.start()

        return asking

    def _follow(self) -> None:
        pause = POLL_S
        while not self._stop.wait(pause):
            began = time.monotonic()
            with self._looking:
                self.update()
            # Long curves take long to read: looking on must not cost what training needs.
            pause = max(POLL_S, LOOKING_SHARE * (time.monotonic() - began))

    def update(self) -> None:
        """Look once: print what is new, and show what goes on."""
        now = SessionView(self.record)
        self._print_news(now)
        if self.console.is_terminal:
            self.live.update(self._region(now))
        else:
            self._plain(now)

    def _once(self, key: str, *lines: RenderableType) -> None:
        if key not in self.told:
            self.told.add(key)
            for line in lines:
                self.console.print(line, soft_wrap=isinstance(line, str))

    def _print_news(self, now: SessionView) -> None:
        if now.env_reason:
            why = escape(now.env_reason)
            self._once("environment", f"environment: [bold]{escape(now.env_id)}[/] ({why})")
        if now.intent is not None:
            words = ", ".join(now.intent.unused_words)
            self._once(
                "intent",
                f"[green]✓[/] {len(now.intent.criteria)} criteria",
                criteria_table(now.intent),
                *([f"[yellow]! not used of your words: {escape(words)}[/]"] if words else []),
            )
        if now.judge is not None:
            self._once("judge", "[green]✓[/] judge written and tried")
        for iteration in now.iterations.values():
            self._iteration_news(now, iteration)

    def _iteration_news(self, now: SessionView, iteration: IterationView) -> None:
        n = iteration.number
        if iteration.reward is not None:
            mark = "[green]✓[/]" if iteration.reward.valid else "[red]✗[/]"
            first = (iteration.reward.explanation.splitlines() or [""])[0]
            self._once(f"reward{n}", f"{mark} iteration {n}: reward. {escape(first)}".rstrip())
        if iteration.judgment is not None and now.intent is not None:
            self._once(
                f"judgment{n}",
                self._verdict(n, iteration.judgment),
                criteria_table(now.intent, iteration.judgment),
            )
        if iteration.confirmation is not None:
            found = iteration.confirmation
            held = "[green]✓[/] it holds" if found.passed else "[red]✗[/] it does not hold"
            score = score_text(found.intent_score, found.score_std)
            self._once(f"confirmation{n}", f"{held} on {len(found.rollouts)} fresh starts: {score}")
        if iteration.revision is not None:
            revision = iteration.revision
            notes = [f"  [dim]{escape(note)}[/]" for note in revision.notes]
            self._once(f"revision{n}", f"[cyan]↻[/] next: {escape(revision.changes)}", *notes)

    def _verdict(self, n: int, judgment: JudgmentResult) -> str:
        mark = "[green]✓[/]" if judgment.passed else "[yellow]·[/]"
        score = score_text(judgment.intent_score, judgment.score_std)
        return f"{mark} iteration {n}: score [bold]{score}[/]"

    def _region(self, now: SessionView) -> RenderableType:
        doing = f"{DOING[now.phase]}  [dim]{clock(time.monotonic() - self.began)}[/]"
        if now.waiting:
            doing += f"  [yellow]{escape(now.waiting)}[/]"
        parts: list[RenderableType] = [Spinner("dots", doing)]
        if now.phase == "training" and now.current is not None:
            parts.append(_runs_table(now.current.runs))
        return Group(*parts)

    def _plain(self, now: SessionView) -> None:
        if now.phase != "ended":
            self._once(f"phase{len(now.iterations)}{now.phase}", f"{DOING[now.phase]} ...")
        moment = time.monotonic()
        if now.phase == "training" and now.current and moment - self.last_line > PLAIN_INTERVAL_S:
            self.last_line = moment
            for run in now.current.runs:
                shown = number(run.training_returns[-1] if run.training_returns else None)
                text = f"  {run.run_id}: {_share(run)}, return {shown}"
                self._once(f"{len(now.iterations)}{text}", text)


def _share(run: RunView) -> str:
    if run.status == "queued":
        return "waits for a free core"
    if run.status == "running" and run.progress >= 1:
        return "finishing"
    return f"{run.progress:.0%} of {run.total_timesteps:,}"


def _runs_table(runs: Sequence[RunView]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    for run in runs:
        table.add_row(
            escape(run.run_id),
            ProgressBar(total=1.0, completed=run.progress),
            _share(run),
            f"return {number(run.training_returns[-1] if run.training_returns else None)}",
            sparkline(run.training_returns),
        )
    return table
