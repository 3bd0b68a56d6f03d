"""What every live view shares: lines that stay, a region below them that is redrawn, and tables.

In a terminal the region shows what is going on now. In a file or a pipe there are lines only.
"""

from __future__ import annotations

import io
import math
import sys
import threading
import time
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from p2p.contracts import WorkerMessage

REFRESH_S = 0.5
"""Of the region in a notebook."""
PLAIN_INTERVAL_S = 10.0
"""Between lines about the same thing, where there is no terminal."""
PHASES = {"compile": "compiling", "eval": "evaluating", "setup": "starting"}
COLOURS = {
    "succeeded": "green",
    "starting": "cyan",
    "pending": "dim",
    "not_run": "dim",
    "skipped": "yellow",
    "not_passed": "yellow",
    "unfinished": "yellow",
}
"""Of states of jobs and cases; those of sessions are in the table of statuses."""


def state_text(state: str, words: str = "") -> str:
    """A status in plain words, in its colour."""
    from p2p.records.statuses import STATUS

    rows = {str(status): row for status, row in STATUS.items()}
    colours = {status: row.colour for status, row in rows.items()} | COLOURS
    plain = rows[state].words if state in rows else ""
    return f"[{colours.get(state, 'red')}]{words or plain or state.replace('_', ' ')}[/]"


def clock(seconds: float) -> str:
    """3725 s is 1:02:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_estimate(seconds: float) -> str:
    """Format an estimate, rounded up: `40 s`, `6 min`, `2.5 h`."""
    if seconds <= 55:
        return f"{max(5, math.ceil(seconds / 5) * 5)} s"
    if seconds <= 90 * 60:
        return f"{math.ceil(seconds / 60)} min"
    return f"{math.ceil(seconds / 1800) / 2:g} h"


class Countdown:
    """A time left that runs down, and follows its estimates only where they differ by much."""

    def __init__(self, tolerance: float = 0.1) -> None:
        self.tolerance = tolerance
        self._end: float | None = None

    def seconds_left(self, estimate: float | None, now: float | None = None) -> float | None:
        """Return the seconds to show for an estimate, or None without one."""
        if estimate is None:
            self._end = None
            return None
        now = time.monotonic() if now is None else now
        if self._end is None or abs(self._end - now - estimate) > self.tolerance * estimate:
            self._end = now + estimate
        return self._end - now


def share_text(share: float, total: int) -> str:
    """` 31% of 20k`: as wide at the end as in the beginning."""
    size = f"{total:,}" if total < 10_000 else f"{total / 1000:.0f}k"
    return f"{min(share, 1.0):4.0%} of {size if total < 10_000_000 else f'{total / 1e6:.0f}M'}"


def number(value: float | None) -> str:
    """A return in at most seven characters, as long as it is below a million."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


class _PlainTable(Table):
    """Its last column alone gives way where there is no room, and is cut rather than wrapped."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        if cells and isinstance(cells[-1], str):
            last = Text.from_markup(cells[-1], emoji=False, overflow="ellipsis")
            last.no_wrap = True
            cells = (*cells[:-1], last)
        super().add_row(*cells, **options)


def plain_table(*titles: str, wide: str = "", first_width: int = 0, **options: bool) -> Table:
    """A table without lines; what the column `wide` has no room for is cut."""
    kind = _PlainTable if wide else Table
    table = kind(box=None, padding=(0, 2, 0, 0), pad_edge=False, **options)  # type: ignore[arg-type]
    for position, title in enumerate(titles):
        # A name that is cut cannot be typed again.
        table.add_column(title, no_wrap=True, min_width=0 if position else first_width)
    if wide:
        table.add_column(wide.strip(), ratio=1)
    return table


@dataclass(frozen=True)
class Bar:
    """A line with a bar that fills its room: what, how much of it, and what else is known.

    The bar keeps its width as long as the cells keep theirs.
    """

    label: str
    share: float
    cells: tuple[str, ...] = ()


def bars(rows: Sequence[Bar]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for _ in range(max((len(row.cells) for row in rows), default=0)):
        table.add_column(no_wrap=True, justify="right")
    for row in rows:
        bar = ProgressBar(total=1.0, completed=min(row.share, 1.0))
        table.add_row(Text(row.label, style="bold"), bar, *(Text(cell) for cell in row.cells))
    return table


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return type(get_shell()).__name__ in ("ZMQInteractiveShell", "Shell")  # Shell: Colab


class NotebookRegion:
    """Redraws what `get` returns in one place of a notebook, as rich's Live does in a terminal."""

    def __init__(self, get: Callable[[], RenderableType]) -> None:
        self._get, self._ended = get, threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        """Begin to show it."""
        notebook = import_module("IPython.display")  # which the notebook's kernel is made of
        self._make = notebook.HTML
        self._handle = notebook.display(self._make(""), display_id=True)
        self._ended.clear()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take it away."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            self._handle.update(self._make(""))

    def _follow(self) -> None:
        while not self._ended.wait(REFRESH_S):
            self._handle.update(self._make(as_html(self._get())))


def as_html(content: RenderableType) -> str:
    """Return what a terminal would show, as HTML."""
    console = Console(record=True, file=io.StringIO(), width=100, force_jupyter=False)
    console.print(content)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


class LiveView:
    """Prints lines once each, and redraws `region` below them while it is open.

    A view sets what its region shows before it calls `__init__` here, which draws it.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.began = time.monotonic()
        self._printed: set[str] = set()
        self._next_line = 0.0
        notebook = in_notebook() and not console.quiet
        self.has_region = console.is_terminal or notebook
        self.live: Live | NotebookRegion = Live(
            get_renderable=self.region, console=console, transient=True, refresh_per_second=4
        )
        if notebook:
            self.live = NotebookRegion(self.region)

    def __enter__(self) -> Self:
        if self.has_region:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def region(self) -> RenderableType:
        return ""

    def format_elapsed(self) -> str:
        return clock(time.monotonic() - self.began)

    def line(self, key: str, *lines: RenderableType) -> None:
        """Print these above the region, unless something was printed under this key before."""
        if key not in self._printed:
            self._printed.add(key)
            for line in lines:
                # A terminal would break long lines within words; a file keeps them whole.
                whole = isinstance(line, str) and not self.has_region
                self.console.print(line, soft_wrap=whole)

    def time_for_a_line(self) -> bool:
        """Return whether to print a progress line, where there is no live display."""
        now = time.monotonic()
        if self.has_region or now < self._next_line:
            return False
        self._next_line = now + PLAIN_INTERVAL_S
        return True


class TrainingProgress(LiveView):
    """Steps, steps per second, return and remaining time of a training run, in 80 columns."""

    def __init__(self, console: Console, total: int) -> None:
        self.total, self.step, self.rate = total, 0, 0.0
        self.phase, self.returned = "starting", "-"
        super().__init__(console)

    def region(self) -> RenderableType:
        left = clock((self.total - self.step) / self.rate) if self.rate else "-"
        share = self.step / self.total
        cells = (
            share_text(share, self.total),
            f"{self.rate:>7,.0f}/s",
            f"return {self.returned:>7}",
            f"{self.format_elapsed():>5}",
            f"{left:>5} left",
        )
        return bars([Bar(f"{self.phase:<10}", share, cells)])

    def __call__(self, message: WorkerMessage) -> None:
        from p2p.contracts import Alive, EvalReady, Finished, ScalarsReady, Started

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
                self.phase = PHASES[phase]
            case ScalarsReady(scalars=scalars):
                self.phase, self.step = "training", min(scalars.global_step, self.total)
                self.rate = scalars.values.get("sps", 0.0)
                self.returned = number(scalars.values.get("episodic_return"))
                if self.time_for_a_line():
                    self.console.print(
                        f"step {self.step:>10,} of {self.total:,}  {self.rate:,.0f} steps/s  "
                        f"return {self.returned}"
                    )
            case EvalReady(result=result):
                self.console.print(
                    f"step {result.global_step:>10,}  evaluation over {len(result.all_returns)} "
                    f"episodes: {result.mean_return:,.1f} ± {result.std_return:,.1f}"
                )
            case Finished():
                self.phase, self.step = "finishing", self.total
