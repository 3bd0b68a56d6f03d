"""Bringing what changed in a folder to another machine, as plain data over any channel.

The side that has the files tells their stamps (`scan`); the other says what it lacks (`wanted`),
is sent pieces (`pieces`), and puts them in place (`put`):

    wants = wanted(here, stamps_from_there)
    while wants:
        answer = pieces(there, wants)         # over there
        put(here, answer)
        wants = still_wanted(here, wants, answer)

A file is the same if its size and time of change are, which a copy takes over from its original.
Of a log only what is new is sent, and a large file goes on where it was broken off, if what is
already here proves to be the beginning of what is there. A file is in place whole or not at all;
logs grow in place. Links are neither followed nor copied, names that lead out of the folder are
left out, and nothing is ever deleted.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from p2p.files import TEMPORARY_SUFFIX
from p2p.scheduler import folder_files

logger = logging.getLogger(__name__)

GROWING = (".jsonl", ".log", ".txt")
"""Files that are usually appended to."""
LEFT_OUT = (TEMPORARY_SUFFIX, ".lock", ".sock")
"""What means something on its own machine only."""
ORDERS = "steering"
"""In the folder of a session: see `p2p.session.steering`."""
PIECES_BYTES = 16 * 2**20
"""What one answer carries at most."""
_IN_THE_WAY = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL)
"""A link, a folder or something special where a file or a folder should be."""


class Stamp(NamedTuple):
    """How a file looks from outside."""

    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Want:
    """A file that is asked for, from `have` bytes on if the first ones have this digest."""

    path: str
    have: int = 0
    digest: str = ""


@dataclass(frozen=True)
class Piece:
    """Part of a file, and how the whole looked when it was read."""

    path: str
    offset: int
    stamp: Stamp
    data: bytes

    @property
    def is_last(self) -> bool:
        """Whether the file is whole with it."""
        return self.offset + len(self.data) >= self.stamp.size


@dataclass(frozen=True)
class Answer:
    """Pieces of the first `settled` files that were wanted; of one that is gone there is none."""

    pieces: tuple[Piece, ...]
    settled: int


def is_safe(path: str) -> bool:
    """Whether a name stays in its folder, can be written down, and is one that is copied."""
    parts = path.split("/")
    return (
        path.isprintable()
        and len(path) <= 1024
        and "\\" not in path
        and all(part not in ("", ".", "..") and len(part.encode()) <= 255 for part in parts)
        and not path.endswith(LEFT_OUT)
    )


def scan(folder: Path) -> dict[str, Stamp]:
    """All files of a folder by their names below it; nothing if there is no such folder."""
    found: dict[str, Stamp] = {}
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder / below) as entries:
            for entry in entries:
                path = below + entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path + "/")
                elif entry.is_file(follow_symlinks=False) and is_safe(path):
                    with suppress(FileNotFoundError):
                        seen = entry.stat(follow_symlinks=False)
                        found[path] = Stamp(seen.st_size, seen.st_mtime_ns)
    return found


def wanted(folder: Path, stamps: Mapping[str, Stamp]) -> list[Want]:
    """What is to be asked for so that the folder becomes like the one with these stamps."""
    here = scan(folder)
    wants = []
    for path, stamp in stamps.items():
        if not is_safe(path):
            logger.warning("%r is not copied to %s: a name it must not have", path[:200], folder)
        elif here.get(path) != stamp:
            wants.append(_want(folder, path))
    return wants


def new_orders(folder: Path, stamps: Mapping[str, Stamp]) -> list[Want]:
    """What people have ordered here since a run went there: files of ORDERS that are not there.

    The one thing that travels to a run on its way. An order never changes.
    """
    here = (f"{ORDERS}/{path}" for path in scan(folder / ORDERS))
    return [Want(path) for path in here if path not in stamps]


def still_wanted(folder: Path, wants: Sequence[Want], answer: Answer) -> list[Want]:
    """What is left after an answer was put in place."""
    # Each time something comes or is settled, however strange the answer.
    broken_off = [
        _want(folder, piece.path)
        for piece in answer.pieces
        if is_safe(piece.path) and piece.data and not piece.is_last
    ]
    return [*broken_off, *wants[max(1, answer.settled) :]]


def _want(folder: Path, path: str) -> Want:
    names = [_part_name(path)]
    if path.endswith(GROWING):
        names.append(path)
    for name in names:
        with suppress(OSError), folder_files.opened(folder, name, os.O_RDONLY) as descriptor:
            size = os.fstat(descriptor).st_size
            return Want(path, size, folder_files.digest(descriptor, size))
    return Want(path)


def pieces(folder: Path, wants: Sequence[Want], limit: int = PIECES_BYTES) -> Answer:
    """The next pieces of what is wanted, `limit` bytes in all."""
    found: list[Piece] = []
    left = limit
    settled = 0
    for want in wants:
        if left <= 0:
            break
        settled += 1
        if not is_safe(want.path):
            continue
        with suppress(OSError), folder_files.opened(folder, want.path, os.O_RDONLY) as descriptor:
            piece = _piece(descriptor, want, left)
            found.append(piece)
            left -= len(piece.data)
    return Answer(tuple(found), settled)


def _piece(descriptor: int, want: Want, limit: int) -> Piece:
    seen = os.fstat(descriptor)
    goes_on = (
        0 < want.have <= seen.st_size and folder_files.digest(descriptor, want.have) == want.digest
    )
    offset = want.have if goes_on else 0
    data = folder_files.read(descriptor, offset, min(limit, seen.st_size - offset))
    # Cut short meanwhile: what there is of it is whole, and its new stamp brings the next round.
    size = seen.st_size if len(data) == min(limit, seen.st_size - offset) else offset + len(data)
    return Piece(want.path, offset, Stamp(size, seen.st_mtime_ns), data)


def put(folder: Path, answer: Answer) -> int:
    """Put pieces in place; returns their bytes. One that does not fit is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(whole, fcntl.LOCK_EX)  # two that collect must not add the same piece
        return sum(_put(folder, piece) for piece in answer.pieces)
    finally:
        os.close(whole)


def _put(folder: Path, piece: Piece) -> int:
    if not is_safe(piece.path):
        logger.warning("%r is not copied to %s: a name it must not have", piece.path[:200], folder)
        return 0
    try:
        if piece.offset and piece.path.endswith(GROWING) and _append(folder, piece.path, piece):
            return len(piece.data)
        if not _append(folder, _part_name(piece.path), piece, make=True):
            return 0
        if piece.is_last:
            _rename(folder, _part_name(piece.path), piece.path)
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        logger.warning("%s is not copied to %s: %s", piece.path, folder, error)
        return 0
    return len(piece.data)


def _append(folder: Path, name: str, piece: Piece, *, make: bool = False) -> bool:
    """Add a piece to a file if it goes on there; a first piece begins it anew."""
    flags = os.O_RDWR | (os.O_CREAT if make else 0)
    try:
        with folder_files.opened(folder, name, flags) as descriptor:
            if piece.offset == 0:
                os.ftruncate(descriptor, 0)
            elif os.fstat(descriptor).st_size != piece.offset:
                return False
            written = 0
            while written < len(piece.data):
                place = piece.offset + written
                written += os.pwrite(descriptor, memoryview(piece.data)[written:], place)
            os.fsync(descriptor)
            if piece.is_last:
                os.utime(descriptor, ns=(piece.stamp.mtime_ns, piece.stamp.mtime_ns))
    except OSError as error:
        if make or error.errno not in (*_IN_THE_WAY, errno.ENOENT):
            raise
        return False
    return True


def _rename(folder: Path, old: str, new: str) -> None:
    with folder_files.parent(folder, new) as (parent, last):
        os.rename(old.rpartition("/")[2], last, src_dir_fd=parent, dst_dir_fd=parent)


def _part_name(path: str) -> str:
    """Beside the file, where what has come of it waits for the rest."""
    before, slash, name = path.rpartition("/")
    short = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    return f"{before}{slash}.{short}.part{TEMPORARY_SUFFIX}"


def copy_folder(source: Path, target: Path) -> int:
    """Bring what changed from one folder to another of this machine; returns the bytes sent."""
    wants = wanted(target, scan(source))
    sent = 0
    while wants:
        answer = pieces(source, wants)
        sent += put(target, answer)
        wants = still_wanted(target, wants, answer)
    return sent
