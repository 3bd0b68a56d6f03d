"""A folder with typed files and a status.json, as sessions, iterations and runs are.

A class names its files as class attributes, and that table is all there is: `record.plan.path`,
`record.plan.read()`, `record.plan.save(plan)`, and `validate` goes through the same names.
`status.json` is written by several processes and never loses a cancel.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from p2p.contracts import StatusData, StatusLiteral, utc_now
from p2p.files import Model, UnreadableError, hold_lock, load_model, read_model, save_model
from p2p.utils.subprocess_utils import process_is_alive, process_start_time

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

STALE_AFTER_S = 300.0
"""A running process that has given no sign for this long, and is not there, is gone."""

EVALUATION_VIDEO = re.compile(r"eval_(\d+)_(\w+)\.mp4")
"""Videos of a run's evaluations: the step, and which episode."""

_WITH_A_PROCESS: frozenset[StatusLiteral] = frozenset({"running", "paused"})
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelFile(Generic[Model]):
    """A JSON file that holds one record."""

    path: Path
    model: type[Model]

    def read(self) -> Model | None:
        """The record; None if it is absent or unreadable."""
        return read_model(self.path, self.model)

    def load(self) -> Model | None:
        """The record; None if it is absent; UnreadableError says what is wrong with it."""
        return load_model(self.path, self.model)

    def save(self, value: Model | Mapping[str, Any]) -> None:
        """Write a record, or the fields of one; raises ValueError for fields it has not."""
        save_model(self.path, self.model.model_validate(value))

    def exists(self) -> bool:
        return self.path.exists()

    def problems(self, *, needed: bool = False) -> list[str]:
        """Return what is wrong with the file, for `validate`."""
        try:
            value = self.load()
        except UnreadableError as error:
            return [f"{self.path.name}: {error}"]
        return [f"{self.path.name}: missing"] if needed and value is None else []


class RecordFile(Generic[Model]):
    """Declares a JSON file of a folder and the record in it."""

    def __init__(self, name: str, model: type[Model]) -> None:
        self.name = name
        self.model = model

    def __get__(self, folder: Folder, owner: type[Folder]) -> ModelFile[Model]:
        return ModelFile(folder.path / self.name, self.model)


class FolderPath:
    """Declares the path of another file of a folder, or of a folder in it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Folder, owner: type[Folder]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class Folder:
    """A folder with a status.json, and the lock beside it."""

    path: Path

    status = RecordFile("status.json", StatusData)
    status_path = FolderPath("status.json")
    events_path = FolderPath("events.jsonl")

    @classmethod
    def declared_files(cls) -> dict[str, RecordFile[Any] | FolderPath]:
        """Return the files and folders that this class declares, by attribute."""
        return {
            attribute: value
            for base in reversed(cls.__mro__)
            for attribute, value in vars(base).items()
            if isinstance(value, RecordFile | FolderPath)
        }

    def model_files(self) -> list[ModelFile[Any]]:
        table = self.declared_files().values()
        return [ModelFile(self.path / f.name, f.model) for f in table if isinstance(f, RecordFile)]

    # --- status.json ------------------------------------------------------------------------------

    @property
    def _status_lock(self) -> Path:
        return self.status_path.with_suffix(".lock")

    def read_status(self) -> StatusData | None:
        return self.status.read()

    def stated_status(self, absent: StatusLiteral = "pending") -> StatusLiteral:
        """Return the status in the file: `absent` if missing, `unknown` if unreadable."""
        try:
            data = self.status.load()
        except UnreadableError:
            return "unknown"
        return data.status if data else absent

    def live_status(self, absent: StatusLiteral = "pending") -> StatusLiteral:
        """The status, seeing through a `running` whose process is gone."""
        data = self.read_status()
        if data is None or data.status != "running":
            return self.stated_status(absent)
        if time.time() - self._last_sign(data) < STALE_AFTER_S:
            return "running"
        return "running" if process_is_alive(data.pid, data.pid_started) else "stale"

    def silent_s(self) -> float:
        """Return the seconds since the last sign of life."""
        data = self.read_status()
        return time.time() - self._last_sign(data) if data else math.inf

    def _last_sign(self, data: StatusData) -> float:
        try:
            touched = self.status_path.stat().st_mtime
        except OSError:
            touched = 0.0
        return max(touched, data.updated_at.timestamp())

    def set_status(self, status: StatusLiteral, error: str | None = None) -> None:
        """Write status.json. A cancel stands: `set_status_if` alone can take it back."""
        with hold_lock(self._status_lock):
            if status != "cancelled" and self.stated_status() == "cancelled":
                _logger.warning("%s is cancelled; %s not written", self.path, status)
                return
            self._write_status(status, error)

    def set_status_if(
        self, status: StatusLiteral, expected: Collection[StatusLiteral], error: str | None = None
    ) -> bool:
        """Write the status only if it now is one of `expected` (no file: pending); says if so."""
        with hold_lock(self._status_lock):
            if self.stated_status() not in expected:
                return False
            self._write_status(status, error)
            return True

    def touch_heartbeat(self) -> None:
        """Say that the work goes on: by the file's time, so that no status can be overwritten."""
        with suppress(FileNotFoundError):
            os.utime(self.status_path)

    def _write_status(self, status: StatusLiteral, error: str | None) -> None:
        pid = os.getpid() if status in _WITH_A_PROCESS else None
        self.status.save(
            StatusData(
                status=status,
                updated_at=utc_now(),
                error=error,
                pid=pid,
                pid_started=process_start_time(pid),
            )
        )


def is_own_folder(path: Path) -> bool:
    """Return whether it is a folder, and no link, which may lead to one that is none of ours."""
    return path.is_dir() and not path.is_symlink()


def names_in(folder: Path) -> list[str]:
    """The names in a folder; none if it is not there or may not be read."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """A sort key that takes the numbers in a name as numbers."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]
