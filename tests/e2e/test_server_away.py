"""A server that goes away and comes back: the page says so, and goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shown_runs import SESSION

if TYPE_CHECKING:
    from visiting import Visitor

pytestmark = pytest.mark.slow
PATIENCE_MS = 60_000


def test_the_page_says_that_the_server_is_gone_and_goes_on_when_it_is_back(
    visitor: Visitor,
) -> None:
    page, server = visitor.page, visitor.server
    visitor.expected = ("Failed to load resource", "net::ERR_")
    page.get_by_role("link", name="run forward fast").wait_for()
    server.stop()
    page.get_by_text("The server is not responding").wait_for(timeout=PATIENCE_MS)
    server.start()
    # Another server, which does not know the browser.
    page.get_by_text("Not signed in to this server").wait_for(timeout=PATIENCE_MS)
    page.locator("#token").fill(server.token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="run forward fast").wait_for()
    assert page.locator(".notice").count() == 0
    # And it hears of changes again.
    server.call("PATCH", f"/api/sessions/{SESSION}", {"alias": "another name"})
    page.get_by_role("link", name="another name").wait_for(timeout=PATIENCE_MS)
    server.call("PATCH", f"/api/sessions/{SESSION}", {"alias": ""})
