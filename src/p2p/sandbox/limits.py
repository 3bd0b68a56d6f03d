"""What a sandbox allows, what its process uses, which limit that broke, and how it ended."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from p2p.sandbox.enter import EXIT_MEMORY, EXIT_RAISED

GIB = 1 << 30
LIBRARIES_BYTES = 8 * GIB
"""Addresses of PyTorch, if it was built for CUDA: it loads those libraries without a GPU, too."""

EndReason = Literal[
    "finished",  # the module's main returned
    "failed",  # it raised
    "crashed",  # the process ended by a signal or by leaving without a word
    "memory",
    "disk",
    "threads",
    "cpu time",
    "wall clock",
    "stalled",
    "protocol",  # what came up the pipe was not lines, or the pipe was closed
    "killed",  # by the parent
    "killed from outside",  # neither by the parent nor by a limit: the machine, or a person
]

UNSAFE_LOCAL_WARNING = (
    "--unsafe-local: the code runs WITHOUT a sandbox. It can read and change every file that you "
    "can, see what your other programs do, use the network and start programs. What is left: "
    "your environment variables are not passed on, memory, file size and CPU time are limited, "
    "and the process is killed when it runs too long. Use it only for code that you have read."
)


@dataclass(slots=True)
class _Process:
    unsafe_local: bool = False


_process = _Process()


def set_unsafe_local(unsafe: bool) -> None:
    """Say whether this process runs code without a sandbox; see ``UNSAFE_LOCAL_WARNING``.

    It is the user's word on a command line, or in a program of theirs. No file, job or request
    holds it; ``unsafe_local_flags`` hands it on.
    """
    _process.unsafe_local = unsafe


def is_unsafe_local() -> bool:
    return _process.unsafe_local


def unsafe_local_flags() -> list[str]:
    """Return what a program of ours is started with to run code as this process does."""
    return ["--unsafe-local"] * 2 * _process.unsafe_local


class SandboxUnavailable(Exception):
    """The kernel cannot provide the sandbox, and the code was not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """What the code inside may use. Everything else is refused."""

    folder: Path
    """The one folder it may write to; also its working, home and temporary directory. What lies in
    it can be read there; what is written then lies in ``SandboxedProcess.folder``."""
    readable: tuple[Path, ...] = ()
    """Files and folders that it may read, besides Python, its libraries and this package."""
    import_paths: tuple[Path, ...] = ()
    """Folders that it may read and import from, put in front of ``sys.path``."""
    memory_bytes: int = 8 * GIB
    """Its files included, where the kernel keeps them in memory."""
    address_bytes: int = 256 << 20
    """Addresses besides: for libraries that it loads later, and what these reserve and never touch.
    Memory in so many the parent bounds alone, by looking."""
    disk_bytes: int = 2 * GIB
    """Of what it writes to the folder."""
    max_files: int = 4096
    max_threads: int = 512
    cpu_seconds: float | None = None
    """Of all threads together."""
    wall_seconds: float | None = None
    stall_seconds: float | None = None
    """The longest silence on the pipe."""
    max_lines: int | None = None
    """Lines that it may send."""
    env: Mapping[str, str] = field(default_factory=dict)
    """All that it finds in its environment, besides a small fixed set."""
    python: Path | None = None
    """The interpreter to run in, with its own libraries; None: this one. This package is importable
    in it, so it must have what the module imports."""
    warm: tuple[str, ...] = ()
    """Modules of ours that it finds imported: it is forked from a process that is kept for them."""
    gpu: bool = False
    """Whether it may compute on this machine's NVIDIA GPUs. Their driver reserves hundreds of GB of
    addresses, so these are not bounded; memory is, as seen from outside or by a cgroup."""


@dataclass(frozen=True, slots=True)
class SandboxExit:
    """How a sandboxed process ended."""

    returncode: int
    """Negative: the signal that ended it."""
    reason: EndReason
    message: str
    """One sentence for a person."""
    output_tail: str
    """What it printed: the first and the last kilobytes."""
    cpu_seconds: float

    @property
    def ok(self) -> bool:
        return self.reason == "finished"


# --- what a process uses ----------------------------------------------------------------------

Ending = tuple[EndReason, str]
MAX_DEPTH = 32
MAX_MAPPINGS = 16_384
"""Areas of addresses; JAX makes a thousand."""
_STATUS_KB = (b"RssAnon:", b"RssShmem:", b"VmSwap:")


class SlowLook(Exception):
    """Counting took too long; meanwhile the process goes on."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Memory and threads of one process."""

    memory_bytes: int
    threads: int


@dataclass(frozen=True, slots=True)
class FolderUse:
    """What lies in a folder; counting stops soon after a bound is crossed."""

    disk_bytes: int
    files: int
    unwalkable: bool = False
    """Deeper than any honest tree, or with folders that cannot be looked into."""
    uncountable: bool = False
    """By mappings that hide files, or that make a look take long."""


def _status(task: Path) -> tuple[bool, ProcessUse] | None:
    """Whether a process or thread lives, and what is said of it; None when it is gone or hidden."""
    try:
        text = (task / "status").read_bytes()
    except OSError:
        return None
    memory, threads, lives = 0, 1, True
    for line in text.splitlines():
        if line.startswith(_STATUS_KB):
            memory += int(line.split()[1]) << 10
        elif line.startswith(b"Threads:"):
            threads = int(line.split()[1])
        elif line.startswith(b"State:"):
            lives = line.split()[1] not in {b"Z", b"X"}
    return lives, ProcessUse(memory, threads)


def _find_live_thread(pid: int) -> Path:
    """Return the /proc folder of a process, or of a live thread if its main thread has ended."""
    process = Path(f"/proc/{pid}")
    status = _status(process)
    if status is not None and not status[0] and status[1].threads > 1:
        for task in (process / "task").iterdir():
            status = _status(task)
            if status is not None and status[0]:
                return task
    return process


def process_use(pid: int) -> ProcessUse | None:
    """Return what the kernel says about a process; None when it is gone or hidden.

    Read here and not by psutil, whose resident size counts shared libraries and leaves out swap.
    """
    try:
        status = _status(_find_live_thread(pid))
    except OSError:
        return None
    return status and status[1]


def deleted_bytes(pid: int, apart_from: int | None = None) -> int:
    """Disk space of files that the process holds open after deleting them.

    Those on the device ``apart_from`` are not counted.
    """
    total = 0
    try:
        descriptors = list((_find_live_thread(pid) / "fd").iterdir())
    except OSError:
        return 0
    for descriptor in descriptors:
        try:
            status = descriptor.stat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_dev != apart_from:
            total += status.st_blocks * 512
    return total


def _hides_mappings(folder: Path, pid: int, deadline: float) -> bool:
    """Whether it keeps files of the folder mapped that it deleted, or more than can be looked at.

    Honest code keeps none, and only a privileged parent could ask for their sizes. Libraries that
    were replaced meanwhile lie elsewhere.
    """
    inside = os.fsencode(folder.resolve()) + b"/"
    try:
        with (_find_live_thread(pid) / "maps").open("rb") as lines:
            for number, line in enumerate(lines):
                if number >= MAX_MAPPINGS:
                    return True
                if line.endswith(b" (deleted)\n") and line.split(maxsplit=5)[5].startswith(inside):
                    return True
                _check(deadline)
    except OSError:
        pass
    return False


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise SlowLook


def folder_use(folder: Path, pid: int, max_files: int, seconds: float) -> FolderUse:
    """Disk space and number of files of a folder, without following links.

    What the process has deleted and still holds open counts as well. Raises SlowLook where it takes
    longer than ``seconds``.
    """
    deadline = time.monotonic() + seconds
    if _hides_mappings(folder, pid, deadline):
        return FolderUse(0, 0, uncountable=True)
    disk, files = deleted_bytes(pid), 0
    todo = [(str(folder), 0)]
    while todo:
        path, depth = todo.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    _check(deadline)
                    files += 1
                    if files > max_files or depth > MAX_DEPTH:
                        return FolderUse(disk, files, depth > MAX_DEPTH)
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    disk += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        todo.append((entry.path, depth + 1))
        except FileNotFoundError:
            continue
        except OSError:
            return FolderUse(disk, files, unwalkable=True)
    return FolderUse(disk, files)


def read_mount_use(folder: int, max_files: int) -> FolderUse:
    """Return the use of a mounted file system from the kernel's own counts."""
    status = os.fstatvfs(folder)
    disk = (status.f_blocks - status.f_bfree) * status.f_frsize
    return FolderUse(disk, max_files + 1 - status.f_ffree)


def _size(number: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number} bytes"


def time_excess(sandbox: Sandbox, running: float, silent: float) -> Ending | None:
    if sandbox.wall_seconds is not None and running > sandbox.wall_seconds:
        return "wall clock", f"it ran longer than its {sandbox.wall_seconds:g} s and was stopped"
    if sandbox.stall_seconds is not None and silent > sandbox.stall_seconds:
        return "stalled", f"it sent nothing for {sandbox.stall_seconds:g} s and was stopped"
    return None


def memory_excess(sandbox: Sandbox) -> Ending:
    return "memory", f"it used more than its {_size(sandbox.memory_bytes)} of memory"


def process_excess(sandbox: Sandbox, use: ProcessUse) -> Ending | None:
    if use.memory_bytes > sandbox.memory_bytes:
        return memory_excess(sandbox)
    if use.threads > sandbox.max_threads:
        return "threads", f"it started more than {sandbox.max_threads} threads"
    return None


def disk_excess(sandbox: Sandbox, use: FolderUse, charged: int) -> Ending | None:
    """``charged``: what the parent keeps for it elsewhere."""
    if use.disk_bytes + charged > sandbox.disk_bytes:
        return "disk", f"it wrote more than its {_size(sandbox.disk_bytes)} of disk space"
    if use.files > sandbox.max_files:
        return "disk", f"it made more than {sandbox.max_files} files"
    if use.uncountable:
        return "disk", "it kept deleted files mapped, or so much that it could not be counted"
    if use.unwalkable:
        return "disk", f"it made folders deeper than {MAX_DEPTH} or closed to its parent"
    return None


_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
"""What other processes send. The code inside can send them to itself, too: a hint, no proof."""


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "it printed nothing"


def _explain_signal(sandbox: Sandbox, number: int, cpu_seconds: float) -> Ending:
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
            f"it received {name}{perhaps if number == signal.SIGKILL else ''}",
        )
    return "crashed", f"it crashed with {name}"


def explain(
    sandbox: Sandbox, returncode: int, cpu_seconds: float, output: str, *, finished: bool
) -> Ending:
    """Why a process ended that nobody stopped. What the code inside claims is taken as a hint."""
    if returncode == 0 and finished:
        return "finished", "it came to its end"
    if returncode == 0:
        return "crashed", "it exited before its end (os._exit or similar)"
    if returncode < 0:
        return _explain_signal(sandbox, -returncode, cpu_seconds)
    if returncode == EXIT_MEMORY:
        limit = _size(sandbox.memory_bytes)
        return "memory", f"it asked for more than its {limit} of memory: {_last_line(output)}"
    if returncode == EXIT_RAISED:
        return "failed", _last_line(output)
    return "crashed", f"it ended with exit status {returncode}: {_last_line(output)}"


_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _split(directory: int) -> tuple[list[str], list[str]]:
    """Names of the folders and of everything else in an open folder."""
    folders: list[str] = []
    others: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    return folders, others


def remove_subfolders(folder: Path) -> None:
    """Remove every folder below ``folder``, however deep or closed, and all that is in them.

    Only for a folder whose owner is no longer running. Files of ``folder`` itself stay. A sandboxed
    process can nest folders by the thousand, so that ``shutil.rmtree`` and ``rm`` run out of stack
    or of path; this keeps one folder open and walks down and up.
    """
    current = os.open(folder, _OPEN_FOLDER)
    names: list[str] = []
    left = [_split(current)[0]]
    while left:
        if left[-1]:
            names.append(left[-1].pop())
            os.chmod(names[-1], 0o700, dir_fd=current)  # it may have been made without any right
            current = _step(current, names[-1])
            folders, others = _split(current)
            for other in others:
                os.unlink(other, dir_fd=current)
            left.append(folders)
        else:
            left.pop()
            if names:
                current = _step(current, "..")
                os.rmdir(names.pop(), dir_fd=current)
    os.close(current)


def _step(current: int, name: str) -> int:
    try:
        return os.open(name, _OPEN_FOLDER, dir_fd=current)
    finally:
        os.close(current)
