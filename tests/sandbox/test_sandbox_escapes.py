"""The network, other processes, and raw system calls."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox_runner import Runner

CLONE, TKILL, TGKILL = {"x86_64": (56, 200, 234), "aarch64": (220, 130, 131)}[os.uname().machine]


def test_no_socket_can_be_opened(sandbox: Runner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sandbox.refused(
            """
            import socket, ctypes, os, asyncio
            S = socket.socket
            attempts(
                connect=lambda: socket.create_connection(("127.0.0.1", port), 1),
                tcp=lambda: S(socket.AF_INET, socket.SOCK_STREAM),
                udp=lambda: S(socket.AF_INET, socket.SOCK_DGRAM),
                tcp6=lambda: S(socket.AF_INET6, socket.SOCK_STREAM),
                unix=lambda: S(socket.AF_UNIX, socket.SOCK_STREAM),
                netlink=lambda: S(socket.AF_NETLINK, socket.SOCK_RAW),
                packet=lambda: S(socket.AF_PACKET, socket.SOCK_RAW),
                raw=lambda: S(socket.AF_INET, socket.SOCK_RAW, 1),
                vsock=lambda: S(40, socket.SOCK_STREAM),
                bluetooth=lambda: S(31, socket.SOCK_RAW, 1),
                pair=socket.socketpair,
                resolve=lambda: socket.getaddrinfo("example.org", 80),
                resolve_local=lambda: socket.gethostbyname("vm"),
                loop=asyncio.new_event_loop,
            )
            """,
            {"port": server.getsockname()[1]},
        )


def test_no_process_can_be_started(sandbox: Runner) -> None:
    sandbox.refused(
        """
        import ctypes, multiprocessing, os, pty, subprocess, sys
        libc = ctypes.CDLL(None, use_errno=True)
        def c(result):
            if result < 0: raise OSError(ctypes.get_errno())
            if result == 0: os._exit(0)
            return result
        def process(kind):
            p = multiprocessing.get_context(kind).Process(target=print); p.start(); return p
        attempts(
            fork=os.fork, forkpty=os.forkpty, pty=lambda: pty.spawn("/bin/true"),
            popen=lambda: subprocess.run(["/bin/true"]),
            spawn=lambda: os.posix_spawn("/bin/true", ["true"], {}),
            shell=lambda: c(-os.system("true")),
            execve=lambda: os.execv("/bin/true", ["true"]),
            exec_self=lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),
            mp_fork=lambda: process("fork"), mp_spawn=lambda: process("spawn"),
            c_fork=lambda: c(libc.fork()), c_vfork=lambda: c(libc.vfork()),
            clone=lambda: c(libc.syscall(clone, 17, 0, 0, 0, 0)),
            clone3=lambda: c(libc.syscall(435, (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17), 88)),
        )
        """,
        {"clone": CLONE},
    )


def test_a_fork_bomb_ends_as_an_exception(sandbox: Runner) -> None:
    ended = sandbox("import os\nwhile True: os.fork()")
    assert ended.exit.reason == "failed"
    assert "PermissionError" in ended.exit.message


def test_other_processes_cannot_be_touched(sandbox: Runner) -> None:
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        sandbox.refused(
            """
            import ctypes, fcntl, os, resource, signal
            libc = ctypes.CDLL(None, use_errno=True)
            def c(name, *args):
                if getattr(libc, name)(*args) < 0: raise OSError(ctypes.get_errno())
            def by_file_owner():
                r, w = os.pipe()
                fcntl.fcntl(r, fcntl.F_SETOWN, victim)
                fcntl.fcntl(r, 10, signal.SIGKILL)
            word = ctypes.create_string_buffer(8)
            attempts(
                zero=lambda: os.kill(victim, 0),
                kill=lambda: os.kill(victim, signal.SIGKILL),
                parent=lambda: os.kill(os.getppid(), 0),
                everyone=lambda: os.kill(-1, 0),
                group=lambda: os.killpg(parent_group, 0),
                tkill=lambda: c("syscall", tkill, victim, 9),
                tgkill=lambda: c("syscall", tgkill, victim, victim, 9),
                queue=lambda: c("sigqueue", victim, 9, None),
                pidfd=lambda: os.pidfd_open(victim),
                pidfd_send=lambda: signal.pidfd_send_signal(1, signal.SIGKILL),
                owner=by_file_owner,
                ptrace_attach=lambda: c("ptrace", 16, victim, None, None),
                ptrace_seize=lambda: c("ptrace", 0x4206, victim, None, None),
                read_memory=lambda: c("process_vm_readv", victim, word, 1, word, 1, 0),
                limits=lambda: resource.prlimit(victim, resource.RLIMIT_CPU, (1, 1)),
                renice=lambda: os.setpriority(os.PRIO_PROCESS, victim, 19),
                affinity=lambda: os.sched_setaffinity(victim, {0}),
                scheduler=lambda: os.sched_setscheduler(victim, os.SCHED_IDLE, os.sched_param(0)),
            )
            """,
            {"victim": victim.pid, "parent_group": os.getpgid(0), "tkill": TKILL, "tgkill": TGKILL},
        )
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


# Number on x86_64 and on aarch64 (None: the machine has no such call), then the arguments.
RAW_CALLS: dict[str, tuple[int | None, ...]] = {
    "socket": (41, 198, 2, 1, 0), "ptrace": (101, 117, 0, 0, 0, 0), "setuid": (105, 146, 0),
    "personality": (135, 92, 0x0040000), "pivot_root": (155, 41, 0, 0),
    "mount": (165, 40, 0, 0, 0, 0, 0), "umount2": (166, 39, 0, 0), "swapon": (167, 224, 0, 0),
    "reboot": (169, 142, 0, 0, 0), "init_module": (175, 105, 0, 0, 0),
    "add_key": (248, 217, 0, 0, 0, 0, 0), "keyctl": (250, 219, 0, 0, 0),
    "unshare_user": (272, 97, 0x10000000), "unshare_files": (272, 97, 0x400),
    "setns": (308, 268, 0, 0), "perf_event_open": (298, 241, 0, 0, 0, 0, 0),
    "name_to_handle_at": (303, 264, -100, 0, 0, 0, 0), "open_by_handle_at": (304, 265, 0, 0, 0),
    "process_vm_readv": (310, 270, 1, 0, 0, 0, 0), "finit_module": (313, 273, 0, 0, 0),
    "seccomp": (317, 277, 1, 0, 0), "memfd_create": (319, 279, 0, 0), "bpf": (321, 280, 0, 0, 0),
    "userfaultfd": (323, 282, 0), "io_uring_setup": (425, 425, 1, 0),
    "open_tree": (428, 428, -100, 0, 0), "fsopen": (430, 430, 0, 0),
    "openat2": (437, 437, -100, 0, 0, 0), "landlock": (444, 444, 0, 0, 1),
    "memfd_secret": (447, 447, 0), "shmget": (29, 194, 0, 4096, 0o1600),
    "semget": (64, 190, 0, 1, 0o1600), "msgget": (68, 186, 0, 0o1600), "capset": (126, 91, 0, 0),
    "inotify_init1": (294, 26, 0), "fanotify_init": (300, 262, 0, 0),
    "modify_ldt": (154, None, 0, 0, 0), "chmod": (90, None, 0, 0),
    "fchmodat": (268, 53, -100, 0, 0),
    "undo_parent_death": (157, 167, 1, 0), "no_dumpable": (157, 167, 4, 1),
    "x32_socket": (0x40000000 + 41, 0x40000000 + 198, 2, 1, 0), "unknown": (600, 600),
    "ioctl_tiocsti": (16, 29, 0, 0x5412, 0),
    "shared_memory": (9, 222, 0, 1 << 20, 3, 0x21, -1, 0),
    "stack_memory": (9, 222, 0, 1 << 20, 3, 0x122, -1, 0),
}  # fmt: skip


def test_raw_system_calls_are_refused(sandbox: Runner) -> None:
    column = ("x86_64", "aarch64").index(os.uname().machine)
    calls = {
        name: (call[column], *call[2:])
        for name, call in RAW_CALLS.items()
        if call[column] is not None
    }
    sandbox.refused(
        """
        import ctypes, errno
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        refusals = (errno.EPERM, errno.ENOSYS, errno.ENOTTY)
        def call(numbers):
            result = libc.syscall(*[ctypes.c_long(n) for n in numbers])
            code = ctypes.get_errno()
            if result == -1 and code in refusals: raise OSError(code)
            return result, code
        attempts(**{name: (lambda n=numbers: call(n)) for name, numbers in calls.items()})
        """,
        {"calls": calls},
    )


def test_thirty_two_bit_system_calls_are_refused(sandbox: Runner) -> None:
    if os.uname().machine != "x86_64":
        return
    # mov eax, 20 (getpid); int 0x80; ret: through the 32-bit door.
    sandbox.refused(
        """
        import ctypes, mmap
        page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
        page.write(bytes.fromhex("b814000000cd80c3"))
        code = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        def knock():
            result = code()
            if result < 0: raise OSError(-result)
            return result
        attempts(int80=knock)
        """
    )


def test_the_sandboxed_process_dies_with_its_parent(tmp_path: Path) -> None:
    from sandbox_runner import INSIDE

    folder = tmp_path / "folder"
    folder.mkdir()
    program = f"""
import sys
from pathlib import Path
from p2p.sandbox import Sandbox, start
sandbox = Sandbox(folder=Path({str(folder)!r}), import_paths=(Path({str(INSIDE)!r}),))
process = start("run_source", {{"source": "import time; send(b'up'); time.sleep(300)"}}, sandbox)
process.poll()
print(process.pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    sandboxed = int(parent.stdout.readline())
    os.kill(sandboxed, 0)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(sandboxed).wait(timeout=10)
