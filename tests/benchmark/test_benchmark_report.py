"""Reports: what counts, what is only named, and that text of others stays text."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from benchmark_folder import a_benchmark, a_case, end_case, idle_policy
from p2p.benchmark.measuring import truth_path
from p2p.benchmark.records import case_record
from p2p.benchmark.report import BenchmarkReport, make_report, markdown, publish, spearman
from p2p.benchmark.report import page as report_page

STILL = {"truth": "fingertip_speed", "threshold": 0.05}
REACHED = {"truth": "reach_gap", "threshold": 0.03}
IDLE = idle_policy(10, 2)
HOSTILE = "<script>alert(1)</script> | `x` [a](javascript:b) \n # head"


CASES = (
    a_case(0, instruction="hold still", **STILL),
    a_case(1, instruction="reach the target", difficulty="medium", **REACHED),
    a_case(2, instruction="stay", difficulty="medium", **STILL),
    a_case(3, instruction="reach it", difficulty="hard", **REACHED),
    a_case(4, instruction="whirl", difficulty="hard", category="turning", **REACHED),
    a_case(5, instruction="later", difficulty="hard", **REACHED),
    a_case(6, instruction="stopped", difficulty="hard", **REACHED),
)
Told = tuple[BenchmarkReport, Path]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A pass, a false pass, a false fail, a miss, a refusal, one not run, one cancelled."""
    made, folder = a_benchmark(tmp_path_factory.mktemp("runs"), *CASES)
    spent = {"seconds": 120.0, "tokens": 1000, "model_calls": 3, "cost_usd": 0.5}
    end_case(folder, 0, "passed", 1.0, policy=IDLE, confirmed_score=0.9, **spent)
    end_case(folder, 1, "passed", 0.9, policy=IDLE, **spent)
    end_case(folder, 2, "max_iterations", 0.4, policy=IDLE, **spent)
    end_case(folder, 3, "max_iterations", 0.2, policy=IDLE, **spent)
    end_case(folder, 4, "error", message="nothing in it was understood", **spent)
    end_case(folder, 6, "cancelled", 0.9, policy=IDLE, **spent)
    return make_report(made, folder), folder


def test_rates_are_over_finished_cases_with_errors(told: Told) -> None:
    report, _ = told
    everything = report.overall
    assert (everything.cases, everything.finished, everything.errors) == (7, 5, 1)
    assert (everything.judged.passed, everything.judged.total) == (2, 5)
    assert everything.judged.low == pytest.approx(0.1176, abs=1e-4)
    assert everything.judged.high == pytest.approx(0.7693, abs=1e-4)
    # What left no policy does nothing, which is a measurement, too.
    assert (everything.true.passed, everything.true.total) == (2, 5)
    assert [case.outcome for case in report.cases[4:]] == ["error", "not_run", "unfinished"]


def test_groups_have_their_own_rates_and_costs(told: Told) -> None:
    report, _ = told
    assert [group.name for group in report.by_difficulty] == ["easy", "medium", "hard"]
    assert [group.judged.total for group in report.by_difficulty] == [1, 2, 2]
    (env,) = report.by_env
    assert (env.name, env.minutes, env.tokens, env.cost_usd) == ("Reacher-v5", 2.0, 1000, 0.5)
    assert {group.name: group.cases for group in report.by_category} == {
        "manipulation": 6,
        "turning": 1,
    }


def test_agreement_compares_judge_and_truth(told: Told) -> None:
    report, _ = told
    found = report.agreement
    assert (found.compared, found.agreed, found.correlated) == (4, 2, 4)
    assert found.false_passes == (1,)
    assert found.false_fails == (2,)
    # Scores 1, .9, .4, .2 against met, a little, met, a little.
    assert found.rank_correlation == pytest.approx(0.447, abs=0.01)


def test_a_measurement_is_kept_until_the_policy_is_another(told: Told) -> None:
    first, folder = told
    measured = truth_path(folder, 0).stat().st_mtime_ns
    assert make_report(first.benchmark, folder).cases == first.cases
    assert truth_path(folder, 0).stat().st_mtime_ns == measured
    policy = next((folder / "case0").rglob("policy.safetensors"))
    idle_policy(10, 2, push=1.0).save(policy)
    again = make_report(first.benchmark, folder)
    assert truth_path(folder, 0).stat().st_mtime_ns > measured
    assert again.cases[0].truth is not None
    assert not again.cases[0].truth.passed


def test_foreign_or_damaged_policy_is_not_played(tmp_path: Path) -> None:
    made, folder = a_benchmark(tmp_path, a_case(0, **STILL), a_case(1, **STILL))
    end_case(folder, 0, "passed", 1.0, policy=IDLE)
    end_case(folder, 1, "passed", 1.0, policy=IDLE)
    result = case_record(folder, 0).result.read()
    assert result is not None
    away = result.model_copy(update={"policy": f"../case1/{result.policy}"})
    case_record(folder, 0).result.path.write_text(away.model_dump_json())
    next((folder / "case1").rglob("policy.safetensors")).write_bytes(b"junk")
    report = make_report(made, folder)
    assert "outside of it" in report.cases[0].truth_note
    assert "not a safetensors file" in report.cases[1].truth_note
    assert report.overall.true.total == 0
    assert report.overall.judged.passed == 2


class Page(HTMLParser):
    """The tags of a page, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_text_of_others_is_text_in_both_pages(tmp_path: Path) -> None:
    made, folder = a_benchmark(tmp_path, a_case(0, instruction=HOSTILE, category="<b>|</b>"))
    end_case(folder, 0, "error", message=HOSTILE)
    report = make_report(made, folder)
    page = Page(report_page(report))
    assert "script" not in page.tags
    assert not any(link.startswith("javascript") for link in page.links)
    text = markdown(report)
    assert "\n # head" not in text
    row = next(line for line in text.splitlines() if line.startswith("| 0 |"))
    assert row.replace("\\|", "").count("|") == 14


def test_report_page_is_self_contained(told: Told) -> None:
    report, folder = told
    for case in report.cases:
        for video in case.videos:
            (folder / video).parent.mkdir(parents=True, exist_ok=True)
            (folder / video).touch()
    files = publish(report, folder)
    assert [file.name for file in files] == ["report.md", "report.html", "report.json"]
    page = Page(files[1].read_text())
    assert page.tags.count("video") == 5
    assert "link" not in page.tags
    videos = [link for link in page.links if link.endswith(".mp4")]
    assert all(link.startswith("./") and (folder / link).is_file() for link in videos)
    assert BenchmarkReport.model_validate_json(files[2].read_text()) == report
    assert json.loads(files[2].read_text())["overall"]["finished"] == 5


def test_report_names_cases_without_verdict(told: Told) -> None:
    report, _ = told
    text = markdown(report)
    assert "Reacher-v5 'whirl': error (nothing in it was understood)" in text
    assert "Reacher-v5 'later': not run (it has not begun)" in text
    assert "Reacher-v5 'stopped': not finished" in text
    assert "the ground truth is missed): 1 (Reacher-v5 'reach the target')" in text


def test_spearman_ranks_ties_in_the_middle() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)  # scipy's spearmanr
    assert spearman([1, 2], [1, 2]) is None  # ranks that say nothing
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_pass_with_unchecked_words_is_unverified(
    tmp_path: Path,
) -> None:
    cases = (a_case(0, **REACHED), a_case(1, **STILL), a_case(2, **REACHED))
    made, folder = a_benchmark(tmp_path, *cases)
    end_case(folder, 0, "passed", 1.0, policy=IDLE, unchecked=("left", "side"))
    end_case(folder, 1, "passed", 1.0, policy=IDLE, unchecked=("gently",))
    end_case(folder, 2, "max_iterations", 0.3, policy=IDLE, unchecked=("left",))
    report = make_report(made, folder)
    assert [case.outcome for case in report.cases] == [
        "unverified", "unverified", "not_passed",
    ]  # fmt: skip
    assert (report.overall.judged.passed, report.overall.judged.total) == (0, 3)
    assert (report.overall.unverified, report.overall.true.passed) == (2, 1)
    agreement = report.agreement
    assert (agreement.compared, agreement.agreed, agreement.false_passes) == (1, 1, ())
    assert agreement.unverified == (0, 1)
    for text in (markdown(report), report_page(report)):
        assert "unverified" in text
        assert "left, side" in text
