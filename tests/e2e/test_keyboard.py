"""Everything can be reached and done without a mouse, and where one is can be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from addresses import PAGES, SESSION_PAGE, open_whole

if TYPE_CHECKING:
    from visiting import Visitor

pytestmark = pytest.mark.slow
ACTIONS = (
    "main :is(a[href], button:enabled, input:enabled, select:enabled, textarea:enabled, summary)"
)
MARK = f"""
() => [...document.querySelectorAll("{ACTIONS}")]
  .filter((each) => each.checkVisibility() && each.tabIndex >= 0)
  .filter((each) => each.type !== "radio" || each.checked)
  .forEach((each) => each.classList.add("to-reach"))
"""
WHERE = """
() => {
  const at = document.activeElement;
  const style = getComputedStyle(at.matches(".env input") ? at.parentElement : at);
  const seen = style.outlineStyle !== "none" && style.outlineWidth !== "0px";
  at.classList.remove("to-reach");
  return [at.outerHTML.slice(0, 120), seen || at === document.body];
}
"""
LEFT = (
    "() => [...document.querySelectorAll('.to-reach')].map((each) => each.outerHTML.slice(0, 120))"
)


def test_the_tab_key_reaches_everything_and_the_focus_is_seen(visitor: Visitor) -> None:
    for path in PAGES:
        page = open_whole(visitor, path)
        page.evaluate(MARK)
        for _ in range(150):
            page.keyboard.press("Tab")
            where, seen = page.evaluate(WHERE)
            assert seen, f"{path}: the focus on {where} cannot be seen"
            if not page.evaluate(LEFT):
                break
        assert page.evaluate(LEFT) == [], path


def test_a_session_is_opened_and_looked_through_with_keys_alone(visitor: Visitor) -> None:
    page = open_whole(visitor, "/e2e")
    page.get_by_role("link", name="run forward fast").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{SESSION_PAGE}")
    page.get_by_role("tab", name="Videos").focus()
    for name in ("Judgment", "Reward", "Training"):
        page.keyboard.press("ArrowRight")
        page.get_by_role("tab", name=name, selected=True).wait_for()
