"""A run in the terminal, live from its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unstable.dashboard.live import LiveParts
from unstable.dashboard.show import show

if TYPE_CHECKING:
    from unstable.dashboard.view import View


class TerminalInterface:
    """The dashboard of a run whose tracker is at hand.

        TerminalInterface(tracker, step_buffer).run()

    Args:
        tracker: a Tracker, or the handle of one.
        step_buffer: a StepBuffer, or the handle of one.
    """

    def __init__(self, tracker: Any, step_buffer: Any = None) -> None:
        self.source = LiveParts(tracker, step_buffer)

    def run(self) -> None:
        """Show the dashboard until `q` is pressed; without a terminal, print it once."""
        show(self.source)

    def view(self) -> View:
        """What the dashboard shows, as data."""
        return self.source.fetch()
