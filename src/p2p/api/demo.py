"""Something to look at before anything was trained: recorded sessions, as they lay on a disk."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from p2p.scheduler.service import is_running

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDING = Path(__file__).parent / "demo.tar.xz"
"""Made by scripts/record_demo.py: the folders runs/ and outputs/."""


@contextmanager
def demo_folders() -> Iterator[tuple[Path, Path]]:
    """A runs folder and an outputs folder with finished work in them, both to be written to.

    They are removed in the end, unless what was started there still goes on.
    """
    folder = Path(tempfile.mkdtemp(prefix="p2p-demo-"))
    runs, outputs = folder / "runs", folder / "outputs"
    try:
        with tarfile.open(RECORDING) as archive:
            archive.extractall(folder, filter="data")
        yield runs, outputs
    finally:
        if not is_running(runs):
            shutil.rmtree(folder, ignore_errors=True)
