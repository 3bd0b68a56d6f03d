"""Wake the scheduler when a run ends or a job changes, instead of at its next look.

A datagram to a socket beside the scheduler's files. It carries nothing and may get lost; the
scheduler looks at the files, and now and then without a notice.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOCKET_NAME = "wake.sock"


@contextmanager
def _short_address(base: Path) -> Iterator[str]:
    """The socket's address; by way of a descriptor, as an address has 107 bytes at most."""
    folder = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET_NAME}"
    finally:
        os.close(folder)


def listen(base: Path) -> socket.socket:
    """A socket that becomes readable with a notice; takes the place of one left behind."""
    base.mkdir(parents=True, exist_ok=True)
    (base / SOCKET_NAME).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.setblocking(False)
    with _short_address(base) as address:
        listener.bind(address)
    return listener


def notify(base: Path) -> None:
    """Wake the scheduler of these files; nothing happens if there is none."""
    with (
        suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        _short_address(base) as address,
    ):
        sender.setblocking(False)
        sender.sendto(b"!", address)
