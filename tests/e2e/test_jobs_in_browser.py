"""Jobs in a real browser: found from the monitor, read, cancelled and run again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from shown_runs import JOB

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page
    from visiting import Visitor

pytestmark = pytest.mark.slow
A_WHILE_MS = 120_000
WAITS = """
import pathlib, sys, time
print("it waits for a word", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
print("it has been told", flush=True)
"""


def state(page: Page, word: str) -> None:
    """Wait until the job's badge says so."""
    page.locator("main .badge").get_by_text(word, exact=True).first.wait_for(timeout=A_WHILE_MS)


def test_a_job_is_found_from_the_monitor_read_cancelled_and_run_again(
    visitor: Visitor, tmp_path: Path
) -> None:
    word = tmp_path / "word"
    visitor.server.command(
        "jobs", "submit", "--name", "waits", "--title", "wait for a word", "--runs-dir", "runs",
        "--", "{python}", "-c", WAITS, str(word),
    )  # fmt: skip
    page = visitor.open("/monitor")
    page.get_by_role("link", name="wait for a word").click()
    page.wait_for_url("**/benchmark/job/waits")
    state(page, "running")
    page.get_by_role("button", name=re.compile("^Log of waits")).click()
    log = page.get_by_role("group", name=re.compile("^Log of waits"))
    log.get_by_text("it waits for a word").wait_for(timeout=A_WHILE_MS)
    page.get_by_role("button", name="Cancel", exact=True).click()
    state(page, "cancelled")
    assert page.get_by_role("button", name="Cancel", exact=True).count() == 0
    word.touch()
    page.get_by_role("button", name="Retry unsuccessful runs").click()
    state(page, "succeeded")
    # The log that is open is the one of the second time, to its end.
    log.get_by_text("it has been told").wait_for(timeout=A_WHILE_MS)
    assert page.get_by_role("button", name=re.compile("Retry|Cancel")).count() == 0
    visitor.open("/monitor")
    row = page.get_by_role("row").filter(has_text="wait for a word")
    row.get_by_text("1 succeeded").wait_for()


def test_a_job_says_how_each_of_its_runs_ended_and_a_log_has_an_address(visitor: Visitor) -> None:
    page = visitor.open("/monitor")
    page.get_by_role("link", name=JOB, exact=True).click()
    for word in ("succeeded", "failed", "cancelled", "skipped"):
        page.get_by_label("Table of runs").get_by_text(word, exact=True).wait_for()
    page.get_by_role("row").filter(has_text="exit code 3").get_by_role("button").click()
    page.wait_for_url(f"**/benchmark/job/{JOB}?log={JOB}_broken")
    page.reload()
    log = page.get_by_role("group", name=f"Log of {JOB}_broken")
    log.get_by_text("a line that is wider than a phone").first.wait_for()
