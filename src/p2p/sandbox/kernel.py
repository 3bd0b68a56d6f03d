"""System calls: their numbers, and the few that build the sandbox and that Python does not offer.

A sandboxed process gets the calls of ``ALLOWED`` unconditionally and those of ``CHECKED`` with
conditions on their arguments (see ``seccomp``); every other call is refused. An entry reads
"name x86_64 aarch64", with "-" where the machine has no such call.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform

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


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(name: str, *args: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call the kernel; raises OSError where it refuses."""
    machine()
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return _checked(_libc.syscall(ctypes.c_long(_setup_numbers[name]), *words), name)


def prctl(option: int, value: int = 0, more: int = 0) -> int:
    """Set a property of the process, by whole numbers; raises OSError where the kernel refuses."""
    words = [ctypes.c_ulong(word) for word in (value, more, 0, 0)]
    return _checked(_libc.prctl(ctypes.c_int(option), *words), f"prctl {option}")


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
    _checked(result, f"mount {target}")


def unmount(target: str) -> None:
    """Take away what was mounted last at a path, with all that is mounted in it."""
    detach = 2
    _checked(_libc.umount2(os.fsencode(target), ctypes.c_int(detach)), f"unmount {target}")


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
