"""How much a running sandbox uses, measured from outside."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

MAX_DEPTH = 32
_STATUS_KB = (b"RssAnon:", b"RssShmem:", b"VmSwap:")


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


def process_use(pid: int) -> ProcessUse | None:
    """What the kernel says about a process; None when it is gone or hidden."""
    try:
        text = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    memory, threads = 0, 1
    for line in text.splitlines():
        if line.startswith(_STATUS_KB):
            memory += int(line.split()[1]) << 10
        elif line.startswith(b"Threads:"):
            threads = int(line.split()[1])
    return ProcessUse(memory, threads)


def _deleted_bytes(pid: int) -> int:
    """Disk space of files that the process holds open after deleting them."""
    held = 0
    try:
        numbers = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0
    for number in numbers:
        try:
            found = number.stat()
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
            held += found.st_blocks * 512
    return held


def folder_use(folder: Path, pid: int, *, max_files: int) -> FolderUse:
    """Disk space and number of files of a folder, without following links."""
    disk, files = _deleted_bytes(pid), 0
    todo = [(str(folder), 0)]
    while todo:
        path, depth = todo.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    files += 1
                    if files > max_files or depth > MAX_DEPTH:
                        return FolderUse(disk, files, depth > MAX_DEPTH)
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    disk += found.st_blocks * 512
                    if stat.S_ISDIR(found.st_mode):
                        todo.append((entry.path, depth + 1))
        except FileNotFoundError:
            continue
        except OSError:
            return FolderUse(disk, files, unwalkable=True)
    return FolderUse(disk, files)
