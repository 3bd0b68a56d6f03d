"""Processes of other programs: waited for, looked at, killed; and a bound on what a test takes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import psutil


def wait_until(holds: Callable[[], object], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def is_there(pid: int) -> bool:
    """Whether it runs: not gone, and not ended while its parent does not know yet."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def kill_process(title: str, below: int | None = None) -> int:
    """Kill -9 the one process below this one whose command line has the title; its id."""
    pids = [pid for pid in descendants(below or os.getpid()) if title in command_line(pid)]
    assert len(pids) == 1, (title, pids)
    os.kill(pids[0], signal.SIGKILL)
    return pids[0]


def command_line(pid: int) -> str:
    try:
        return "\0".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


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
