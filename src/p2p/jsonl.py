"""Append-only files of JSON lines: appended whole, read from an offset or from the end.

A line counts when its newline is there. What a killed writer left without one is skipped by
readers, and the next writer starts a line of its own after it.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK = 1 << 14


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object in a line, or None for anything else (torn, foreign, not an object)."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def append_line(path: Path, line: bytes) -> int:
    """Append one line and return the file's size after it; callers that share a file lock it.

    A torn last line is ended first, so that the new line never continues it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        pending = (b"\n" if torn else b"") + line + b"\n"
        size += len(pending)
        while pending:
            pending = pending[os.write(descriptor, pending) :]
    finally:
        os.close(descriptor)
    return size


def read_from(path: Path, offset: int = 0, max_bytes: int = 1 << 20) -> tuple[list[bytes], int]:
    """The complete lines after `offset`, about `max_bytes` of them, and the offset to go on from.

    An absent file has no lines. A file shorter than the offset was replaced: it is read anew.
    """
    try:
        with path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size < offset:
                offset = 0
            stream.seek(offset)
            data = stream.read(max_bytes)
            while b"\n" not in data and (more := stream.read(max_bytes)):
                data += more
    except OSError:
        return [], offset
    end = data.rfind(b"\n") + 1
    return data[:end].split(b"\n")[:-1], offset + end


def lines_backward(path: Path, *, unfinished: bool = False) -> Iterator[bytes]:
    """Lines from the last complete one to the first, reading only as much as is asked for.

    With `unfinished`, what stands after the last newline comes first.
    """
    try:
        stream = path.open("rb")
    except OSError:
        return
    with stream:
        position = os.fstat(stream.fileno()).st_size
        rest = b""
        at_end = True
        while position > 0:
            start = max(0, position - max(_BLOCK, len(rest)))
            stream.seek(start)
            rest = stream.read(position - start) + rest
            position = start
            first, *lines = rest.split(b"\n")
            rest = first
            for line in reversed(lines):
                if at_end and not unfinished:
                    at_end = False
                    continue
                at_end = False
                if line:
                    yield line
        if rest and (unfinished or not at_end):
            yield rest


def last_record(path: Path, *, unfinished: bool = False) -> dict[str, Any] | None:
    """The last line that holds an object."""
    return next(
        (
            record
            for line in lines_backward(path, unfinished=unfinished)
            if (record := parse_line(line)) is not None
        ),
        None,
    )
