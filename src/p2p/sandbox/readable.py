"""What a sandboxed process may read: Python, its libraries, this package, the machine's shape."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGE = Path(__file__).resolve().parents[1]

_SYSTEM = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/zoneinfo",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/urandom",
    "/dev/random",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/filesystems",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/kernel/mm/transparent_hugepage",
)


def _library_folders() -> set[Path]:
    """Where Python's own and installed modules lie, and never a whole prefix or home."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {Path(path) for name in names if (path := sysconfig.get_path(name))}
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}:
        folders |= {Path(prefix) / "lib", Path(prefix) / "lib64"}
    return folders


def _is_library(entry: Path, folders: Iterable[Path]) -> bool:
    if entry.name in {"site-packages", "dist-packages"}:
        return True
    return any(entry == folder or folder in entry.parents for folder in folders)


def import_path(extra: Iterable[Path]) -> list[str]:
    """``sys.path`` for the sandbox: ``extra``, then this interpreter's library folders.

    The current folder, a repository's root and other entries that may hold private files are
    left out; this package is importable without them.
    """
    folders = _library_folders()
    kept = [entry for entry in sys.path if entry and _is_library(Path(entry), folders)]
    return list(dict.fromkeys([*(str(path.resolve()) for path in extra), *kept]))


def readable_paths(extra: Iterable[Path]) -> list[str]:
    """Every file and folder that the sandbox opens for reading."""
    libraries = [*_library_folders(), *(Path(entry) for entry in import_path(()))]
    resolved = [path.resolve() for path in (*libraries, *extra)]
    return [*_SYSTEM, *dict.fromkeys(str(path) for path in (PACKAGE, *resolved))]
