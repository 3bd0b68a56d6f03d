"""The examples of the documents, as they stand in examples/."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from learner_parts import make_model

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_algorithms_of_ones_own_learn(tmp_path: Path) -> None:
    toy = make_model(tmp_path / "model", max_position_embeddings=512)
    done = subprocess.run(
        [sys.executable, EXAMPLES / "custom_algorithm.py", toy],
        capture_output=True, text=True, check=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    for name in ("BestHalf", "ImitateWinners"):
        losses = [float(loss) for loss in re.findall(rf"{name}: .* loss (\S+)", done.stdout)]
        assert len(losses) == 4
        assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.process
def test_the_quick_start_runs_on_a_machine_without_a_gpu(tmp_path: Path, model: str) -> None:
    ended = subprocess.run(
        [sys.executable, EXAMPLES / "quickstart.py", model],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
        # At Ray's usual niceness its processes hardly run beside other tests, whose cluster is
        # not this one's.
        env={**os.environ, "RAY_worker_niceness": "0", "RAY_ADDRESS": "local"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    (run,) = (tmp_path / "outputs").glob("*/*/demo")
    assert (run / "checkpoints" / "iteration-3" / "adapter_model.safetensors").is_file()
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [m["learner/step"] for m in metrics if "learner/step" in m] == [1.0, 2.0, 3.0]
    assert all(m["learner/num_steps"] == 64 for m in metrics if "learner/step" in m)
