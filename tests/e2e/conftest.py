"""A real Chromium in front of a real `p2p serve`; a page that complains fails its test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_server import PageServer
from shown_runs import make_runs
from visiting import Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
PATIENCE_MS = 60_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a browser and a server."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.process)


# Not for the whole run of tests: Playwright keeps an event loop in this thread while it is open,
# and tests of other files start loops of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: sudo apt-get install chromium")
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[PageServer]:
    """A server over runs of every kind; no browser, no server."""
    folder = tmp_path_factory.mktemp("served")
    make_runs(folder)
    made = PageServer(folder)
    made.start()
    yield made
    made.end_jobs()
    made.stop()


@pytest.fixture
def visitor(browser: Browser, server: PageServer) -> Iterator[Visitor]:
    """Somebody who has opened the printed address."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    found = Visitor(context.new_page(), server)
    found.page.on("console", found.note)
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.goto(server.entrance)
    yield found
    context.close()
    assert found.complaints == []


@pytest.fixture
def page(visitor: Visitor) -> Page:
    return visitor.page


@pytest.fixture
def runs(server: PageServer) -> Path:
    return server.runs
