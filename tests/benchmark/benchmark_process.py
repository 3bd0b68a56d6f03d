"""`p2p benchmark` as a process, and what its sessions did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from p2p.benchmark.records import case_record

SMALL = (
    "--model", "builtin", "--max-iterations", "1", "--total-timesteps", "2048", "--num-envs", "4",
    "--no-videos", "--yes",
)  # fmt: skip
"""Sessions that take seconds."""


def begin(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the command in a folder, with cores that nothing else on the machine holds."""
    return subprocess.Popen(
        [sys.executable, "-m", "p2p.benchmark.benchmark_cli", *arguments],
        cwd=folder,
        env={**os.environ, "P2P_CORE_LOCKS": str(folder / "cores"), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit status, and what it printed."""
    out, err = process.communicate(timeout=1200)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def events(folder: Path, number: int) -> list[str]:
    """What a case's session went through."""
    lines = case_record(folder, number).events_path.read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]
