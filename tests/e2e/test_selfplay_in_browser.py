"""Self-play in a real browser: games stepped through, a run that is started and really learns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from shown_runs import SELFPLAY

from unstable.tiny import WarmUp, make_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from visiting import Visitor

pytestmark = pytest.mark.slow
A_RUN_MS = 240_000


def test_a_game_is_chosen_and_stepped_through_with_buttons_and_keys(visitor: Visitor) -> None:
    page = visitor.open(f"/self-play/{SELFPLAY}")
    page.get_by_role("button", name="eval-2").click()
    page.get_by_role("heading", name="TicTacToe-v0, eval-2").wait_for()
    page.get_by_text("move 1 of 3").wait_for()
    answer = page.get_by_label("Response")
    assert answer.inner_text() == "I take the middle: [4]."
    assert answer.locator("mark").inner_text() == "[4]"
    page.get_by_role("button", name="Next →").click()
    page.get_by_text("Player 1: random-legal", exact=True).wait_for()
    page.keyboard.press("ArrowRight")
    page.get_by_text("move 3 of 3").wait_for()
    page.locator(".game-view .badge").get_by_text("illegal").wait_for()
    page.get_by_text("which is illegal").wait_for()
    page.keyboard.press("Home")
    page.get_by_text("move 1 of 3").wait_for()
    page.get_by_role("group", name="All moves").get_by_role("button").nth(1).click()
    page.get_by_text("move 2 of 3").wait_for()


def test_training_games_are_there_too(visitor: Visitor) -> None:
    page = visitor.open(f"/self-play/{SELFPLAY}")
    page.get_by_role("button", name="Training", exact=True).click()
    page.get_by_text("No training games yet").wait_for()


def test_win_rates_stand_over_updates_with_their_intervals(visitor: Visitor) -> None:
    page = visitor.open(f"/self-play/{SELFPLAY}")
    chart = page.get_by_role("img", name=re.compile("^Win rate in TicTacToe-v0"))
    chart.wait_for()
    label = chart.get_attribute("aria-label") or ""
    assert "against random-legal 0.667 (0.208 to 0.939)" in label
    assert "against minimax 0.667 (0.208 to 0.939)" in label
    assert page.get_by_text("update", exact=True).count() > 0


def test_a_run_is_started_from_the_form_watched_and_stopped(
    visitor: Visitor, tmp_path: Path
) -> None:
    make_tiny(tmp_path / "model", warm_up=WarmUp(games=10, steps=2))
    page = visitor.open("/self-play")
    page.get_by_role("group", name="Games").get_by_label("TicTacToe", exact=True).check()
    page.get_by_role("group", name="Measured against").get_by_label("random-legal").check()
    page.get_by_label("Model").fill(str(tmp_path / "model"))
    page.get_by_role("spinbutton", name="Updates").fill("500")
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url(re.compile(r"/self-play/selfplay_"))
    page.get_by_role("heading", level=1, name="tictactoe").wait_for()
    progress = page.get_by_role("region", name="Progress")
    progress.get_by_text(re.compile(r"^update \d+ of 500$")).wait_for()
    badge = page.locator("main .badge")
    badge.get_by_text("running", exact=True).wait_for(timeout=A_RUN_MS)
    progress.get_by_text(re.compile(r"^About .* left\.$")).wait_for(timeout=A_RUN_MS)
    page.get_by_role("img", name=re.compile("^Win rate in TicTacToe-v0")).wait_for()
    page.get_by_role("img", name=re.compile("^Loss")).wait_for()
    ratings = page.get_by_role("group", name="Table of ratings")
    ratings.get_by_text("ckpt-1", exact=True).wait_for(timeout=A_RUN_MS)
    # Games that were not there when the page was opened.
    page.get_by_role("group", name="List of games").get_by_text("eval-").first.wait_for()
    page.get_by_role("button", name="Stop", exact=True).click()
    badge.get_by_text("cancelled", exact=True).wait_for(timeout=A_RUN_MS)
    progress.wait_for(state="detached")
    assert page.get_by_role("button", name=re.compile("^Stop")).count() == 0
    page.get_by_role("link", name="Self-play").click()
    row = page.get_by_role("listitem").filter(has_text="selfplay_")
    row.get_by_text("cancelled", exact=True).wait_for()
