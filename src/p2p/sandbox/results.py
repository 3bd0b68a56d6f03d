"""Reading what came out of a sandbox, without trusting it.

The sandboxed code owns its folder: a name there may be a link, a pipe that blocks, a pickle under
the name of an array, or an archive that unpacks to a terabyte. All of that is refused here with
an ``UntrustedResultError`` that says what was found.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

from p2p.sandbox.array_files import UntrustedResultError, parse_npz, parse_safetensors

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


def read_result(folder: Path, name: str, max_bytes: int) -> bytes:
    """The bytes of the regular file ``name`` in a sandbox's folder.

    Refuses names that lead elsewhere, links of both kinds, special files, and files larger than
    ``max_bytes``. The folder itself must be one that only the parent could have made.
    """
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise UntrustedResultError(f"{name!r} is not a plain file name")
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
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
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise UntrustedResultError(f"{name!r} is not a regular file")
        if found.st_nlink != 1:
            raise UntrustedResultError(f"{name!r} has other names (hard links)")
        with os.fdopen(file, "rb", closefd=False) as stream:
            data = stream.read(max_bytes + 1)
    finally:
        os.close(file)
    if len(data) > max_bytes:
        raise UntrustedResultError(f"{name!r} is larger than {max_bytes} bytes")
    return data


def read_arrays(
    folder: Path, name: str, max_bytes: int = 1 << 30
) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a ``.npz`` or ``.safetensors`` file in a sandbox's folder.

    ``max_bytes`` bounds the file and, apart from it, what it unpacks to. Plain numbers and
    booleans only: nothing is unpickled.
    """
    if name.endswith(".npz"):
        return parse_npz(name, read_result(folder, name, max_bytes), max_bytes)
    if name.endswith(".safetensors"):
        return read_safetensors(folder, name, max_bytes)[0]
    raise UntrustedResultError(f"{name!r} is neither .npz nor .safetensors")


def read_safetensors(
    folder: Path, name: str, max_bytes: int = 1 << 30
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """The arrays and the metadata of a safetensors file in a sandbox's folder."""
    return parse_safetensors(name, read_result(folder, name, max_bytes))
