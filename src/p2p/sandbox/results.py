"""Reading what came out of a sandbox, without trusting it.

The sandboxed code owns its folder: a name there may be a link, a pipe that blocks, a pickle under
the name of an array, or an archive that unpacks to a terabyte. All of that is refused here with
an ``UntrustedResultError`` that says what was found. Numbers only, every size checked before use.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import stat
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from pydantic import TypeAdapter

Message = TypeVar("Message")

_NPZ_DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
     "float16", "float32", "float64"}
)  # fmt: skip
# What the standard library raises for one or the other damage to an archive.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, OverflowError,
               NotImplementedError, RuntimeError, ValueError)  # fmt: skip
_COPIED_BYTES = 8 << 20
_MAX_ARRAYS = 1024
_MAX_DIGITS = 18
_MAX_DEPTH = 32
_MAX_DIMENSIONS = 16


class UntrustedResultError(Exception):
    """A file from a sandbox is not what it should be, and was not used."""


def read_result(folder: Path, name: str, max_bytes: int) -> bytes:
    """The bytes of the regular file ``name`` in a sandbox's folder.

    Refuses names that lead elsewhere, links of both kinds, special files, and files larger than
    ``max_bytes``. The folder itself must be one that only the parent could have made, such as
    ``SandboxedProcess.folder``.
    """
    with _open_file(folder, name) as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UntrustedResultError(f"{name!r} is larger than {max_bytes} bytes")
    return data


def copy_result(folder: Path, name: str, target: Path, max_bytes: int) -> None:
    """Copy a file that ``read_result`` would read to ``target``, however large."""
    with _open_file(folder, name) as stream, target.open("wb") as copy:
        while data := stream.read(_COPIED_BYTES):
            if copy.tell() + len(data) > max_bytes:
                raise UntrustedResultError(f"{name!r} is larger than {max_bytes} bytes")
            copy.write(data)


def _open_file(folder: Path, name: str) -> BinaryIO:
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise UntrustedResultError(f"{name!r} is not a plain file name")
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # O_NONBLOCK: a named pipe must not keep the parent waiting for a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        raise UntrustedResultError(f"{name!r} was not written") from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise UntrustedResultError(f"{name!r} is a symbolic link") from None
        raise UntrustedResultError(f"{name!r} cannot be opened: {error}") from None
    finally:
        os.close(directory)
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return os.fdopen(file, "rb")
    os.close(file)
    if not stat.S_ISREG(status.st_mode):
        raise UntrustedResultError(f"{name!r} is not a regular file")
    raise UntrustedResultError(f"{name!r} has other names (hard links)")


def read_message(line: bytes, *, finite: bool = True) -> dict[str, Any]:
    """A line from a sandbox: one JSON object, of texts that can be printed and bounded numbers.

    ``finite`` refuses NaN and infinity. Raises UntrustedResultError, whatever is wrong with it.
    """
    try:
        return _checked_object(json.loads(line, parse_int=_bounded_int), finite, 0)
    except (ValueError, RecursionError) as error:
        text = f"it sent something that is not a message ({error}): {line[:200]!r}"
        raise UntrustedResultError(text) from error


def message_reader(
    messages: TypeAdapter[Message], *, finite: bool = False
) -> Callable[[bytes], Message]:
    """A ``read`` for ``run_worker``: lines as ``read_message`` reads them, validated."""

    def read(line: bytes) -> Message:
        message = read_message(line, finite=finite)
        try:
            return messages.validate_python(message)
        except ValueError as error:
            text = f"it sent something that is not a message ({error}): {line[:200]!r}"
            raise UntrustedResultError(text) from error

    return read


def _checked_object(value: Any, finite: bool, depth: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - as all that is wrong with a line
    return {_text(name): _check_value(each, finite, depth + 1) for name, each in value.items()}


def _text(text: str) -> str:
    # This module is imported inside of the sandbox, too, where the other package cannot be read.
    from unstable.utils.logging import printable

    return printable(text)


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _check_value(value: Any, finite: bool, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    match value:
        case str():
            return _text(value)
        case float() if finite and not math.isfinite(value):
            raise ValueError("a number that is not finite")
        case dict():
            return _checked_object(value, finite, depth)
        case list():
            return [_check_value(each, finite, depth + 1) for each in value]
    return value


def read_arrays(
    folder: Path, name: str, max_bytes: int = 1 << 30
) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a ``.npz`` file in a sandbox's folder.

    ``max_bytes`` bounds the file and, apart from it, what it unpacks to. Plain numbers, booleans
    and text only: nothing is unpickled.
    """
    return parse_npz(name, read_result(folder, name, max_bytes), max_bytes)


def parse_npz(name: str, data: bytes, max_bytes: int) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a .npz file that unpacks to ``max_bytes`` at most."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_members(name, archive.infolist(), max_bytes)
            for member in archive.infolist():
                key = member.filename.removesuffix(".npy")
                arrays[key] = _parse_npy(f"{name}:{key}", archive.read(member))
    except _ZIP_ERRORS as error:
        raise UntrustedResultError(f"{name!r} is not a readable .npz file: {error}") from error
    return arrays


def _check_members(name: str, members: list[zipfile.ZipInfo], max_bytes: int) -> None:
    names = {member.filename for member in members}
    if len(members) > _MAX_ARRAYS or len(names) != len(members):
        raise UntrustedResultError(f"{name!r} has too many members, or one of them twice")
    for member in members:
        if not member.filename.endswith(".npy") or "/" in member.filename:
            raise UntrustedResultError(f"{name!r} has the member {member.filename!r}, not an array")
        if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise UntrustedResultError(f"{name!r} is compressed in an unusual way")
    # A member never unpacks to more than it declares: the reader stops there.
    if sum(member.file_size for member in members) > max_bytes:
        raise UntrustedResultError(f"{name!r} unpacks to more than {max_bytes} bytes")


def _parse_npy(name: str, raw: bytes) -> np.ndarray[Any, Any]:
    import numpy as np
    from numpy.lib import format as npy

    stream = io.BytesIO(raw)
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = read(stream)
    except (ValueError, KeyError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise UntrustedResultError(f"{name!r} is not an array: {error}") from error
    if dtype.hasobject:
        raise UntrustedResultError(f"{name!r} holds Python objects (a pickle), not numbers")
    body = raw[stream.tell() :]
    # Equality with a plain type also refuses records, sub-arrays and foreign byte orders.
    plain = dtype.name in _NPZ_DTYPES and dtype == np.dtype(dtype.name)
    text = dtype.kind == "U" and dtype.isnative and dtype.subdtype is None
    if not plain and not text:
        raise UntrustedResultError(f"{name!r} has the type {dtype}, not plain numbers or text")
    if not _fits(shape, dtype.itemsize, len(body)):
        raise UntrustedResultError(f"{name!r} does not have the size that its shape {shape} says")
    flat = np.frombuffer(body, dtype)
    return (flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)).copy(order="K")


def _fits(shape: tuple[object, ...], itemsize: int, size: int) -> bool:
    if len(shape) > _MAX_DIMENSIONS:
        return False
    sizes = [side for side in shape if type(side) is int and 0 <= side <= 1 << 48]
    return len(sizes) == len(shape) and math.prod(sizes) * itemsize == size
