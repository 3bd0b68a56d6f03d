"""Files that other processes may read at any moment: atomic writes, locks, JSON lines, records.

A folder may be somebody else's: of it only regular files are opened, never through a link in it,
and what is read is bounded. A file is replaced whole or left as it was. A line of a JSON-lines
file counts when its newline is there: readers skip what a killed writer left without one, and the
next writer starts a new line.
`load_*` raises UnreadableError with the reason; `read_*` gives None.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pydantic import BaseModel

Model = TypeVar("Model", bound="BaseModel")

TEMPORARY_SUFFIX = ".tmp"
"""A writer that was killed leaves a file ending like this; no reader looks at it."""

LOCK_PATIENCE_S = 10.0
MAX_TEXT_BYTES = 16 << 20
"""Of a record, a source or a line; what we write ourselves is far smaller."""
MAX_FILE_BYTES = 4 << 30

_LINK = "a link in a folder of data, or behind one; links are not followed"
_MARKS = (
    ("session.json",), ("loop_history.json",), ("benchmark.json",), ("status.json",),
    ("config.json", "reward_fn.py"),
)  # fmt: skip
"""Files that only a folder of data has."""


def is_session(folder: Path) -> bool:
    """Return whether a folder holds a session or plain training runs."""
    named = ("session.json", "loop_history.json")
    return any((folder / name).is_file() for name in named) or any(folder.glob("iter_*/"))


def holds_data(folder: Path) -> bool:
    """Return whether it is the folder of a session, a benchmark, an iteration or a run."""
    has = lambda name: os.path.lexists(folder / name)  # noqa: E731
    return any(all(map(has, mark)) for mark in _MARKS) or any(folder.glob("iter_*/"))


def _open(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file; OSError for anything else, and for one behind a link."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, _LINK, str(path)) from None
        raise
    try:
        _check_place(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_place(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.ENODEV, "not a regular file", str(path))
    real = str(Path(f"/proc/self/fd/{descriptor}").readlink()).removesuffix(" (deleted)")
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - Path has none that drops `..`
    if real != str(absolute) and _has_link_in_data(absolute):
        raise OSError(errno.ELOOP, _LINK, str(path))


def _has_link_in_data(path: Path) -> bool:
    """Return whether a folder on the way is a link that came with somebody's data.

    A link above, to where the user keeps all of it, is theirs.
    """
    in_data = False
    for folder, child in zip(path.parents[::-1], [*path.parents[-2::-1], path], strict=True):
        in_data = in_data or holds_data(folder)
        if in_data and child.is_symlink():
            return True
    return False


def open_data(path: Path, max_bytes: int = MAX_FILE_BYTES) -> BinaryIO:
    """Open a file that may be somebody else's; OSError if it is none, or larger."""
    stream = os.fdopen(_open(path), "rb")
    if os.fstat(stream.fileno()).st_size > max_bytes:
        stream.close()
        raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes", str(path))
    return stream


def read_bytes(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a whole file that may be foreign; raises as `open_data`."""
    with open_data(path, max_bytes) as stream:
        return stream.read(max_bytes)


def copy_data(source: Path, target: Path) -> None:
    """Copy a file that may be somebody else's; raises as `open_data`."""
    with open_data(source) as stream, target.open("xb") as copy:
        shutil.copyfileobj(stream, copy)


def is_data(path: Path) -> bool:
    """Return whether there is a file that `open_data` opens."""
    try:
        open_data(path).close()
    except OSError:
        return False
    return True


def refuse_links(folder: Path) -> None:
    """Raise OSError if a link or a special file lies in a folder that is about to be worked on.

    What its sandboxed processes made is left out: nothing there is opened without a look.
    """
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise OSError(errno.ELOOP, "a link or a special file: remove it", str(path))
        folders[:] = [name for name in folders if name != "work"]


def open_log(path: Path) -> BinaryIO:
    """Open a file to append to, made where it is not there; OSError where a link is in the way."""
    return os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the file, or leave it as it was; survives kill -9 and a power cut.

    Missing parent folders are made. A link at `path` is replaced, not followed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
    try:
        with os.fdopen(_open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as stream:
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
def hold_lock(path: Path, *, patience_s: float = LOCK_PATIENCE_S) -> Iterator[None]:
    """Hold an exclusive lock against every thread and process that locks the same file.

    The lock goes with its process, so a killed holder frees it. It is not re-entrant: raises
    TimeoutError after `patience_s` instead of waiting for ever, as a signal handler would that
    interrupts its own holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _wait_for_lock(descriptor, path, patience_s)
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, path: Path, patience_s: float) -> None:
    """Wait in the kernel's queue until the descriptor has the lock; raises TimeoutError.

    The kernel's wait has no deadline, so a thread waits. Who asks again and again finds the lock
    taken each time, where its holder takes it anew as soon as it is free.
    """
    locked = threading.Event()
    # A copy has the same lock: closed, it leaves it to the descriptor, or frees it if that is gone.
    copy = os.dup(descriptor)

    def lock_copy() -> None:
        try:
            fcntl.flock(copy, fcntl.LOCK_EX)
        finally:
            os.close(copy)
        locked.set()

    threading.Thread(target=lock_copy, daemon=True).start()
    if not locked.wait(min(patience_s, threading.TIMEOUT_MAX)):
        raise TimeoutError(f"{path} stayed locked for {patience_s:g} s")


@contextmanager
def free_number(folder: Path, numbers: Callable[[], Iterable[int]]) -> Iterator[int]:
    """A number above all in use, for this block alone: write the file of that number in it.

    Nobody waits while a file is written, however slow the disk: a number is held by an empty file.
    `numbers` are those of the files that are there now.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        number = max(number, *numbers(), 0) + 1
        holder = folder / f".{number}.number{TEMPORARY_SUFFIX}"
        try:
            os.close(_open(holder, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        try:
            # Its file may have been written, and the number let go of, since they were listed.
            if number in numbers():
                continue
            yield number
            return
        finally:
            holder.unlink()


def is_free(path: Path) -> bool:
    """Return whether the lock file is there and nobody holds it at this moment."""
    try:
        descriptor = _open(path)
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
    descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
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

    An absent file has no lines. A file shorter than the offset was replaced: it is read anew. A
    line that is longer than any of ours ends it.
    """
    try:
        with os.fdopen(_open(path), "rb") as stream:
            if os.fstat(stream.fileno()).st_size < offset:
                offset = 0
            stream.seek(offset)
            data = stream.read(max_bytes)
            while (
                b"\n" not in data
                and len(data) < MAX_TEXT_BYTES
                and (more := stream.read(max_bytes))
            ):
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
        stream = os.fdopen(_open(path), "rb")
    except OSError:
        return
    with stream:
        position = os.fstat(stream.fileno()).st_size
        rest = b""
        at_end = True
        while position > 0 and len(rest) <= MAX_TEXT_BYTES:
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
        if rest and position == 0 and (unfinished or not at_end):
            yield rest


# --- records ----------------------------------------------------------------------------------


class UnreadableError(ValueError):
    """The file is there, but it is not what it should be."""


def load_text(path: Path) -> str | None:
    """The file's text; None if there is no file; UnreadableError if it has no text in it."""
    try:
        return str(read_bytes(path, MAX_TEXT_BYTES), "utf-8")
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
