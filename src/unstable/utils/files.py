"""Atomic writes, and safe reads of folders that may be somebody else's."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import queue
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from unstable.utils.logging import is_power_of_ten, summarize_error

MAX_TEXT_BYTES = 16 << 20
"""Of a configuration or a status; what we write ourselves is far smaller."""
MAX_STATE_BYTES = 4 << 30
"""Of a part of a run's state: a buffer's has the tokens of all its steps."""


def open_data(path: Path, folder: Path) -> BinaryIO:
    """Open a file of a folder that may be somebody else's.

    OSError for anything but a regular file, and for one that is, or lies behind, a link in it.
    """
    way = [path, *path.parents]
    if any(each.is_symlink() for each in way[: way.index(folder)]):
        raise OSError(errno.ELOOP, "a link, or behind one; links are not followed", str(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_text(path: Path, folder: Path, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read a text of such a folder; raise OSError as `open_data`, or ValueError."""
    with open_data(path, folder) as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes", str(path))
    return data.decode()


def read_json(path: Path, folder: Path, max_bytes: int = MAX_TEXT_BYTES) -> Any:
    """Read JSON of such a folder; raise OSError, or ValueError where it is none."""
    try:
        return json.loads(read_text(path, folder, max_bytes))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def refuse_links(folder: Path) -> None:
    """Raise OSError if a folder to be worked on has a link or a special file."""
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise OSError(errno.ELOOP, "a link or a special file: remove it", str(path))


def write_whole(path: str | Path, text: str) -> None:
    """Replace a file, or leave it as it was."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", errors="replace", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(path: str | Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a folder to fill; after the block it is at `path`, whole and synced, or not at all.

    Args:
        path: where it will be.
        replace: put it in the place of one that is there; else that raises OSError.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                sync(file)
        if replace and path.exists():  # from before an interruption
            old = path.with_name(f".{path.name}.{secrets.token_hex(6)}.old")
            path.rename(old)
            temporary.rename(path)
            shutil.rmtree(old)
        else:
            temporary.rename(path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_folder(path: str | Path, files: Mapping[str, bytes]) -> None:
    """Write a folder with these files, whole or not at all; its other files are dropped."""
    path = Path(path)
    if all((path / name).is_file() and (path / name).read_bytes() == files[name] for name in files):
        return
    with new_folder(path) as folder:
        for name, content in files.items():
            (folder / Path(name).name).write_bytes(content)


def to_json(value: Any) -> str:
    """Return one line of strict JSON: numbers that are not finite become null."""
    return json.dumps(_to_strict(value), allow_nan=False)


def _to_strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _to_strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_LOG = logging.getLogger(__name__)
_END = None


class BackgroundWriter:
    """Runs writes one after the other in a thread; a failed one is counted, not raised.

    At most `waiting` writes wait. On a disk that cannot follow, further ones are skipped and
    counted, since what is written here is for people to look at and must not stop a run.
    """

    def __init__(self, name: str, waiting: int = 16) -> None:
        self.name = name
        self.failures = 0
        self.skipped = 0
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(waiting)
        self._thread: threading.Thread | None = None

    def put(self, write: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(write)
        except queue.Full:
            self.skipped += 1

    def flush(self) -> None:
        self._queue.join()

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(_END)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (write := self._queue.get()) is not _END:
            try:
                write()
            # Tolerating a full disk is the job here; the count says that something is missing.
            except Exception as error:  # noqa: BLE001
                self.failures += 1
                if is_power_of_ten(self.failures):
                    _LOG.warning(
                        "%s: %d writes have failed, the last one: %s",
                        self.name, self.failures, summarize_error(error),
                    )  # fmt: skip
            finally:
                self._queue.task_done()
        self._queue.task_done()
