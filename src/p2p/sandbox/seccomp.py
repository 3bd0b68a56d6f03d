"""seccomp: a filter over system calls, so that most of the kernel is out of reach.

The filter is an allowlist. A refused call fails with EPERM, and with ENOSYS where it is one of
the newer calls that libraries know how to do without; the process lives on, so that the code
inside gets an exception that says what happened.

A sandboxed process gets the calls of ``ALLOWED`` unconditionally and those of ``CHECKED`` with
conditions on their arguments; every other call is refused. An entry of these tables reads
"name x86_64 aarch64", with "-" where the machine has no such call.
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

ALLOWED = """
    read 0 63; write 1 64; close 3 57; stat 4 -; fstat 5 80; lstat 6 -; poll 7 -; lseek 8 62;
    mprotect 10 226; munmap 11 215; brk 12 214; rt_sigaction 13 134; rt_sigprocmask 14 135;
    rt_sigreturn 15 139; pread64 17 67; pwrite64 18 68; readv 19 65; writev 20 66; preadv 295 69;
    pwritev 296 70; preadv2 327 286; pwritev2 328 287; access 21 -; pipe 22 -; select 23 -;
    sched_yield 24 124; msync 26 227; mincore 27 232; madvise 28 233; dup 32 23;
    dup2 33 -; dup3 292 24; pause 34 -; nanosleep 35 101; getitimer 36 102; alarm 37 -; setitimer
    38 103; getpid 39 172; sendfile 40 71; exit 60 93; exit_group 231 94; uname 63 160; flock 73
    32; fsync 74 82; fdatasync 75 83; ftruncate 77 46; getdents 78 -; getdents64 217 61; getcwd 79
    17; chdir 80 49; fchdir 81 50; rename 82 -; renameat 264 38; renameat2 316 276; mkdir 83 -;
    mkdirat 258 34; rmdir 84 -; creat 85 -; unlink 87 -; unlinkat 263 35; readlink 89 -;
    readlinkat 267 78; umask 95 166; gettimeofday 96 169; getrlimit 97 163; getrusage 98 165;
    sysinfo 99 179; times 100 153; getuid 102 174; getgid 104 176; geteuid 107 175; getegid 108
    177; getppid 110 173; getpgrp 111 -; getpgid 121 155; getsid 124 156; getgroups 115 158;
    getresuid 118 148; getresgid 120 150; capget 125 90; rt_sigpending 127 136; rt_sigtimedwait
    128 137; rt_sigsuspend 130 133; sigaltstack 131 132; statfs 137 43; fstatfs 138 44;
    getpriority 140 141; sched_getparam 143 121; sched_getscheduler 145 120;
    sched_get_priority_max 146 125; sched_get_priority_min 147 126; sched_rr_get_interval 148 127;
    mlock 149 228; munlock 150 229; mlock2 325 284; arch_prctl 158 -; gettid 186 178; futex 202
    98; sched_getaffinity 204 123; epoll_create 213 -; epoll_create1 291 20; epoll_wait 232 -;
    epoll_pwait 281 22; epoll_pwait2 441 441; epoll_ctl 233 21; set_tid_address 218 96;
    restart_syscall 219 128; fadvise64 221 223; timer_create 222 107; timer_settime 223 110;
    timer_gettime 224 108; timer_getoverrun 225 109; timer_delete 226 111; clock_gettime 228 113;
    clock_getres 229 114; clock_nanosleep 230 115; newfstatat 262 79; pselect6 270 72; ppoll 271
    73; set_robust_list 273 99; splice 275 76; tee 276 77; sync_file_range 277 84;
    timerfd_create 283 85; timerfd_settime 286 86; timerfd_gettime 287 87; eventfd 284 -;
    eventfd2 290 19; pipe2 293 59; getcpu 309 168; getrandom 318 278; copy_file_range 326 285;
    statx 332 291; rseq 334 293; membarrier 324 283; faccessat 269 48; faccessat2 439 439; mbind
    237 235; set_mempolicy 238 237; get_mempolicy 239 236; pkey_mprotect 329 288; pkey_alloc 330
    289; pkey_free 331 290; time 201 -; futex_waitv 449 449; readahead 187 213
"""

CHECKED = """
    kill 62 129; tgkill 234 131; rt_sigqueueinfo 129 138; rt_tgsigqueueinfo 297 240; clone 56 220;
    mmap 9 222; prctl 157 167; ioctl 16 29; fcntl 72 25; prlimit64 302 261; close_range 436 436;
    open 2 -; openat 257 56; mremap 25 216; fallocate 285 47; socket 41 198
"""

# Besides, for a process that computes on a GPU: CUDA does not start without it.
GPU_ALLOWED = """
    memfd_create 319 279; bind 49 200; listen 50 201
"""

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


def _permit_values(index: int, values: Iterable[int], otherwise: int) -> list[Instruction]:
    block = [_argument(index)]
    for value in values:
        block += [(_IF_EQUAL, 0, 1, value & 0xFFFFFFFF), _PERMIT]
    return [*block, _refuse(otherwise)]


def _forbid_values(index: int, values: Iterable[int]) -> list[Instruction]:
    block = [_argument(index)]
    for value in values:
        block += [(_IF_EQUAL, 0, 1, value), _FORBID]
    return [*block, _PERMIT]


def _forbid_bits(index: int, *masks: int) -> list[Instruction]:
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


def _forbid_truncating_read(flags_index: int) -> list[Instruction]:
    # Before ABI 3 Landlock lets a file that may only be read be opened and emptied at once.
    return [
        _argument(flags_index),
        (_AND, 0, 0, os.O_TRUNC | os.O_ACCMODE),
        (_IF_EQUAL, 0, 1, os.O_TRUNC | os.O_RDONLY),
        _FORBID,
        _PERMIT,
    ]


def _gpu_conditions() -> dict[str, list[Instruction]]:
    """Return what a process with a GPU may ask for besides.

    Landlock lets it control the GPU's devices alone, where it knows of devices (ABI 5).
    """
    commands = [
        _argument(1),
        (_IF_GREATER_OR_EQUAL, 1, 0, _UNIFIED_MEMORY_PLAIN),
        _PERMIT,
        (_AND, 0, 0, 0xFF00),
        (_IF_EQUAL, 0, 1, _NVIDIA_TYPE << 8),
        _PERMIT,
        *_permit_values(1, (*_IOCTL_ALLOWED, *_UNIFIED_MEMORY), errno.ENOTTY),
    ]
    # CUDA waits at a socket for others that want its memory. Nobody can: it has a name that is not
    # of the file system, in a network namespace of its own, and no connection can be accepted.
    waiting = [
        _argument(0),
        (_IF_EQUAL, 1, 0, socket.AF_UNIX),
        _FORBID,
        *_permit_values(1, (socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC,), errno.EPERM),
    ]
    # Host memory that a device reaches is shared; the parent and a cgroup count it. Files in memory
    # (GPU_ALLOWED) count as deleted files do, towards the disk space.
    return {
        "ioctl": commands,
        "mmap": _forbid_bits(3, _MAP_GROWSDOWN),
        "socket": waiting,
    }


def _conditions(pid: int) -> dict[str, list[Instruction]]:
    """Return what each call of ``CHECKED`` may be asked for, by the process ``pid``."""
    itself = (pid,)
    itself_or_zero = (0, pid)
    return {
        "kill": _permit_values(0, itself, errno.EPERM),
        "tgkill": _permit_values(0, itself, errno.EPERM),
        "rt_sigqueueinfo": _permit_values(0, itself, errno.EPERM),
        "rt_tgsigqueueinfo": _permit_values(0, itself, errno.EPERM),
        "prlimit64": _permit_values(0, itself_or_zero, errno.EPERM),
        "clone": _threads_only(),
        "close_range": _forbid_bits(2, _CLOSE_RANGE_UNSHARE),
        # Shared and downward-growing memory are not counted by RLIMIT_DATA.
        "mmap": _forbid_bits(3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, _MAP_GROWSDOWN),
        # A copy of the stack would be one more area that grows uncounted.
        "mremap": _forbid_bits(3, _MREMAP_DONTUNMAP),
        # Reserved at once, space would be gone before the parent looks. Libraries write instead.
        "fallocate": [_refuse(errno.EOPNOTSUPP)],
        # Anything else could, for one, undo the signal that comes when the parent dies.
        "prctl": _permit_values(0, _PRCTL_ALLOWED, errno.EPERM),
        "ioctl": _permit_values(1, _IOCTL_ALLOWED, errno.ENOTTY),
        # The owner of a file's signals can be any process of the same user: a way to signal it.
        # Locks of parts of a file are records in the kernel's memory, without a limit to them.
        "fcntl": _forbid_values(1, _OWNERS + _LOCKS),
        "socket": [_FORBID],
        "open": _forbid_truncating_read(1),
        "openat": _forbid_truncating_read(2),
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
    allowed = f"{ALLOWED};{GPU_ALLOWED}" if gpu else ALLOWED
    for number in kernel.numbers(allowed, machine).values():
        code += [(_IF_EQUAL, 0, 1, number), _PERMIT]
    conditions = _conditions(pid) | (_gpu_conditions() if gpu else {})
    for name, number in kernel.numbers(CHECKED, machine).items():
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
    """Return whether this kernel filters system calls and can answer with an error number."""
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
