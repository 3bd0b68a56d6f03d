"""The parent's side: lines, ticks, killing, threads, and failing closed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from sandbox_runner import INSIDE, run_before

from p2p.sandbox import (
    UNSAFE_LOCAL_WARNING,
    Sandbox,
    SandboxedProcess,
    SandboxUnavailable,
    gpu,
    layers,
    set_unsafe_local,
    start,
)
from p2p.training.cpu_manager import PASSED_VARIABLES

if TYPE_CHECKING:
    from sandbox_runner import Runner


def test_lines_arrive_whole_and_in_order(sandbox: Runner) -> None:
    ended = sandbox("for i in range(2000): send(str(i).encode() + b'x' * (i * 7 % 5000))")
    assert [int(line.split(b"x")[0]) for line in ended.lines] == list(range(2000))


def test_a_line_with_a_break_or_none_is_refused_inside(sandbox: Runner) -> None:
    sandbox.refused(
        "attempts(a=lambda: send(b'a\\nb'), b=lambda: send(b''), c=lambda: send(bytes(5 << 20)))"
    )


def test_ticks_let_the_parent_do_other_work(sandbox: Runner) -> None:
    with sandbox.start("import time; time.sleep(.5); send(b'late')") as process:
        seen = list(process.lines(tick=0.05))
    assert seen[-1] == b"late"
    assert seen.count(None) >= 2


def test_a_slow_reader_slows_the_sandbox_and_is_not_taken_for_a_stall(
    sandbox: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2p.sandbox.process._MAX_BYTES", 1 << 20)
    with sandbox.start("for _ in range(64): send(bytes(1 << 18))", stall_seconds=0.4) as process:
        threading.Event().wait(1.0)
        assert sum(len(line) for line in process.lines() if line) == 64 << 18
        assert process.wait().ok


def test_waiting_without_reading_does_not_block(
    sandbox: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2p.sandbox.process._MAX_BYTES", 1 << 20)
    with sandbox.start("for _ in range(64): send(bytes(1 << 18))") as process:
        assert process.wait(timeout=20).ok


def test_a_watcher_that_breaks_ends_the_sandbox(
    sandbox: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such limit")

    process = sandbox.start("import time; send(b'up'); time.sleep(60)")
    assert process.poll(10) == b"up"  # only now: what breaks while it starts is another matter
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    monkeypatch.setattr("p2p.sandbox.limits.time_excess", broken)
    assert process.wait(20).reason == "killed"
    monkeypatch.undo()


def test_killing_says_why(sandbox: Runner) -> None:
    with sandbox.start("import time; send(b'up'); time.sleep(60)") as process:
        assert process.poll(10) == b"up"
        process.kill("killed", "cancelled by the user")
        ended = process.wait()
    assert (ended.reason, ended.message) == ("killed", "cancelled by the user")
    process.kill()  # it is gone: nothing happens


def _interrupted(process: SandboxedProcess) -> None:
    with process:
        assert process.poll(10) == b"up"
        raise KeyboardInterrupt


def test_leaving_the_block_by_an_exception_ends_the_process(sandbox: Runner) -> None:
    process = sandbox.start("import time; send(b'up'); time.sleep(60)")
    with pytest.raises(KeyboardInterrupt):
        _interrupted(process)
    assert process.ended
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_sandbox_outlives_the_thread_that_started_it(sandbox: Runner) -> None:
    with ThreadPoolExecutor(1) as pool:
        source = "import time; time.sleep(.5); send(b'still here')"
        process = pool.submit(sandbox.start, source).result()
    with process:
        assert process.poll(10) == b"still here"
        assert process.wait().ok


def test_several_sandboxes_run_at_once(tmp_path: Path) -> None:
    from sandbox_runner import Runner

    running = []
    for i in range(4):
        (tmp_path / str(i)).mkdir()
        running.append(Runner(tmp_path / str(i)).start(f"send(b'{i}')"))
    assert [process.poll(10) for process in running] == [b"0", b"1", b"2", b"3"]
    assert all(process.wait().ok for process in running)


def test_a_large_payload_arrives(sandbox: Runner) -> None:
    ended = sandbox("send(str(len(text)).encode())", {"text": "x" * 3_000_000})
    assert ended.lines == [b"3000000"]


def test_a_module_that_does_not_exist_is_a_failure_with_its_name(tmp_path: Path) -> None:
    with start("no_such_module", {}, Sandbox(folder=tmp_path)) as process:
        ended = process.wait()
    assert ended.reason == "failed"
    assert "no_such_module" in ended.message


def test_a_crash_in_c_code_names_the_python_line(sandbox: Runner) -> None:
    ended = sandbox("import ctypes\n\nctypes.string_at(0)")
    assert 'File "<inside>", line 3' in ended.exit.output_tail


def test_the_sandboxed_process_dies_with_its_parent(tmp_path: Path) -> None:
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
        psutil.Process(sandboxed).wait(timeout=60)


def test_what_the_parent_keeps_for_it_counts_as_its_disk_space(sandbox: Runner) -> None:
    source = "open('f', 'wb').write(bytes(6 << 20)); send(b'up'); import time; time.sleep(60)"
    with sandbox.start(source, disk_bytes=8 << 20) as process:
        assert process.poll(10) == b"up"
        process.charge(4 << 20)
        end = process.wait(10)
    assert (end.reason, end.message) == ("disk", "it wrote more than its 8.0 MiB of disk space")


DISK = """
kept, written = [], 0
try:
    while written < 64 << 20:
        kept.append(open("f", "wb", buffering=0)); os.unlink("f")
        written += kept[-1].write(bytes(1 << 20))
except OSError as error: assert error.errno == errno.ENOSPC
send(str(written).encode())
"""
MEMORY = """
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
size, filled = 16 << 20, 0
while filled < 1 << 30:
    at = libc.mmap(None, ctypes.c_size_t(size), 3, 0x22, -1, ctypes.c_long(0))
    if at == 2**64 - 1: break
    ctypes.memset(at, 1, size); filled += size
    libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(size), 1)
send(str(filled).encode())
"""


@pytest.mark.parametrize(("source", "most"), [(DISK, 8 << 20), (MEMORY, 192 << 20)])
def test_the_kernel_bounds_what_nobody_counts(
    sandbox: Runner, monkeypatch: pytest.MonkeyPatch, source: str, most: int
) -> None:
    if source == DISK and "tmpfs" not in layers().namespaces:
        pytest.skip("the parent alone counts here")
    monkeypatch.setattr("p2p.sandbox.limits.disk_excess", lambda *_: None)
    monkeypatch.setattr("p2p.sandbox.limits.process_excess", lambda *_: None)
    limits = {"disk_bytes": 8 << 20, "memory_bytes": 128 << 20, "address_bytes": 64 << 20}
    ended = sandbox("import ctypes, errno, os\n" + source, **limits)
    assert ended.exit.ok, ended.exit
    assert 0 < int(ended.lines[-1]) <= most + 4096


@pytest.mark.usefixtures("without_namespaces")
def test_a_look_that_stays_slow_ends_the_sandbox(
    sandbox: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2p.sandbox.process._DISK_LOOK_SECONDS", 0.0)
    source = "import time; open('a', 'w').close(); send(b'up'); time.sleep(60)"
    with sandbox.start("import time; open('a', 'w').close(); time.sleep(1)") as process:
        assert process.wait(30).ok  # looked at while it was stopped, and let go on
    with sandbox.start(source) as process:
        assert process.poll(30) == b"up"
        monkeypatch.setattr("p2p.sandbox.process._STOPPED_LOOK_SECONDS", 0.0)
        end = process.wait(30)
    monkeypatch.undo()
    assert (end.reason, "could not be counted" in end.message) == ("disk", True)


def test_a_folder_that_is_not_shown_is_written_to_on_disk(
    sandbox: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = SandboxedProcess.begin

    def hidden(process: SandboxedProcess, *, fixed_size: bool) -> None:
        if fixed_size:
            raise PermissionError("/proc is closed")
        begin(process, fixed_size=fixed_size)

    monkeypatch.setattr(SandboxedProcess, "begin", hidden)
    ended = sandbox("open('result', 'w').write('done')")
    assert ended.exit.ok, ended.exit
    assert (sandbox.folder / "result").read_text() == "done"
    assert "tmpfs" not in ended.process.layers["namespaces"]


def test_more_lines_than_allowed_end_the_sandbox(sandbox: Runner) -> None:
    ended = sandbox("while True: send(b'x')", max_lines=100)
    assert (ended.exit.reason, len(ended.lines) <= 100) == ("protocol", True)


def test_an_end_once_set_comes_whatever_is_sent(sandbox: Runner) -> None:
    with sandbox.start("while True: send(b'x')", wall_seconds=60) as process:
        process.end_within(0.3, "it had its time")
        end = process.wait(30)
    assert (end.reason, end.message) == ("wall clock", "it had its time")


def test_signs_of_life_are_no_stall(sandbox: Runner) -> None:
    busy = sandbox(
        "import time\nfor i in range(8): send(b'alive'); time.sleep(.1)", stall_seconds=0.5
    )
    assert busy.exit.reason == "finished"


def test_the_layers_are_reported() -> None:
    found = layers()
    assert found.available
    assert found.landlock_abi >= 1
    assert any(line.startswith("seccomp: yes") for line in found.describe())
    answer = "yes" if found.cgroup else "no"
    assert any(line.startswith(f"cgroup v2: {answer}") for line in found.describe())


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("from p2p.sandbox import kernel; kernel.landlock_abi = lambda: 0", "Landlock"),
        ("from p2p.sandbox import seccomp; seccomp.available = lambda: False", "seccomp"),
        ("from p2p.sandbox import kernel; kernel._machine = 'riscv64'", "seccomp"),
    ],
)
def test_a_kernel_without_a_required_layer_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, named: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    run_before(monkeypatch, tmp_path, statement)
    with pytest.raises(SandboxUnavailable, match=named) as caught:
        start("os", {}, Sandbox(folder=folder))
    assert "--unsafe-local" in str(caught.value)
    assert not layers().available


def test_the_oldest_landlock_is_made_up_for(
    sandbox: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_before(
        monkeypatch,
        tmp_path,
        "from p2p.sandbox import kernel\n"
        "kernel.landlock_abi = lambda: 1; kernel.enter_namespaces = lambda *_: []",
    )
    readable = tmp_path / "library.py"
    readable.write_text("as it was")
    sandbox.refused(
        """
        import os, socket
        attempts(truncate=lambda: os.truncate(path, 0), net=socket.socket,
                 empty=lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
                 kill=lambda: os.kill(os.getppid(), 0))
        """,
        {"path": str(readable)},
        readable=(readable,),
    )
    assert readable.read_text() == "as it was"


def test_unsafe_local_runs_without_a_wall_and_still_with_limits(
    unsafe_local: None, sandbox: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2")
    outside = tmp_path / "outside"
    outside.write_text("readable")
    ended = sandbox(
        "import os; send(open(outside).read().encode()); assert 'SOME_API_KEY' not in os.environ",
        {"outside": str(outside)},
    )
    assert ended.exit.ok
    assert ended.lines == [b"readable"]
    hung = sandbox("import time; time.sleep(60)", wall_seconds=0.3)
    assert hung.exit.reason == "wall clock"
    assert "WITHOUT a sandbox" in UNSAFE_LOCAL_WARNING


def test_without_a_sandbox_children_left_behind_are_killed(
    unsafe_local: None, sandbox: Runner
) -> None:
    ended = sandbox(
        "import subprocess; send(str(subprocess.Popen(['sleep', '60']).pid).encode())",
    )
    assert ended.exit.ok
    status = Path(f"/proc/{int(ended.lines[0])}/status")
    deadline = time.monotonic() + 10
    while status.exists() and "(zombie)" not in status.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_only_an_unsandboxed_process_is_told_of_a_gpu_daemon(monkeypatch):
    """A sandboxed one could not reach it, and CUDA would not start."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")
    assert "CUDA_MPS_PIPE_DIRECTORY" not in gpu.environment()
    set_unsafe_local(True)
    assert gpu.environment()["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/mps"
    assert "CUDA_MPS_PIPE_DIRECTORY" in PASSED_VARIABLES
