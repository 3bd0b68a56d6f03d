"""Namespaces: no network devices, a read-only view of the file system, a folder of fixed size.

Defence in depth where the kernel hands them out to anyone; many containers and some
distributions do not. Then Landlock and the system call filter stand alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import stat
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
_NO_SUID_DEVICES_EXEC = 2 | 4 | 8


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
    for path in writable:
        kernel.mount(path, path, _BIND)
    _set_mount_attributes("/", add=_ATTR_READ_ONLY | _ATTR_NO_SUID, flags=_AT_RECURSIVE)
    _set_mount_attributes(
        folder,
        add=_ATTR_NO_EXEC | _ATTR_NO_SUID | _ATTR_NO_DEVICES,
        flags=_AT_RECURSIVE,
    )
    for path in (folder, *writable):
        _set_mount_attributes(path, add=_ATTR_NO_EXEC, remove=_ATTR_READ_ONLY)


def _mount_fixed_size(folder: str, disk_bytes: int, max_files: int) -> None:
    """Mount a tmpfs over ``folder`` that is full one page and one file beyond these bounds.

    What lies in the folder can be read in it: files are mounted, folders and links made again.
    """
    below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        links, folders, files = _entries(below)
        page = resource.getpagesize()
        size = (disk_bytes // page + 1) * page
        count = max_files + 2 + len(links) + len(folders) + len(files)  # and the folder itself
        options = f"size={size},nr_inodes={count},mode=700"
        kernel.mount("p2p-sandbox", folder, _NO_SUID_DEVICES_EXEC, "tmpfs", options)
        try:
            for name in folders:
                os.mkdir(f"{folder}/{name}")  # noqa: PTH102
            for name, target in links.items():
                os.symlink(target, f"{folder}/{name}")  # noqa: PTH211
            for name in files:
                os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY))
                kernel.mount(f"/proc/self/fd/{below}/{name}", f"{folder}/{name}", _BIND)
        except OSError:
            kernel.unmount(folder)
            raise
    finally:
        os.close(below)


def _entries(below: int) -> tuple[dict[str, str], list[str], list[str]]:
    """Links with their targets, folders and plain files of an open folder, by their paths in it."""
    links: dict[str, str] = {}
    folders: list[str] = []
    files: list[str] = []
    for path, subfolders, others, descriptor in os.fwalk(".", dir_fd=below):
        for name in (*subfolders, *others):
            relative = os.path.normpath(f"{path}/{name}")
            mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                links[relative] = os.readlink(name, dir_fd=descriptor)
            elif stat.S_ISDIR(mode):
                folders.append(relative)
            elif stat.S_ISREG(mode):
                files.append(relative)
    return links, folders, files


def enter(
    folder: str, writable: Sequence[str] = (), size: tuple[int, int] | None = None
) -> list[str]:
    """Enter what the kernel lets us enter; returns the names of the layers that hold.

    "tmpfs" is one of them where ``folder`` holds no more than ``size``: bytes and files.
    """
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
            kernel.mount(None, "/", _RECURSIVE | _PRIVATE)
        except OSError:
            entered.remove("mount")  # an empty right: some distributions give one without powers
            return entered
        if size is not None:
            with contextlib.suppress(OSError):  # the parent then counts what is written
                _mount_fixed_size(folder, *size)
                entered.append("tmpfs")
        if "tmpfs" not in entered:
            with contextlib.suppress(OSError):
                kernel.mount(folder, folder, _BIND)
        try:
            _seal_file_systems(folder, writable)
        except OSError:
            entered.remove("mount")
    return entered
