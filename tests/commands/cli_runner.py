"""`p2p` as a process, and what came of a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document and nothing else."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line that says what is wrong."""
        lines = self.err.splitlines()
        assert "Traceback" not in self.err
        assert len([line for line in lines if line.startswith("error:")]) == 1, self.err
        assert lines[-1].startswith("error: ")
        return lines[-1]


Cli = Callable[..., Outcome]


def start(*arguments: object, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """`p2p` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "p2p.cli", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
