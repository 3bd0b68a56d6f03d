"""What the tests of benchmarks share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from benchmark_process import Start, begin


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start the command in an empty folder."""

    def starting(*arguments: str) -> subprocess.Popen[str]:
        return begin(tmp_path, *arguments)

    return starting
