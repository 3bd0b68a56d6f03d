"""Processes of other programs: waited for, looked at, killed; and a bound on what a test takes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


def wait_until(holds: Callable[[], object], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def is_there(pid: int) -> bool:
    """Whether it runs: not gone, and not ended while its parent does not know yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_process(title: str, below: int | None = None) -> int:
    """Kill -9 the one process below this one whose command line has the title; its id."""
    found = [pid for pid in descendants(below or os.getpid()) if title in command_line(pid)]
    assert len(found) == 1, (title, found)
    os.kill(found[0], signal.SIGKILL)
    return found[0]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descendants(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    try:
        children = [int(child) for task in tasks for child in task.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [*children, *(below for child in children for below in descendants(child))]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if it takes longer; for the main thread."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
