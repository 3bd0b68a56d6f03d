"""The dashboard in a real browser: it opens without a complaint, and videos play."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from addresses import PAGES, SESSION_PAGE, open_whole
from playwright.sync_api import expect
from shown_runs import LABELS

if TYPE_CHECKING:
    from visiting import Visitor

HAVE_PLAYED = """
() => {
  const videos = [...document.querySelectorAll("[role=tabpanel] video")];
  return videos.length === 3 && videos.every((video) => video.currentTime > 0.3);
}
"""


def test_every_page_opens_without_an_error_and_within_the_content_policy(visitor: Visitor) -> None:
    for path in PAGES:
        page = open_whole(visitor, path)
        assert page.locator(".problem").count() == 0, path
        assert visitor.complaints == [], path


def test_a_page_that_does_not_exist_says_so_in_its_title_too(visitor: Visitor) -> None:
    visitor.expected = ("404 (Not Found)",)
    for path, name in (
        ("/e2e/session_gone", "session_gone"), ("/benchmark/bm_gone", "bm_gone"),
        ("/benchmark/job/gone", "gone"), ("/self-play/gone", "gone"), ("/gone", "Page not found"),
    ):  # fmt: skip
        page = visitor.open(path)
        expect(page.get_by_role("heading", level=1)).to_contain_text(name)
        expect(page).to_have_title(re.compile(rf"{name}.* · Prompt2Policy$"))


def test_a_session_is_found_in_the_list_and_its_videos_play_in_step(visitor: Visitor) -> None:
    page = visitor.open("/e2e")
    page.get_by_role("link", name="run forward fast").click()
    page.wait_for_url(f"**{SESSION_PAGE}")
    for label in LABELS:
        page.get_by_label(label, exact=True).wait_for()
    episodes = page.get_by_role("tabpanel")
    episodes.get_by_role("button", name="Play").click()
    page.wait_for_function(HAVE_PLAYED)
    episodes.get_by_role("button", name="Pause").click()
    times = episodes.locator("video").evaluate_all("all => all.map((video) => video.currentTime)")
    assert max(times) - min(times) < 0.3
