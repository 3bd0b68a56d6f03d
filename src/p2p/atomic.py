"""Files that other processes may read at any moment: whole or not there, never half written."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
"""A writer that was killed leaves a file ending like this; no reader looks at it."""

LOCK_PATIENCE_S = 10.0


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the file, or leave it as it was; survives kill -9 and a power cut.

    Missing parent folders are made. A link at `path` is replaced, not followed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace a UTF-8 file; a character that UTF-8 cannot hold becomes a question mark."""
    write_bytes(path, text.encode("utf-8", errors="replace"))


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file; raises ValueError for NaN and infinity, which JSON does not have."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


@contextmanager
def locked(path: Path, *, patience_s: float = LOCK_PATIENCE_S) -> Iterator[None]:
    """Hold an exclusive lock against every thread and process that locks the same file.

    The lock goes with its process, so a killed holder frees it. It is not re-entrant: raises
    TimeoutError after `patience_s` instead of waiting for ever, as a signal handler would that
    interrupts its own holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        deadline = time.monotonic() + patience_s
        pause = 0.0005
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"{path} stayed locked for {patience_s:g} s"
                    raise TimeoutError(message) from None
                time.sleep(pause)
                pause = min(pause * 1.5, 0.02)
        yield
    finally:
        os.close(descriptor)


def is_free(path: Path) -> bool:
    """Whether the lock file is there and nobody holds it at this moment."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
