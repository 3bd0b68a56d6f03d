"""status.json: how something stands, written by several processes and never losing a cancel."""

from __future__ import annotations

import logging
import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from p2p.contracts import StatusData, StatusLiteral, utc_now
from p2p.files import UnreadableError, load_model, locked, read_model, save_model

if TYPE_CHECKING:
    from collections.abc import Collection

STALE_AFTER_S = 300.0
"""A running process that has given no sign for this long, and is not there, is gone."""

_WITH_A_PROCESS: frozenset[StatusLiteral] = frozenset({"running", "paused"})
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StatusFile:
    """A status.json and the lock beside it."""

    path: Path

    @property
    def _lock_path(self) -> Path:
        return self.path.with_suffix(".lock")

    def read(self) -> StatusData | None:
        """What the file says, or None."""
        return read_model(self.path, StatusData)

    def stated(self, absent: StatusLiteral = "pending") -> StatusLiteral:
        """The status in the file: `absent` if there is none, `unknown` if it cannot be read."""
        try:
            data = load_model(self.path, StatusData)
        except UnreadableError:
            return "unknown"
        return data.status if data else absent

    def set(self, status: StatusLiteral, error: str | None = None) -> None:
        """Write the status. A cancel stands: only `set_if` from `cancelled` can take it back."""
        with locked(self._lock_path):
            if status != "cancelled" and self.stated() == "cancelled":
                _logger.warning("%s is cancelled; %s not written", self.path.parent, status)
                return
            self._write(status, error)

    def set_if(
        self, status: StatusLiteral, expected: Collection[StatusLiteral], error: str | None = None
    ) -> bool:
        """Write the status if it now is one of these; False if it is not. One step for all."""
        with locked(self._lock_path):
            if self.stated() not in expected:
                return False
            self._write(status, error)
            return True

    def touch(self) -> None:
        """Say that the work goes on: by the file's time, so that no status can be overwritten."""
        with suppress(FileNotFoundError):
            os.utime(self.path)

    def derive(self, absent: StatusLiteral = "pending") -> StatusLiteral:
        """The status, seeing through a `running` whose process is gone."""
        data = self.read()
        if data is None or data.status != "running":
            return self.stated(absent)
        if time.time() - self._last_sign(data) < STALE_AFTER_S:
            return "running"
        return "running" if process_is_alive(data.pid, data.pid_started) else "stale"

    def silent_s(self) -> float:
        """How long ago the last sign of life was."""
        data = self.read()
        return time.time() - self._last_sign(data) if data else math.inf

    def _last_sign(self, data: StatusData) -> float:
        try:
            touched = self.path.stat().st_mtime
        except OSError:
            touched = 0.0
        return max(touched, data.updated_at.timestamp())

    def _write(self, status: StatusLiteral, error: str | None) -> None:
        pid = os.getpid() if status in _WITH_A_PROCESS else None
        save_model(
            self.path,
            StatusData(
                status=status,
                updated_at=utc_now(),
                error=error,
                pid=pid,
                pid_started=process_started(pid),
            ),
        )


def process_started(pid: int | None) -> float | None:
    """When a process started, in Unix time; None if it is gone."""
    if pid is None:
        return None
    try:
        # The name before the last parenthesis may hold anything, spaces too.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        lines = Path("/proc/stat").read_text("ascii").splitlines()
    except OSError:
        return None
    state, ticks = fields[0], int(fields[19])
    if state in "ZX":  # it has ended, and only its parent does not know yet
        return None
    boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def process_is_alive(pid: int | None, started: float | None) -> bool:
    """Whether this very process runs, and not a later one that was given its number."""
    now = process_started(pid)
    # The boot time that start times are counted from moves a little when the clock is set.
    return now is not None and (started is None or abs(now - started) < 2.0)
