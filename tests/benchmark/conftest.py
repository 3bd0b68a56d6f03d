"""What the tests of benchmarks share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_process import Start


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start the command in an empty folder, with cores that nothing else on the machine holds."""

    def starting(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "p2p.benchmark.benchmark_cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, "P2P_CORE_LOCKS": str(tmp_path / "cores")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return starting
