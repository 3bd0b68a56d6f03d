"""Somebody who looks at the dashboard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from page_server import PageServer
    from playwright.sync_api import ConsoleMessage, Page


@dataclass
class Visitor:
    """A page in the browser, and what the browser complained about."""

    page: Page
    server: PageServer
    complaints: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Parts of complaints that belong to the test, whenever they come."""

    def open(self, path: str) -> Page:
        """Go to one of the dashboard's addresses."""
        self.page.goto(self.server.address + path)
        return self.page

    def note(self, message: ConsoleMessage) -> None:
        """Errors of the console: a broken script, a request that failed, a policy violated."""
        text = f"{message.text} ({message.location.get('url', '')})"
        if message.type in ("error", "warning") and not any(p in text for p in self.expected):
            self.complaints.append(text)
