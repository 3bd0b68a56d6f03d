"""A run in the terminal: as a Textual application, or printed once."""

from __future__ import annotations

import sys
import threading
from typing import Any, ClassVar

from rich.console import Console
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Footer, Static, TabbedContent, TabPane

from unstable.dashboard import Source, SourceError, View
from unstable.dashboard.drawing import PANELS, draw_headline, draw_snapshot
from unstable.dashboard.sources import LiveParts

REFRESH = 2.0
"""Seconds between views."""
TABS = ("run", "players", "game")


class ViewPanel(VerticalScroll):
    """One part of a view in a frame; it scrolls where it is too small."""

    def __init__(self, panel_id: str) -> None:
        title, self._draw = PANELS[panel_id]
        super().__init__(id=panel_id)
        self.border_title = title
        self._view: View | None = None
        self._content = Static("waiting for the run", markup=False)

    def compose(self) -> ComposeResult:
        yield self._content

    def show(self, view: View) -> None:
        self._view = view
        room = self.scrollable_content_region
        self._content.update(self._draw(view, room.width, room.height))

    def on_resize(self) -> None:
        if self._view is not None:
            self.show(self._view)


class Dashboard(App[None]):
    """Fetches a view every two seconds, in a thread of its own, and shows it."""

    TITLE = "unstable"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #headline { dock: top; height: 1; padding: 0 1; background: $panel; }
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; }
    Vertical { width: 1fr; }
    ViewPanel { border: round $primary 50%; padding: 0 1; scrollbar-size-vertical: 1; height: 1fr; }
    ViewPanel:focus { border: round $accent; }
    #engines, #evaluation, #exploration { height: auto; max-height: 50%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        *(Binding(str(i + 1), f"open('{tab}')", tab.capitalize()) for i, tab in enumerate(TABS)),
        Binding("left", "turn(-1)", "Tab before", show=False, priority=True),
        Binding("right", "turn(1)", "Tab after", show=False, priority=True),
    ]

    class Fetched(Message):
        """A fetched view, or the reason why there is none."""

        def __init__(self, view: View | None, trouble: str | None = None) -> None:
            super().__init__()
            self.view, self.trouble = view, trouble

    def __init__(self, source: Source, first: View | None = None, refresh: float = REFRESH) -> None:
        super().__init__()
        self._source, self._every = source, refresh
        self._last = first
        self._stop = threading.Event()

    def compose(self) -> ComposeResult:
        yield Static("waiting for the run", id="headline", markup=False)
        with TabbedContent(initial=TABS[0]):
            with TabPane("Run", id="run"), Horizontal():
                yield Vertical(ViewPanel("learner"), ViewPanel("engines"))
                yield Vertical(ViewPanel("evaluation"), ViewPanel("games"))
            with TabPane("Players", id="players"), Horizontal():
                yield Vertical(ViewPanel("ratings"))
                yield Vertical(ViewPanel("matches"), ViewPanel("exploration"))
            with TabPane("Game", id="game"):
                yield ViewPanel("game")
        yield Footer()

    def on_mount(self) -> None:
        """Start fetching in a daemon thread, so that a hanging source cannot keep the terminal."""
        self.post_message(self.Fetched(self._last))
        threading.Thread(target=self._ask, name="dashboard", daemon=True).start()

    def on_unmount(self) -> None:
        self._stop.set()

    def action_open(self, tab: str) -> None:
        self.query_one(TabbedContent).active = tab

    def action_turn(self, by: int) -> None:
        current = TABS.index(self.query_one(TabbedContent).active)
        self.action_open(TABS[(current + by) % len(TABS)])

    def on_dashboard_fetched(self, message: Fetched) -> None:
        """Show a view; without one, show the trouble and keep the last."""
        if message.view is not None:
            self._last = message.view
            for panel in self.query(ViewPanel):
                panel.show(message.view)
        text = message.trouble if self._last is None else draw_headline(self._last, message.trouble)
        if text is not None:
            for line in self.query("#headline").results(Static):  # none when we are leaving
                line.update(text)

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                message = self.Fetched(self._source.fetch())
            except SourceError as error:
                message = self.Fetched(None, str(error))
            if not self._stop.is_set():
                self.post_message(message)
            self._stop.wait(self._every)


def show(source: Source, first: View | None = None) -> None:
    """Show the dashboard until the user quits; without a terminal, print it once.

    Raises SourceError where there is no view, and no terminal to wait in.
    """
    console = Console(highlight=False)
    if not (sys.stdin.isatty() and console.is_terminal):
        console.print(draw_snapshot(first or source.fetch(), console.width))
        return

    Dashboard(source, first).run()


class TerminalInterface:
    """The dashboard of a tracker, here or on Ray.

    TerminalInterface(tracker, step_buffer).run()
    """

    def __init__(self, tracker: Any, step_buffer: Any = None) -> None:
        self.source = LiveParts(tracker, step_buffer)

    def run(self) -> None:
        show(self.source)

    def view(self) -> View:
        return self.source.fetch()
