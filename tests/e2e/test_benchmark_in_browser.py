"""Benchmarks in a real browser: looked at, started, stopped, moved to the trash."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from shown_runs import BENCHMARK

if TYPE_CHECKING:
    from visiting import Visitor

pytestmark = pytest.mark.slow
A_WHILE_MS = 120_000
SHAPE = """
() => {
  const { clientWidth, clientHeight } = document.querySelector(".case-grid video");
  return clientWidth / clientHeight;
}
"""


def test_a_benchmark_shows_its_rates_where_judge_and_truth_differ_and_its_cases(
    visitor: Visitor,
) -> None:
    page = visitor.open("/benchmark")
    page.get_by_role("link", name="tests.csv, 3 prompts").click()
    page.wait_for_url(f"**/benchmark/{BENCHMARK}")
    page.get_by_role("img", name=re.compile("^all, by the judge: 2 of 3")).wait_for()
    page.get_by_role("img", name=re.compile("^all, by the ground truth: 1 of 3")).wait_for()
    page.get_by_text("Judge and ground truth agree on 2 of 3 prompts.").wait_for()
    page.get_by_role("button", name="Disagree").click()
    page.get_by_role("heading", name="Cases (1)").wait_for()
    page.get_by_role("button", name="Play all").click()
    page.wait_for_function("() => document.querySelector('.case-grid video').currentTime > 0.2")
    assert round(page.evaluate(SHAPE), 2) == round(4 / 3, 2), "of the videos that we draw"
    page.locator(".case-grid").get_by_role("link", name="reach fast").click()
    page.wait_for_url(f"**/benchmark/job/{BENCHMARK}/case/1")
    page.get_by_role("heading", level=1, name="reach fast").wait_for()
    page.get_by_text("disagree", exact=True).wait_for()
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => document.querySelector('video').currentTime > 0.2")
    page.get_by_role("link", name="Next case →").click()
    page.get_by_role("heading", level=1, name="reach slowly").wait_for()
    page.get_by_role("link", name="session", exact=True).click()
    page.get_by_role("heading", level=1, name="reach slowly").wait_for()
    page.wait_for_url(f"**/e2e/{BENCHMARK}_case2")


def test_a_suite_is_started_from_the_form_stopped_and_moved_to_the_trash(visitor: Visitor) -> None:
    page = visitor.open("/benchmark")
    page.get_by_label("InvertedPendulum", exact=True).check()
    page.get_by_label("easy", exact=True).check()
    page.get_by_label("Model", exact=True).fill("builtin")
    page.get_by_label("Max iterations per prompt").fill("1")
    page.get_by_label("Parallel sessions").fill("1")
    command = page.locator(".command code").inner_text()
    assert "--filter-envs InvertedPendulum-v5 --filter-difficulties easy" in command
    assert "--iterations 1 --max-parallel 1" in command
    page.get_by_text("Advanced").click()
    page.get_by_label("Timesteps per training run").fill("50000000")
    page.get_by_role("button", name="Plan", exact=True).click()
    page.get_by_text("1 prompts on 1 environments, up to 1 iterations each").wait_for()
    page.get_by_role("button", name="Start 1 prompts").click()
    page.wait_for_url(re.compile(r"/benchmark/bm_"))
    page.locator(".case-grid .badge").get_by_text("running").first.wait_for(timeout=A_WHILE_MS)
    page.get_by_role("button", name="Stop").click()
    page.locator("main .badge").get_by_text("cancelled").first.wait_for(timeout=A_WHILE_MS)
    benchmark = page.url
    page.get_by_role("link", name="job", exact=True).click()
    page.get_by_role("button", name=re.compile("^Log of bm_.*_case")).first.click()
    page.get_by_role("heading", name=re.compile("^Log of bm_")).wait_for()
    page.goto(benchmark)
    page.get_by_role("button", name="Move to trash").click()
    page.get_by_role("heading", level=1, name="Benchmarks").wait_for()
    page.get_by_role("link", name="Sessions", exact=True).click()
    page.get_by_role("link", name="Trash").click()
    page.get_by_role("button", name="Restore").click()
    page.get_by_text("The trash is empty").wait_for()
