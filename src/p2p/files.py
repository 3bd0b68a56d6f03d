"""Files that other processes may read at any moment: atomic writes, locks, JSON lines, records.

A file is replaced whole or left as it was. A line of a JSON-lines file counts when its newline is
there: readers skip what a killed writer left without one, and the next writer starts a new line.
`load_*` raises UnreadableError with the reason; `read_*` gives None.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import BaseModel

Model = TypeVar("Model", bound="BaseModel")

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


# --- JSON lines -------------------------------------------------------------------------------

_BLOCK = 1 << 14


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object in a line, or None for anything else (torn, foreign, not an object)."""
    try:
        value = _parse(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parse(text: bytes) -> Any:
    """A JSON value; half a character, which none of our files can hold, becomes a question mark."""
    value = json.loads(text)
    if b"\\ud" in text or b"\\uD" in text:
        value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    return value


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


# --- records ----------------------------------------------------------------------------------


class UnreadableError(ValueError):
    """The file is there, but it is not what it should be."""


def load_text(path: Path) -> str | None:
    """The file's text; None if there is no file; UnreadableError if it has no text in it."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise UnreadableError("not UTF-8 text") from None
    except OSError as error:
        raise UnreadableError(error.strerror or type(error).__name__) from error


def load_object(path: Path) -> dict[str, Any] | None:
    text = load_text(path)
    if text is None:
        return None
    try:
        value = _parse(text.encode())
    except RecursionError:
        raise UnreadableError("nested too deeply") from None
    except ValueError as error:
        raise UnreadableError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise UnreadableError(f"not a JSON object but a {type(value).__name__}")
    return value


def load_model(path: Path, model: type[Model]) -> Model | None:
    from pydantic import ValidationError  # slow, and many who write files need no records

    from p2p.contracts import describe_errors

    value = load_object(path)
    if value is None:
        return None
    try:
        # Through JSON and not as Python values, because there a list is no tuple.
        return model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise UnreadableError(describe_errors(error)) from None


def read_text(path: Path) -> str | None:
    try:
        return load_text(path)
    except UnreadableError:
        return None


def read_object(path: Path) -> dict[str, Any] | None:
    try:
        return load_object(path)
    except UnreadableError:
        return None


def read_model(path: Path, model: type[Model]) -> Model | None:
    try:
        return load_model(path, model)
    except UnreadableError:
        return None


def save_model(path: Path, value: BaseModel) -> None:
    write_text(path, value.model_dump_json(indent=2) + "\n")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; torn and foreign lines are left out."""
    offset = 0
    while True:
        lines, following = read_from(path, offset)
        if following == offset:
            return
        offset = following
        yield from (record for line in lines if (record := parse_line(line)) is not None)
