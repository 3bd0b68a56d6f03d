"""Whole benchmarks: real sessions, through the real scheduler, on this machine."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from benchmark_process import SMALL, begin, ended, events

from benchmark_folder import end_case
from p2p.benchmark.records import case_record, case_status, read_benchmark
from p2p.benchmark.report import BenchmarkReport
from p2p.files import read_model

SUITE = """env_id,instruction,category,difficulty,truth,threshold
InvertedPendulum-v5,balance,balance,easy,balanced,0.95
Reacher-v5,hold still,posture,easy,fingertip_speed,0.05
InvertedPendulum-v5,xyzzy,balance,hard,balanced_swings,4
"""
REFUSED = """env_id,instruction,category,difficulty
InvertedPendulum-v5,xyzzy,x,easy
InvertedPendulum-v5,plugh,x,hard
"""


@pytest.mark.process
def test_closed_gate_holds_back_the_next_stage(tmp_path: Path) -> None:
    (tmp_path / "refused.csv").write_text(REFUSED)
    staged = ("--mode", "staged", "--num-stages", "2", "--gate-threshold", "0.5")
    asked = ("--csv", "refused.csv", "--model", "builtin", "--yes", *staged)
    status, _, err = ended(begin(tmp_path, *asked))
    assert status == 3
    (folder,) = (tmp_path / "runs").glob("bm_*")
    assert "case 0  InvertedPendulum-v5: xyzzy  error" in err
    assert "case 1  InvertedPendulum-v5: plugh  not run" in err
    assert f"p2p benchmark --resume {folder.name}" in err
    assert events(folder, 0).count("session.started") == 1
    assert not case_record(folder, 1).events_path.exists()
    assert "stage 1: mean score 0.00 of 1 prompts" in (folder / "report.md").read_text()

    # Somebody else's verdict opens it.
    end_case(folder, 0, "passed", 1.0)
    status, out, _ = ended(begin(tmp_path, "--resume", folder.name, "--json"))
    assert status == 3
    assert [case["outcome"] for case in json.loads(out)["cases"]] == ["passed", "error"]
    assert [events(folder, n).count("session.started") for n in (0, 1)] == [1, 1]


@pytest.mark.slow
def test_every_row_runs_once_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_text(SUITE)
    staged = ("--mode", "staged", "--num-stages", "2", "--gate-threshold", "0")
    status, out, err = ended(begin(tmp_path, "--csv", "tiny.csv", *SMALL, *staged, "--json"))
    assert status == 3, err  # one sentence is beyond the author
    report: dict[str, Any] = json.loads(out)
    outcomes = [case["outcome"] for case in report["cases"]]
    assert outcomes[2] == "error"
    assert set(outcomes[:2]) <= {"passed", "not_passed"}
    assert all(case["truth"] for case in report["cases"][:2])
    assert report["cases"][2]["truth"] is None
    assert report["overall"]["finished"] == 3
    assert [gate["passed"] for gate in report["gates"]] == [True]
    (folder,) = (tmp_path / "runs").glob("bm_*")
    for number in range(3):
        assert events(folder, number).count("session.started") == 1
        assert "export.start" not in events(folder, number), "its core is for the next prompt"
    assert all((folder / case["policy"]).is_file() for case in report["cases"][:2])
    assert {path.suffix for path in folder.glob("report.*")} == {".md", ".html", ".json"}

    status, _, err = ended(begin(tmp_path, "--resume", folder.name))
    assert status == 3
    assert [events(folder, n).count("session.started") for n in range(3)] == [1, 1, 2]


@pytest.mark.slow
def test_a_cancelled_benchmark_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_text(SUITE)
    quick = ("--filter-difficulties", "easy", "--max-parallel", "1")
    watching = begin(tmp_path, "--csv", "tiny.csv", *SMALL, *quick)
    deadline = time.monotonic() + 600
    while not (found := list((tmp_path / "runs").glob("bm_*/case*/intent.json"))):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    watching.send_signal(signal.SIGTERM)
    status, _, err = ended(watching)
    folder = found[0].parents[1]
    assert status == 130
    assert f"resume with: p2p benchmark --resume {folder.name}" in err

    made = read_benchmark(folder)
    assert made is not None
    while case_status(made, folder, 0).status == "running":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert {case_status(made, folder, n).outcome for n in (0, 1)} == {"unfinished", "not_run"}

    status, out, err = ended(begin(tmp_path, "--resume", folder.name))
    assert status == 0, err
    report = read_model(folder / "report.json", BenchmarkReport)
    assert report is not None
    assert report.overall.finished == 2
    assert events(folder, 0).count("intent.start") == 1
    assert "2 of 2" in out
