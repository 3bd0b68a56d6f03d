"""Self-play as a job, from `p2p jobs submit` to its checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from processes import wait_until

from p2p.scheduler.records import ENDED
from p2p.scheduler.store import Store

pytestmark = pytest.mark.process

pytest.importorskip("torch", reason="self-play is not installed")

CONFIG = """
name = "small"
model = "model"
updates = 1
games_per_update = 4
batch_size = 8
workers = 4
eval_games = 0

[games]
train = [["TicTacToe-v0-train", 2, "bare"]]
compact_views = true
action_extraction = "bare"

[sampling]
temperature = 1.0
top_p = 1.0
max_tokens = 6

[engine]
max_model_len = 64

[lora]
lora_rank = 4
"""


@pytest.mark.slow
def test_selfplay_job_ends_with_a_checkpoint(own_cores: Path, tmp_path: Path) -> None:
    from unstable.tiny import WarmUp, make_tiny

    make_tiny(tmp_path / "model", warm_up=WarmUp(games=10, steps=2))
    (tmp_path / "small.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "p2p.cli", "jobs", "submit", "--selfplay", "small.toml"]
    done = subprocess.run(
        [*command, "--runs-dir", "runs", "--json"], cwd=tmp_path, env=dict(os.environ),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (asked,) = json.loads(done.stdout)["runs"]
    folder = tmp_path / "runs" / asked["folder"]
    with closing(Store(tmp_path / "runs")) as store:

        def over() -> bool:
            run = store.run(asked["run_id"])
            return run is not None and run.state in ENDED

        wait_until(over, 300)
        run = store.run(asked["run_id"])
        log = store.folder / "launches" / f"{asked['run_id']}.1" / "log.txt"
        assert run is not None
        assert (run.state, run.exit_code) == ("succeeded", 0), log.read_text()
    assert '"step": 1' in log.read_text()
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    assert [line["learner/step"] for line in lines if "learner/step" in line] == [1]
