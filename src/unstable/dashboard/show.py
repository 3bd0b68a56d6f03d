"""A source in the terminal: as the dashboard, once as text, or as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from unstable.dashboard.drawing import PANELS, headline

if TYPE_CHECKING:
    from unstable.dashboard.source import Source
    from unstable.dashboard.view import View

WIDE = 110
"""Columns from which on panels stand side by side."""


def show(source: Source, first: View | None = None) -> None:
    """Show the dashboard until the person leaves it; without a terminal, print it once.

    Args:
        source: where views come from.
        first: the view to begin with.

    Raises:
        SourceError: there is no view, and no terminal to wait in.
    """
    console = Console(highlight=False)
    if not (sys.stdin.isatty() and console.is_terminal):
        console.print(snapshot(first or source.fetch(), console.width))
        return
    from unstable.dashboard.app import Dashboard

    Dashboard(source, first).run()


def snapshot(view: View, width: int) -> RenderableType:
    """Everything of a view, one below the other, or in two columns where there is room."""
    columns = 2 if width >= WIDE else 1
    inside = width // columns - 4
    panels = [Panel(draw(view, inside, 1), title=title) for title, draw in PANELS.values()]
    grid = Table.grid(expand=True)
    for _ in range(columns):
        grid.add_column(ratio=1)
    last = len(panels) - 1  # the transcript of a game takes a row of its own
    for i in range(0, last, columns):
        grid.add_row(*panels[i : min(i + columns, last)])
    return Group(headline(view), grid, panels[last])
