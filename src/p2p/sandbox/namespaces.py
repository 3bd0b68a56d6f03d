"""Namespaces: no network devices, a read-only view of the file system, nothing executable.

Defence in depth where the kernel hands them out to anyone; many containers and some
distributions do not. Then Landlock and the system call filter stand alone.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from p2p.sandbox import kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEW_MOUNT, _NEW_IPC, _NEW_USER, _NEW_NETWORK = 0x00020000, 0x08000000, 0x10000000, 0x40000000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_READ_ONLY, _ATTR_NO_SUID, _ATTR_NO_DEVICES, _ATTR_NO_EXEC = 1, 2, 4, 8


def _set_mount_attributes(path: str, *, add: int, remove: int = 0, flags: int = 0) -> None:
    attributes = ctypes.create_string_buffer(struct.pack("=4Q", add, remove, 0, 0), 32)
    target = ctypes.create_string_buffer(os.fsencode(path))
    kernel.syscall("mount_setattr", _AT_FDCWD, target, flags, attributes, 32)


def _enter_user_namespace(others: int) -> None:
    """Become the same user in a user namespace of its own, together with ``others``."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.syscall("unshare", _NEW_USER | others)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _seal_file_systems(folder: str, writable: Sequence[str]) -> None:
    """Make everything read-only but ``folder`` and ``writable``, nothing in ``folder`` executable.

    A shared library that was written there can then not be mapped as code.
    """
    kernel.mount(None, "/", _RECURSIVE | _PRIVATE)
    for path in (folder, *writable):
        kernel.mount(path, path, _BIND)
    _set_mount_attributes("/", add=_ATTR_READ_ONLY | _ATTR_NO_SUID, flags=_AT_RECURSIVE)
    _set_mount_attributes(
        folder,
        add=_ATTR_NO_EXEC | _ATTR_NO_SUID | _ATTR_NO_DEVICES,
        remove=_ATTR_READ_ONLY,
    )
    for path in writable:
        _set_mount_attributes(path, add=_ATTR_NO_EXEC, remove=_ATTR_READ_ONLY)


def enter(folder: str, writable: Sequence[str] = ()) -> list[str]:
    """Enter what the kernel lets us enter; returns the names of the layers that hold."""
    entered: list[str] = []
    for names, flags in (
        (("user", "mount", "ipc", "network"), _NEW_MOUNT | _NEW_IPC | _NEW_NETWORK),
        (("user", "mount"), _NEW_MOUNT),
    ):
        try:
            _enter_user_namespace(flags)
        except OSError:
            continue
        entered += names
        break
    if "mount" in entered:
        try:
            _seal_file_systems(folder, writable)
        except OSError:
            entered.remove("mount")  # an empty right: some distributions give one without powers
    return entered
