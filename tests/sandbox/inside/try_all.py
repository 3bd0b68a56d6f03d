"""Runs in the sandbox: every kind of hostile code it is sent, one after the other."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import mmap
import os
import resource
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
COLUMN = ("x86_64", "aarch64").index(os.uname().machine)
REFUSALS = {
    getattr(errno, name)
    for name in [
        "EPERM",
        "EACCES",
        "ENOSYS",
        "ENOTTY",
        "EROFS",
        "EXDEV",
        "EOPNOTSUPP",
        "ENOMEM",
        "EMFILE",
        "EAGAIN",
        "EFBIG",
        "ENOLCK",
        "ETXTBSY",
    ]
}


class Refused(Exception):
    """What a try raises itself, when it looked and there was nothing."""


def c(name: str, *arguments: Any) -> int:
    """Call a function of the C library; -1 is its error number, raised."""
    result: int = getattr(libc, name)(*arguments)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def raw(*numbers: int | None) -> Callable[[], int]:
    """A system call by its number on x86_64 and aarch64, and its arguments.

    Anything but a refusal counts as let in: bad addresses or arguments are found out later.
    """

    def call() -> int:
        number = numbers[COLUMN]
        if number is None:
            raise Refused("no such call on this machine")
        try:
            return c("syscall", *map(ctypes.c_long, (number, *numbers[2:])))  # type: ignore[arg-type]
        except OSError as error:
            if error.errno in {errno.EPERM, errno.ENOSYS, errno.ENOTTY}:
                raise
            return -(error.errno or 0)

    return call


def outcome(attempt: Callable[[], object]) -> str:
    """Empty where the try was refused."""
    try:
        return f"got through: {attempt()!r}"[:300]
    except (Refused, MemoryError):
        return ""
    except OSError as error:
        # Names are not resolved without a number of this system's.
        refused = error.errno in REFUSALS or isinstance(error, socket.gaierror)
        return "" if refused else f"failed otherwise: {error!r}"
    except BaseException as error:  # noqa: BLE001 - a slip in the table must not pass for a refusal
        return f"failed otherwise: {error!r}"


def main(payload: Mapping[str, Any], send: Callable[[bytes], None]) -> None:
    import json

    tools = dict(
        c=c, raw=raw, libc=libc, Refused=Refused, ctypes=ctypes, errno=errno, fcntl=fcntl, gc=gc,
        mmap=mmap, os=os, resource=resource, signal=signal, socket=socket, sys=sys,
        threading=threading, **{**payload["victims"], **_server(payload["victims"]["parent"])},
    )  # fmt: skip
    descriptors = _descriptors()
    for kind, source in payload["kinds"].items():
        outcomes: dict[str, str] = {}

        def attempts(outcomes: dict[str, str] = outcomes, **tries: Callable[[], object]) -> None:
            outcomes.update({name: outcome(attempt) for name, attempt in tries.items()})

        try:
            exec(compile(source, kind, "exec"), {**tools, "attempts": attempts})  # noqa: S102
        except BaseException as error:  # noqa: BLE001
            outcomes["code"] = f"failed otherwise: {error!r}"
        for left in _descriptors() - descriptors:
            os.close(left)
        send(json.dumps({kind: outcomes}).encode())


def _server(parent: int) -> dict[str, int]:
    """What has forked this process is a victim like the process that asked for it."""
    return {"parent": os.getppid(), "parent_group": os.getppid()} if os.getppid() != parent else {}


def _descriptors() -> set[int]:
    paths = list(Path("/proc/self/fd").iterdir())
    return {int(path.name) for path in paths if path.is_symlink()}  # not that of the listing
