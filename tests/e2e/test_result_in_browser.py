"""The result is what one sees first: on the cards of the first page, and on a session's own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from addresses import SESSION_PAGE, open_whole
from playwright.sync_api import expect
from shown_runs import A_POLICY

if TYPE_CHECKING:
    from visiting import Visitor

FOLD = 900
PLAYS = "(video) => video.currentTime > 0.3"


def test_an_example_prompt_is_ready_to_start_and_all_else_is_folded_away(visitor: Visitor) -> None:
    page = open_whole(visitor, "/e2e")
    start = page.get_by_role("button", name="Start", exact=True)
    expect(start).to_be_disabled()
    page.get_by_role("button", name="hop forward").click()
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value("hop forward")
    expect(start).to_be_enabled()
    assert page.get_by_role("radio").count() == 0
    page.get_by_role("button", name="Environment: automatic").click()
    page.get_by_role("radio", name="Hopper").check(force=True)
    page.get_by_role("button", name="Environment: Hopper").wait_for()
    page.get_by_role("button", name="Command line").click()
    expect(page.locator(".command code")).to_have_text("p2p run 'hop forward' --env Hopper-v5")


def test_a_card_plays_the_best_policys_median_episode_unless_motion_is_unwelcome(
    visitor: Visitor,
) -> None:
    page = open_whole(visitor, "/e2e")
    clip = page.get_by_label("Clip of run forward fast")
    page.get_by_role("button", name="Play clips").wait_for()
    assert clip.evaluate("(video) => video.paused")
    page.emulate_media(reduced_motion="no-preference")
    open_whole(visitor, "/e2e")
    clip.scroll_into_view_if_needed()
    page.wait_for_function(PLAYS, arg=clip.element_handle())
    assert "eval_100000_median.mp4" in clip.evaluate("(video) => video.currentSrc")
    page.get_by_role("button", name="Pause clips").click()
    page.wait_for_function("(video) => video.paused", arg=clip.element_handle())


def test_the_result_is_above_the_fold(visitor: Visitor) -> None:
    page = open_whole(visitor, SESSION_PAGE)
    page.wait_for_function("() => document.querySelector('.hero video')?.readyState > 0")
    expect(page.locator(".verdict")).to_contain_text("Passed with 0.92")
    for shown in ("h1", ".hero video", ".hero figcaption", ".verdict", ".menu summary"):
        box = page.locator(shown).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= FOLD, shown
    criteria = page.locator(".hero .criterion").evaluate_all(
        "all => all.map((each) => each.getBoundingClientRect().bottom)"
    )
    assert len(criteria) == 2
    assert max(criteria) <= FOLD
    expect(page.locator(".criterion.met").first).to_contain_text("3.68 m/s")


def test_policy_video_and_report_are_downloaded_from_one_menu(visitor: Visitor) -> None:
    page = open_whole(visitor, SESSION_PAGE)
    contents = {}
    for name in ("policy.zip", "video.mp4", "report.md"):
        page.get_by_text("Download", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("link", name=name).click()
        contents[name] = download.value.path().read_bytes()
        expect(page.get_by_role("link", name=name)).to_be_hidden()
    assert contents["policy.zip"] == A_POLICY
    assert b"ftyp" in contents["video.mp4"][:16]
    assert contents["report.md"].startswith(b"# run forward fast")


def test_two_iterations_are_compared_before_and_after_in_step(visitor: Visitor) -> None:
    page = open_whole(visitor, SESSION_PAGE)
    card = page.get_by_role("region", name="Before and after")
    expect(card.locator("video")).to_have_count(2)
    card.get_by_role("button", name="Play").click()
    page.wait_for_function(
        "(card) => [...card.querySelectorAll('video')].every((v) => v.currentTime > 0.3)",
        arg=card.element_handle(),
    )
    times = card.locator("video").evaluate_all("all => all.map((video) => video.currentTime)")
    assert max(times) - min(times) < 0.3
    card.get_by_label("Before").select_option("2")
    expect(card.get_by_label("iteration 2", exact=True)).to_have_count(2)


def test_training_is_drawn_over_steps_or_over_time_and_the_settings_are_compared(
    visitor: Visitor,
) -> None:
    page = open_whole(visitor, f"{SESSION_PAGE}?tab=training")
    chart = page.get_by_role("img", name=re.compile("^Training return; last values: base_seed_1"))
    expect(chart.locator(".u-legend")).to_contain_text("environment steps")
    expect(chart.locator(".u-legend")).to_contain_text("100k")
    terms = page.get_by_role("img", name=re.compile("^Reward terms, stacked"))
    expect(terms).to_have_attribute("aria-label", re.compile("ctrl -10, speed 20, sum 10"))
    page.get_by_role("button", name="Time", exact=True).click()
    expect(chart.locator(".u-legend")).to_contain_text("training time (seconds)")
    expect(chart.locator(".u-legend")).to_contain_text("40")
    expect(page.get_by_text("All runs of this session were trained with")).to_be_visible()
    page.get_by_label("All, not only those that differ").check()
    row = page.get_by_role("row", name=re.compile("^total_timesteps"))
    expect(row).to_contain_text("100,000")
