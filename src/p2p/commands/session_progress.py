"""The live view of a session: what is done stands above, what goes on moves below."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self, TypeVar

from rich.console import Group
from rich.markup import escape
from rich.spinner import Spinner

from p2p.commands.live import Bar, LiveView, bars, number, plain_table
from p2p.records.session_view import SessionView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

    from p2p.contracts import Intent, JudgmentResult
    from p2p.records.iteration_record import SessionRecord
    from p2p.records.session_view import IterationView, RunView

Answer = TypeVar("Answer")

POLL_S = 0.5
READING_SHARE = 20
"""Reading is followed by a pause of at least this many times its length."""
BARS = "▁▂▃▄▅▆▇█"
PHASES = {
    "intent": "deriving criteria from the prompt",
    "authoring": "writing the reward and the judge",
    "training": "training",
    "judging": "judging",
    "confirming": "confirming on held-out seeds",
    "revising": "revising",
    "ended": "done",
}


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """A curve in a line of blocks; the last values when there are more than fit, thinned out."""
    if not values:
        return ""
    step = max(1, -(-len(values) // width))
    kept = [values[i] for i in range(len(values) - 1, -1, -step)][::-1]
    low, high = min(kept), max(kept)
    span = (high - low) or 1.0
    return "".join(BARS[round((v - low) / span * (len(BARS) - 1))] for v in kept)


def criteria_table(intent: Intent, judgment: JudgmentResult | None = None) -> Table:
    columns = ("", "", "", *(("", "") if judgment else ()))
    table = plain_table(*columns, show_header=False)
    scores = {score.id: score for score in judgment.criteria} if judgment else {}
    for criterion in intent.criteria:
        score, category = scores.get(criterion.id), str(criterion.category)
        row = [
            f"[bold]{category}[/]" if category == "task" else category,
            escape(criterion.title),
            escape(criterion.target),
        ]
        if judgment is not None:
            value = "" if score is None or score.value is None else f"{score.value:.3g}"
            row += [value, score_text(score.score if score else None)]
        table.add_row(*row)
    return table


def score_text(score: float | None, std: float | None = None) -> str:
    """`0.83 ± 0.05`; a judgement that could not be made is not a zero."""
    if score is None:
        return "not judged"
    return f"{score:.2f}" + (f" ± {std:.2f}" if std is not None else "")


class SessionProgress(LiveView):
    """Follows a session's folder, and prints what is new.

    It only reads, so it can follow a session of another process as well.
    """

    def __init__(self, console: Console, record: SessionRecord) -> None:
        self.record = record
        self.now: SessionView | None = None
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

    def paused(self, ask: Callable[[Answer], Answer]) -> Callable[[Answer], Answer]:
        """The function, with the live region out of the way while it runs."""

        def asking(question: Answer) -> Answer:
            with self._reading:
                self.live.stop()
                try:
                    return ask(question)
                finally:
                    if self.console.is_terminal:
                        self.live.start()

        return asking

    def _follow(self) -> None:
        pause = POLL_S
        while not self._stop.wait(pause):
            began = time.monotonic()
            with self._reading:
                self.update()
            # Long curves take long to read: looking on must not cost what training needs.
            pause = max(POLL_S, READING_SHARE * (time.monotonic() - began))

    def update(self) -> None:
        """Read the folder once, and print what is new."""
        self.now = now = SessionView(self.record)
        if now.env_reason:
            reason = escape(now.env_reason)
            self.line("environment", f"environment: [bold]{escape(now.env_id)}[/] ({reason})")
        if now.intent is not None:
            self.line(
                "intent",
                f"[green]✓[/] {len(now.intent.criteria)} criteria",
                criteria_table(now.intent),
                *unchecked_lines(now),
            )
        if now.judge is not None:
            self.line("judge", "[green]✓[/] judge written and tested")
        for iteration in now.iterations.values():
            self._print_iteration(now, iteration)
        if not self.console.is_terminal:
            self._print_progress(now)

    def _print_iteration(self, now: SessionView, iteration: IterationView) -> None:
        n = iteration.number
        if (reward := iteration.reward) is not None:
            mark = "[green]✓[/]" if reward.valid else "[red]✗[/]"
            first = (reward.explanation.splitlines() or [""])[0]
            self.line(f"reward{n}", f"{mark} iteration {n}: reward. {escape(first)}".rstrip())
        if (judgment := iteration.judgment) is not None and now.intent is not None:
            mark = "[green]✓[/]" if judgment.passed else "[yellow]·[/]"
            score = score_text(judgment.intent_score, judgment.score_std)
            self.line(
                f"judgment{n}",
                f"{mark} iteration {n}: score [bold]{score}[/]",
                criteria_table(now.intent, judgment),
            )
        if (check := iteration.confirmation) is not None:
            result = "[green]✓[/] confirmed" if check.passed else "[red]✗[/] not confirmed"
            score = score_text(check.intent_score, check.score_std)
            seeds = f"on {len(check.rollouts)} held-out seeds"
            self.line(f"confirmation{n}", f"{result} {seeds}: {score}")
        if (revision := iteration.revision) is not None:
            notes = [f"  [dim]{escape(note)}[/]" for note in revision.notes]
            self.line(f"revision{n}", f"[cyan]↻[/] next: {escape(revision.changes)}", *notes)

    def region(self) -> RenderableType:
        if self.now is None:
            return ""
        text = f"{PHASES[self.now.phase]}  [dim]{self.elapsed()}[/]"
        if self.now.waiting:
            text += f"  [yellow]{escape(self.now.waiting)}[/]"
        parts: list[RenderableType] = [self._spinner]
        self._spinner.update(text=text)
        if self.now.phase == "training" and self.now.current is not None:
            parts.append(bars([_bar(run) for run in self.now.current.runs]))
        return Group(*parts)

    def _print_progress(self, now: SessionView) -> None:
        n = len(now.iterations)
        if now.phase != "ended":
            self.line(f"phase{n}{now.phase}", f"{PHASES[now.phase]} ...")
        if now.phase == "training" and now.current and self.time_for_a_line():
            for run in now.current.runs:
                last = number(run.training_returns[-1] if run.training_returns else None)
                text = f"  {run.run_id}: {_progress(run)}, return {last}"
                self.line(f"{n}{text}", text)


def unchecked_lines(session: SessionView) -> Iterator[str]:
    """What of the prompt nobody checks; nothing where all of it is checked."""
    if words := escape(", ".join(session.unchecked_words)):
        yield f"[yellow]not checked: {words} (no criterion measures it)[/]"


def _progress(run: RunView) -> str:
    if run.status == "queued":
        return "waits for a free core"
    if run.status == "running" and run.progress >= 1:
        return "finishing"
    return f"{run.progress:.0%} of {run.total_timesteps:,}"


def _bar(run: RunView) -> Bar:
    last = number(run.training_returns[-1] if run.training_returns else None)
    return Bar(
        run.run_id,
        run.progress,
        (_progress(run), f"return {last}", sparkline(run.training_returns)),
    )
