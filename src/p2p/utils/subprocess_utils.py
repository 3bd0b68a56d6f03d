"""Programs of this package as processes of their own: started, found and ended.

They may be started from a folder that is somebody else's: nothing is imported from it, and they
work in another one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

NEUTRAL = "/"
"""Where a program works that is told of every file by its whole path."""
KILL_TIMEOUT_S = 10.0
_FOLDERS = (
    "PYTHONPATH", "P2P_ENV_PATH", "P2P_ENV_FILE", "P2P_CACHE_DIR", "P2P_ENGINES_DIR",
    "P2P_MODELS_DIR", "P2P_RUNS_DIR", "RUNS_DIR", "P2P_PRICES",
)  # fmt: skip


def python_command(module: str, *arguments: str) -> list[str]:
    """`python -P -m module arguments`, with the interpreter that runs this."""
    return [sys.executable, "-P", "-m", module, *arguments]


def start_program(
    command: Sequence[str],
    variables: Mapping[str, str],
    output: int | IO[bytes],
    *,
    errors: int | IO[bytes] = subprocess.STDOUT,
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own: Ctrl-C in the terminal is the caller's to handle."""
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=output,
        stderr=errors,
        pass_fds=pass_fds,
        start_new_session=True,
        env=absolute_environment(variables),
        cwd=NEUTRAL,
    )


def absolute_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Make the folders in environment variables absolute, for a program in another folder."""
    absolute = dict(variables)
    for name in absolute.keys() & _FOLDERS:
        paths = filter(None, absolute[name].split(os.pathsep))
        absolute[name] = os.pathsep.join(os.path.abspath(os.path.expanduser(p)) for p in paths)  # noqa: PTH100, PTH111
    return absolute


def end_programs(programs: Sequence[subprocess.Popen[bytes]], *, grace_s: float) -> None:
    """Ask programs of `start_program` to end, kill those that do not, and wait for them."""
    for program in programs:
        _signal_group(program, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    for program in programs:
        try:
            program.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal_group(program, signal.SIGKILL)
            program.wait()


def _signal_group(program: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if program.poll() is None:
        os.killpg(program.pid, number)


def process_start_time(pid: int | None) -> float | None:
    """Return the start time of a process in Unix time, or None if it has ended."""
    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        if process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return None  # it has ended, and only its parent does not know yet
        return float(process.create_time())
    except (psutil.Error, ValueError):  # a file may hold any number
        return None


def process_is_alive(pid: int | None, started: float | None) -> bool:
    """Return whether this very process runs, and not a later one that was given its number."""
    now = process_start_time(pid)
    # The boot time that start times are counted from moves a little when the clock is set.
    return now is not None and (started is None or abs(now - started) < 2.0)


def find_marked_processes(marks: Mapping[str, str]) -> list[psutil.Process]:
    """Find the processes that were started with these environment variables."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # gone, or another user's
            if marks.items() <= process.environ().items():
                processes.append(process)
    return processes


def kill_all(find: Callable[[], Sequence[psutil.Process]]) -> list[int]:
    """Kill what `find` finds, and what that has started meanwhile, until nothing is left.

    Returns:
        Those still there after `KILL_TIMEOUT_S`: they hang in the kernel, or are not ours to kill.
    """
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while True:
        left = []
        for process in find():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    left.append(process.pid)
                    process.kill()  # psutil checks that the number is still that process's
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.005)


def kill_descendants() -> None:
    """Kill everything that this process has started, and what that has started."""
    kill_all(lambda: psutil.Process().children(recursive=True))


def interrupt_on_sigterm() -> None:
    """Make SIGTERM raise KeyboardInterrupt, so that children end and temporary files go."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
