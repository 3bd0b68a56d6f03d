"""Which limit a sandboxed process broke, and how one that ended came to its end."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from p2p.sandbox.enter import EXIT_MEMORY, EXIT_RAISED
from p2p.sandbox.usage import MAX_DEPTH

if TYPE_CHECKING:
    from p2p.sandbox.options import EndReason, Sandbox
    from p2p.sandbox.usage import FolderUse, ProcessUse

    Excess = tuple[EndReason, str]


def _size(number: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number} bytes"


def time_excess(sandbox: Sandbox, running: float, silent: float) -> Excess | None:
    """Whether it ran or was silent for too long."""
    if sandbox.wall_seconds is not None and running > sandbox.wall_seconds:
        return "wall clock", f"it ran longer than its {sandbox.wall_seconds:g} s and was stopped"
    if sandbox.stall_seconds is not None and silent > sandbox.stall_seconds:
        return "stalled", f"nothing was heard of it for {sandbox.stall_seconds:g} s; it was stopped"
    return None


def process_excess(sandbox: Sandbox, use: ProcessUse | None) -> Excess | None:
    """Whether it uses too much memory or too many threads."""
    if use is None:
        return None
    if use.memory_bytes > sandbox.memory_bytes:
        return "memory", f"it used more than its {_size(sandbox.memory_bytes)} of memory"
    if use.threads > sandbox.max_threads:
        return "threads", f"it started more than {sandbox.max_threads} threads"
    return None


def disk_excess(sandbox: Sandbox, use: FolderUse) -> Excess | None:
    """Whether it fills the disk."""
    if use.disk_bytes > sandbox.disk_bytes:
        return "disk", f"it wrote more than its {_size(sandbox.disk_bytes)} of disk space"
    if use.files > sandbox.max_files:
        return "disk", f"it made more than {sandbox.max_files} files"
    if use.unwalkable:
        return "disk", f"it made folders deeper than {MAX_DEPTH} or closed to its parent"
    return None


def closed_excess(closed: float, grace: float) -> Excess | None:
    """Whether it goes on after it closed the pipe that it is heard through."""
    if closed > grace:
        return "protocol", "it closed the pipe to its parent and went on running"
    return None


_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
"""What other processes send. The code inside can send them to itself, too: a hint, no proof."""


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "it printed nothing"


def _by_signal(sandbox: Sandbox, number: int, cpu_seconds: float) -> Excess:
    name = signal.Signals(number).name if number in signal.valid_signals() else str(number)
    limit = sandbox.cpu_seconds
    if number == signal.SIGXCPU or (
        limit is not None and number == signal.SIGKILL and cpu_seconds >= limit
    ):
        return "cpu time", f"it used more than its {limit:g} s of CPU time"
    if number == signal.SIGXFSZ:
        return "disk", f"it wrote a file larger than its {_size(sandbox.disk_bytes)}"
    if number in _FROM_OUTSIDE:
        perhaps = ", perhaps because the machine ran out of memory"
        return (
            "killed from outside",
            f"somebody sent it {name}{perhaps if number == signal.SIGKILL else ''}",
        )
    return "crashed", f"it crashed with {name}"


def explain(
    sandbox: Sandbox, returncode: int, cpu_seconds: float, output: str, *, said_goodbye: bool
) -> Excess:
    """Why a process ended that nobody stopped. What the code inside claims is taken as a hint."""
    if returncode == 0 and said_goodbye:
        return "finished", "it came to its end"
    if returncode == 0:
        return "crashed", "it left without coming to its end (os._exit or the like)"
    if returncode < 0:
        return _by_signal(sandbox, -returncode, cpu_seconds)
    if returncode == EXIT_MEMORY:
        limit = _size(sandbox.memory_bytes)
        return "memory", f"it asked for more than its {limit} of memory: {_last_line(output)}"
    if returncode == EXIT_RAISED:
        return "failed", _last_line(output)
    return "crashed", f"it left with exit status {returncode}: {_last_line(output)}"
