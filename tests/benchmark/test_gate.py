"""Gates: all cases of a stage count, and those without a score are named."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from io import StringIO
from pathlib import Path

from rich.console import Console

from benchmark_folder import a_benchmark, a_case, end_case
from p2p.benchmark.gate import CANNOT_SAY, MAY, MAY_NOT, decide, main
from p2p.benchmark.planning import job_of
from p2p.benchmark.records import Benchmark, case_record, case_status, live_score, read_gate
from p2p.benchmark.running import look
from p2p.commands.job_progress import BenchmarkProgress
from p2p.contracts import JudgmentResult
from p2p.files import save_model
from p2p.records.iteration_record import IterationRecord
from p2p.scheduler.records import NodeConfig
from p2p.scheduler.store import Store
from p2p.scheduler.writer import Writer


def staged(tmp_path: Path, threshold: float) -> tuple[Benchmark, Path]:
    return a_benchmark(
        tmp_path,
        *(a_case(number) for number in range(6)),
        mode="staged",
        num_stages=2,
        gate_threshold=threshold,
    )


def test_a_case_without_a_result_counts_as_zero_and_is_named(tmp_path: Path) -> None:
    made, folder = staged(tmp_path, 0.5)
    first, second, third = made.stages[0]
    end_case(folder, first, "passed", 1.0)
    end_case(folder, second, "error", message="nobody understood it")
    found = decide(made, folder, 0)
    assert found.mean_score == 1 / 3
    assert not found.passed
    assert found.scores == {first: 1.0, second: None, third: None}
    assert found.missing == {second: "nobody understood it", third: "pending"}


def test_the_best_iteration_of_a_killed_session_counts(tmp_path: Path) -> None:
    made, folder = staged(tmp_path, 0.2)
    record = case_record(folder, made.stages[0][0])
    for number, score in ((1, 0.9), (2, 0.3), (3, None)):
        judged = JudgmentResult(intent_score=score)
        record.iteration(number).save_judgment(judged)
    assert decide(made, folder, 0).mean_score == 0.3


def test_as_a_program_it_says_so_by_its_exit_status_and_a_file(tmp_path: Path) -> None:
    made, folder = staged(tmp_path, 0.5)
    given = ["--runs-dir", str(tmp_path), "--benchmark-id", made.benchmark_id, "--stage", "0"]
    assert main([*given[:-1], "9"]) == CANNOT_SAY
    assert main(["--runs-dir", str(tmp_path), "--benchmark-id", "bm_00", *given[-2:]]) == CANNOT_SAY
    assert main(given) == MAY_NOT
    later = case_status(made, folder, made.stages[1][0])
    assert later.outcome == "not_run"
    assert later.message == "stage 1 had a mean score of 0.00, below 0.5"
    for number in made.stages[0]:
        end_case(folder, number, "max_iterations", 0.5)
    ended = subprocess.run(
        [sys.executable, "-m", "p2p.benchmark.gate", *given],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (MAY, "")
    assert "mean score 0.50, threshold 0.5: the next stage may begin" in ended.stderr
    gate = read_gate(folder, 0)
    assert gate is not None
    assert gate.passed


def test_live_scores_are_found_where_a_session_puts_them(tmp_path: Path) -> None:
    _, folder = staged(tmp_path, 0.5)
    record = case_record(folder, 0)
    assert live_score(record) is None
    for name, scores in (("base_seed_1", {100: 0.8, 200: 0.4}), ("base_seed_2", {100: 0.1})):
        run = IterationRecord(record.iteration(1).path / name)
        for step, score in scores.items():
            path = run.streaming_dir / f"{step}.json"
            save_model(path, JudgmentResult(intent_score=score, step=step))
    assert live_score(record) == 0.4


def test_cases_behind_a_gate_that_no_node_takes_say_so(tmp_path: Path) -> None:
    made, folder = a_benchmark(
        tmp_path, a_case(0), a_case(1), mode="staged", num_stages=2, nodes=("other",)
    )
    with closing(Store(tmp_path)) as store:
        store.add_node(NodeConfig(node_id="other", cores=1))
        store.submit(job_of(made, tmp_path))
        store.add_node(NodeConfig(node_id="local", cores=1, enabled=False), replace=True)
        with closing(Writer(store)) as writer:
            writer.take_jobs()
            (case,) = writer.assign()
            writer.finish(case, "succeeded")
            writer.explain_unplaceable()
        waiting = next(now for now in look(store, made, folder) if not now.ended)
    assert "it may run on local only, which is disabled or gone" in waiting.note
    said = StringIO()
    BenchmarkProgress(Console(file=said, width=200)).update([waiting])
    assert "waits: there is no node for it" in said.getvalue()
