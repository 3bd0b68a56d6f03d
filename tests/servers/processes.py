"""Processes of other programs: waited for, looked at, killed; and a bound on what a test takes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import psutil

T = TypeVar("T")


def wait_until(look: Callable[[], T], seconds: float = 240, what: str = "") -> T:
    """Look until there is something to see; what was seen."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what or look}"
        time.sleep(0.01)
    return seen


def is_there(pid: int) -> bool:
    """Whether it runs: not gone, and not ended while its parent does not know yet."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def kill_process(title: str, below: int | None = None, others: Collection[int] = ()) -> int:
    """Kill -9 the one process below this one, but for others, whose command line has the title."""
    below_it = descendants(below or os.getpid())
    pids = [pid for pid in below_it if title in command_line(pid) and pid not in others]
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
