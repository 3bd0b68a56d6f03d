"""Where the dashboard gets its view from."""

from __future__ import annotations

from typing import Protocol

from unstable.dashboard.view import View


class SourceError(Exception):
    """There is no view now; the message says why. A later call may succeed."""


class Source(Protocol):
    """Gives the newest view when it is asked; called from one thread at a time."""

    def fetch(self) -> View:
        """The view now, within seconds.

        Raises:
            SourceError: there is none now.
        """
        ...

    def close(self) -> None:
        """No more will be asked."""
        ...
