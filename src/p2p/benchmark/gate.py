"""Whether the next stage of a benchmark may begin: `python -m p2p.benchmark.gate`.

It may if the mean best score of all cases of this stage reaches the threshold. A case without a
score counts as 0 and is named. Exit status: 0 it may, 1 it may not, 2 it cannot be said.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from p2p.benchmark.records import (
    Benchmark,
    GateResult,
    case_record,
    gate_folder,
    read_benchmark,
)
from p2p.files import save_model
from p2p.records.formatting import format_score
from p2p.records.session_view import SessionView
from unstable.utils.logging import print_plainly

MAY, MAY_NOT, CANNOT_SAY = 0, 1, 2


def decide(benchmark: Benchmark, folder: Path, stage: int) -> GateResult:
    """Look at every case of a stage, in the benchmark's folder."""
    views = {n: SessionView(case_record(folder, n)) for n in benchmark.stages[stage]}
    scores = {number: view.best_score for number, view in views.items()}
    missing: dict[int, str] = {}
    for number, view in views.items():
        if scores[number] is None:
            status = view.record.read_status()
            why = (status.error or status.status) if status else "it has no status"
            missing[number] = why
    mean = sum(score or 0.0 for score in scores.values()) / len(scores)
    return GateResult(
        stage=stage,
        mean_score=mean,
        threshold=benchmark.gate_threshold,
        passed=mean >= benchmark.gate_threshold,
        scores=scores,
        missing=missing,
    )


def main(argv: list[str] | None = None) -> int:
    """Decide, write gate.json and say so."""
    parser = argparse.ArgumentParser(prog="python -m p2p.benchmark.gate", description=__doc__)
    parser.add_argument("--runs-dir", type=Path, required=True)
    parser.add_argument("--benchmark-id", required=True)
    parser.add_argument("--stage", type=int, required=True, help="the stage looked at, from 0")
    arguments = parser.parse_args(argv)
    folder = arguments.runs_dir.absolute() / arguments.benchmark_id
    benchmark = read_benchmark(folder)
    if benchmark is None or not 0 <= arguments.stage < len(benchmark.stages):
        print_plainly(f"error: {folder} has no benchmark.json that can be read, or no such stage")
        return CANNOT_SAY
    result = decide(benchmark, folder, arguments.stage)
    save_model(folder / gate_folder(arguments.stage) / "gate.json", result)
    for number, why in result.missing.items():
        print_plainly(f"case {number} has no score and counts as 0: {why}")
    verdict = "the next stage may begin" if result.passed else "no further stage is begun"
    print_plainly(
        f"mean score {format_score(result.mean_score)}, threshold {result.threshold:g}: {verdict}"
    )
    return MAY if result.passed else MAY_NOT


if __name__ == "__main__":
    sys.exit(main())
