"""Folders that take long to fill, made once for all workers of a test run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from p2p.files import hold_lock

LONGEST_FILL_S = 900


@dataclass(frozen=True)
class Shared:
    """The fixture `shared`."""

    base: Path

    def folder(self, name: str, fill: Callable[[Path], object]) -> Path:
        """The folder of this name; whoever comes first has filled it."""
        folder, done = self.base / f"shared-{name}", self.base / f"shared-{name}.done"
        with hold_lock(self.base / f"shared-{name}.lock", patience_s=LONGEST_FILL_S):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed half-way
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder
