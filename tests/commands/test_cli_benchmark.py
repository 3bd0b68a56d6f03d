"""`p2p benchmark`: mistakes are named before anything starts, and a plan can be looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import Cli

GOOD = "env_id,instruction,category,difficulty\nReacher-v5,reach the target,x,easy\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(GOOD)
    return path


def test_the_default_command_has_a_plan(p2p: Cli) -> None:
    shown = p2p("benchmark", "--model", "builtin", "--dry-run", "--json")
    assert shown.status == 0
    plan = shown.json
    assert len(plan["cases"]) >= 40
    assert plan["options"] == {"model": "builtin", "vlm_model": "", "videos": True}
    assert not Path("runs").joinpath(plan["benchmark_id"]).exists()


def test_flags_reach_the_plan(p2p: Cli, suite: Path) -> None:
    shown = p2p(
        "benchmark", "--csv", suite, "--model", "builtin", "--num-configs", 3, "--seeds", "4,5",
        "--num-envs", 4, "--no-hp-tuning", "--side-info", "--pass-threshold", 0.7, "--no-videos",
        "--cores-per-run", 1, "--max-parallel", 2, "--mode", "staged", "--num-stages", 3,
        "--gate-threshold", 0.25, "--nodes", "local", "--dry-run", "--json",
    )  # fmt: skip
    assert shown.status == 0, shown.err
    plan = shown.json
    assert plan["options"] == {
        "model": "builtin", "vlm_model": "", "configs": 3, "seeds": [4, 5], "num_envs": 4,
        "hp_tuning": False, "side_info": True, "pass_threshold": 0.7, "videos": False,
    }  # fmt: skip
    assert (plan["mode"], plan["stages"], plan["gate_threshold"]) == ("staged", [[0]], 0.25)
    assert (plan["max_parallel"], plan["nodes"]) == (2, ["local"])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--csv", "nowhere.csv"), "--csv: nowhere.csv is neither a file nor a suite of ours"),
        (("--num-envs", "0"), "--num-envs"),
        (("--num-configs", "99"), "--configs: 99 is not"),
        (("--mode", "staged", "--num-stages", "0"), "--num-stages: Input should be greater"),
        (("--gate-threshold", "3"), "--gate-threshold: Input should be"),
        (("--cores-per-run", "0"), "--cores-per-run: Input should be"),
        (("--pass-threshold", "3"), "--threshold: Input"),
        (("--seeds", "a"), "--seeds: 'a': write a number, or a list"),
        (("--seed", "1", "--seeds", "1"), "--seed, --seeds"),
        (("--filter-envs", "Reacher-v4"), "--filter-envs: no prompt has the env_id"),
        (("--filter-difficulties", "tricky"), "--filter-difficulties: Input should be 'easy'"),
        (("--nodes", "mars"), "--nodes: unknown node mars; known: local"),
        (("--backend", "slurm"), "--backend: no node of slurm is enabled"),
        (("--cores-per-run", "4000"), "--cores-per-run: 4000 are asked for, the largest node has"),
        (("--model", "nobody:x"), "--model, --vlm: "),
        (("--resume", "bm_nothing"), "--resume: no benchmarks in"),
    ],
)
def test_a_mistake_names_its_flag_and_starts_nothing(
    p2p: Cli, suite: Path, flags: tuple[str, ...], says: str
) -> None:
    shown = p2p("benchmark", "--csv", suite, "--model", "builtin", *flags)
    assert shown.status == 2
    assert says in shown.error
    assert not list(Path("runs").glob("bm_*"))


def test_every_bad_row_is_listed(p2p: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(f"{GOOD}Reacher-v5,x,y,tricky\nNope-v1,x,y,easy\n")
    shown = p2p("benchmark", "--csv", path, "--model", "builtin")
    assert shown.status == 2
    assert "--csv: 2 mistakes; nothing was started" in shown.error
    assert "bad.csv, line 3, column difficulty: Input should be 'easy'" in shown.err
    assert "bad.csv, line 4, column env_id:" in shown.err


def test_flags_of_a_run_are_not_dropped_before_another_command(p2p: Cli) -> None:
    shown = p2p("benchmark", "--max-parallel", 2, "report", "last")
    assert "--max-parallel: write flags after `report`" in shown.error


def test_a_report_of_nothing_says_what_there_is(p2p: Cli) -> None:
    assert "BENCHMARK: no benchmarks in" in p2p("benchmark", "report", "last").error


def test_the_module_is_the_same_command(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "p2p.benchmark.benchmark_cli", "report", "last"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "BENCHMARK: no benchmarks in" in ended.stderr


def test_nothing_starts_before_somebody_has_seen_the_plan_and_said_yes(
    p2p: Cli, suite: Path
) -> None:
    shown = p2p("benchmark", "--csv", suite, "--model", "builtin")
    assert shown.status == 2
    assert "--yes" in shown.error
    assert "1 prompts on 1 environments" in shown.err
    assert "no cost" in shown.err
    assert not list(Path("runs").glob("bm_*"))


def test_a_person_who_says_no_starts_nothing(tmp_path: Path, suite: Path) -> None:
    terminal, other_end = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "p2p.cli", "benchmark", "--csv", suite, "--model", "builtin"],
        cwd=tmp_path, stdin=other_end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.write(terminal, b"n\n")
    _, err = process.communicate(timeout=120)
    assert "Start? [y/N]" in err
    assert process.returncode == 1
    assert not list(tmp_path.glob("runs/bm_*"))


def test_prices_that_cannot_be_read_are_a_line_that_names_their_file(
    p2p: Cli, suite: Path, broken_prices: Path
) -> None:
    flags = ("--csv", suite, "--model", "anthropic:claude-sonnet-4-5", "--dry-run")
    outcome = p2p("benchmark", *flags)
    assert outcome.status == 2
    assert f"P2P_PRICES: the prices in {broken_prices} are not usable" in outcome.error
    broken_prices.unlink()
    assert "P2P_PRICES: cannot read the prices in" in p2p("benchmark", *flags).error
