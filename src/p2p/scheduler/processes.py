"""Finding and ending all processes of a program, as `/proc` shows them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_PROC = Path("/proc")


def _numbers() -> list[int]:
    return [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]


def _parent_unless_dead(pid: int) -> int | None:
    """The parent of a process; None if it is gone, or waits only to be taken leave of."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    state, parent = stat.rpartition(b")")[2].split()[:2]  # the name before may hold anything
    return None if state in b"ZX" else int(parent)


def descendants(ancestor: int) -> list[int]:
    """Everything started below a process. Complete if that one adopts orphans (a subreaper)."""
    parents = {pid: _parent_unless_dead(pid) for pid in _numbers()}
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        if parent is not None:
            children.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def marked(marks: Mapping[str, str]) -> list[int]:
    """Every process of ours that was started with these variables in its environment."""
    wanted = {f"{name}={value}".encode() for name, value in marks.items()}
    found = []
    for pid in _numbers():
        try:
            variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:  # gone, or another user's
            continue
        if wanted <= set(variables) and _parent_unless_dead(pid) is not None:
            found.append(pid)
    return found


def kill_all(find: Callable[[], Iterable[int]], *, patience_s: float = 10.0) -> list[int]:
    """Kill what `find` finds, and what that has started meanwhile, until nothing is left.

    Returns:
        Those still there after `patience_s`: they hang in the kernel, or are not ours to kill.
    """
    deadline = time.monotonic() + patience_s
    while True:
        held: dict[int, int] = {}
        try:
            for pid in find():
                with suppress(ProcessLookupError):
                    held[pid] = os.pidfd_open(pid)
            # Looked at again while held: a number that changed hands in between hits nobody else.
            left = [pid for pid in find() if pid in held] if held else []
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(held[pid], signal.SIGKILL)
        finally:
            for descriptor in held.values():
                os.close(descriptor)
        if not held or time.monotonic() > deadline:
            return left
        time.sleep(0.005)
