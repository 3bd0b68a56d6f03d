"""A run in the terminal: as the dashboard, or printed once."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console

from unstable.dashboard.drawing import snapshot
from unstable.dashboard.sources import LiveParts
from unstable.dashboard.view import Source, View


def show(source: Source, first: View | None = None) -> None:
    """Show the dashboard until the person leaves it; without a terminal, print it once.

    Raises SourceError where there is no view, and no terminal to wait in.
    """
    console = Console(highlight=False)
    if not (sys.stdin.isatty() and console.is_terminal):
        console.print(snapshot(first or source.fetch(), console.width))
        return
    from unstable.dashboard.app import Dashboard

    Dashboard(source, first).run()


class TerminalInterface:
    """The dashboard of a run whose tracker is at hand.

    TerminalInterface(tracker, step_buffer).run()
    """

    def __init__(self, tracker: Any, step_buffer: Any = None) -> None:
        self.source = LiveParts(tracker, step_buffer)

    def run(self) -> None:
        show(self.source)

    def view(self) -> View:
        return self.source.fetch()
