"""The example of an algorithm of one's own runs as it stands there, and learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from learner_parts import make_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_algorithm.py"


def test_algorithms_of_ones_own_learn(tmp_path):
    model = make_model(tmp_path / "model", max_position_embeddings=512)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), model],
        capture_output=True, text=True, check=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    for name in ("BestHalf", "ImitateWinners"):
        losses = [float(loss) for loss in re.findall(rf"{name}: .* loss (\S+)", done.stdout)]
        assert len(losses) == 4
        assert losses[-1] < losses[0]
