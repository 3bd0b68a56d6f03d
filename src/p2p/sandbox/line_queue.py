"""Lines on their way from a watching thread to the one that reads them, in bounded memory."""

from __future__ import annotations

import threading
import time
from collections import deque

_MAX_BYTES = 32 << 20
_LINE_OVERHEAD = 64  # what an object and its place in the queue take, so that short lines count


class LineQueue:
    """A queue of lines that says when it is full, and ends."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def full(self) -> bool:
        """Whether the writer should wait before it puts more."""
        return self._bytes > _MAX_BYTES

    @property
    def ended(self) -> bool:
        """Whether it was closed and every line was taken."""
        with self._changed:
            return self._closed and not self._lines

    def put(self, lines: list[bytes]) -> None:
        """Append lines."""
        with self._changed:
            self._lines.extend(lines)
            self._bytes += sum(len(line) + _LINE_OVERHEAD for line in lines)
            self._changed.notify_all()

    def close(self) -> None:
        """Say that no line will follow."""
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
