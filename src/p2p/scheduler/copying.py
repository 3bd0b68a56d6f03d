"""Bringing what changed in a folder from machine to machine.

A file is the same if its size and time of change are, which a copy takes over from its original.
Of a log only what is new is sent, and a large file goes on where it was broken off, if what is
already here proves to be the beginning of what is there. A file is in place whole or not at all;
logs grow in place. Links are neither followed nor copied, names that lead out of the folder are
left out, and nothing is ever deleted.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from p2p.files import TEMPORARY_SUFFIX

logger = logging.getLogger(__name__)

GROWING = (".jsonl", ".log", ".txt")
"""Files that are usually appended to."""
NOT_COPIED = (TEMPORARY_SUFFIX, ".lock", ".sock")
"""What means something on its own machine only."""
PART_SUFFIX = f".part{TEMPORARY_SUFFIX}"
"""Beside a file, what has come of it waits for the rest."""
FEEDBACK = "steering/"
"""In the folder of a session; see `p2p.session.steering`."""
CHUNK_BYTES = 8 * 2**20
FILES_AT_ONCE = 16
_IN_THE_WAY = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EEXIST)
"""A link, a folder or something special where a file or a folder should be."""


class FileStamp(NamedTuple):
    """How a file looks from outside, and the digest of as many first bytes as were asked for."""

    size: int
    mtime_ns: int
    digest: str = ""

    def is_same(self, other: FileStamp | None) -> bool:
        return other is not None and other[:2] == self[:2]


class RemoteFolder(Protocol):
    """A folder on another machine."""

    async def scan(self, held: Mapping[str, FileStamp]) -> dict[str, FileStamp]:
        """All its files, as `scan` has them there."""
        ...

    async def read(self, path: str, offset: int, length: int) -> bytes:
        """Part of a file; less where it ends before, nothing if it is gone."""
        ...

    async def put(self, folder: Path, stamps: Mapping[str, FileStamp]) -> None:
        """Bring these files of a folder of ours there."""
        ...


def is_safe(path: str) -> bool:
    """Whether a name stays in its folder, can be written down, and is one that is copied."""
    parts = path.split("/")
    return (
        path.isprintable()
        and len(path) <= 1024
        and "\\" not in path
        and all(part not in ("", ".", "..") and len(part.encode()) <= 240 for part in parts)
        and not path.endswith(NOT_COPIED)
    )


def scan(folder: Path, held: Mapping[str, FileStamp] | None = None) -> dict[str, FileStamp]:
    """All files of a folder by their names below it; nothing if there is no such folder.

    Of one that is in `held` and looks otherwise, with the digest of its first `held` bytes.
    """
    stamps: dict[str, FileStamp] = {}
    for path, seen in _walk(folder):
        if is_safe(path):
            stamp = FileStamp(seen.st_size, seen.st_mtime_ns)
            have = (held or {}).get(path)
            if have is not None and not stamp.is_same(have) and have.size <= stamp.size:
                stamp = stamp._replace(digest=_digest(folder / path, have.size))
            stamps[path] = stamp
    return stamps


def _walk(folder: Path) -> list[tuple[str, os.stat_result]]:
    files = []
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder / below) as entries:
            for entry in entries:
                path = below + entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path + "/")
                elif entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        files.append((path, entry.stat(follow_symlinks=False)))
    return files


def _digest(path: Path, length: int) -> str:
    """Of the first bytes of a file; empty if they cannot be read."""
    digest = hashlib.blake2b(digest_size=16)
    offset = 0
    while offset < length and (data := read_chunk(path, offset, min(length - offset, 2**20))):
        digest.update(data)
        offset += len(data)
    return "" if offset < length else digest.hexdigest()


def place(folder: Path, path: str, source: Path, mtime_ns: int) -> None:
    """Move a file that has come whole to its place in a folder."""
    target = _inside(folder, path)
    os.utime(source, ns=(mtime_ns, mtime_ns))
    source.replace(target)


def _inside(folder: Path, path: str) -> Path:
    """A path below a folder, its parents made; raises OSError if a link is on the way."""
    if not is_safe(path):
        raise ValueError(f"{path[:200]!r} is a name it must not have")
    target = folder / path
    if target.parent.resolve() != folder.resolve() / os.path.dirname(path):  # noqa: PTH120
        raise OSError(errno.ELOOP, "a link is on the way", str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


async def send(remote: RemoteFolder, folder: Path) -> None:
    """Make the folder there like this one."""
    there = await remote.scan({})
    here = await asyncio.to_thread(scan, folder)
    changed = {path: stamp for path, stamp in here.items() if not stamp.is_same(there.get(path))}
    await remote.put(folder, changed)


async def collect(remote: RemoteFolder, folder: Path) -> None:
    """Bring what changed there to this folder, and new feedback of people there.

    Feedback is the one thing that travels to a run on its way; a file of it never changes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two must not add the same bytes
        here = await asyncio.to_thread(scan, folder)
        held = await asyncio.to_thread(_held, folder)
        there = await remote.scan(held)
        new = {p: s for p, s in here.items() if p.startswith(FEEDBACK) and p not in there}
        await remote.put(folder, new)
        changed = {p: stamp for p, stamp in there.items() if not stamp.is_same(here.get(p))}
        large = await _fetch_all(remote, folder, changed, held)
        if large:
            # What came in several chunks may have changed on the way: it must not be a mixture.
            again = await remote.scan({p: FileStamp(changed[p].size, 0) for p in large})
            for path in large:
                part = _part(folder, path)
                if path in again and again[path].digest == _digest(part, changed[path].size) != "":
                    place(folder, path, part, changed[path].mtime_ns)
    finally:
        os.close(lock)


def _held(folder: Path) -> dict[str, FileStamp]:
    """Of which files there is a beginning here: logs, and what was broken off."""
    held: dict[str, FileStamp] = {}
    for path, seen in _walk(folder):
        above, slash, name = path.rpartition("/")
        if name.startswith(".") and name.endswith(PART_SUFFIX):
            whole = above + slash + name[1 : -len(PART_SUFFIX)]
            held[whole] = FileStamp(seen.st_size, 0)
        elif path.endswith(GROWING):
            held.setdefault(path, FileStamp(seen.st_size, seen.st_mtime_ns))
    return held


async def _fetch_all(
    remote: RemoteFolder,
    folder: Path,
    changed: Mapping[str, FileStamp],
    held: Mapping[str, FileStamp],
) -> list[str]:
    """Fetch files; returns those that came in several chunks, and wait to be put in place."""
    large: list[str] = []
    paths = [path for path in changed if is_safe(path)]
    for path in changed.keys() - set(paths):
        logger.warning("%r is not copied to %s: a name it must not have", path[:200], folder)
    for start in range(0, len(paths), FILES_AT_ONCE):
        batch = paths[start : start + FILES_AT_ONCE]
        fetching = (_fetch(remote, folder, path, changed[path], held.get(path)) for path in batch)
        results = await asyncio.gather(*fetching, return_exceptions=True)
        for path, result in zip(batch, results, strict=True):
            if isinstance(result, OSError) and result.errno in _IN_THE_WAY:
                logger.warning("%s is not copied to %s: %s", path, folder, result)
            elif isinstance(result, BaseException):
                raise result
            elif result:
                large.append(path)
    return large


async def _fetch(
    remote: RemoteFolder, folder: Path, path: str, stamp: FileStamp, held: FileStamp | None
) -> bool:
    """Fetch a file; True if it came in several chunks.

    One that changes meanwhile is left to the next look.
    """
    target, part = _inside(folder, path), _part(folder, path)
    grows = held is not None and held.mtime_ns > 0  # a log, not what was broken off
    beginning = target if grows else part
    offset = held.size if held and stamp.digest == _digest(beginning, held.size) != "" else 0
    if not offset and stamp.size <= CHUNK_BYTES:
        data = await remote.read(path, 0, stamp.size + 1)  # more than it had: it was replaced
        if path.endswith(GROWING):
            data = data[: stamp.size]
        if len(data) == stamp.size:
            await asyncio.to_thread(write_chunk, part, data, 0)
            place(folder, path, part, stamp.mtime_ns)
        return False
    into = target if grows and offset else part
    while offset < stamp.size:
        data = await remote.read(path, offset, min(CHUNK_BYTES, stamp.size - offset))
        if not data:
            return False
        await asyncio.to_thread(write_chunk, into, data, offset)
        offset += len(data)
    if into == target:
        os.utime(target, ns=(stamp.mtime_ns, stamp.mtime_ns))
    return into == part


def read_chunk(path: Path, offset: int, length: int) -> bytes:
    """Part of a plain file; nothing if it is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        stream.seek(offset)
        return stream.read(length)


def write_chunk(path: Path, data: bytes, offset: int) -> None:
    """Add to a plain file that goes on there; a first chunk begins it anew."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags if offset else flags | os.O_TRUNC, 0o644)
    with os.fdopen(descriptor, "wb") as stream:
        stream.seek(offset)
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)


def _part(folder: Path, path: str) -> Path:
    target = folder / path
    return target.with_name(f".{target.name}{PART_SUFFIX}")
