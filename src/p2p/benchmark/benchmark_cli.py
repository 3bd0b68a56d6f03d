"""`python -m p2p.benchmark.benchmark_cli`: the same as `p2p benchmark`, which it becomes."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    command = [sys.executable, "-m", "p2p.cli", "benchmark", *sys.argv[1:]]
    os.execv(sys.executable, command)  # noqa: S606 - no shell
