"""Keeping what an untrusted process prints, in bounded memory."""

from __future__ import annotations


class BoundedOutput:
    """The first and the last bytes of a stream, however much comes."""

    def __init__(self, head: int = 8 << 10, tail: int = 24 << 10) -> None:
        self._head_size = head
        self._tail_size = tail
        self._head = bytearray()
        self._tail = bytearray()
        self._seen = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
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
