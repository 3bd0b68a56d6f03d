"""What comes out of an untrusted process, in bounded memory: its output and its lines."""

from __future__ import annotations

import threading
import time
from collections import deque

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
        """What was kept, with a note where something is missing."""
        missing = self._seen - len(self._head) - len(self._tail)
        gap = f"\n[... {missing} bytes left out ...]\n".encode() if missing else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode(errors="replace")


class LineSplitter:
    """Cuts a stream into lines, and refuses one that grows without end."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes; raises ValueError for one that is too long."""
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
