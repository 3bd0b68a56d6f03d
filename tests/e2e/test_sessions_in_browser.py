"""What people do with sessions, in a real browser, on trainings that really run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from addresses import SESSION_PAGE

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from visiting import Visitor

pytestmark = pytest.mark.slow
SMALL = """
num_envs=4
num_steps=32
num_minibatches=4
update_epochs=2
max_episode_steps=50
num_evals=2
num_eval_rounds=1
"""
A_TRAINING_MS = 240_000


def fill_in(page: Page, prompt: str, env: str, *, steps: int) -> None:
    """The form of a new session, for a training that is as short as `steps`."""
    page.get_by_role("textbox", name="Prompt").fill(prompt)
    page.get_by_role("radio", name=env).check(force=True)
    page.get_by_label("Model", exact=True).fill("builtin")
    page.get_by_label("Timesteps per training run").fill(str(steps))
    page.get_by_label("Max iterations").fill("1")
    page.get_by_text("Advanced").click()
    page.get_by_label("Training settings").fill(SMALL)


def start(page: Page) -> None:
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url(re.compile(r"/e2e/session_"))


def status(page: Page, word: str) -> None:
    """Wait until the session's badge says so."""
    page.locator("main .badge").get_by_text(word, exact=True).first.wait_for(timeout=A_TRAINING_MS)


def test_a_session_with_an_edited_criterion_is_started_and_watched_until_it_passes(
    visitor: Visitor,
) -> None:
    page = visitor.open("/e2e")
    for folded in ("Environment", "Criteria", "Options", "Command line"):
        page.get_by_role("button", name=re.compile(f"^{folded}")).click()
    fill_in(page, "balance the pole", "InvertedPendulum", steps=30_000)
    page.get_by_role("button", name="Propose criteria").click()
    criteria = page.get_by_role("group", name="Criteria")
    threshold = criteria.get_by_label("Threshold").first
    threshold.fill("0.5")
    command = page.locator(".command code").inner_text()
    assert command.startswith("p2p run 'balance the pole' --env InvertedPendulum-v5")
    assert "--criteria" in command
    start(page)
    page.get_by_text("Training", exact=True).wait_for()
    status(page, "passed")
    page.get_by_text("≥ 0.5").first.wait_for()
    page.get_by_role("tabpanel").get_by_role("button", name="Play").click()
    page.wait_for_function(
        "() => [...document.querySelectorAll('[role=tabpanel] video')]"
        ".some((v) => v.currentTime > 0.2)"
    )
    page.get_by_role("tab", name="Training").click()
    page.get_by_role("img", name=re.compile("Training return")).wait_for()
    page.get_by_text("Download", exact=True).click()
    with page.expect_download() as policy:
        page.get_by_role("link", name="policy.zip").click()
    assert policy.value.path().stat().st_size > 1000


def test_a_running_session_is_steered_stopped_trashed_and_restored(visitor: Visitor) -> None:
    page = visitor.open("/e2e/new")
    fill_in(page, "balance upright", "InvertedPendulum", steps=50_000_000)
    start(page)
    page.locator(".phases .current").get_by_text("Training").wait_for(timeout=A_TRAINING_MS)
    page.get_by_text("Iteration 1 of at most 1.").wait_for()
    page.get_by_text(re.compile(r"About .* of training left\.")).wait_for(timeout=A_TRAINING_MS)
    page.get_by_text(re.compile(r"The session ends within ")).wait_for(timeout=A_TRAINING_MS)
    page.get_by_label("Remark").fill("smaller steps")
    page.get_by_role("button", name="Edit criteria").click()
    page.get_by_label("Threshold").first.fill("0.7")
    page.get_by_role("button", name="Send feedback").click()
    page.get_by_text("1 pending change").wait_for()
    page.get_by_role("button", name="Stop", exact=True).click()
    status(page, "cancelled")
    session = page.url.rpartition("/")[2]
    page.get_by_role("button", name="Move to trash").click()
    page.get_by_role("heading", name="Sessions").wait_for()
    assert page.get_by_role("link", name="balance upright").count() == 0
    page.get_by_role("link", name="Trash").click()
    item = page.get_by_role("listitem").filter(has_text=session)
    item.get_by_role("button", name="Restore").click()
    page.get_by_text("The trash is empty").wait_for()
    page.get_by_role("link", name="Sessions", exact=True).click()
    page.get_by_role("link", name="balance upright").wait_for()


def test_iterations_are_compared_by_video_by_score_and_by_code(visitor: Visitor) -> None:
    page = visitor.open(SESSION_PAGE)
    page.get_by_role("group", name="Side by side").get_by_role("button", name="Iterations").click()
    shown = page.get_by_role("tabpanel").locator("figure video")
    shown.and_(page.get_by_label("iteration 1", exact=True)).wait_for()
    assert shown.count() == 2
    page.get_by_role("tab", name="Reward").click()
    page.get_by_label("Reward code, diff to its parent").wait_for()
    assert "2 * info" in page.locator(".code-line.added").inner_text()
    assert "1 * info" in page.locator(".code-line.removed").inner_text()
    page.get_by_role("button", name=re.compile("^Iteration 1")).click()
    page.get_by_role("tab", name="Judgment").click()
    page.get_by_role("heading", name="Criteria, iteration 1").wait_for()
    page.get_by_text("it is slow").wait_for()


def test_the_monitor_shows_the_cores_and_says_whether_a_node_can_be_used(visitor: Visitor) -> None:
    page = visitor.open("/monitor")
    page.get_by_role("meter", name="Core 0").wait_for()
    page.get_by_role("meter", name="Memory").wait_for()
    page.get_by_role("button", name="Check").first.click()
    page.get_by_text("usable", exact=True).wait_for()


def test_videos_are_scored_blind_and_compared_with_the_judges(visitor: Visitor) -> None:
    page = visitor.open(SESSION_PAGE)
    page.get_by_role("link", name="score the videos").click()
    page.get_by_role("heading", level=1, name="Score the videos").wait_for()
    page.get_by_text("Prompt: run forward fast").wait_for()
    save = page.get_by_role("button", name="Save and next")
    page.get_by_label("Your name").fill("Ada")
    count = int(
        page.get_by_role("heading", name=re.compile(r"^Video 1 of \d+$")).inner_text().split()[-1]
    )
    for number in range(1, count + 1):
        page.get_by_role("heading", name=f"Video {number} of {count}", exact=True).wait_for()
        assert save.is_disabled()
        page.get_by_label("How well does it do what the prompt asks?").fill("0.9")
        save.click()
    page.get_by_role("heading", name="All videos are scored").wait_for()
    assert page.get_by_role("link", name="Scores as CSV").is_visible()
