"""The parent's side of `fork_server`: one server for each set of imports, kept while this runs."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from p2p.sandbox.fork_server import LARGEST_MESSAGE
from p2p.sandbox.process import Child

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANSWER_SECONDS = 60.0


class _ServerEnded(Exception):
    """It could not import, or something has ended it."""


class _Server:
    """A server, and the conversation with it that any number of threads may have."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], spec: Mapping[str, Any]
    ) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(ANSWER_SECONDS)
        self._lock = threading.Lock()
        with theirs:
            self._popen = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        self.pid = self._popen.pid
        try:
            assert self._popen.stdin is not None
            with self._popen.stdin as told:
                told.write(json.dumps(spec).encode() + b"\n")
            self._receive()
        except (OSError, _ServerEnded) as error:
            self.close()
            raise _ServerEnded from error

    def _receive(self) -> bytes:
        answer = self._control.recv(LARGEST_MESSAGE)
        if not answer:
            raise _ServerEnded
        return answer

    def ask(self, message: str, pipes: Sequence[int] = ()) -> bytes:
        """The answer to a message; raises OSError or _ServerEnded where none comes."""
        with self._lock:
            socket.send_fds(self._control, [message.encode()], pipes)
            return self._receive()

    def close(self) -> None:
        self._control.close()
        self._popen.kill()
        self._popen.wait()


class ForkedChild(Child):
    """A child of a server, which alone can reap it."""

    def __init__(self, server: _Server, pid: int, ends: int, told: int, printed: int) -> None:
        self._server, self.pid, self.parent_pid, self._ends = server, pid, server.pid, ends
        self.stdin, self.stdout = os.fdopen(told, "wb", 0), os.fdopen(printed, "rb", 0)

    def has_ended(self) -> bool:
        watched = select.poll()
        watched.register(self._ends, select.POLLIN)
        return bool(watched.poll(0))

    def reap(self) -> tuple[int, float]:
        os.close(self._ends)
        try:
            status, used = self._server.ask(f"reap {self.pid}").split()
        except (OSError, _ServerEnded):  # it was killed, and its children with it
            return -signal.SIGKILL, 0.0
        return os.waitstatus_to_exitcode(int(status)), float(used)


_servers: dict[tuple[str, int], _Server] = {}
"""By what each has imported, and how nice it is."""
_lock = threading.Lock()


def fork(
    command: Sequence[str],
    environment: Mapping[str, str],
    spec: Mapping[str, Any],
    lines_in: int,
) -> ForkedChild | None:
    """A child of the server that this command starts; None where it cannot be forked."""
    imports = json.dumps([command, environment, spec], sort_keys=True)
    niceness = os.getpriority(os.PRIO_PROCESS, 0)  # of this thread, and so of what it starts
    told_in, told = os.pipe()
    printed, printed_in = os.pipe()
    pid = -1
    with contextlib.suppress(OSError, _ServerEnded):
        with _lock:
            fitting = (key for key in _servers if key[0] == imports and key[1] <= niceness)
            key = next(fitting, (imports, niceness))
            if key not in _servers:
                _servers[key] = _Server(command, environment, spec)
            server = _servers[key]
        try:
            pid = int(server.ask(f"fork {niceness}", [told_in, printed_in, lines_in]))
        except (OSError, _ServerEnded):
            with _lock:
                if _servers.get(key) is server:
                    _servers.pop(key).close()
    os.close(told_in)
    os.close(printed_in)
    if pid >= 0:
        with contextlib.suppress(OSError):  # some containers refuse it
            return ForkedChild(server, pid, os.pidfd_open(pid), told, printed)
    os.close(told)  # a child ends when it is told nothing
    os.close(printed)
    if pid >= 0:
        with contextlib.suppress(OSError, _ServerEnded):
            server.ask(f"reap {pid}")
    return None


@atexit.register
def _close_servers() -> None:
    for server in _servers.values():
        server.close()
    _servers.clear()
