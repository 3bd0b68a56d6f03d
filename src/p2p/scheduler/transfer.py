"""Bring files to a node and home again: by rsync over SSH, or in an archive where there is no SSH.

What a node sends is foreign. Only plain files arrive, of a bounded size and below their folder:
links, devices and pipes are left out, and names that lead elsewhere are refused. A file is in place
whole or not at all, and nothing is ever deleted. Temporary files, locks and sockets stay where they
are.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import resource
import secrets
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from p2p.files import MAX_FILE_BYTES, TEMPORARY_SUFFIX

logger = logging.getLogger(__name__)

FEEDBACK = "steering/"
"""In the folder of a session; see `p2p.session.steering`. The one thing that travels to a run on
its way; a file of it never changes."""
NOT_COPIED = (TEMPORARY_SUFFIX, ".lock", ".sock")
"""What means something on its own machine only."""
INSTALL_RSYNC = "install rsync 3.2.5 or newer, such as by: sudo apt-get install rsync"
OLDEST_RSYNC = (3, 2, 5)
"""From here on it refuses names in a listing that it did not ask for, or left out."""
SILENCE_S = 60
RSYNC = (
    "rsync", "--recursive", "--times", "--modify-window=-1", "--chmod=D755,F644",
    "--no-motd", f"--timeout={SILENCE_S}", f"--max-size={MAX_FILE_BYTES}",
    f"--partial-dir=.partial{TEMPORARY_SUFFIX}", "--exclude=*[[:cntrl:]]*",
    *(f"--exclude=*{suffix}" for suffix in NOT_COPIED),
)  # fmt: skip
"""Without --links, --devices and --specials: none of these is made here."""
VANISHED = 24
INCOMPLETE = 23
_IN_THE_WAY = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EEXIST)
"""A link, a folder or something special where a file or a folder should be."""
_LEFT_OUT = ("could not make way for", "skipping non-regular file", "some files/attrs were not")

Stamps = Mapping[str, tuple[int, int]]
"""Size and time of change, in nanoseconds, of files by their paths in a folder."""


class TransferError(Exception):
    """Files did not travel; this may be tried again."""


# --- rsync ------------------------------------------------------------------------------------


@cache
def check_rsync() -> None:
    """Raise TransferError where this machine has no rsync, or too old a one."""
    import subprocess

    try:
        output = subprocess.run(["rsync", "--version"], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise TransferError(f"there is no rsync on this machine: {INSTALL_RSYNC}") from None
    version = re.search(rb"version (\d+)\.(\d+)\.(\d+)", output)
    if version and tuple(map(int, version.groups())) < OLDEST_RSYNC:
        raise TransferError(f"rsync on this machine is too old: {INSTALL_RSYNC}")


async def rsync(shell: str, source: str, target: str, *flags: str) -> None:
    """Make the folder `target` hold what `source` does; `shell` is how to log in."""
    check_rsync()
    process = await asyncio.create_subprocess_exec(
        *RSYNC, *flags, f"--rsh={shell}", f"{source}/", f"{target}/",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
    )  # fmt: skip
    with suppress(ProcessLookupError):  # whatever the other side sends
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    try:
        complaint = (await process.communicate())[1].decode(errors="replace").strip()
    finally:
        if process.returncode is None:
            process.terminate()  # it keeps what has come of a file
            await process.wait()
    absent = re.search(r"\[sender\] change_dir .* failed: No such file", complaint)
    if process.returncode in (0, VANISHED) or absent:
        return
    lines = complaint.splitlines()
    if process.returncode == INCOMPLETE and all(
        any(t in line for t in _LEFT_OUT) for line in lines
    ):
        logger.warning("not everything is copied to %s: %s", target, complaint[:1000])
        return
    if "rsync: command not found" in complaint or "rsync: not found" in complaint:
        raise TransferError(f"there is no rsync on the node: {INSTALL_RSYNC} there")
    raise TransferError(f"rsync ended with code {process.returncode}: {complaint[-1000:]}")


async def send(shell: str, folder: Path, there: str) -> None:
    """Make the folder there like this one."""
    folder.mkdir(parents=True, exist_ok=True)
    await rsync(shell, str(folder), there)


async def collect(shell: str, there: str, folder: Path) -> None:
    """Bring what changed there to this folder, and new feedback of people there."""
    folder.mkdir(parents=True, exist_ok=True)
    feedback = FEEDBACK.rstrip("/")
    if (folder / feedback).is_dir():
        await rsync(shell, f"{folder}/{feedback}", f"{there}/{feedback}", "--ignore-existing")
    await rsync(shell, there, str(folder))


# --- archives ---------------------------------------------------------------------------------


def is_safe(path: str) -> bool:
    """Return whether a name stays in its folder, can be written down, and is one that is copied."""
    parts = path.split("/")
    return (
        path.isprintable()
        and len(path) <= 1024
        and "\\" not in path
        and all(part not in ("", ".", "..") and len(part.encode()) <= 240 for part in parts)
        and not path.endswith(NOT_COPIED)
    )


def read_stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of a folder that can be copied; links are not followed."""
    stamps = {}
    for path, names, _ in _walk(folder):
        for name in names:
            relative = f"{path}{name}"
            with suppress(FileNotFoundError):
                seen = (folder / relative).lstat()
                if is_safe(relative):
                    stamps[relative] = (seen.st_size, seen.st_mtime_ns)
    return stamps


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Folders below this one as they begin a path, with their plain files and folders."""
    for place, folders, names in os.walk(folder):
        prefix = "" if Path(place) == folder else f"{Path(place).relative_to(folder)}/"
        plain = [name for name in names if os.path.isfile(f"{place}/{name}")]  # noqa: PTH113
        yield prefix, [n for n in plain if not os.path.islink(f"{place}/{n}")], folders  # noqa: PTH114


def pack(folder: Path, archive: Path, known: Stamps, below: str = "") -> None:
    """Write the files of a folder that are not as `known` to a tar file."""
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for path, stamp in read_stamps(folder).items():
            if path.startswith(below) and not _is_same(stamp, known.get(path)):
                with suppress(OSError), _open_plain(folder / path) as stream:
                    member = tarfile.TarInfo(path)
                    member.size, member.mtime = stamp[0], stamp[1] / 1e9
                    if os.fstat(stream.fileno()).st_size >= member.size:
                        tar.addfile(member, stream)


def _is_same(stamp: Sequence[int], other: Sequence[int] | None) -> bool:
    # An archive keeps times to a fraction of a microsecond.
    return other is not None and stamp[0] == other[0] and abs(stamp[1] - other[1]) < 1000


def _open_plain(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def unpack(archive: Path, folder: Path, *, keep: bool = False) -> None:
    """Put the files of a foreign tar file into a folder; `keep`: but none that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                try:
                    _unpack_member(tar, member, folder, keep=keep)
                except ValueError as error:
                    logger.warning("%r is not copied to %s: %s", member.name[:200], folder, error)
                except OSError as error:
                    if error.errno not in _IN_THE_WAY:
                        raise
                    logger.warning("%s is not copied to %s: %s", member.name, folder, error)
    except tarfile.TarError as error:
        raise TransferError(f"what the node sent is not an archive: {error}") from error


def _unpack_member(
    tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, *, keep: bool
) -> None:
    stream = tar.extractfile(member) if member.isreg() else None
    if stream is None or member.size > MAX_FILE_BYTES or not is_safe(member.name):
        raise ValueError("no plain file of a name and size that it may have")
    target = folder / member.name
    if target.parent.resolve() != folder.resolve() / os.path.dirname(member.name):  # noqa: PTH120
        raise OSError(errno.ELOOP, "a link is on the way", str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    if keep and os.path.lexists(target):
        return
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
    try:
        with part.open("xb") as copy:
            shutil.copyfileobj(stream, copy)
        os.utime(part, (member.mtime, member.mtime))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
