"""MuJoCo's remarks on Gymnasium's own model files reach nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DESCRIBE = """
import mujoco
from p2p.config import EnvOptions
from p2p.training.env_spec import get_env_spec
from p2p.training.vec_env import make_batched_env
get_env_spec("HalfCheetah-v5")
make_batched_env(EnvOptions("HalfCheetah-v5"), 2).reset_batch(0)
config = mujoco.MjLogConfig.get()
assert config.logto_console and config.logto_file, "the user's own loading was silenced"
"""


def test_loading_half_cheetah_prints_nothing_and_leaves_no_log(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
