"""Hostile code: what each kind tries, and what must hold when it runs in the sandbox.

`REFUSED` runs in one sandbox, one kind after the other: every try fails and the code lives on.
`ENDED` ends a sandbox each, for a reason of its own. `LEFT` are files and `SENT` lines that the
parent must refuse to use.

As a script it gives up rights that the sandbox could use, runs kinds in a folder and prints what
went wrong with each, as JSON: `python hostile_code.py MODE FOLDER [KIND ...]`, a mode of `MODES`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_runner import INSIDE, Ended, Runner

import p2p
from p2p.sandbox import (
    Sandbox,
    UntrustedResultError,
    layers,
    read_arrays,
    read_message,
    start,
)
from p2p.training.envs.registry import TRIALS

MIB, GIB = 1 << 20, 1 << 30
PLANTED = "planted-in-the-parent-5d1c"
REPOSITORY = Path(p2p.__file__).parents[2]

REFUSED: dict[str, str] = {
    # --- files
    "a secret by its path": """
def chdir():
    here = os.getcwd()
    try:
        os.chdir(os.path.dirname(secret))
        return open("id_ed25519").read()
    finally:
        os.chdir(here)
attempts(
    plain=lambda: open(secret).read(),
    c=lambda: c("open", secret.encode(), 0),
    relative=lambda: open("../home/.ssh/id_ed25519").read(),
    chdir=chdir,
    proc_root=lambda: open("/proc/self/root" + secret).read(),
    proc_cwd=lambda: open("/proc/self/cwd/../home/.ssh/id_ed25519").read(),
)""",
    "a secret by a descriptor of its path": """
def reopened(flags):
    fd = os.open(secret, os.O_PATH | flags)
    try: return open(f"/proc/self/fd/{fd}").read()
    finally: os.close(fd)
attempts(path=lambda: reopened(0), no_follow=lambda: reopened(os.O_NOFOLLOW))""",
    "links to files outside": """
def swap():
    for _ in range(3):
        os.symlink(folder, folder + "/swap"); os.unlink(folder + "/swap")
        os.symlink(secret, folder + "/swap")
open("x", "w").close()
attempts(
    symbolic=lambda: os.symlink(secret, folder + "/link"),
    hard=lambda: os.link(secret, folder + "/hard"),
    hard_by_descriptor=lambda: c("linkat", os.open(secret, os.O_PATH), b"", -100, b"hard", 0x1000),
    swapped_in_a_race=swap,
    exchanged=lambda: c("renameat2", -100, secret.encode(), -100, folder.encode() + b"/x", 2),
)""",
    "listing folders outside": """
attempts(
    home=lambda: os.listdir(os.path.dirname(secret)), root=lambda: os.listdir("/"),
    temporary=lambda: os.listdir("/tmp"), shared=lambda: os.listdir("/dev/shm"),
    etc=lambda: os.listdir("/etc"), runs=lambda: os.listdir(os.path.dirname(folder)),
)""",
    "files of the system": """
attempts(**{path: (lambda path=path: open(path).read())
            for path in ("/etc/passwd", "/etc/shadow", "/etc/hosts", "/etc/group")
            if os.path.exists(path)})""",
    "device files": """
attempts(**{path: (lambda path=path: os.open(path, flags))
            for path in ("/dev/mem", "/dev/kmsg", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx",
                         "/dev/fuse", "/dev/kvm", "/dev/net/tun", "/dev/vda", "/dev/vsock")
            for flags in (os.O_RDONLY, os.O_RDWR) if os.path.exists(path)})""",
    "the repository beside the package": """
attempts(listing=lambda: os.listdir(root),
         **{name: (lambda name=name: open(os.path.join(root, name)).read())
            for name in ("pyproject.toml", ".gitignore", "LICENSE", ".env")
            if os.path.exists(os.path.join(root, name))})""",
    "temporary files and shared memory of others": """
attempts(tmp=lambda: open("/tmp/p2p-hostile", "w"), shm=lambda: open("/dev/shm/p2p-hostile", "w"),
         var=lambda: open("/var/tmp/p2p-hostile", "w"),
         unnamed=lambda: os.open("/tmp", os.O_TMPFILE | os.O_RDWR))""",
    "writing files outside": """
attempts(
    write=lambda: open(outside, "w"), append=lambda: open(outside, "a"),
    update=lambda: os.open(outside, os.O_RDWR),
    create=lambda: open(os.path.dirname(outside) + "/new", "w"),
    folder=lambda: os.mkdir(os.path.dirname(outside) + "/new"),
    beside=lambda: open(os.path.dirname(folder) + "/status.json", "w"),
)""",
    "removing and moving files outside": """
open("mine", "w").close()
attempts(
    remove=lambda: os.unlink(outside), remove_folder=lambda: os.rmdir(os.path.dirname(secret)),
    take=lambda: os.rename(outside, folder + "/taken"), put=lambda: os.rename("mine", outside),
    own_folder=lambda: os.rename(folder, folder + "-moved"),
)""",
    "emptying files": """
def by_reader():
    fd = os.open(library, os.O_RDONLY)
    try: os.ftruncate(fd, 0)
    except OSError as error: raise PermissionError(errno.EPERM, "") from error  # EINVAL
    finally: os.close(fd)
attempts(
    truncate=lambda: os.truncate(outside, 0), readable=lambda: os.truncate(library, 0),
    on_opening=lambda: os.open(library, os.O_RDONLY | os.O_TRUNC), by_reader=by_reader,
)""",
    "modes and owners of files": """
def on_descriptor(change):
    fd = os.open(library, os.O_RDONLY)
    try: return change(fd)
    finally: os.close(fd)
open("mine", "w").close()
attempts(
    chmod=lambda: os.chmod(outside, 0), own=lambda: os.chmod("mine", 0o6777),
    chown=lambda: os.chown(outside, 1, 1), lchown=lambda: os.lchown(outside, 1, 1),
    fchmod=lambda: on_descriptor(lambda fd: os.fchmod(fd, 0)),
    fchown=lambda: on_descriptor(lambda fd: os.fchown(fd, 1, 1)),
    fchmodat2=raw(452, 452, -100, 0, 0, 0),
)""",
    "times and attributes of files": """
attempts(
    times=lambda: os.utime(outside, (0, 0)),
    attribute=lambda: os.setxattr(outside, "user.x", b"1"),
    capability=lambda: os.setxattr("mine", "security.capability", bytes(20)),
    immutable=lambda: fcntl.ioctl(os.open("mine", os.O_RDONLY | os.O_CREAT), 0x40086602, bytes(8)),
)""",
    "files that run with their owner's rights": """
def planted(mode):
    # Modes can be given to a new file; what is written to it must take these away again.
    os.umask(0)
    name = f"owner{mode:o}"
    fd = os.open(name, os.O_CREAT | os.O_RDWR, mode)
    try: os.write(fd, b"#!/bin/sh\\n")
    finally: os.close(fd); os.umask(0o22)
    left = os.stat(name).st_mode & 0o6000
    os.unlink(name)
    if not left: raise Refused
    return oct(left)
attempts(user=lambda: planted(0o4777), group=lambda: planted(0o2777), both=lambda: planted(0o6777))
""",
    "special files": """
attempts(
    characters=lambda: os.mknod("node", 0o20600, os.makedev(1, 3)),
    blocks=lambda: os.mknod("node", 0o60600, os.makedev(8, 0)), fifo=lambda: os.mkfifo("fifo"),
    socket=lambda: os.mknod("node", 0o140600),
)""",
    "another root": """
attempts(chroot=lambda: os.chroot(folder), pivot=raw(155, 41, 0, 0))""",
    "mounts": """
attempts(
    tmpfs=lambda: c("mount", b"none", folder.encode(), b"tmpfs", 0, None),
    bind=lambda: c("mount", b"/", folder.encode(), None, 4096, None),
    writable=lambda: c("mount", None, b"/", None, 32 | 4096, None),
    unmount=raw(166, 39, 0, 0), tree=raw(428, 428, -100, 0, 0), move=raw(429, 429, 0, 0, 0, 0, 0),
    open=raw(430, 430, 0, 0), attributes=raw(442, 442, -100, 0, 0, 0, 0),
)""",
    "files by other doors": """
attempts(
    name_to_handle=raw(303, 264, -100, 0, 0, 0, 0), by_handle=raw(304, 265, 0, 0, 0),
    openat2=raw(437, 437, -100, 0, 0, 0), pidfd_getfd=raw(438, 438, 0, 0, 0),
    uselib=raw(134, None, 0), quota=raw(179, 60, 0, 0, 0, 0), swap=raw(167, 224, 0, 0),
)""",
    "writing to /proc and /sys": """
def write(path):
    with open(path, "r+b", buffering=0) as file: return file.write(b"0")
paths = ("/proc/self/mem", "/proc/self/oom_score_adj", "/proc/self/uid_map", "/proc/self/setgroups",
         "/proc/self/coredump_filter", "/proc/self/clear_refs", "/proc/self/attr/current",
         "/proc/self/autogroup", "/proc/self/comm", "/proc/self/timerslack_ns",
         "/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger",
         "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/devices/system/cpu/cpu1/online",
         "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/cgroup.subtree_control",
         "/sys/fs/cgroup/memory/tasks")
attempts(**{path: (lambda path=path: write(path)) for path in paths if os.path.exists(path)})""",
    "patching Python and its packages": """
import numpy, p2p.sandbox.enter, json
targets = [numpy.__file__, p2p.sandbox.enter.__file__, json.__file__]
beside = [os.path.join(os.path.dirname(path), "planted.py") for path in targets]
packages = os.path.dirname(os.path.dirname(numpy.__file__))
attempts(
    **{f"write{i}": (lambda path=path: open(path, "a")) for i, path in enumerate(targets)},
    **{f"plant{i}": (lambda path=path: open(path, "w")) for i, path in enumerate(beside)},
    startup=lambda: open(os.path.join(packages, "sitecustomize.py"), "w"),
    path_file=lambda: open(os.path.join(packages, "zzz.pth"), "w"),
    compiled=lambda: os.unlink(json.__cached__),
    interpreter=lambda: open(os.path.realpath(sys.executable), "ab"),
)""",
    # --- secrets
    "secrets in the environment": """
def search():
    import json
    texts = [json.dumps(dict(os.environ)), open("/proc/self/environ").read(),
             open("/proc/self/cmdline").read()]
    if libc.getenv(b"P2P_PLANTED") or any("planted-in" in text for text in texts): return "leaked"
    raise Refused
attempts(own=search, of_parent=lambda: open(f"/proc/{os.getppid()}/environ").read(),
         of_first=lambda: open("/proc/1/environ").read())""",
    "secrets in the interpreter": """
def search():
    token = "".join(reversed("c1d5-tnerap-eht-ni-detnalp"))
    frame = sys._getframe()
    while frame is not None:
        held = {k: v for k, v in frame.f_locals.items() if k != "token"}
        if token in repr(held)[:10**6]: return "in a frame"
        frame = frame.f_back
    for held in gc.get_objects():
        if isinstance(held, dict) and any(v == token for k, v in list(held.items())):
            if held is not globals() and "token" not in held: return "among objects"
    raise Refused
attempts(search=search)""",
    "inherited descriptors": """
def search():
    links = {n: os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
             if os.path.islink(f"/proc/self/fd/{n}")}
    kinds = sorted(link.split(":")[0] for link in links.values())
    if kinds == ["/dev/null", "pipe", "pipe", "pipe"]: raise Refused
    return links
attempts(search=search)""",
    "other processes in /proc": """
attempts(
    listing=lambda: os.listdir("/proc"),
    **{name: (lambda name=name: open(f"/proc/{parent}/{name}", "rb").read(1))
       for name in ("environ", "mem", "cmdline", "maps", "status", "stack")},
    files=lambda: os.listdir(f"/proc/{parent}/fd"),
    threads=lambda: os.listdir(f"/proc/{parent}/task"),
    **{name: (lambda name=name: os.readlink(f"/proc/{parent}/{name}"))
       for name in ("cwd", "exe", "root", "fd/0")},
    through_root=lambda: os.listdir(f"/proc/{parent}/root"),
    victim=lambda: open(f"/proc/{victim}/cmdline").read(),
)""",
    "connections of the machine": """
def search(name):
    if f":{port:04X} " in open(f"/proc/self/net/{name}").read(): return "seen"
    raise Refused
attempts(tcp=lambda: search("tcp"),
         thread=lambda: search(f"../task/{os.getpid()}/net/tcp"),
         system=lambda: open("/proc/net/tcp").read())""",
    "keyrings": """
attempts(add=raw(248, 217, 0, 0, 0, 0, 0), request=raw(249, 218, 0, 0, 0, 0),
         control=raw(250, 219, 0, 0, 0))""",
    "the kernel's log": "attempts(syslog=raw(103, 116, 3, 0, 0))",
    # --- the network
    "sockets of every family": """
S = socket.socket
attempts(
    connect=lambda: socket.create_connection(("127.0.0.1", port), 1),
    tcp=lambda: S(socket.AF_INET, socket.SOCK_STREAM),
    udp=lambda: S(socket.AF_INET, socket.SOCK_DGRAM),
    tcp6=lambda: S(socket.AF_INET6, socket.SOCK_STREAM),
    netlink=lambda: S(socket.AF_NETLINK, socket.SOCK_RAW),
    packet=lambda: S(socket.AF_PACKET, socket.SOCK_RAW),
    raw=lambda: S(socket.AF_INET, socket.SOCK_RAW, 1),
    vsock=lambda: S(40, socket.SOCK_STREAM), bluetooth=lambda: S(31, socket.SOCK_RAW, 1),
    algorithms=lambda: S(38, socket.SOCK_SEQPACKET), xdp=lambda: S(44, socket.SOCK_RAW),
    by_number=raw(41, 198, 2, 1, 0), by_descriptor=lambda: S(fileno=1).getpeername(),
)""",
    "unix sockets, abstract names and passed descriptors": """
def abstract():
    S = socket.socket(socket.AF_UNIX); S.bind("\\0p2p-hostile"); return S
def passed():
    socket.send_fds(socket.socket(fileno=1), [b"x"], [0])
attempts(abstract=abstract, named=lambda: socket.socket(socket.AF_UNIX).bind("named"),
         packets=lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).bind("packets"),
         pair=socket.socketpair, passed=passed, sendmsg=raw(46, 211, 1, 0, 0),
         recvmsg=raw(47, 212, 0, 0, 0), accept=raw(43, 202, 1, 0, 0))""",
    "names of sockets": """attempts(bind=raw(49, 200, 1, 0, 0), listen=raw(50, 201, 1, 1))""",
    "names and event loops": """
import asyncio, urllib.request
def fetch():
    try: return urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1)
    except urllib.error.URLError as error: raise error.reason
attempts(resolve=lambda: socket.getaddrinfo("example.org", 80), fetch=fetch,
         local=lambda: socket.gethostbyname("localhost.localdomain"),
         loop=asyncio.new_event_loop)""",
    "queues of system calls": """
attempts(setup=raw(425, 425, 1, 0), enter=raw(426, 426, 0, 0, 0, 0), register=raw(427, 427, 0, 0),
         aio=raw(206, 0, 1, 0), submit=raw(209, 2, 0, 0, 0))""",
    # --- processes
    "new processes": """
import multiprocessing
def child(result):
    if result == 0: os._exit(0)
    return result
def process(kind):
    p = multiprocessing.get_context(kind).Process(target=print); p.start(); return p
attempts(
    fork=lambda: child(os.fork()), terminal=lambda: child(os.forkpty()[0]),
    c_fork=lambda: child(c("fork")), c_vfork=lambda: child(c("vfork")),
    clone=lambda: child(raw(56, 220, 17, 0, 0, 0, 0)()), clone_vm=raw(56, 220, 0x4111, 0, 0, 0, 0),
    clone3=lambda: child(c("syscall", 435, (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17), 88)),
    mp_fork=lambda: process("fork"), mp_spawn=lambda: process("spawn"),
)""",
    "new programs": """
import subprocess
def shell():
    if os.system("true") == 0: return "ran"
    raise Refused
attempts(
    execve=lambda: os.execv("/bin/true", ["true"]), run=lambda: subprocess.run(["/bin/true"]),
    itself=lambda: os.execv(sys.executable, [sys.executable, "-c", ""]), shell=shell,
    spawn=lambda: os.posix_spawn("/bin/true", ["true"], {}), terminal=os.openpty,
    execveat=raw(322, 281, 0, 0, 0, 0, 0),
)""",
    "programs in memory": """
attempts(memfd=lambda: os.memfd_create("x"), memfd_raw=raw(319, 279, 0, 0),
         secret=raw(447, 447, 0), execveat=raw(322, 281, 3, 0, 0, 0, 0x1000))""",
    "daemons and sessions of their own": """
attempts(session=os.setsid, group=lambda: os.setpgid(0, 0), of_parent=lambda: os.setpgid(parent, 0),
         daemon=lambda: c("daemon", 1, 1), subreaper=lambda: c("prctl", 36, 1, 0, 0, 0))""",
    "signals to others": """
attempts(
    parent=lambda: os.kill(os.getppid(), 0), kill=lambda: os.kill(victim, signal.SIGKILL),
    stop=lambda: os.kill(victim, signal.SIGSTOP), everyone=lambda: os.kill(-1, 0),
    first=lambda: os.kill(1, 0), group=lambda: os.killpg(parent_group, 0),
    own_group=lambda: os.kill(0, 0), tkill=raw(200, 130, victim, 9),
    tgkill=raw(234, 131, victim, victim, 9),
    queue=lambda: c("sigqueue", victim, 9, None), pidfd=lambda: os.pidfd_open(victim),
    pidfd_self=lambda: os.pidfd_open(os.getpid()),
    pidfd_send=lambda: signal.pidfd_send_signal(1, signal.SIGKILL),
)""",
    "signals by the owner of a file": """
r, w = os.pipe()
attempts(
    owner=lambda: fcntl.fcntl(r, fcntl.F_SETOWN, victim),
    owner_ex=lambda: fcntl.fcntl(r, 15, bytes(8)),
    signal=lambda: fcntl.fcntl(r, 10, signal.SIGKILL), lease=lambda: fcntl.fcntl(r, 1024, 0),
    ioctl=lambda: fcntl.ioctl(r, 0x8901, bytes(4)), group=lambda: fcntl.ioctl(r, 0x8902, bytes(4)),
)
os.close(r); os.close(w)""",
    "tracing": """
attempts(attach=lambda: c("ptrace", 16, victim, None, None), me=raw(101, 117, 0, 0, 0, 0),
         seize=lambda: c("ptrace", 0x4206, parent, None, None),
         kcmp=raw(312, 272, 0, 0, 0, 0, 0))""",
    "memory of others": """
word = ctypes.create_string_buffer(8)
attempts(
    read=lambda: c("process_vm_readv", victim, word, 1, word, 1, 0),
    write=lambda: c("process_vm_writev", parent, word, 1, word, 1, 0),
    file=lambda: open(f"/proc/{parent}/mem", "r+b"), advise=raw(440, 440, 0, 0, 0, 0, 0),
    release=raw(448, 448, 0, 0), move_pages=raw(279, 239, victim, 0, 0, 0, 0, 0),
    migrate=raw(256, 238, victim, 0, 0, 0),
)""",
    "priorities of others": """
attempts(
    nice=lambda: os.setpriority(os.PRIO_PROCESS, victim, 19),
    scheduler=lambda: os.sched_setscheduler(victim, os.SCHED_IDLE, os.sched_param(0)),
    attributes=raw(314, 274, victim, 0, 0), cores=lambda: os.sched_setaffinity(victim, {0}),
    disk=raw(251, 30, 1, victim, 0), limits=lambda: resource.prlimit(victim, 0, (1, 1)),
)""",
    "a priority and cores of its own choice": """
attempts(
    nice=lambda: os.nice(-5), real_time=lambda: os.sched_setscheduler(0, 1, os.sched_param(9)),
    deadline=raw(314, 274, 0, 0, 0), cores=lambda: os.sched_setaffinity(0, range(os.cpu_count())),
    disk=raw(251, 30, 1, 0, 0x2000),
)""",
    "limits of its own": """
def higher(kind):
    def set():
        soft, hard = resource.getrlimit(kind)
        try: resource.setrlimit(kind, (hard + 1, hard + 1))
        except ValueError as error: raise Refused from error  # as Python calls EPERM
    return set
attempts(data=higher(resource.RLIMIT_DATA), space=higher(resource.RLIMIT_AS),
         size=higher(resource.RLIMIT_FSIZE), files=higher(resource.RLIMIT_NOFILE),
         core=higher(resource.RLIMIT_CORE), stack=higher(resource.RLIMIT_STACK),
         locked=higher(resource.RLIMIT_MEMLOCK))""",
    "other users and groups": """
attempts(user=raw(105, 146, 0), group=raw(106, 144, 0), both=raw(113, 145, 0, 0),
         three=raw(117, 147, 0, 0, 0), groups=raw(116, 159, 0, 0), file_user=raw(122, 151, 0),
         file_group=raw(123, 152, 0))""",
    "capabilities": """
attempts(set=raw(126, 91, 0, 0), keep=lambda: c("prctl", 8, 1, 0, 0, 0),
         ambient=lambda: c("prctl", 47, 2, 21, 0, 0), bits=lambda: c("prctl", 28, 1, 0, 0, 0))""",
    "namespaces": """
attempts(user=raw(272, 97, 0x10000000), mounts=raw(272, 97, 0x20000), network=raw(272, 97, 1 << 30),
         processes=raw(272, 97, 0x20000000), join=raw(308, 268, 0, 0),
         clone=raw(56, 220, 0x10000011, 0, 0, 0, 0))""",
    "leaving the sandbox": """
attempts(parent_death=lambda: c("prctl", 1, 0, 0, 0, 0), hidden=lambda: c("prctl", 4, 0, 0, 0, 0),
         traced=lambda: c("prctl", 0x59616D61, -1, 0, 0, 0), filter=raw(317, 277, 1, 0, 0),
         old_filter=lambda: c("prctl", 22, 2, 0, 0, 0), rules=raw(444, 444, 0, 0, 1),
         memory_map=lambda: c("prctl", 35, 8, 0, 0, 0),
         privileges=lambda: c("prctl", 38, 0, 0, 0, 0), sud=lambda: c("prctl", 59, 1, 0, 0, 0))""",
    "another kind of machine": """
attempts(personality=raw(135, 92, 0x40000), ldt=raw(154, None, 0, 0, 0), iopl=raw(172, None, 3),
         ioperm=raw(173, None, 0, 1, 1))""",
    "system calls by other numbers": """
def int80():
    # mov eax, 20 (getpid); int 0x80; ret: through the 32-bit door.
    if os.uname().machine != "x86_64": raise Refused
    page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
    page.write(bytes.fromhex("b814000000cd80c3"))
    code = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    result = code()
    if result < 0: raise OSError(-result, "")
    return result
attempts(x32=raw(0x40000000 + 41, 0x40000000 + 198, 2, 1, 0), unknown=raw(600, 600),
         negative=raw(-1 & 0xFFFFFFFF, -1 & 0xFFFFFFFF), thirty_two_bits=int80)""",
    "modules and the machine itself": """
attempts(load=raw(175, 105, 0, 0, 0), load_file=raw(313, 273, 0, 0, 0), remove=raw(176, 106, 0, 0),
         reboot=raw(169, 142, 0, 0, 0), kexec=raw(246, 104, 0, 0, 0, 0), account=raw(163, 89, 0),
         hang_up=raw(153, 58))""",
    "programs for the kernel": """
attempts(bpf=raw(321, 280, 0, 0, 0), perf=raw(298, 241, 0, 0, 0, 0, 0),
         page_faults=raw(323, 282, 0), lookup=raw(212, 18, 0, 0, 0))""",
    "watching files": """
attempts(inotify=raw(294, 26, 0), fanotify=raw(300, 262, 0, 0))""",
    "keys typed into a terminal": """
attempts(type=lambda: fcntl.ioctl(1, 0x5412, b"x"), paste=lambda: fcntl.ioctl(1, 0x541C, b"x"),
         control=lambda: fcntl.ioctl(1, 0x540E, 1), by_number=raw(16, 29, 0, 0x5412, 0),
         high_bits=raw(16, 29, 0, (1 << 32) | 0x5412, 0))""",
    "the clock and the machine's name": """
attempts(clock=raw(227, 112, 0, 0), day=raw(164, 170, 0, 0), adjust=raw(159, 171, 0),
         clock_adjust=raw(305, 266, 0, 0), host=raw(170, 161, 0, 1), domain=raw(171, 162, 0, 1))""",
    # --- limits that are not reached by the plain way
    "memory shared beyond the process": """
from multiprocessing import shared_memory
attempts(
    system_v=raw(29, 194, 0, 4096, 0o1600), semaphores=raw(64, 190, 0, 1, 0o1600),
    queues=raw(68, 186, 0, 0o1600), posix_queue=raw(240, 180, 0, 0, 0, 0),
    python=lambda: shared_memory.SharedMemory(create=True, size=4096),
    anonymous=lambda: mmap.mmap(-1, 1 << 20),
    validated=raw(9, 222, 0, 1 << 20, 3, 0x23, -1, 0),
)""",
    "stacks that grow uncounted": """
attempts(down=raw(9, 222, 0, 1 << 20, 3, 0x122, -1, 0),
         copied=raw(25, 216, 0, 4096, 4096, 1 | 4, 0))""",
    "locked and huge pages": """
page = mmap.mmap(-1, 1 << 16, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
huge = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000
attempts(lock=lambda: c("mlock", ctypes.c_void_p(address), ctypes.c_size_t(1 << 16)),
         all=lambda: c("mlockall", 3), huge=lambda: mmap.mmap(-1, 2 << 30, huge))""",
    "allocations beyond the limit": """
libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
def malloc():
    if not libc.malloc(ctypes.c_size_t(2 << 30)): raise MemoryError
def brk():
    if libc.sbrk(ctypes.c_long(2 << 30)) == 2**64 - 1: raise MemoryError
def writable_later():
    size = 2 << 30
    at = libc.mmap(None, ctypes.c_size_t(size), 1, 0x22, -1, ctypes.c_long(0))
    if at == 2**64 - 1: raise MemoryError
    try: c("mprotect", ctypes.c_void_p(at), ctypes.c_size_t(size), 3)
    finally: libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
def array():
    import numpy as np
    return np.ones((2 << 30) // 8)
attempts(bytes=lambda: bytearray(2 << 30), malloc=malloc, brk=brk, writable_later=writable_later,
         array=array, text=lambda: "x" * (2 << 30), number=lambda: 1 << (16 << 30),
         map=lambda: mmap.mmap(-1, 2 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))""",
    "descriptors without end": """
def flood(make):
    kept = []
    try:
        while len(kept) < 5000: kept += make()
        return len(kept)
    finally:
        for fd in kept: os.close(fd)
attempts(files=lambda: flood(lambda: [os.open("/dev/null", os.O_RDONLY)]),
         pipes=lambda: flood(os.pipe), events=lambda: flood(lambda: [os.eventfd(0)]))""",
    "tables of descriptors of their own": """
# What a thread keeps open in a table of its own cannot be seen from outside, nor counted.
attempts(close_range=raw(436, 436, 100, 200, 2), unshare=raw(272, 97, 0x400),
         thread=raw(56, 220, 0x3D0F00 & ~0x400, 0, 0, 0, 0))""",
    "memory in pipes": """
def fill():
    held, pipes = 0, []
    try:
        while held < 128 << 20:
            r, w = os.pipe()
            pipes += [r, w]
            try: fcntl.fcntl(w, 1031, 1 << 20)
            except OSError: pass
            os.set_blocking(w, False)
            try:
                while True: held += os.write(w, bytes(1 << 16))
            except BlockingIOError: pass
        return held
    finally:
        for fd in pipes: os.close(fd)
attempts(fill=fill)""",
    "memory in locks": """
def lock(how):
    # Each range apart from the others is a record in the kernel's memory, which no limit counts.
    with open("locks", "wb") as file:
        for i in range(2000): how(file, i)
attempts(record=lambda: lock(lambda file, i: fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * i)),
         waiting=lambda: lock(lambda file, i: fcntl.lockf(file, 6, 1, 2 * i)),
         open_file=lambda: lock(lambda file, i: fcntl.fcntl(file, 37, bytes(32))))""",
    "space reserved at once": """
def reserve(mode):
    fd = os.open("reserved", os.O_RDWR | os.O_CREAT)
    try: c("fallocate", fd, mode, ctypes.c_long(0), ctypes.c_long(1 << 20))
    finally: os.close(fd)
attempts(reserve=lambda: reserve(0), keep_size=lambda: reserve(1), zero=lambda: reserve(0x10))""",
    "files larger than the disk space": """
def sparse(size):
    with open("sparse", "wb") as file: file.truncate(size)
def written_far():
    with open("sparse", "wb", buffering=0) as file: file.seek(1 << 40); file.write(b"x")
attempts(sparse=lambda: sparse(1 << 40), written_far=written_far)""",
    "moving files while they are counted": """
os.makedirs("here/folder", exist_ok=True); os.makedirs("there", exist_ok=True)
open("here/file", "w").close()
attempts(
    file=lambda: os.rename("here/file", "there/file"), up=lambda: os.rename("here/file", "file"),
    folder=lambda: os.rename("here/folder", "there/folder"),
    another_name=lambda: os.rename("here", "elsewhere"), another_place=lambda: os.rmdir("there"),
    link=lambda: os.link("here/file", "file"),
    exchange=lambda: c("renameat2", -100, b"here", -100, b"there", 2),
)""",
}  # fmt: skip

NEEDS_MOUNT_NAMESPACE = {
    "libraries from its folder": """
import _ctypes
data = open(_ctypes.__file__, "rb").read()
open("evil.so", "wb").write(data)
def mapped():
    fd = os.open("evil.so", os.O_RDONLY)
    try: return mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    finally: os.close(fd)
def loaded():
    try: return ctypes.CDLL(os.path.abspath("evil.so"))
    except OSError as error: raise Refused from error
def executable_later():
    fd = os.open("evil.so", os.O_RDONLY)
    at = libc.mmap(None, ctypes.c_size_t(4096), 1, 2, fd, ctypes.c_long(0))
    os.close(fd)
    return c("mprotect", ctypes.c_void_p(at), ctypes.c_size_t(4096), 5)
attempts(loaded=loaded, mapped=mapped, executable_later=executable_later)""",
}
"""Refused only where the kernel gives out mount namespaces. Machine code can be brought in by other
ways, too: the wall holds against it."""


@dataclass(frozen=True)
class Ending:
    """Code that ends its sandbox, or is ended: for which reasons, and what the message says."""

    source: str
    reasons: str
    says: str = ""
    limits: dict[str, Any] = field(default_factory=dict)
    holds: Callable[[Ended], bool] = lambda _: True


def _hang(source: str) -> Ending:
    return Ending(source, "wall clock", "longer than its 0.4 s", {"wall_seconds": 0.4})


def _fills(source: str, **limits: Any) -> Ending:
    """Writes 4 MiB at a time and sends a line after each; a full disk may be its own end."""
    allowed = {"disk_bytes": 32 * MIB, "max_files": 500, **limits}

    def holds(ended: Ended) -> bool:
        fixed = "tmpfs" in ended.process.layers["namespaces"]
        # The last one may not have got all of its bytes in.
        return (len(ended.lines) - 1) * 4 * MIB <= (allowed["disk_bytes"] if fixed else 600 * MIB)

    return Ending(source, "disk, failed", "", allowed, holds)


def _outgrows(source: str) -> Ending:
    """Fills memory that RLIMIT_DATA does not count, and sends a line after each 16 MiB."""
    allowed = {"memory_bytes": 256 * MIB, "address_bytes": 128 * MIB}
    return Ending(
        source, "memory, crashed", "", allowed, lambda ended: 0 < len(ended.lines) * 16 <= 384
    )


def _small_tail(ended: Ended) -> bool:
    return len(ended.exit.output_tail) < 40_000 and len(ended.exit.message) < 1000


_MAP_AND_DELETE = """
import ctypes, os, time
libc = ctypes.CDLL(None)  # Python's own mmap would keep the file open
for i in range(400):
    file = open(f"f{i}", "w+b"); allocate(file)
    libc.mmap(None, ctypes.c_size_t(4096), 1, 2, file.fileno(), ctypes.c_long(0))
    os.unlink(f"f{i}"); file.close()
    send(b"allocated"); time.sleep(.005)
time.sleep(60)
"""

_SPLIT_STACK = """
import ctypes, re, resource, threading
hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
page, size = 4096, 48 << 20
number = ctypes.c_size_t
stack = re.search(r"^(\\w+)-\\w+ .*\\[stack\\]$", open("/proc/self/maps").read(), re.M)
bottom = int(stack[1], 16)
def grow(end):
    for at in range(end - (16 << 20), end - size - 1, -(16 << 20)):
        ctypes.memset(ctypes.c_void_p(at), 1, 16 << 20); send(b"16")
"""

ENDED: dict[str, Ending] = {
    # --- memory and threads
    "fifty gigabytes at once": Ending(
        "import numpy as np\nnp.ones(50 * 2**30 // 8)", "memory", "1.0 GiB", {"memory_bytes": GIB}
    ),
    "memory that grows slowly": Ending(
        "kept = []\nwhile True: kept.append(bytearray(1 << 20))",
        "memory", "256.0 MiB", {"memory_bytes": 256 * MIB},
    ),
    "a stack that is moved": Ending(
        """
        import ctypes, re, resource
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
        start, end = (int(part, 16) for part in re.search(
            r"^(\\w+)-(\\w+) .*\\[stack\\]$", open("/proc/self/maps").read(), re.M).groups())
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
        size = 1 << 30
        hole = libc.mmap(None, ctypes.c_size_t(size), 0, 0x22, -1, 0)
        libc.munmap(ctypes.c_void_p(hole), ctypes.c_size_t(size))
        page = libc.mremap(ctypes.c_void_p(start), ctypes.c_size_t(4096), ctypes.c_size_t(4096),
                           3, ctypes.c_void_p(hole + size - 4096))
        for offset in range(4096, size, 4096):
            ctypes.memset(hole + size - offset, 1, 1)
            if offset % (1 << 26) == 0: send(b"%d" % offset)
        """,
        "crashed, memory", "", {"memory_bytes": GIB},
        lambda ended: len(ended.lines) <= 2,  # 64 MiB each
    ),
    "stacks split by moving their pages": _outgrows(
        _SPLIT_STACK
        + """
ctypes.memset(bottom - (1 << 20), 1, 1)
for i in range(60):
    hole = libc.mmap(None, number(size + page), 0, 0x22, -1, 0)
    libc.munmap(ctypes.c_void_p(hole), number(size + page))
    source, target = bottom - (1 << 20) + i * page, hole + size
    libc.mremap(ctypes.c_void_p(source), number(page), number(page), 3, ctypes.c_void_p(target))
    grow(target)
"""
    ),
    "stacks split by giving up pages between": _outgrows(
        _SPLIT_STACK
        + """
for i in range(60):
    grow(bottom)
    bottom -= size
    libc.munmap(ctypes.c_void_p(bottom + page), number(page))
"""
    ),
    "memory made read-only once it is full": _outgrows(
        """
        import ctypes
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        size = ctypes.c_size_t(16 << 20)
        while True:
            at = libc.mmap(None, size, 3, 0x22, -1, ctypes.c_long(0))
            if at == 2**64 - 1: raise MemoryError
            ctypes.memset(at, 1, size); send(b"16")
            libc.mprotect(ctypes.c_void_p(at), size, 1)
        """
    ),
    "a fork bomb": Ending("import os\nwhile True: os.fork()", "failed", "PermissionError"),
    "a thread bomb": Ending(
        "import threading, time\nthreading.stack_size(256 << 10)\n"
        "while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "threads, failed", "thread", {"memory_bytes": GIB, "max_threads": 64},
    ),
    "a thread bomb with large stacks": Ending(
        "import threading, time\nthreading.stack_size(8 << 20)\n"
        "while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "threads, failed", "thread", {"memory_bytes": GIB, "max_threads": 64},
    ),
    "endless recursion": Ending("def f(): f()\nf()", "failed", "RecursionError"),
    "endless recursion on the C stack": Ending(
        "import sys; sys.setrecursionlimit(10**9)\n"
        "class A: __getattr__ = lambda s, n: getattr(s, n)\nA().x",
        "crashed, failed, memory", "", {"memory_bytes": GIB},
    ),
    # --- disk
    "one big file": Ending(
        "file = open('big', 'wb')\nwhile True: file.write(bytes(1 << 20))",
        "failed, disk", "", {"disk_bytes": 16 * MIB},
    ),
    "many files": _fills(
        "for i in range(10**9): open(f'file{i % 60}', 'wb').write(bytes(4 << 20)); send(b'.')"
    ),
    "a flood of empty files": _fills("for i in range(10**9): open(f'file{i}', 'wb').close()"),
    "folders without a bottom": _fills(
        "import os\nfor i in range(10**9): os.mkdir('d'); os.chdir('d')"
    ),
    # On a file system of its own they end with it; else the parent must be able to count.
    "folders closed to the parent": Ending(
        "import os, time\nos.makedirs('a/b'); os.mkdir('a/b/c', 0)\n"
        "for i in range(40): os.mkdir('d'); os.chdir('d')\ntime.sleep(1)",
        "disk, finished",
    ),
    "deleted files that stay open": _fills(
        """
        import os, time
        kept = []
        for i in range(60):
            file = open("f", "wb"); file.write(bytes(4 << 20)); file.flush(); os.unlink("f")
            kept.append(file); send(b".")
        time.sleep(60)
        """
    ),
    "deleted files behind a main thread that ended": _fills(
        """
        import ctypes, os, threading, time
        def keep():
            time.sleep(.2)
            kept = []
            for i in range(200):
                file = open("f", "wb"); kept.append(file)
                try: file.write(bytes(4 << 20)); file.flush(); os.unlink("f")
                except OSError: break
                send(b"."); time.sleep(.01)
            time.sleep(60)
        threading.Thread(target=keep, daemon=True).start()
        ctypes.CDLL(None).pthread_exit(None)
        """
    ),
    "files that never had a name": _fills(
        """
        import os, time
        kept = []
        for i in range(60):
            kept.append(os.open(".", os.O_TMPFILE | os.O_RDWR)); os.write(kept[-1], bytes(4 << 20))
            send(b".")
        time.sleep(60)
        """
    ),
    "deleted files that stay mapped": _fills(
        "def allocate(file): file.write(bytes(4 << 20)); file.flush()" + _MAP_AND_DELETE,
        disk_bytes=64 * MIB, max_files=5000,
    ),
    "space reserved by the C library, then deleted": _fills(
        "import os\ndef allocate(file): os.posix_fallocate(file.fileno(), 0, 4 << 20)"
        + _MAP_AND_DELETE,
        disk_bytes=64 * MIB, max_files=5000,
    ),
    "deleted mapped files by the thousand": _fills(
        """
        import ctypes, os
        libc = ctypes.CDLL(None)
        def keep(data):
            fd = os.open("f", os.O_CREAT | os.O_RDWR)
            written = os.write(fd, data)
            libc.mmap(None, ctypes.c_size_t(4096), 1, 2, fd, ctypes.c_long(0))
            os.unlink("f"); os.close(fd)
            return written
        for _ in range(6000): keep(b"")
        while True:
            if keep(bytes(4 << 20)) == 4 << 20: send(b".")
        """,
        disk_bytes=16 * MIB, max_files=10_000,
    ),
    "more mappings than can be counted": _fills(
        """
        import ctypes, time
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        at = libc.mmap(None, ctypes.c_size_t(40_000 * 4096), 0, 0x22, -1, ctypes.c_long(0))
        for i in range(0, 40_000, 2):
            libc.mprotect(ctypes.c_void_p(at + i * 4096), ctypes.c_size_t(4096), 1)
        for i in range(10**9): open(f"file{i % 60}", "wb").write(bytes(4 << 20)); send(b".")
        """,
        disk_bytes=16 * MIB,
    ),
    "mappings that change while they are counted": _fills(
        """
        import ctypes, mmap, os, threading
        libc = ctypes.CDLL(None)
        size = ctypes.c_size_t(256 << 20)
        area = mmap.mmap(-1, 256 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        at = ctypes.addressof(ctypes.c_char.from_buffer(area))
        ctypes.memset(at, 1, size)
        def change():
            while True:
                for rights in (1, 3): libc.mprotect(ctypes.c_void_p(at), size, rights)
        for _ in range(4): threading.Thread(target=change, daemon=True).start()
        kept = []
        while True:
            file = open("f", "wb"); file.write(bytes(4 << 20)); file.flush(); os.unlink("f")
            kept.append(file); send(b".")
        """,
        disk_bytes=16 * MIB,
    ),
    "files written through a mapping": _fills(
        """
        import mmap, time
        for i in range(200):
            with open(f"f{i}", "w+b") as file:
                file.truncate(4 << 20)
                with mmap.mmap(file.fileno(), 4 << 20) as area: area.write(b"x" * (4 << 20))
            send(b"."); time.sleep(.005)
        time.sleep(60)
        """
    ),
    "files renamed while they are counted": _fills(
        """
        import os, threading, time
        def rename(i):
            while True:
                os.rename(f"a{i}", f"b{i}"); os.rename(f"b{i}", f"a{i}")
        for i in range(200):
            with open(f"a{i}", "wb") as file: file.write(bytes(4 << 20))
            threading.Thread(target=rename, args=(i,), daemon=True).start()
            send(b"."); time.sleep(.02)
        time.sleep(60)
        """
    ),
    # --- time
    "an endless loop": _hang("while True: pass"),
    "a sleep without end": _hang("import time; time.sleep(10**6)"),
    "a hang in C": _hang("import ctypes; ctypes.CDLL(None).pause()"),
    "a hang in C with the interpreter's lock": _hang(
        "import ctypes; ctypes.PyDLL(None).sleep(10**6)"
    ),
    "signals blocked and ignored": _hang(
        """
        import signal
        for s in signal.valid_signals() - {9, 19}: signal.signal(s, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True: pass
        """
    ),
    "a process that stops itself": _hang("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"),
    "a regular expression that blows up": _hang("import re; re.match('(a*)*b', 'a' * 64)"),
    "a number that takes for ever": _hang("9 ** 9 ** 8 % 7"),
    "an exception that hangs when it is printed": _hang(
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E"
    ),
    "a crash that is caught for ever": _hang(
        """
        import ctypes, signal
        libc = ctypes.CDLL(None)
        handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
        libc.signal(signal.SIGSEGV, handler)
        ctypes.string_at(0)
        """
    ),
    "threads that outlive the end": Ending(
        "import threading, time\n"
        "for _ in range(4): threading.Thread(target=time.sleep, args=(60,)).start()",
        "finished",
    ),
    "handlers that run at the end": Ending(
        "import atexit, sys, threading, time\natexit.register(time.sleep, 60)\n"
        "threading._register_atexit(time.sleep, 60)\n"
        "class Late:\n    def __del__(self): time.sleep(60)\nkept = Late()",
        "finished",
    ),
    "silence": Ending(
        "import time; send(b'once'); time.sleep(60)", "stalled", "0.4 s", {"stall_seconds": 0.4},
        lambda ended: ended.lines == [b"once"],
    ),
    "more CPU time than allowed": Ending(
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "cpu time", "1 s of CPU time", {"cpu_seconds": 1},
        lambda ended: ended.exit.cpu_seconds >= 1,
    ),
    # --- what it says
    "a line without end": Ending(
        "import os, sys\nwhile True: os.write(int(sys.argv[1]), bytes(1 << 16))",
        "protocol", "a line of more than",
    ),
    "a flood of lines": Ending(
        "import os, sys\nfor _ in range(10): os.write(int(sys.argv[1]), b'x\\n' * (1 << 15))",
        "finished",
    ),
    "a flood of output": Ending(
        "print('first')\nfor i in range(3000): print('x' * 9999)\nprint('last')",
        "finished", "", {},
        lambda ended: _small_tail(ended) and ended.exit.output_tail.endswith("last\n"),
    ),
    "a message without end": Ending(
        "raise ValueError('x' * 10**8)", "failed", "xxx", {}, _small_tail
    ),
    "closed pipes": Ending(
        "import os, time; os.closerange(0, 99); time.sleep(60)", "protocol", "closed the pipe"
    ),
    # --- how it ends
    "leaving without a word": Ending(
        "import os; os._exit(0)", "crashed", "exited before its end"
    ),
    "leaving with a number": Ending("import os; os._exit(7)", "crashed", "7"),
    "leaving politely": Ending("import sys; sys.exit(0)", "failed", "SystemExit"),
    "claiming to be out of memory or sandbox": Ending(
        "import os; os._exit(114)", "crashed", "114"
    ),
    "a crash in machine code": Ending("import ctypes; ctypes.string_at(0)", "crashed", "SIGSEGV"),
    "an abort": Ending("import os; os.abort()", "crashed", "SIGABRT"),
    "its own death as if from outside": Ending(
        "import os; os.kill(os.getpid(), 9)", "killed from outside", "SIGKILL"
    ),
    "an interpreter turned inside out": Ending(
        """
        import builtins, json, os, sys, traceback
        sys.modules["traceback"] = sys.modules["os"] = None
        traceback.print_exc = json.dumps = json.loads = os._exit = sys.exit = lambda *_: None
        builtins.__import__ = builtins.print = builtins.BaseException = None
        sys.excepthook = sys.unraisablehook = sys.stdout = sys.stderr = None
        raise ValueError("mine")
        """,
        "failed, crashed, finished",
    ),
    "hooks around imports and calls": Ending(
        """
        import sys, threading
        class Finder:
            def find_spec(self, *_): raise SystemError("no module for anyone")
        sys.meta_path[:] = [Finder()]; sys.path_hooks.clear(); sys.modules.clear()
        sys.setprofile(lambda *_: None); sys.settrace(lambda *_: None)
        import numpy
        """,
        "failed", "no module for anyone",
    ),
}  # fmt: skip

_NPZ = """
import io, zipfile, numpy as np
def npz(name, **members):
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, data in members.items(): archive.writestr(key + ".npy", data)
def npy(array):
    stream = io.BytesIO(); np.save(stream, array, allow_pickle=True); return stream.getvalue()
"""

LEFT: dict[str, str] = {
    "a pickle instead of arrays": "import os, pickle\n"
    "class Boom:\n    def __reduce__(self): return os._exit, (99,)\n"
    "pickle.dump(Boom(), open('x.npz', 'wb'))",
    "a pickle among arrays": _NPZ + "class Boom:\n    def __reduce__(self): return print, (99,)\n"
    "npz('x.npz', a=npy(np.array([Boom()], dtype=object)))",
    "arrays that unpack to far more than allowed": _NPZ
    + "with zipfile.ZipFile('x.npz', 'w', zipfile.ZIP_DEFLATED) as archive:\n"
    "    with archive.open('a.npy', 'w', force_zip64=True) as member:\n"
    "        member.write(npy(np.zeros(1))[:128]); zeros = bytes(1 << 24)\n"
    "        for _ in range(4): member.write(zeros)",
    "an archive that lies about its sizes": _NPZ + "import struct\n"
    "npz('x.npz', a=npy(np.zeros(32 << 20, np.uint8))); data = open('x.npz', 'rb').read()\n"
    "size = struct.pack('<I', (32 << 20) + 128)\nassert size in data\n"
    "open('x.npz', 'wb').write(data.replace(size, struct.pack('<I', 4096)))",
    "more arrays than anyone has": _NPZ + "npz('x.npz', **{f'a{i}': b'' for i in range(2000)})",
    "an array of a made-up shape": _NPZ
    + "head = npy(np.zeros(1)).replace(b'(1,), ', b'(1 << 40,)'[:6])\n"
    "npz('x.npz', a=npy(np.zeros(1)).replace(b'(1,)', b'(9,)'))",
    "arrays with names of paths": _NPZ + "npz('x.npz', **{'../../a': npy(np.zeros(1))})",
    "a folder instead of a file": "import os; os.mkdir('x.npz')",
    "a sparse file beyond any bound": "open('x.npz', 'wb').truncate(1 << 30)",
}
"""Each leaves ``x.npz``; read with a bound of 4 MiB."""

POLICIES: dict[str, str] = {
    "weights with a forged header": 'head = b\'{"a":{"dtype":"F32","shape":[1099511627776],'
    '"data_offsets":[0,4398046511104]}}\'\n'
    "open('x', 'wb').write(len(head).to_bytes(8, 'little') + head + bytes(4))",
    "weights with a header without end": "open('x', 'wb').write((1 << 62).to_bytes(8, 'little'))",
    "weights with a deeply nested header": "head = b'[' * 100_000\n"
    "open('x', 'wb').write(len(head).to_bytes(8, 'little') + head)",
    "a pickle instead of weights": "import pickle\n"
    "open('x', 'wb').write(pickle.dumps({'a': print}))",
}
"""Each leaves ``x``, to be read as a policy."""

SENT: dict[str, str] = {
    "lines that are no JSON": r"send(b'x'); send(b'\xff\xfe\x00'); send(b'{}{}')",
    "lines that are no objects": "send(b'[1]'); send(b'1'); send(b'null')",
    "lines nested without end": """
for deep in (100, 60_000): send(b'{"a":' + b'[' * deep + b']' * deep + b'}')
send(b'[' * 60_000)""",
    "numbers without end": """
send(b'{"a": 1' + b'0' * 60 + b'}'); send(b'{"a": 1' + b'0' * 10**6 + b'}')""",
    "numbers that are none": """
for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999"): send(b'{"a": [' + number + b']}')""",
}
"""Each sends lines that are no message."""

BATCHED = REFUSED | NEEDS_MOUNT_NAMESPACE
KINDS: tuple[str, ...] = (*BATCHED, *ENDED, *LEFT, *POLICIES, *SENT)


@contextlib.contextmanager
def victims(folder: Path) -> Iterator[dict[str, Any]]:
    """What hostile code could harm, for it to find; unharmed afterwards."""
    secret, outside = folder / "home" / ".ssh" / "id_ed25519", folder / "outside"
    library = folder / "library.py"
    secret.parent.mkdir(parents=True)
    for path in (secret, outside, library):
        path.write_text(PLANTED)
    before = [path.stat() for path in (secret, outside, library)]
    entries = sorted(folder.iterdir())
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        try:
            yield {
                "secret": str(secret), "outside": str(outside), "library": str(library),
                "root": str(REPOSITORY), "victim": process.pid, "parent": os.getpid(),
                "parent_group": os.getpgid(0), "port": server.getsockname()[1],
            }  # fmt: skip
            assert process.poll() is None, "another process was killed"
            state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state in "RSD", f"another process was brought into state {state}"
            server.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                raise AssertionError(f"somebody called: {server.accept()}")
        finally:
            process.kill()
            process.communicate()
    after = [path.stat() for path in (secret, outside, library)]
    for old, new in zip(before, after, strict=True):
        for name in ("st_mode", "st_uid", "st_gid", "st_mtime_ns", "st_size", "st_nlink"):
            assert getattr(old, name) == getattr(new, name), name
    assert sorted(folder.iterdir()) == entries


def refused_problems(folder: Path, kinds: Sequence[str], *, gpu: bool = False) -> dict[str, str]:
    """What went wrong with each kind: every try that was not refused."""
    inside = folder / "inside"
    inside.mkdir()
    os.environ["P2P_PLANTED"] = PLANTED
    with victims(folder) as found:
        sandbox = Sandbox(
            folder=inside, import_paths=(INSIDE,), readable=(Path(found["library"]),),
            memory_bytes=GIB, disk_bytes=256 * MIB, wall_seconds=60.0, gpu=gpu,
            warm=Runner.warm,
        )  # fmt: skip
        payload = {
            "kinds": {kind: BATCHED[kind] for kind in kinds},
            "victims": {**found, "folder": str(inside)},
        }
        with start("try_all", payload, sandbox) as process:
            lines = list(process.lines())
            end = process.wait()
    outcomes: dict[str, dict[str, str]] = {}
    for line in lines:
        outcomes |= json.loads(line)
    problems: dict[str, str] = {}
    for kind in kinds:
        tries = outcomes.get(kind)
        bad = {name: text for name, text in (tries or {}).items() if text}
        problems[kind] = json.dumps(bad) if bad else "" if tries else f"did not run: {end}"
    return problems


def problem_of(folder: Path, kind: str) -> str:
    """What went wrong with a kind that has a sandbox to itself."""
    runner = Runner(folder)
    if kind in ENDED:
        ending = ENDED[kind]
        ended = runner(ending.source, **ending.limits)
        if ended.exit.reason not in ending.reasons.split(", "):
            return f"ended otherwise: {ended.exit}"
        good = ending.says in ended.exit.message and ending.holds(ended)
        return "" if good else f"ended as it should, but: {ended.exit}, {len(ended.lines)} lines"
    if kind in SENT:
        lines = runner(SENT[kind]).lines
        used = [
            line[:80] for line in lines if not _is_refused(lambda line=line: read_message(line))
        ]
        return f"used as messages: {used}" if used or not lines else ""
    ended = runner({**LEFT, **POLICIES}[kind], memory_bytes=2 * GIB)
    if not ended.exit.ok:
        return f"did not leave its file: {ended.exit}"
    return "" if _is_refused(lambda: _use(ended.folder, kind)) else "used as a result"


def _use(folder: Path, kind: str) -> object:
    from p2p.training.policies.policy import Policy, PolicyFileError

    if kind in LEFT:
        return read_arrays(folder, "x.npz", max_bytes=4 * MIB)
    try:
        return Policy.from_bytes((folder / "x").read_bytes(), "x")
    except PolicyFileError as error:
        raise UntrustedResultError(str(error)) from error


def _is_refused(use: Callable[[], object]) -> bool:
    try:
        use()
    except UntrustedResultError:
        return True
    return False


def problems(folder: Path, kinds: Sequence[str] = ()) -> dict[str, str]:
    """What went wrong with each of these kinds, or with all."""
    entered = layers().namespaces
    chosen = [
        kind for kind in kinds or KINDS if "mount" in entered or kind not in NEEDS_MOUNT_NAMESPACE
    ]
    alone = [kind for kind in chosen if kind not in BATCHED]
    folders = [folder / f"kind{i}" for i in range(len(alone) + 1)]
    for each in folders:
        each.mkdir()
    together = [kind for kind in chosen if kind in BATCHED]
    found = refused_problems(folders.pop(), together) if together else {}
    with ThreadPoolExecutor(4) as pool:
        return found | dict(zip(alone, pool.map(problem_of, folders, alone), strict=True))


def _become_nobody() -> None:
    """Become a user without any right; where Python lies in a closed home, show that part of it."""
    from p2p.sandbox import kernel

    bind, recursive, private = 4096, 16384, 1 << 18
    prefix = Path(sys.base_prefix)
    closed = [path for path in prefix.parents if not path.stat().st_mode & 1]
    if closed:
        kernel.syscall("unshare", 0x20000)  # mounts of this process's own
        kernel.mount(None, "/", recursive | private)
        shown = Path(tempfile.mkdtemp(prefix="p2p-hostile-"))
        shown.chmod(0o755)
        (shown / prefix.relative_to(closed[-1])).mkdir(parents=True)
        kernel.mount(str(prefix), str(shown / prefix.relative_to(closed[-1])), bind)
        kernel.mount(str(shown), str(closed[-1]), bind | recursive)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def _refuse_namespaces() -> None:
    """Have the kernel refuse namespaces to this process and its children, as containers do."""
    from p2p.sandbox import kernel, seccomp

    refused = kernel.numbers(kernel.SETUP, kernel.machine())["unshare"]
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install(
        [(0x20, 0, 0, 0), (0x15, 0, 1, refused), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
    )


def _fork_them() -> None:
    """Fork them from a server that has imported what trials need."""
    Runner.warm = TRIALS


NOBODY = 65534
MODES: dict[str, Callable[[], None]] = {
    "without root": _become_nobody,
    "without namespaces": _refuse_namespaces,
    "forked": _fork_them,
}

if __name__ == "__main__":
    MODES[sys.argv[1]]()
    report = {
        "uid": os.getuid(),
        "namespaces": layers().namespaces,
        "problems": problems(Path(sys.argv[2]), sys.argv[3:]),
    }
    print(json.dumps(report))
