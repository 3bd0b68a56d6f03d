"""`python -m p2p.benchmark.benchmark_cli`: the same as `p2p benchmark`, which it becomes."""

from __future__ import annotations

import os
import sys

from p2p.utils.subprocess_utils import python_command

if __name__ == "__main__":
    command = python_command("p2p.cli", "benchmark", *sys.argv[1:])
    os.execv(command[0], command)  # noqa: S606 - no shell
