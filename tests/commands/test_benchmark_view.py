"""The live table of a benchmark."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from p2p.benchmark.records import CaseStatus
from p2p.benchmark.running import CaseNow
from p2p.benchmark.suite import Case
from p2p.commands.job_progress import BenchmarkProgress


def a_case(number: int, run: Any, outcome: Any = "unfinished", **fields: Any) -> CaseNow:
    case = Case(
        number=number,
        env_id="Hopper-v5",
        instruction=fields.pop("instruction", f"prompt {number}"),
        category="x",
        difficulty="easy",
    )
    live, note = fields.pop("live_score", None), fields.pop("note", "")
    given = {"status": "running", "message": "", "iterations": 0, "score": None, "result": None,
             "unchecked_words": ()}  # fmt: skip
    status = CaseStatus(case=case, stage=0, outcome=outcome, **{**given, **fields})
    return CaseNow(status, run, "local", live, note)


CASES = [
    a_case(0, "succeeded", "passed", iterations=1, score=0.91),
    a_case(1, "failed", "error", message="[red]nothing[/] was understood"),
    a_case(2, "running", iterations=2, score=0.4, live_score=0.55, note="process 7"),
    a_case(3, "pending", "not_run"),
    a_case(4, "pending", "not_run", instruction="[bold]hop[/]"),
]


def drawn(cases: list[CaseNow], height: int) -> list[str]:
    console = Console(width=100, height=height, record=True, file=io.StringIO())
    view = BenchmarkProgress(console)
    view.cases = cases
    console.print(view.region())
    return console.export_text().splitlines()


def test_the_table_has_counts_and_every_case_what_runs_first() -> None:
    lines = drawn(CASES, 40)
    assert "2 of 5 ended, 1 passed, 0 unverified, 1 running, 2 waiting" in lines[1]
    assert [line.split()[0] for line in lines[3:]] == ["2", "1", "0", "3", "4"]
    assert "running" in lines[3]
    assert "0.40 (0.55)" in lines[3]
    assert "process 7" in lines[3]
    assert "pending" in lines[6]
    assert "[bold]hop[/]" in lines[7]


def test_no_more_lines_than_there_is_room_for() -> None:
    lines = drawn(CASES * 20, 12)
    assert len(lines) <= 12


def test_elsewhere_each_step_is_a_line_once() -> None:
    console = Console(width=300, record=True, file=io.StringIO())
    view = BenchmarkProgress(console)
    view.update(CASES)
    view.update(CASES)
    assert console.export_text().splitlines() == [
        "case 0  Hopper-v5: prompt 0  passed 0.91",
        "case 1  Hopper-v5: prompt 1  error  [red]nothing[/] was understood",
        "case 2  Hopper-v5: prompt 2  iteration 2",
    ]
