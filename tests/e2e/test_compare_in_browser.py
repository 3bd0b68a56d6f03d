"""Iterations side by side, order among sessions, and feedback, in a real browser."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from addresses import COMPARED, SESSION_PAGE, open_whole
from shown_runs import SESSION

from p2p.records.iteration_record import SessionRecord
from p2p.session.steering import pending_feedback

if TYPE_CHECKING:
    from pathlib import Path

    from visiting import Visitor

pytestmark = pytest.mark.slow
EMPTY_BELOW = """
() => {
  const bottom = (element) => element.getBoundingClientRect().bottom;
  const cards = [...document.querySelectorAll(".compare-entries > li.card")];
  return Math.min(...cards.map((card) => bottom(card) - bottom(card.lastElementChild)));
}
"""


def test_a_session_is_named_tagged_starred_and_analysed(visitor: Visitor, runs: Path) -> None:
    page = visitor.open(SESSION_PAGE)
    page.get_by_role("button", name="Star this session").click()
    page.get_by_role("button", name="Star this session", pressed=True).wait_for()
    page.get_by_role("button", name="Rename and tag").click()
    page.get_by_label("Name", exact=True).fill("the good one")
    page.get_by_label("Tags").fill("paper, keep, paper")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("heading", level=1, name="the good one").wait_for()
    assert page.title() == "the good one · Prompt2Policy"
    kept = json.loads((runs / SESSION / "metadata.json").read_text())
    assert (kept["starred"], kept["tags"]) == (True, ["paper", "keep"])
    page.get_by_role("button", name="Analyze").click()
    page.get_by_role("button", name="Analyze", exact=True).last.click()
    page.get_by_role("button", name="Analyze again").wait_for()
    assert (runs / SESSION / "analysis.json").is_file()
    SessionRecord(runs / SESSION).update_metadata(alias="", tags=(), starred=False)


def test_two_iterations_stand_side_by_side_with_videos_criteria_curves_and_code(
    visitor: Visitor,
) -> None:
    page = open_whole(visitor, COMPARED)
    page.get_by_label("A · run forward fast, iteration 2").wait_for()
    page.get_by_label("B · run forward fast, iteration 1").wait_for()
    page.get_by_role("button", name="Play").click()
    page.wait_for_function(
        "() => [...document.querySelectorAll('.video-grid video')].every((v) => v.currentTime > 0)"
    )
    speed = page.get_by_role("row").filter(has_text="mean forward speed")
    assert re.search(r"3\.68 m/s.*1\.35 m/s", speed.inner_text(), re.DOTALL)
    page.get_by_role("img", name=re.compile("^Evaluation return")).wait_for()
    assert "1 * info" in page.locator(".code-line.added").inner_text()
    assert page.evaluate(EMPTY_BELOW) < 30, "the row is no higher than what it shows"
    page.get_by_role("button", name="Remove B").click()
    page.wait_for_url(f"**/compare?of={SESSION}")
    page.get_by_label("Add a session").fill("run")
    page.get_by_role("button", name="run forward fast").first.click()
    page.wait_for_url(f"**/compare?of={SESSION}&of={SESSION}%3A1")


def test_sessions_are_ticked_in_the_list_and_compared(visitor: Visitor) -> None:
    page = visitor.open("/e2e")
    page.get_by_label("Compare run forward fast").check()
    page.get_by_text("1 of up to 4 chosen").wait_for()
    page.get_by_role("region", name="Comparison").get_by_role("link", name="Compare").click()
    page.wait_for_url(f"**/compare?of={SESSION}")
    page.wait_for_function("() => document.title.startsWith('Compare: run forward fast')")


def test_feedback_is_checked_sent_listed_and_withdrawn(visitor: Visitor, runs: Path) -> None:
    page = visitor.open(SESSION_PAGE)
    page.get_by_label("Your score for iteration 2").fill("0.3")
    page.get_by_label("Remark").fill("smaller steps")
    page.get_by_role("button", name="Change settings").click()
    page.get_by_label("Add a setting").select_option("gamma")
    page.get_by_role("textbox", name="gamma").fill("0.9")
    page.get_by_role("button", name="Edit reward").click()
    code = page.get_by_label("Reward code", exact=True)
    code.fill(code.input_value().replace("2 * info", "3 * info"))
    page.get_by_role("button", name="Check", exact=True).click()
    page.get_by_text("fit to train on", exact=True).wait_for()
    page.get_by_role("row").filter(has_text="speed").wait_for()
    page.get_by_role("button", name="Send feedback").click()
    pending = page.get_by_role("list", name="Pending feedback")
    for text in ("smaller steps", "0.30 for iteration 2", "gamma = 0.9", "your own"):
        pending.get_by_text(text).wait_for()
    (order,) = pending_feedback(SessionRecord(runs / SESSION)).values()
    assert (order.scored_iteration, "3 * info" in (order.reward_code or "")) == (2, True)
    pending.get_by_role("button", name="Withdraw feedback 1").click()
    pending.wait_for(state="detached")
    assert pending_feedback(SessionRecord(runs / SESSION)) == {}


def test_a_page_is_where_it_was_left_when_one_comes_back(visitor: Visitor) -> None:
    page = open_whole(visitor, f"{SESSION_PAGE}?tab=reward")
    # Again and again: it grows while the code is drawn.
    page.wait_for_function("() => (window.scrollTo(0, 500), window.scrollY > 400)")
    page.get_by_role("link", name="Compare").first.dispatch_event("click")
    page.get_by_role("heading", level=1, name="Compare").wait_for()
    assert page.evaluate("window.scrollY") == 0
    page.go_back()
    page.wait_for_function("() => window.scrollY > 400")


def test_a_node_is_added_and_a_job_is_submitted_to_it_and_cancelled(visitor: Visitor) -> None:
    page = visitor.open("/monitor")
    page.get_by_role("button", name="Add a node").click()
    page.get_by_role("form", name="Add a node").get_by_label("Backend").select_option("local")
    page.get_by_label("Name", exact=True).fill("spare")
    page.get_by_role("spinbutton", name="Cores", exact=True).fill("1")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("cell", name="spare", exact=True).wait_for()
    page.get_by_role("button", name="Submit a job").click()
    form = page.get_by_role("form", name="Job")
    form.get_by_role("textbox", name="Prompt").fill("balance the pole")
    form.get_by_label("Model", exact=True).fill("builtin")
    form.get_by_label("Environment").select_option("InvertedPendulum-v5")
    form.get_by_label("spare").check()
    assert "--env InvertedPendulum-v5 --model builtin --node spare" in form.inner_text()
    form.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/benchmark/job/session_*")
    page.get_by_role("heading", level=1, name="balance the pole").wait_for()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.locator("main .badge").get_by_text("cancelled").first.wait_for()


def test_the_monitor_has_the_last_minutes_and_self_play_a_form_with_its_command(
    visitor: Visitor,
) -> None:
    page = visitor.open("/monitor")
    page.get_by_role("img", name=re.compile("^In use, %; last values: CPU")).wait_for()
    visitor.open("/self-play")
    page.get_by_label("Nim", exact=True).check()
    page.get_by_label("first-checkpoint").check()
    page.get_by_role("spinbutton", name="Updates").fill("3")
    command = "unstable train --game Nim-v0-train --opponent first-checkpoint --updates 3"
    page.get_by_text(command, exact=True).wait_for()


def test_a_name_of_one_long_word_stays_within_the_page(visitor: Visitor, runs: Path) -> None:
    page, record = visitor.page, SessionRecord(runs / SESSION)
    record.update_metadata(alias="word" * 50)
    page.set_viewport_size({"width": 390, "height": 900})
    try:
        for path in ("/e2e", SESSION_PAGE, COMPARED):
            visitor.open(path)
            page.get_by_text("wordword").first.wait_for()
            page.get_by_text("Loading …").wait_for(state="detached")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
    finally:
        record.update_metadata(alias="")
