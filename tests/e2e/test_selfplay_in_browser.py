"""Self-play games, stepped through in a real browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from shown_runs import SELFPLAY

if TYPE_CHECKING:
    from visiting import Visitor

pytestmark = pytest.mark.slow


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
