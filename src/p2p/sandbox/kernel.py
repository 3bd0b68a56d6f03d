"""What the kernel is asked for to build a sandbox: calls that Python lacks, and two layers.

Landlock, a set of paths that a process may touch and cannot take off, needs no privilege. Each
version (ABI) of it governs more: 2 links and renames between folders, 3 truncation, 4 TCP, 5 device
ioctls, 6 signals and abstract sockets. What an older version does not govern is refused by the
system call filter. Namespaces, with no network devices, a read-only view of the file system and a
folder of fixed size, are defence in depth where the kernel hands them out to anyone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# What the sandbox itself calls on its way in; refused to the code that runs afterwards.
SETUP = """
    capset 126 91; seccomp 317 277; mount_setattr 442 442; landlock_create_ruleset 444 444;
    landlock_add_rule 445 445; landlock_restrict_self 446 446; unshare 272 97
"""

MACHINES = ("x86_64", "aarch64")


def numbers(table: str, machine: str) -> dict[str, int]:
    """The calls of one of the tables that ``machine`` has, by name."""
    column = 1 + MACHINES.index(machine)
    entries = (entry.split() for entry in table.replace("\n", " ").split(";"))
    return {entry[0]: int(entry[column]) for entry in entries if entry[column] != "-"}


PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_machine = platform.machine()
_setup_numbers = numbers(SETUP, _machine) if _machine in MACHINES else {}


class UnsupportedMachineError(OSError):
    """The sandbox has no system call table for this processor."""


def machine() -> str:
    """The processor's name, as the kernel gives it; raises where the sandbox does not know it."""
    if _machine not in MACHINES:
        known = ", ".join(MACHINES)
        raise UnsupportedMachineError(f"no system call table for {_machine}, only for {known}")
    return _machine


def _check_result(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(name: str, *args: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call the kernel; raises OSError where it refuses."""
    machine()
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return _check_result(_libc.syscall(ctypes.c_long(_setup_numbers[name]), *words), name)


def prctl(option: int, value: int = 0, more: int = 0) -> int:
    """Set a property of the process, by whole numbers; raises OSError where the kernel refuses."""
    words = [ctypes.c_ulong(word) for word in (value, more, 0, 0)]
    return _check_result(_libc.prctl(ctypes.c_int(option), *words), f"prctl {option}")


def mount(
    source: str | None, target: str, flags: int, kind: str | None = None, options: str = ""
) -> None:
    """Bind a path, change how mounts propagate, or mount a new file system of this kind."""
    result = _libc.mount(
        os.fsencode(source) if source is not None else None,
        os.fsencode(target),
        kind.encode() if kind is not None else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _check_result(result, f"mount {target}")


def unmount(target: str) -> None:
    """Take away what was mounted last at a path, with all that is mounted in it."""
    detach = 2
    _check_result(_libc.umount2(os.fsencode(target), ctypes.c_int(detach)), f"unmount {target}")


def drop_capabilities() -> None:
    """Give up every capability, for good: none is left to inherit or to regain."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # past the last one this kernel knows, or no right to lower the bound at all
    with contextlib.suppress(OSError):  # a kernel without ambient capabilities has none to clear
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    version_3_self = ctypes.create_string_buffer(b"\x22\x05\x08\x20" + bytes(4), 8)
    syscall("capset", version_3_self, ctypes.create_string_buffer(24))


# --- Landlock: which files can be opened ------------------------------------------------------

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


def landlock_abi() -> int:
    """The kernel's Landlock version; 0 where it has none or has it switched off."""
    try:
        return syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
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
    return syscall("landlock_create_ruleset", attributes, 8 * len(words), 0)


def _allow(ruleset: int, path: str, rights: int, version: int) -> None:
    known = (1 << _FS_RIGHTS_BY_ABI[min(version, len(_FS_RIGHTS_BY_ABI) - 1)]) - 1
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no permission
    try:
        rights &= known if os.path.isdir(path) else known & _FILE_RIGHTS  # noqa: PTH112
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, beneath), 12)
        syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(beneath)


def restrict_files(
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
    version = landlock_abi()
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
        syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return version


# --- namespaces -------------------------------------------------------------------------------

_NEW_MOUNT, _NEW_IPC, _NEW_USER, _NEW_NETWORK = 0x00020000, 0x08000000, 0x10000000, 0x40000000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_READ_ONLY, _ATTR_NO_SUID, _ATTR_NO_DEVICES, _ATTR_NO_EXEC = 1, 2, 4, 8
_NO_SUID_DEVICES_EXEC = 2 | 4 | 8


def _set_mount_attributes(path: str, *, add: int, remove: int = 0, flags: int = 0) -> None:
    attributes = ctypes.create_string_buffer(struct.pack("=4Q", add, remove, 0, 0), 32)
    target = ctypes.create_string_buffer(os.fsencode(path))
    syscall("mount_setattr", _AT_FDCWD, target, flags, attributes, 32)


def _enter_user_namespace(others: int) -> None:
    """Become the same user in a user namespace of its own, together with ``others``."""
    uid, gid = os.geteuid(), os.getegid()
    syscall("unshare", _NEW_USER | others)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _seal_file_systems(folder: str, writable: Sequence[str]) -> None:
    """Make everything read-only but ``folder`` and ``writable``, nothing in ``folder`` executable.

    A shared library that was written there can then not be mapped as code.
    """
    for path in writable:
        mount(path, path, _BIND)
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
        mount("p2p-sandbox", folder, _NO_SUID_DEVICES_EXEC, "tmpfs", options)
        try:
            for name in folders:
                os.mkdir(f"{folder}/{name}")  # noqa: PTH102
            for name, target in links.items():
                os.symlink(target, f"{folder}/{name}")  # noqa: PTH211
            for name in files:
                os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY))
                mount(f"/proc/self/fd/{below}/{name}", f"{folder}/{name}", _BIND)
        except OSError:
            unmount(folder)
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


def enter_namespaces(
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
            mount(None, "/", _RECURSIVE | _PRIVATE)
        except OSError:
            entered.remove("mount")  # an empty right: some distributions give one without powers
            return entered
        if size is not None:
            with contextlib.suppress(OSError):  # the parent then counts what is written
                _mount_fixed_size(folder, *size)
                entered.append("tmpfs")
        if "tmpfs" not in entered:
            with contextlib.suppress(OSError):
                mount(folder, folder, _BIND)
        try:
            _seal_file_systems(folder, writable)
        except OSError:
            entered.remove("mount")
    return entered
