"""The live view of a training run."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from p2p.contracts import Alive, EvalReady, Finished, ScalarsReady, Started, WorkerMessage

PLAIN_INTERVAL_S = 10.0
PHASES = {"compile": "compiling", "eval": "evaluating", "setup": "starting"}


class ClockColumn(TextColumn):
    """Time since the start. Unlike rich's own it does not stop at the last step."""

    def __init__(self) -> None:
        super().__init__("")
        self.began = time.monotonic()

    def render(self, task: Task) -> Text:  # noqa: ARG002 - rich passes it
        """Minutes and seconds, with hours when there are some."""
        return Text(clock(time.monotonic() - self.began), style="progress.elapsed")


def clock(seconds: float) -> str:
    """3725 s is 1:02:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float | None) -> str:
    """A return in at most seven characters, as long as it is below a million."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


class TrainingView:
    """Shows steps, steps per second, return and remaining time.

    In a terminal it is a live bar that fits 80 columns; in a file or a pipe a line every few
    seconds.
    """

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.total = total
        self.last_line = 0.0
        self.bar = Progress(
            TextColumn("[bold]{task.description:<10}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[rate]}/s"),
            TextColumn("return {task.fields[shown]:>6}"),
            ClockColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
            expand=True,
            transient=True,
        )
        self.task = self.bar.add_task("starting", total=total, rate="-", shown="-")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, message: WorkerMessage) -> None:
        """Take note of a message of the trainer."""
        match message:
            case Started():
                calls = "once per batch" if message.reward_calls == "batch" else "per environment"
                resumed = f", resumed at step {message.start_step:,}" if message.start_step else ""
                self.console.print(
                    f"backend {message.backend}, reward called {calls}{resumed}", style="dim"
                )
                if message.note:
                    self.console.print(message.note, style="yellow", markup=False)
            case Alive(phase="compile" | "eval" | "setup" as phase):
                self.bar.update(self.task, description=PHASES[phase])
            case ScalarsReady():
                self._scalars(message)
            case EvalReady():
                result = message.result
                self.console.print(
                    f"step {result.global_step:>10,}  evaluation over {len(result.all_returns)} "
                    f"episodes: {result.mean_return:,.1f} ± {result.std_return:,.1f}"
                )
            case Finished():
                self.bar.update(self.task, description="videos", completed=self.total)

    def _scalars(self, message: ScalarsReady) -> None:
        values = message.scalars.values
        shown, rate = number(values.get("episodic_return")), f"{values.get('sps', 0):,.0f}"
        step = min(message.scalars.global_step, self.total)
        self.bar.update(self.task, completed=step, description="training", rate=rate, shown=shown)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.last_line > PLAIN_INTERVAL_S:
            self.last_line = now
            self.console.print(
                f"step {step:>10,} of {self.total:,}  {rate} steps/s  return {shown}"
            )
