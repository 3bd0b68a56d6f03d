"""Landlock: a file system allowlist that a process puts on itself and cannot take off.

Needs no privilege. Each version (ABI) of it governs more: 2 links and renames between folders,
3 truncation, 4 TCP, 5 device ioctls, 6 signals and abstract sockets. What an older version does
not govern is refused by the system call filter.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING

from p2p.sandbox import kernel

if TYPE_CHECKING:
    from collections.abc import Iterable

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE = (1 << i for i in (0, 1, 2, 3, 5))
_MAKE_DIR, _MAKE_REG, _TRUNCATE, _IOCTL_DEVICE = (1 << i for i in (7, 8, 14, 15))

_READ = _READ_FILE | _READ_DIR
# Folders can be made, and neither removed nor renamed (bit 4), and no file can move to another one
# (bit 13): what changes its place while the parent counts would be counted nowhere.
_OWN = _READ | _WRITE_FILE | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
_DEVICE = _READ_FILE | _WRITE_FILE | _IOCTL_DEVICE
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE

# How many file system rights each ABI knows, by index; later ones added no file rights.
_FS_RIGHTS_BY_ABI = (0, 13, 14, 15, 15, 16)
_NET_BIND_AND_CONNECT_TCP = 3
_SCOPE_SOCKETS_AND_SIGNALS = 3
_RULE_PATH_BENEATH = 1
_CREATE_RULESET_VERSION = 1


def abi() -> int:
    """The kernel's Landlock version; 0 where it has none or has it switched off."""
    try:
        return kernel.syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def _ruleset(version: int) -> int:
    rights = (1 << _FS_RIGHTS_BY_ABI[min(version, len(_FS_RIGHTS_BY_ABI) - 1)]) - 1
    words = [rights]
    if version >= 4:
        words.append(_NET_BIND_AND_CONNECT_TCP)
    if version >= 6:
        words.append(_SCOPE_SOCKETS_AND_SIGNALS)
    attributes = ctypes.create_string_buffer(struct.pack(f"={len(words)}Q", *words), 8 * len(words))
    return kernel.syscall("landlock_create_ruleset", attributes, 8 * len(words), 0)


def _allow(ruleset: int, path: str, rights: int, version: int) -> None:
    known = (1 << _FS_RIGHTS_BY_ABI[min(version, len(_FS_RIGHTS_BY_ABI) - 1)]) - 1
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no permission
    try:
        rights &= known if os.path.isdir(path) else known & _FILE_RIGHTS  # noqa: PTH112
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, beneath), 12)
        kernel.syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(beneath)


def restrict(
    readable: Iterable[str],
    folder: str,
    *,
    listable: Iterable[str] = (),
    writable: Iterable[str] = (),
    devices: Iterable[str] = (),
) -> int:
    """Confine this thread, and what it starts, to reading ``readable`` and owning ``folder``.

    Of ``listable`` it sees the names, files in ``writable`` it may write that are there, and
    ``devices`` it may read, write and control.

    Call it while the process has one thread and after ``PR_SET_NO_NEW_PRIVS``. No network, no
    signals or abstract sockets to processes outside, as far as the ABI, which is returned, goes.
    """
    version = abi()
    if version < 1:
        raise OSError("this kernel has no Landlock (Linux 5.13 has it, if it is not switched off)")
    ruleset = _ruleset(version)
    try:
        for path in readable:
            _allow(ruleset, path, _READ, version)
        for path in listable:
            _allow(ruleset, path, _READ_DIR, version)
        for path in writable:
            _allow(ruleset, path, _WRITE_FILE | _TRUNCATE, version)
        for path in devices:
            _allow(ruleset, path, _DEVICE, version)
        _allow(ruleset, "/dev/null", _READ_FILE | _WRITE_FILE, version)
        _allow(ruleset, folder, _OWN, version)
        kernel.syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return version
