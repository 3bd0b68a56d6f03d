"""The quick start of the documents, as it stands in examples/."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unstable.tiny import WarmUp, make_tiny

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_quick_start_runs_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    model = make_tiny(tmp_path / "model", warm_up=WarmUp(games=10, steps=2))
    ended = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart.py", model],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
        # At Ray's usual niceness its processes hardly run beside other tests.
        env={**os.environ, "RAY_worker_niceness": "0"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    (run,) = (tmp_path / "outputs").glob("*/*/demo")
    assert (run / "checkpoints" / "iteration-3" / "adapter_model.safetensors").is_file()
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [m["learner/step"] for m in metrics if "learner/step" in m] == [1.0, 2.0, 3.0]
    assert all(m["learner/num_steps"] == 64 for m in metrics if "learner/step" in m)
