"""Stopping a session: by Ctrl-C, by a signal, or by its status file; and leaving nothing behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from p2p.session.endings import SessionCancelled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from p2p.contracts import StatusLiteral
    from p2p.session.iteration_record import SessionRecord

UNDER_WAY: tuple[StatusLiteral, ...] = ("running", "paused", "queued", "pending")
HEARTBEAT_S = 5.0
LOOK_S = 0.5
SAME_KEYSTROKE_S = 0.5
"""A second signal so soon after the first is the same wish, told by two processes."""
EXIT_KILLED = 137


def cancel(session: SessionRecord) -> list[tuple[int, float | None]] | None:
    """Tell a session to end, from another process; None if there is nothing to end.

    Gives the processes that were told, with the times they started.
    """
    # A training outlives a session that was killed: it hears of the cancel in its own file.
    parts = [session, *(run for found in session.iteration_records() for run in found.runs())]
    before = [part.read_status() for part in parts]
    told = [part.set_status_if("cancelled", UNDER_WAY) for part in parts]
    if not any(told):
        return None
    return [
        (status.pid, status.pid_started)
        for status, hit in zip(before, told, strict=True)
        if hit and status is not None and status.pid is not None
    ]


class StopSwitch:
    """Whether someone asked this session to stop.

    Asked once, whatever the main thread waits for is interrupted with KeyboardInterrupt, except
    inside of `polled`, where someone asks `cancelled`. Asked twice, the process ends on the spot
    and takes everything with it that it has started.
    """

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._polled = 0
        self._has_signals = False

    def cancelled(self) -> bool:
        """Whether to stop."""
        return self._asked_at is not None

    def check(self) -> None:
        """Raise SessionCancelled if it is time to stop."""
        if self.cancelled():
            raise SessionCancelled

    @contextmanager
    def polled(self) -> Iterator[None]:
        """Nothing in here is interrupted: it looks at `cancelled` itself, or is short."""
        self._polled += 1
        try:
            yield
        finally:
            self._polled -= 1

    def ask(self) -> None:
        """Ask from another thread."""
        if self.cancelled():
            return
        if self._has_signals:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGTERM)
        else:
            self._asked_at = time.monotonic()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear Ctrl-C and SIGTERM; only where this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, self._hear) for s in (signal.SIGINT, signal.SIGTERM)}
        self._has_signals = True
        try:
            yield
        finally:
            self._has_signals = False
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is not None:
            if now - self._asked_at > SAME_KEYSTROKE_S:
                kill_descendants()
                os._exit(EXIT_KILLED)
            return
        self._asked_at = now
        if not self._polled:
            raise KeyboardInterrupt


@contextmanager
def heartbeat(session: SessionRecord, switch: StopSwitch) -> Iterator[None]:
    """While this lasts, the session shows that it goes on, and hears a cancel in status.json."""
    ended = threading.Event()

    def beat() -> None:
        touched = 0.0
        while not ended.wait(LOOK_S):
            status = session.read_status()
            if status is not None and status.status == "cancelled":
                switch.ask()
            if time.monotonic() - touched > HEARTBEAT_S:
                touched = time.monotonic()
                session.touch_heartbeat()

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def descendants(pid: int) -> list[int]:
    """All processes below this one, parents first."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended while we looked
            parent = int(path.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def kill_descendants() -> None:
    """End everything that this process has started, and what that has started, at once."""
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
