"""seccomp: a filter over system calls, so that most of the kernel is out of reach.

The filter is an allowlist. A refused call fails with EPERM, and with ENOSYS where it is one of
the newer calls that libraries know how to do without; the process lives on, so that the code
inside gets an exception that says what happened.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import struct
from typing import TYPE_CHECKING

from p2p.sandbox import kernel

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL, _IF_GREATER_OR_EQUAL, _IF_BITS = 0x15, 0x35, 0x45  # BPF_JMP | ..., against a constant
_AND = 0x54
_RETURN = 0x06

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000

_SET_MODE_FILTER = 1
_GET_ACTION_AVAILABLE = 2
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_FIRST_SHARED_NUMBER = 424  # from here on every machine has the same numbers

_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16

_CLONE_THREAD = 0x00010F00  # a thread that shares memory, files and signal handlers
_CLONE_NEW_NAMESPACES = 0x7E020080
_MAP_GROWSDOWN = 0x0100
_MREMAP_DONTUNMAP = 4
_CLOSE_RANGE_UNSHARE = 2
_F_SETSIG, _F_SETOWN_EX, _F_OFD_SETLK, _F_OFD_SETLKW, _F_SETLEASE = 10, 15, 37, 38, 1024
_OWNERS = (fcntl.F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE)
_LOCKS = (fcntl.F_SETLK, fcntl.F_SETLKW, _F_OFD_SETLK, _F_OFD_SETLKW)
_PRCTL_ALLOWED = (15, 16, 0x53564D41)  # name a thread, read its name, name a memory area
_IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# terminal?, window size, bytes waiting, non-blocking, inherit or not
_NVIDIA_TYPE = 0x46
"""The type (bits 8 to 15) of the commands of NVIDIA's devices, but for those of its unified memory:
plain numbers, and two that begin and end it."""
_UNIFIED_MEMORY_PLAIN, _UNIFIED_MEMORY = 0x100, (0x30000001, 0x30000002)

Instruction = tuple[int, int, int, int]


def _refuse(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)


_PERMIT: Instruction = (_RETURN, 0, 0, _ALLOW)
_FORBID = _refuse(errno.EPERM)


def _argument(index: int) -> Instruction:
    # The low half: the kernel reads flags, commands and process ids as 32-bit numbers.
    return (_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * index)


def _only_values(index: int, values: Iterable[int], otherwise: int) -> list[Instruction]:
    block = [_argument(index)]
    for value in values:
        block += [(_IF_EQUAL, 0, 1, value & 0xFFFFFFFF), _PERMIT]
    return [*block, _refuse(otherwise)]


def _any_but_values(index: int, values: Iterable[int]) -> list[Instruction]:
    block = [_argument(index)]
    for value in values:
        block += [(_IF_EQUAL, 0, 1, value), _FORBID]
    return [*block, _PERMIT]


def _not_all_bits(index: int, *masks: int) -> list[Instruction]:
    block: list[Instruction] = []
    for mask in masks:
        block += [_argument(index), (_AND, 0, 0, mask), (_IF_EQUAL, 0, 1, mask), _FORBID]
    return [*block, _PERMIT]


def _threads_only() -> list[Instruction]:
    # With descriptors of its own, a thread could keep files open that nobody sees or counts.
    return [
        _argument(0),
        (_IF_BITS, 0, 1, _CLONE_NEW_NAMESPACES),
        _FORBID,
        (_AND, 0, 0, _CLONE_THREAD),
        (_IF_EQUAL, 1, 0, _CLONE_THREAD),
        _FORBID,
        _PERMIT,
    ]


def _no_truncating_reader(flags_index: int) -> list[Instruction]:
    # Before ABI 3 Landlock lets a file that may only be read be opened and emptied at once.
    return [
        _argument(flags_index),
        (_AND, 0, 0, os.O_TRUNC | os.O_ACCMODE),
        (_IF_EQUAL, 0, 1, os.O_TRUNC | os.O_RDONLY),
        _FORBID,
        _PERMIT,
    ]


def _gpu_conditions() -> dict[str, list[Instruction]]:
    """What a process with a GPU may ask for besides.

    Landlock lets it control the GPU's devices alone, where it knows of devices (ABI 5).
    """
    commands = [
        _argument(1),
        (_IF_GREATER_OR_EQUAL, 1, 0, _UNIFIED_MEMORY_PLAIN),
        _PERMIT,
        (_AND, 0, 0, 0xFF00),
        (_IF_EQUAL, 0, 1, _NVIDIA_TYPE << 8),
        _PERMIT,
        *_only_values(1, (*_IOCTL_ALLOWED, *_UNIFIED_MEMORY), errno.ENOTTY),
    ]
    # CUDA waits at a socket for others that want its memory. Nobody can: it has a name that is not
    # of the file system, in a network namespace of its own, and no connection can be accepted.
    waiting = [
        _argument(0),
        (_IF_EQUAL, 1, 0, socket.AF_UNIX),
        _FORBID,
        *_only_values(1, (socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC,), errno.EPERM),
    ]
    # Host memory that a device reaches is shared; the parent and a cgroup count it. Files in memory
    # (kernel.GPU_ALLOWED) count as deleted files do, towards the disk space.
    return {
        "ioctl": commands,
        "mmap": _not_all_bits(3, _MAP_GROWSDOWN),
        "socket": waiting,
    }


def _conditions(pid: int) -> dict[str, list[Instruction]]:
    """What each call of ``kernel.CHECKED`` may be asked for, by the process ``pid``."""
    itself = (pid,)
    itself_or_zero = (0, pid)
    return {
        "kill": _only_values(0, itself, errno.EPERM),
        "tgkill": _only_values(0, itself, errno.EPERM),
        "rt_sigqueueinfo": _only_values(0, itself, errno.EPERM),
        "rt_tgsigqueueinfo": _only_values(0, itself, errno.EPERM),
        "prlimit64": _only_values(0, itself_or_zero, errno.EPERM),
        "clone": _threads_only(),
        "close_range": _not_all_bits(2, _CLOSE_RANGE_UNSHARE),
        # Shared and downward-growing memory are not counted by RLIMIT_DATA.
        "mmap": _not_all_bits(3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, _MAP_GROWSDOWN),
        # A copy of the stack would be one more area that grows uncounted.
        "mremap": _not_all_bits(3, _MREMAP_DONTUNMAP),
        # Reserved at once, space would be gone before the parent looks. Libraries write instead.
        "fallocate": [_refuse(errno.EOPNOTSUPP)],
        # Anything else could, for one, undo the signal that comes when the parent dies.
        "prctl": _only_values(0, _PRCTL_ALLOWED, errno.EPERM),
        "ioctl": _only_values(1, _IOCTL_ALLOWED, errno.ENOTTY),
        # The owner of a file's signals can be any process of the same user: a way to signal it.
        # Locks of parts of a file are records in the kernel's memory, without a limit to them.
        "fcntl": _any_but_values(1, _OWNERS + _LOCKS),
        "socket": [_FORBID],
        "open": _no_truncating_reader(1),
        "openat": _no_truncating_reader(2),
    }


def program(machine: str, pid: int, *, gpu: bool = False) -> list[Instruction]:
    """The filter for the process ``pid`` on a machine, as BPF instructions."""
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_IF_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        _FORBID,
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        (_IF_GREATER_OR_EQUAL, 0, 1, _X32_BIT),
        _refuse(errno.ENOSYS),
    ]
    allowed = f"{kernel.ALLOWED};{kernel.GPU_ALLOWED}" if gpu else kernel.ALLOWED
    for number in kernel.numbers(allowed, machine).values():
        code += [(_IF_EQUAL, 0, 1, number), _PERMIT]
    conditions = _conditions(pid) | (_gpu_conditions() if gpu else {})
    for name, number in kernel.numbers(kernel.CHECKED, machine).items():
        block = conditions[name]
        code += [(_IF_EQUAL, 0, len(block), number), *block]
    code += [
        (_IF_GREATER_OR_EQUAL, 0, 1, _FIRST_SHARED_NUMBER),
        _refuse(errno.ENOSYS),
        _FORBID,
    ]
    return code


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def available() -> bool:
    """Whether this kernel filters system calls and can answer with an error number."""
    action = ctypes.create_string_buffer(struct.pack("=I", _ERRNO), 4)
    try:
        kernel.syscall("seccomp", _GET_ACTION_AVAILABLE, 0, action)
    except OSError:
        return False
    return True


def restrict(*, gpu: bool = False) -> None:
    """Filter the system calls of this thread and of all that it starts, for good.

    Call it while the process has one thread and after ``PR_SET_NO_NEW_PRIVS``.
    """
    install(program(kernel.machine(), os.getpid(), gpu=gpu))


def install(instructions: list[Instruction]) -> None:
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    code = ctypes.create_string_buffer(packed, len(packed))
    head = _Program(len(instructions), ctypes.addressof(code))
    raw = ctypes.create_string_buffer(bytes(head), ctypes.sizeof(head))
    kernel.syscall("seccomp", _SET_MODE_FILTER, 0, raw)
