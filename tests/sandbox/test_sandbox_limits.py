"""Memory, disk, threads, time; hangs, floods and crashes. Each ends with a reason of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sandbox_runner import Runner

MIB = 1 << 20
GIB = 1 << 30

_KEEP_DELETED = """
import os, time
kept = []
for i in range(60):
    file = open("f", "wb"); file.write(bytes(1 << 20)); file.flush(); os.unlink("f")
    kept.append(file)
time.sleep(60)
"""
_BLOCK_SIGNALS = """
import signal
for s in signal.valid_signals() - {9, 19}: signal.signal(s, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True: pass
"""


def test_fifty_gigabytes_cannot_be_allocated(sandbox: Runner) -> None:
    ended = sandbox("import numpy as np\nnp.ones(50 * 2**30 // 8)", memory_bytes=GIB)
    assert ended.exit.reason == "memory"
    assert "1.0 GiB" in ended.exit.message


def test_an_allocation_beyond_the_limit_is_an_exception_the_code_can_catch(sandbox: Runner) -> None:
    sandbox.refused(
        """
        import ctypes, mmap
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        def malloc():
            if not libc.malloc(ctypes.c_size_t(2 << 30)): raise MemoryError
        attempts(bytes=lambda: bytearray(2 << 30), malloc=malloc,
                 map=lambda: mmap.mmap(-1, 2 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        """,
        memory_bytes=GIB,
    )


def test_slowly_growing_memory_ends_too(sandbox: Runner) -> None:
    ended = sandbox(
        "kept = []\nwhile True: kept.append(bytearray(1 << 20))", memory_bytes=256 * MIB
    )
    assert ended.exit.reason == "memory"


def test_one_big_file_fills_no_disk(sandbox: Runner) -> None:
    ended = sandbox(
        "file = open('big', 'wb')\nwhile True: file.write(bytes(1 << 20))", disk_bytes=16 * MIB
    )
    assert ended.exit.reason in {"failed", "disk"}
    assert (sandbox.folder / "big").stat().st_size <= 16 * MIB


@pytest.mark.parametrize(
    "source",
    [
        "for i in range(10**9): open(f'file{i % 60}', 'wb').write(bytes(1 << 20))",
        "for i in range(10**9): open(f'file{i}', 'wb').close()",
        "import os\nfor i in range(10**9): os.mkdir('d'); os.chdir('d')",
        # Deleted files that are kept open take space that no listing shows.
        _KEEP_DELETED,
    ],
    ids=["many files", "empty files", "deep folders", "deleted files"],
)
def test_disk_space_and_file_numbers_are_bounded(sandbox: Runner, source: str) -> None:
    ended = sandbox(source, disk_bytes=32 * MIB, max_files=500)
    assert ended.exit.reason == "disk", ended.exit


def test_folders_that_cannot_be_removed_the_usual_way_are_gone_afterwards(sandbox: Runner) -> None:
    ended = sandbox(
        """
        import os
        open("kept", "w").close()
        os.mkdir("closed"); os.mkdir("closed/a", 0)
        for i in range(100): os.mkdir("d"); os.chdir("d")
        """
    )
    assert ended.exit.reason == "disk"
    assert [path.name for path in sandbox.folder.iterdir()] == ["kept"]


@pytest.mark.parametrize("stack", [64 << 10, 8 << 20], ids=["small stacks", "large stacks"])
def test_a_thread_bomb_ends(sandbox: Runner, stack: int) -> None:
    ended = sandbox(
        "import threading, time\nthreading.stack_size(stack)\n"
        "while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        {"stack": stack},
        memory_bytes=GIB,
        max_threads=64,
    )
    assert ended.exit.reason in {"threads", "failed"}, ended.exit


@pytest.mark.parametrize(
    "source",
    [
        "import ctypes; ctypes.CDLL(None).pause()",
        "import ctypes; ctypes.PyDLL(None).sleep(1000)",
        _BLOCK_SIGNALS,
    ],
    ids=["in C", "in C with the GIL", "signals blocked"],
)
def test_a_hang_meets_the_wall_clock(sandbox: Runner, source: str) -> None:
    ended = sandbox(source, wall_seconds=0.6)
    assert ended.exit.reason == "wall clock"


def test_silence_is_a_stall_and_signs_of_life_are_not(sandbox: Runner) -> None:
    busy = sandbox(
        "import time\nfor i in range(8): send(b'alive'); time.sleep(.1)", stall_seconds=0.5
    )
    assert busy.exit.reason == "finished"
    silent = sandbox("import time; send(b'once'); time.sleep(60)", stall_seconds=0.5)
    assert silent.exit.reason == "stalled"
    assert silent.lines == [b"once"]


def test_cpu_time_is_limited(sandbox: Runner) -> None:
    ended = sandbox(
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        cpu_seconds=1,
    )
    assert ended.exit.reason == "cpu time"
    assert ended.exit.cpu_seconds >= 1


def test_an_endless_line_is_a_breach_of_protocol(sandbox: Runner) -> None:
    ended = sandbox(
        """
        import os
        links = {int(n): f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")}
        pipe = max(n for n, link in links.items() if os.path.exists(link))
        while True: os.write(pipe, bytes(1 << 16))
        """
    )
    assert ended.exit.reason == "protocol"


def test_a_flood_of_output_is_cut_and_its_ends_are_kept(sandbox: Runner) -> None:
    ended = sandbox("print('first')\nfor i in range(3000): print('x' * 9999)\nprint('last')")
    assert ended.exit.ok
    assert ended.exit.output_tail.startswith("first")
    assert ended.exit.output_tail.endswith("last\n")
    assert "bytes left out" in ended.exit.output_tail
    assert len(ended.exit.output_tail) < 40_000


@pytest.mark.parametrize(
    ("source", "reason", "word"),
    [
        ("import os; os._exit(0)", "crashed", "without coming to its end"),
        ("import os; os._exit(7)", "crashed", "7"),
        ("import sys; sys.exit(0)", "failed", "SystemExit"),
        ("raise ValueError('the reward is wrong')", "failed", "the reward is wrong"),
        ("import ctypes; ctypes.string_at(0)", "crashed", "SIGSEGV"),
        ("import os; os.abort()", "crashed", "SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", "killed from outside", "SIGKILL"),
        ("import os, time; os.closerange(0, 99); time.sleep(60)", "protocol", "closed"),
    ],
)  # fmt: skip
def test_every_way_to_end_is_told_apart(
    sandbox: Runner, source: str, reason: str, word: str
) -> None:
    ended = sandbox(source)
    assert ended.exit.reason == reason, ended.exit
    assert word in ended.exit.message


def test_a_crash_in_c_code_names_the_python_line(sandbox: Runner) -> None:
    ended = sandbox("import ctypes\n\nctypes.string_at(0)")
    assert 'File "<inside>", line 3' in ended.exit.output_tail


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
_ALLOCATE = {
    "written": "def allocate(file): file.write(bytes(4 << 20)); file.flush()",
    "reserved": "import os\ndef allocate(file): os.posix_fallocate(file.fileno(), 0, 4 << 20)",
}


@pytest.mark.parametrize("how", _ALLOCATE)
def test_deleted_files_that_stay_mapped_count_as_disk_space(sandbox: Runner, how: str) -> None:
    ended = sandbox(_ALLOCATE[how] + _MAP_AND_DELETE, disk_bytes=64 * MIB, max_files=5000)
    assert ended.exit.reason == "disk", ended.exit
    assert len(ended.lines) * 4 * MIB < 600 * MIB


def test_space_cannot_be_reserved_without_writing_it(sandbox: Runner) -> None:
    sandbox.refused(
        """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        def reserve():
            file = os.open("f", os.O_RDWR | os.O_CREAT)
            if libc.fallocate(file, 0, ctypes.c_long(0), ctypes.c_long(1 << 20)):
                raise OSError(ctypes.get_errno())
        attempts(fallocate=reserve)
        """
    )


def test_a_main_thread_that_ends_hides_no_memory(sandbox: Runner) -> None:
    ended = sandbox(
        """
        import ctypes, threading, time
        def grow():
            time.sleep(.3)
            kept = []
            for _ in range(200): kept.append(bytearray(b"x" * (1 << 20))); time.sleep(.01)
            time.sleep(60)
        threading.Thread(target=grow, daemon=True).start()
        ctypes.CDLL(None).pthread_exit(None)
        """,
        memory_bytes=GIB,
    )
    assert ended.exit.reason == "threads", ended.exit
    assert "main thread" in ended.exit.message


def test_a_stack_that_is_moved_does_not_grow_past_the_memory_limit(sandbox: Runner) -> None:
    ended = sandbox(
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
        memory_bytes=GIB,
    )
    assert ended.exit.reason in {"crashed", "memory"}, ended.exit
    assert len(ended.lines) <= 2, "it grew beyond 128 MiB without being counted"
