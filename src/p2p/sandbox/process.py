"""The parent's side of a sandboxed process: reading its lines, watching it, ending it.

What comes out of it, its output and its lines, is kept in bounded memory.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, overload

from p2p.sandbox import cgroup, limits
from p2p.sandbox.enter import MAX_LINE_BYTES
from p2p.sandbox.limits import SandboxExit

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from p2p.sandbox.limits import EndReason, Sandbox

_LOOK_EVERY_SECONDS = 0.1
_OFTEN_SECONDS = 0.02
"""Between looks at one that has used up half of its memory or disk space."""
_DISK_LOOK_SECONDS = 0.2
_STOPPED_LOOK_SECONDS = 2.0
_GRACE_SECONDS = 2.0
_CHUNK = 1 << 16
_LAST_CHUNKS = 64  # more than a pipe can hold
_MAX_BYTES = 8 << 20
_LINE_OVERHEAD = 64  # what an object and its place in the queue take, so that short lines count


class BoundedOutput:
    """The first and the last bytes of a stream, however much comes."""

    def __init__(self, head: int = 8 << 10, tail: int = 24 << 10) -> None:
        self._head_size = head
        self._tail_size = tail
        self._head = bytearray()
        self._tail = bytearray()
        self._seen = 0

    def add(self, data: bytes) -> None:
        self._seen += len(data)
        room = self._head_size - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: -self._tail_size]

    def text(self) -> str:
        """Return what was kept, with a note where something is missing."""
        missing = self._seen - len(self._head) - len(self._tail)
        gap = f"\n[... {missing} bytes left out ...]\n".encode() if missing else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode(errors="replace")


class LineSplitter:
    """Cuts a stream into lines, and refuses one that grows without end."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that ``data`` completes; raise ValueError if one is too long."""
        *ended, rest = data.split(b"\n")
        lines = []
        for piece in ended:
            lines.append(bytes(self._pending) + piece)
            self._pending.clear()
        self._pending += rest
        if max(map(len, (self._pending, *lines))) > self._max_bytes:
            raise ValueError(f"a line of more than {self._max_bytes} bytes")
        return lines


class LineQueue:
    """A queue of lines that says when it is full, and ends."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def full(self) -> bool:
        return self._bytes > _MAX_BYTES

    @property
    def ended(self) -> bool:
        with self._changed:
            return self._closed and not self._lines

    def put(self, lines: list[bytes]) -> None:
        with self._changed:
            self._lines.extend(lines)
            self._bytes += sum(len(line) + _LINE_OVERHEAD for line in lines)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def get(self, timeout: float | None) -> bytes | None:
        """The next line; None if none came in time or none will come any more."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._lines and not self._closed:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
            if not self._lines:
                return None
            line = self._lines.popleft()
            self._bytes -= len(line) + _LINE_OVERHEAD
            return line


class Child:
    """A process that this one has started."""

    pid: int
    parent_pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdin is not None
        assert popen.stdout is not None
        self._popen = popen
        self.pid, self.stdin, self.stdout = popen.pid, popen.stdin, popen.stdout
        self.parent_pid = os.getpid()

    def has_ended(self) -> bool:
        """Return whether the child has ended; it stays a zombie, so that its pid is not reused."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def reap(self) -> tuple[int, float]:
        """Reap the child; return its exit status, negative for a signal, and CPU seconds."""
        _, status, used = os.wait4(self.pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        return self._popen.returncode, used.ru_utime + used.ru_stime


class SandboxedProcess:
    """A process in a sandbox. A thread of its own starts and watches it, whatever the caller does.

    The kernel kills a sandboxed process when the *thread* that started it ends: this one ends after
    the process. Lines wait in a bounded queue; when it is full, the sandboxed process waits, too.
    """

    def __init__(self, spawn: Callable[[], Child], lines_out: int, sandbox: Sandbox) -> None:
        self.layers: dict[str, Any] = {}
        """The layers that hold, as in ``Layers``."""
        self.folder = sandbox.folder
        """Where the files that it writes are found, as long as this object is kept. No path to be
        resolved or given to another process: the folder may be one that only this one has open."""
        self._sandbox = sandbox
        self._mounted: int | None = None
        self._deadline: tuple[float, str] | None = None
        self._lines = 0
        self._lines_out = lines_out
        self._output = BoundedOutput()
        self._splitter = LineSplitter(MAX_LINE_BYTES)
        self._queue = LineQueue()
        self._lock = threading.Lock()
        self._group: cgroup.ControlGroup | None = None
        self._started: Future[Child] = Future()
        self._reaped = False
        self._ending: tuple[EndReason, str] | None = None
        self._exit: SandboxExit | None = None
        self._charged = 0
        self._finished = False  # the module has come to its end
        self._nobody_reads = False
        self._ready_at: float | None = None
        self._lines_closed_at: float | None = None
        self._pace = _LOOK_EVERY_SECONDS
        self._last_line = self._last_look = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(spawn,), name="p2p-sandbox", daemon=True
        )
        self._thread.start()
        try:
            self._child = self._started.result()
        except BaseException:
            self.kill("killed", "the parent was interrupted while it started the sandbox")
            raise
        self.pid, self.parent_pid = self._child.pid, self._child.parent_pid

    # --- what the caller uses -------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> bytes | None:
        """The next line; None if none came in time or none will come any more."""
        return self._queue.get(timeout)

    @overload
    def lines(self, tick: None = None) -> Iterator[bytes]: ...

    @overload
    def lines(self, tick: float) -> Iterator[bytes | None]: ...

    def lines(self, tick: float | None = None) -> Iterator[bytes | None]:
        """Yield lines until the process ends; with ``tick``, None after so many silent seconds."""
        while True:
            line = self._queue.get(tick)
            if line is None and self._queue.ended:
                return
            yield line

    @property
    def in_cgroup(self) -> bool:
        return self._group is not None

    @property
    def ended(self) -> bool:
        return self._queue.ended

    def kill(self, reason: EndReason = "killed", message: str = "stopped by the parent") -> None:
        """End the process group now. The first reason given is the one that counts."""
        with self._lock:
            if self._reaped:
                return
            if self._ending is None:
                self._ending = (reason, message)
            self._signal_group()

    def end_within(self, seconds: float, message: str) -> None:
        """End it this many seconds from now, whatever it sends and whether or not it is read."""
        self._deadline = time.monotonic() + seconds, message

    def charge(self, disk_bytes: int) -> None:
        """Count so many bytes that the parent keeps for it elsewhere as written by it."""
        self._charged = disk_bytes

    def wait(self, timeout: float | None = None) -> SandboxExit:
        """Wait for the process and return how it ended; its lines can still be read.

        While waiting, lines beyond 8 MiB that nobody reads are dropped.
        """
        self._nobody_reads = True
        try:
            self._thread.join(timeout)
        finally:
            self._nobody_reads = False
        if self._exit is None:
            raise TimeoutError(f"the sandboxed process {self.pid} still runs")
        return self._exit

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self.wait()

    # --- what ``launch`` uses -------------------------------------------------------------------

    def send_spec(self, spec: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            view = memoryview(spec + b"\n")
            while view:
                view = view[self._child.stdin.write(view) or 0 :]

    def begin(self, *, fixed_size: bool) -> None:
        """Start the code inside and the wall clock, once the sandbox is built.

        ``fixed_size``: its folder is a file system that only its own mount namespace shows.
        """
        if fixed_size:
            path = f"/proc/{self.pid}/root{self._sandbox.folder.resolve()}"
            self._mounted = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self.folder = Path(f"/proc/self/fd/{self._mounted}")
            weakref.finalize(self, os.close, self._mounted)
        self._ready_at = time.monotonic()
        self._child.stdin.close()

    # --- the watching thread --------------------------------------------------------------------

    def _signal_group(self) -> None:
        """End what runs; a process that is only being started ends as soon as it has begun."""
        if self._started.done() and self._started.exception() is None:
            for send in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    send(self._started.result().pid, signal.SIGKILL)

    def _run(self, spawn: Callable[[], Child]) -> None:
        try:
            child = spawn()
        except BaseException as error:  # noqa: BLE001  (raised where the process was asked for)
            os.close(self._lines_out)
            self._started.set_exception(error)
            self._queue.close()
            return
        self._group = cgroup.enclose(child.pid, self._sandbox)  # before it is told what to do
        with self._lock:
            self._started.set_result(child)
            if self._ending is not None:
                self._signal_group()
        try:
            self._exit = self._watch(child)
        except BaseException as error:
            # Whatever goes wrong, no sandbox may run unwatched and no caller may wait for ever.
            self.kill("killed", f"the parent could not watch it any more: {error!r}")
            reason, message = self._ending or ("killed", repr(error))
            self._exit = SandboxExit(-signal.SIGKILL, reason, message, self._output.text(), 0.0)
            raise
        finally:
            if self._group is not None:
                self._group.remove()
            self._queue.close()

    def _watch(self, child: Child) -> SandboxExit:
        with child.stdin, child.stdout as output, selectors.DefaultSelector() as selector:
            for pipe in (output.fileno(), self._lines_out):
                os.set_blocking(pipe, False)
                selector.register(pipe, selectors.EVENT_READ)
            try:
                while not child.has_ended():
                    self._enforce_limits(child.pid)
                    self._read_ready(selector)
                for _ in range(_LAST_CHUNKS):
                    if not self._read_chunks(selector, 0.0):
                        break
            finally:
                os.close(self._lines_out)
        return self._make_exit(child)

    def _read_ready(self, selector: selectors.BaseSelector) -> None:
        """Wait for the next news and read it, unless the reader is behind."""
        if not selector.get_map():
            time.sleep(0.005)  # both pipes are closed: most likely it is about to end
        elif self._queue.full and not self._nobody_reads:
            self._last_line = time.monotonic()  # it is the parent that is slow
            time.sleep(self._pace / 2)
        else:
            self._read_chunks(selector, self._pace)

    def _read_chunks(self, selector: selectors.BaseSelector, timeout: float) -> bool:
        """Read a chunk of each pipe that has one; return whether there was any."""
        busy = False
        for key, _ in selector.select(timeout):
            data = os.read(key.fd, _CHUNK)
            if not data:
                selector.unregister(key.fd)
                if key.fd == self._lines_out:
                    self._lines_closed_at = time.monotonic()
            elif key.fd == self._lines_out:
                self._take(data)
            else:
                self._output.add(data)
            busy = busy or bool(data)
        return busy

    def _take(self, data: bytes) -> None:
        try:
            lines = self._splitter.feed(data)
        except ValueError as error:
            self.kill("protocol", f"the sandboxed code sent {error}")
            return
        if not lines:
            return
        self._last_line = time.monotonic()
        self._finished = not lines[-1]
        self._lines += len(lines)
        most = self._sandbox.max_lines
        if most is not None and self._lines > most:
            self.kill("protocol", f"the sandboxed code sent more than {most:,} lines")
            return
        if not (self._queue.full and self._nobody_reads):
            self._queue.put([line for line in lines if line])

    def _enforce_limits(self, pid: int) -> None:
        """Kill the process if it went over a limit."""
        sandbox, now = self._sandbox, time.monotonic()
        if now - self._last_look < self._pace:
            return
        begun = self._ready_at or now  # until then, whoever starts it counts
        silent = now - max(begun, self._last_line)
        ending = limits.time_excess(sandbox, now - begun, silent)
        if ending is None and self._deadline is not None and now > self._deadline[0]:
            ending = "wall clock", self._deadline[1]
        written, used = self._folder_use(pid), limits.process_use(pid) or limits.ProcessUse(0, 0)
        if self._mounted is not None:  # in memory, then
            used = replace(used, memory_bytes=used.memory_bytes + written.disk_bytes)
        half = 2 * used.memory_bytes > sandbox.memory_bytes
        half = half or 2 * written.disk_bytes > sandbox.disk_bytes
        self._pace = _OFTEN_SECONDS if half else _LOOK_EVERY_SECONDS
        ending = ending or limits.process_excess(sandbox, used)
        ending = ending or limits.disk_excess(sandbox, written, self._charged)
        closed_at = self._lines_closed_at
        if ending is None and closed_at is not None and now - closed_at > _GRACE_SECONDS:
            ending = "protocol", "it closed the pipe to its parent and kept running"
        if ending is not None:
            self.kill(*ending)
        self._last_look = time.monotonic()

    def _folder_use(self, pid: int) -> limits.FolderUse:
        sandbox = self._sandbox
        if self._ready_at is None:  # it has not begun
            return limits.FolderUse(0, 0)
        if self._mounted is None:
            return self._count_files(pid)
        use = limits.read_mount_use(self._mounted, sandbox.max_files)
        if sandbox.gpu:  # files in memory lie elsewhere
            deleted = limits.deleted_bytes(pid, apart_from=os.fstat(self._mounted).st_dev)
            use = replace(use, disk_bytes=use.disk_bytes + deleted)
        return use

    def _count_files(self, pid: int) -> limits.FolderUse:
        """Count the files written; if that is slow, stop the process while counting."""
        folder, most = self._sandbox.folder, self._sandbox.max_files
        with contextlib.suppress(limits.SlowLook):
            return limits.folder_use(folder, pid, most, _DISK_LOOK_SECONDS)
        os.kill(pid, signal.SIGSTOP)
        try:
            return limits.folder_use(folder, pid, most, _STOPPED_LOOK_SECONDS)
        except limits.SlowLook:
            return limits.FolderUse(0, 0, uncountable=True)
        finally:
            os.kill(pid, signal.SIGCONT)

    def _reap(self, child: Child) -> tuple[int, float]:
        """Return the exit status and the CPU seconds."""
        with self._lock:
            self._signal_group()  # without a sandbox it may have left children behind
            ended = child.reap()
            self._reaped = True
        return ended

    def _make_exit(self, child: Child) -> SandboxExit:
        sandbox = self._sandbox
        use = self._folder_use(child.pid)
        returncode, cpu_seconds = self._reap(child)
        out_of_memory = self._group is not None and self._group.out_of_memory()
        if use.unwalkable:
            with contextlib.suppress(OSError):  # the caller finds what could not be removed
                limits.remove_subfolders(sandbox.folder)
        text = self._output.text()
        reason, message = (
            self._ending
            or (limits.memory_excess(sandbox) if out_of_memory else None)
            or limits.disk_excess(sandbox, use, self._charged)
            or limits.explain(sandbox, returncode, cpu_seconds, text, finished=self._finished)
        )
        return SandboxExit(returncode, reason, message, text, cpu_seconds)
