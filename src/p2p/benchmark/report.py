"""What came of a benchmark: report.json, and the pages for people that are made of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from p2p.benchmark.measuring import NotPlayable, TruthResult, measure
from p2p.benchmark.records import (
    FINISHED,
    Benchmark,
    CaseStatus,
    GateResult,
    case_status,
    read_gate,
)
from p2p.benchmark.suite import DIFFICULTIES, Case
from p2p.contracts import Record, SessionResult, StatusLiteral, utc_now
from p2p.files import save_model, write_text
from p2p.records.formatting import format_score
from p2p.records.statuses import Outcome
from unstable.evaluation import wilson

OUTCOMES = {
    "passed": "passed",
    "unverified": "unverified",
    "not_passed": "not passed",
    "error": "error",
    "unfinished": "not finished",
    "not_run": "not run",
}
NOTHING = "-"
_MARKDOWN = re.compile(r"([\\|`*_<>\[\]])")


class Rate(Record):
    """A pass rate, with its 95 % interval by Wilson."""

    passed: int
    total: int
    rate: float | None
    low: float | None
    high: float | None


class CaseReport(Record):
    """The result of one prompt."""

    case: Case
    stage: int
    outcome: Outcome
    status: StatusLiteral
    message: str = ""
    score: float | None = None
    confirmed_score: float | None = None
    unchecked_words: tuple[str, ...] = ()
    """What the prompt asks and no criterion measures."""
    truth: TruthResult | None = None
    truth_note: str = ""
    """Why there is no measurement, where there should be one."""
    iterations: int = 0
    minutes: float = 0.0
    model_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    folder: str = ""
    """Of the session, relative to the benchmark's; so are these:"""
    policy: str | None = None
    videos: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether it counts."""
        return self.outcome in FINISHED

    @property
    def disputed(self) -> bool:
        """Whether judge and ground truth differ; a pass that is unverified claims nothing."""
        if self.truth is None or self.outcome == "unverified":
            return False
        return (self.outcome == "passed") != self.truth.passed

    @property
    def median_video(self) -> str:
        """The video that stands for the case."""
        return next((video for video in self.videos if "median" in video), self.videos[0])

    @property
    def truly_passed(self) -> bool | None:
        """Whether the truth says so; None: it says nothing. Without a policy nothing is done."""
        if self.truth is not None:
            return self.truth.passed
        counts = self.finished and self.case.truth is not None and not self.truth_note
        return False if counts else None


class Group(Record):
    """The cases that have something in common."""

    name: str
    cases: int
    finished: int
    errors: int
    judged: Rate
    """By the session's own judges, of those that finished."""
    unverified: int
    """Passed by the judges, with words of the prompt that no criterion measures."""
    false_passes: int = 0
    """The judge passed, the ground truth is missed."""
    false_fails: int = 0
    """The ground truth is met, the judge did not pass."""
    true: Rate
    """By the ground truth, of those that finished and have one."""
    mean_score: float | None
    """Of those that have one."""
    iterations: float
    """Per finished prompt, as are the others."""
    minutes: float
    tokens: float
    cost_usd: float


class Agreement(Record):
    """Judge and ground truth, over the cases that have both."""

    compared: int
    agreed: int
    false_passes: tuple[int, ...]
    """Numbers of the cases that passed and should not have."""
    false_fails: tuple[int, ...]
    unverified: tuple[int, ...]
    """Passed with something left unmeasured: compared with nothing."""
    rank_correlation: float | None
    """Spearman's, of the score and of how much of the truth's threshold is attained."""
    correlated: int
    """Over so many cases."""


class Findings(Record):
    """The numbers over all cases."""

    overall: Group
    by_env: tuple[Group, ...]
    by_category: tuple[Group, ...]
    by_difficulty: tuple[Group, ...]
    agreement: Agreement
    gates: tuple[GateResult, ...] = ()


class BenchmarkReport(Findings):
    """report.json."""

    benchmark: Benchmark
    made_at: datetime
    cases: tuple[CaseReport, ...]


def make_report(
    benchmark: Benchmark, folder: Path, tell: Callable[[Case], None] = lambda _: None
) -> BenchmarkReport:
    """Read all cases, measure what is not measured yet (`tell` is told before each), and count."""
    cases = []
    for case in benchmark.cases:
        tell(case)
        cases.append(case_report(folder, case_status(benchmark, folder, case.number)))
    results = findings(benchmark, folder, cases)
    return BenchmarkReport(
        **dict(results), benchmark=benchmark, made_at=utc_now(), cases=tuple(cases)
    )


def findings(benchmark: Benchmark, folder: Path, cases: Sequence[CaseReport]) -> Findings:
    """Count."""
    gates = (read_gate(folder, stage) for stage in range(len(benchmark.stages) - 1))
    return Findings(
        overall=_make_group("all", cases),
        by_env=_group_by(cases, lambda case: case.env_id),
        by_category=_group_by(cases, lambda case: case.category),
        by_difficulty=_group_by(cases, lambda case: case.difficulty, DIFFICULTIES),
        agreement=_compare_verdicts(cases),
        gates=tuple(gate for gate in gates if gate is not None),
    )


def case_report(folder: Path, now: CaseStatus, *, play: bool = True) -> CaseReport:
    """The result of a case; `play`: its policy is measured if it is not yet."""
    result = now.result or SessionResult(status=now.status, iterations=now.iterations)
    truth, note, name = None, "", f"case{now.case.number}"
    drawn = _list_drawn_videos(folder / name, result)
    if now.outcome in FINISHED:
        try:
            truth = measure(folder, now.case, now.result, play=play)
        except NotPlayable as error:
            note = str(error)
    return CaseReport(
        case=now.case,
        stage=now.stage,
        outcome=now.outcome,
        status=now.status,
        message=now.message,
        score=now.score,
        confirmed_score=result.confirmed_score,
        unchecked_words=now.unchecked_words,
        truth=truth,
        truth_note=note,
        iterations=result.iterations,
        minutes=result.seconds / 60,
        model_calls=result.model_calls,
        tokens=result.tokens,
        cost_usd=result.cost_usd,
        folder=name,
        policy=f"{name}/{result.policy}" if result.policy else None,
        videos=tuple(f"{name}/{video}" for video in result.videos or drawn),
    )


def _list_drawn_videos(session: Path, result: SessionResult) -> list[str]:
    """List the videos of a session's best policy that were drawn after it ended."""
    place = f"iter_{result.best_iteration}/{result.run_id}/videos"
    found = (session / place).glob(f"eval_{result.step}_*.mp4")
    return [f"{place}/{path.name}" for path in sorted(found)]


def _group_by(
    cases: Sequence[CaseReport], key: Callable[[Case], str], order: Sequence[str] = ()
) -> tuple[Group, ...]:
    there = {key(each.case) for each in cases}
    names = [name for name in order if name in there] or sorted(there)
    return tuple(_make_group(name, [c for c in cases if key(c.case) == name]) for name in names)


def _make_group(name: str, cases: Sequence[CaseReport]) -> Group:
    finished = [case for case in cases if case.finished]
    true = [case.truly_passed for case in finished if case.truly_passed is not None]
    scores = [case.score for case in finished if case.score is not None]

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values) if values else 0.0

    return Group(
        name=name,
        cases=len(cases),
        finished=len(finished),
        errors=sum(case.outcome == "error" for case in finished),
        judged=_make_rate([case.outcome == "passed" for case in finished]),
        unverified=sum(case.outcome == "unverified" for case in finished),
        false_passes=sum(case.disputed and case.outcome == "passed" for case in finished),
        false_fails=sum(case.disputed and case.outcome != "passed" for case in finished),
        true=_make_rate(true),
        mean_score=mean(scores) if scores else None,
        iterations=mean([case.iterations for case in finished]),
        minutes=mean([case.minutes for case in finished]),
        tokens=mean([case.tokens for case in finished]),
        cost_usd=mean([case.cost_usd for case in finished]),
    )


def _make_rate(passed: Sequence[bool]) -> Rate:
    count, total = sum(passed), len(passed)
    if not total:
        return Rate(passed=0, total=0, rate=None, low=None, high=None)
    share, (low, high) = count / total, wilson(count, total)
    # Rounding must not leave the rate itself outside.
    return Rate(passed=count, total=total, rate=share, low=min(share, low), high=max(share, high))


def _compare_verdicts(cases: Sequence[CaseReport]) -> Agreement:
    measured = [(case, case.truth) for case in cases if case.finished and case.truth is not None]
    compared = [(case, truth) for case, truth in measured if case.outcome != "unverified"]
    wrong = [(case, truth) for case, truth in compared if case.disputed]
    pairs = [(case.score, truth.attained) for case, truth in measured if case.score is not None]
    return Agreement(
        compared=len(compared),
        agreed=len(compared) - len(wrong),
        false_passes=tuple(case.case.number for case, truth in wrong if not truth.passed),
        false_fails=tuple(case.case.number for case, truth in wrong if truth.passed),
        unverified=tuple(c.case.number for c in cases if c.outcome == "unverified"),
        rank_correlation=spearman([pair[0] for pair in pairs], [pair[1] for pair in pairs]),
        correlated=len(pairs),
    )


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Rank correlation, ties at their mean rank; None where it is not defined."""
    if len(one) < 3:
        return None
    a, b = _ranks(one), _ranks(other)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    _, place, count = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    means: NDArray[np.float64] = (last - (count - 1) / 2)[place]
    return means


# --- what a report says ---------------------------------------------------------------------------


def rate(value: Rate) -> str:
    """`3 of 4, 75 % (30 to 95 %)`."""
    if value.rate is None or value.low is None or value.high is None:
        return NOTHING
    interval = f"({value.low:.0%} to {value.high:.0%})"
    return f"{value.passed} of {value.total}, {value.rate:.0%} {interval}"


def _format_score(value: float | None) -> str:
    return NOTHING if value is None else format_score(value)


def _format_cost(value: float) -> str:
    return f"${value:.4f}" if value else "$0"


def _format_truth(case: CaseReport) -> str:
    """The measurement, and whether it meets the threshold."""
    if case.truth is None:
        return case.truth_note or ("no policy" if case.truly_passed is False else NOTHING)
    return case.truth.text


Columns = Mapping[str, Callable[[Any], str]]
COSTS: Columns = {
    "minutes": lambda row: f"{row.minutes:.1f}",
    "tokens": lambda row: f"{row.tokens:,.0f}",
    "cost": lambda row: _format_cost(row.cost_usd),
}
GROUP_COLUMNS: Columns = {
    "": lambda group: group.name,
    "prompts": lambda group: str(group.cases),
    "finished": lambda group: str(group.finished),
    "passed (judge)": lambda group: rate(group.judged),
    "unverified": lambda group: str(group.unverified),
    "ground-truth pass rate": lambda group: rate(group.true),
    "false passes": lambda group: str(group.false_passes),
    "false fails": lambda group: str(group.false_fails),
    "errors": lambda group: str(group.errors),
    "mean score": lambda group: _format_score(group.mean_score),
    "iterations": lambda group: f"{group.iterations:.1f}",
    **COSTS,
}
CARD: Columns = {
    "score": lambda case: _format_score(case.score),
    "not checked": lambda case: ", ".join(case.unchecked_words) or NOTHING,
    "ground truth": _format_truth,
    "iterations": lambda case: str(case.iterations),
    **COSTS,
}
CASE_COLUMNS: Columns = {
    "case": lambda case: str(case.case.number),
    "environment": lambda case: case.case.env_id,
    "prompt": lambda case: case.case.instruction,
    "category": lambda case: case.case.category,
    "difficulty": lambda case: case.case.difficulty,
    "outcome": lambda case: OUTCOMES[case.outcome],
    **CARD,
}


def agreement(report: BenchmarkReport) -> list[str]:
    """Judge against ground truth."""
    return _write_lines("agreement", report)


def _write_lines(part: str, report: BenchmarkReport) -> list[str]:
    """Return the lines of a report section in prose."""
    text = _environment().get_template("report.text.jinja")
    macros = text.make_module({"outcomes": OUTCOMES})
    lines = str(getattr(macros, part)(report)).splitlines()
    return [line for line in lines if line]


# --- report.md and report.html --------------------------------------------------------------------


def publish(report: BenchmarkReport, folder: Path) -> tuple[Path, ...]:
    """Write report.md, report.html and report.json; returns their paths."""
    files = tuple(folder / f"report.{kind}" for kind in ("md", "html", "json"))
    write_text(files[0], markdown(report))
    write_text(files[1], page(report))
    save_model(files[2], report)
    return files


def markdown(report: BenchmarkReport) -> str:
    """The report as Markdown."""
    return _render("report.md.jinja", report)


def page(report: BenchmarkReport) -> str:
    """The report as a page without scripts or anything from elsewhere, to be opened from disk."""
    return _render("report.html.jinja", report)


def _environment(*, escape: bool = False) -> Environment:
    environment = Environment(
        loader=PackageLoader("p2p.benchmark", "."),
        autoescape=escape,  # noqa: S701 - of the pages, one alone is HTML
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "plain": _escape_markdown, "line": _join_lines, "repr": repr,
        "link": lambda path: "./" + quote(path),
    }  # fmt: skip
    return environment


def _render(template: str, report: BenchmarkReport) -> str:
    """Everything that a user, a model or another machine wrote is escaped."""
    environment = _environment(escape=template.endswith(".html.jinja"))
    groups = (
        ("All", [report.overall]),
        ("By difficulty", report.by_difficulty),
        ("By environment", report.by_env),
        ("By category", report.by_category),
    )
    lists = (
        ("Judge and ground truth", agreement(report)),
        ("Gates", _write_lines("gates", report)),
        ("Without a verdict", _write_lines("without_a_verdict", report)),
    )
    return environment.get_template(template).render(
        report=report,
        about=_write_lines("about", report),
        groups=[(title, rows) for title, rows in groups if rows],
        lists=[(title, lines) for title, lines in lists if lines],
        group_columns=GROUP_COLUMNS,
        case_columns=CASE_COLUMNS,
        card=CARD,
        outcomes=OUTCOMES,
        number=_format_score,
        size=260,
        margin=34,
    )


def _escape_markdown(value: str) -> str:
    """Text that means nothing to Markdown and stays on its line."""
    return _MARKDOWN.sub(r"\\\1", _join_lines(value))


def _join_lines(value: object) -> str:
    return " ".join(str(value).split())
