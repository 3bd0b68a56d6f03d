"""Files of a folder, reached without following any link below it."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def parent(folder: Path, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """The folder that holds a file, reached without following any link below `folder`."""
    *parts, name = path.split("/")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if make:
        folder.mkdir(parents=True, exist_ok=True)
    place = os.open(folder, flags)
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=place)
            below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = below
        yield place, name
    finally:
        os.close(place)


@contextmanager
def opened(folder: Path, path: str, flags: int) -> Iterator[int]:
    """A plain file below a folder; raises OSError for a link or anything else."""
    with parent(folder, path, make=bool(flags & os.O_CREAT)) as (place, name):
        # Without waiting: a named pipe would keep us for ever.
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(name, flags, 0o644, dir_fd=place)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(folder / path))
        yield descriptor
    finally:
        os.close(descriptor)


def read(descriptor: int, offset: int, length: int) -> bytes:
    """Bytes from an offset on; fewer where the file ends before."""
    parts = []
    while length > 0 and (part := os.pread(descriptor, min(length, 2**20), offset)):
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return b"".join(parts)


def digest(descriptor: int, length: int) -> str:
    """Of the first bytes of a file."""
    found = hashlib.blake2b(digest_size=16)
    offset = 0
    while offset < length and (part := os.pread(descriptor, min(length - offset, 2**20), offset)):
        found.update(part)
        offset += len(part)
    return found.hexdigest()
