"""The dashboard's pages, each with the heading that says it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shown_runs import BENCHMARK, JOB, SELFPLAY, SESSION

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from visiting import Visitor

SESSION_PAGE = f"/e2e/{SESSION}"
COMPARED = f"/compare?of={SESSION}&of={SESSION}:1"
PAGES = {
    "/e2e": "What should the agent do?",
    "/e2e/new": "New session",
    SESSION_PAGE: "run forward fast",
    f"{SESSION_PAGE}?tab=judgment": "run forward fast",
    f"{SESSION_PAGE}?tab=reward": "run forward fast",
    f"{SESSION_PAGE}?tab=training": "run forward fast",
    f"{SESSION_PAGE}?tab=lessons": "run forward fast",
    f"{SESSION_PAGE}?tab=events": "run forward fast",
    f"{SESSION_PAGE}/label": "Score the videos",
    "/compare": "Compare",
    COMPARED: "Compare",
    "/benchmark": "Benchmarks",
    f"/benchmark/{BENCHMARK}": "tests.csv, 3 prompts",
    f"/benchmark/job/{BENCHMARK}/case/1": "reach fast",
    f"/benchmark/job/{BENCHMARK}": "tests.csv: 3 prompts",
    f"/benchmark/job/{JOB}": JOB,
    f"/benchmark/job/{JOB}?log={JOB}_broken": JOB,
    "/self-play": "Self-play",
    f"/self-play/{SELFPLAY}": SELFPLAY,
    "/monitor": "Jobs & nodes",
    "/trash": "Trash",
}


def open_whole(visitor: Visitor, path: str) -> Page:
    """Open a page and wait until everything that it asked for is there."""
    page = visitor.open(path)
    page.get_by_role("heading", level=1, name=PAGES[path]).wait_for()
    page.get_by_text("Loading …").wait_for(state="detached")
    return page
