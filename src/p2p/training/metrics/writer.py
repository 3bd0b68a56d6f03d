"""Where a run's numbers go: one small protocol, and a dict of what implements it.

`jsonl` and `tensorboard` are local and written by the process that owns the run's folder. Writers
that need the network follow the file from another process, or thread, with `follow`: training does
not wait for a server, and what trains needs no network.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Protocol

from p2p.training.metrics.scalars_file import JsonlWriter, Scalars, from_line
from p2p.training.metrics.trackers import (
    MissingExtraError,
    TensorBoardWriter,
    TrackioWriter,
    WandbWriter,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["LOCAL", "WRITERS", "MetricsWriter", "MissingExtraError", "Scalars", "follow"]


class MetricsWriter(Protocol):
    """Takes a run's scalars, in the order they come."""

    def write(self, record: Scalars) -> None:
        """Take one record."""
        ...

    def close(self) -> None:
        """No more will come."""
        ...


WRITERS: dict[str, Callable[[Path, str, int], MetricsWriter]] = {
    "jsonl": lambda folder, _, step: JsonlWriter(folder / "scalars.jsonl", step),
    "tensorboard": lambda folder, _, step: TensorBoardWriter(folder / "tensorboard", step),
    "wandb": lambda folder, run, _: WandbWriter(folder, run),
    "trackio": lambda _, run, __: TrackioWriter(run),
}
"""By name: a function of the run's metrics folder, its name, and the step it resumes from (0: new).

Opening one whose library is missing raises MissingExtraError.
"""
LOCAL = ("jsonl", "tensorboard")


def follow(
    scalars_path: Path,
    writers: Sequence[MetricsWriter],
    done: Callable[[], bool],
    poll_seconds: float = 1.0,
) -> int:
    """Pass a growing scalars.jsonl on to writers until `done`; returns how many lines were passed.

    When done, what is in the file by then is still passed on, and the writers are closed, also if
    one of them raises. A run that resumes meanwhile replaces the file: it is read again from its
    beginning, and what was passed on already is not repeated.
    """
    tail = _Tail(scalars_path)
    passed = 0
    try:
        while True:
            last_time = done()  # asked before reading, so that nothing written before is missed
            for record in tail.new_records():
                for writer in writers:
                    writer.write(record)
                passed += 1
            if last_time:
                return passed
            time.sleep(poll_seconds)
    finally:
        for writer in writers:
            writer.close()


class _Tail:
    """Complete lines that were not there before."""

    def __init__(self, path: Path) -> None:
        self._path, self._inode, self._offset = path, 0, 0
        self._seen: set[tuple[str, int]] = set()

    def new_records(self) -> list[Scalars]:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._inode, self._offset = status.st_ino, 0
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        records = [from_line(line) for line in whole.splitlines()]
        return [r for r in records if r is not None and self._is_new(r)]

    def _is_new(self, record: Scalars) -> bool:
        key = (record.type, record.global_step)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True
