"""A process that has imported our own modules, and forks one sandboxed process for each trial.

Imports take most of a short trial. The server imports nothing but modules of ours and runs nothing
else: each child confines itself as a process that was started for it does (`enter`), and is given
its payload only then. So no trial meets another one, or what it leaves: the server forks while it
has one thread and no memory that children could share, and a child keeps none of its descriptors.

It ends when its parent does, and its children with it.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from p2p.sandbox import enter

if TYPE_CHECKING:
    from collections.abc import Iterable

LARGEST_MESSAGE = 256
PIPES = 3
"""Of a child: what it is told, what it prints, the lines it sends."""
LINES = 3
"""The number of the last one in a child."""


def serve(modules: Iterable[str], control_pipe: int) -> NoReturn:
    """Import these modules, and fork what the parent asks for over this socket."""
    control = socket.socket(fileno=control_pipe)
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # collecting in a child would copy the memory it shares
    control.send(b"ready")
    while True:
        message, pipes, _, _ = socket.recv_fds(control, LARGEST_MESSAGE, PIPES)
        if not message:
            os._exit(0)
        order, number = message.decode().split()
        if order == "reap":
            _, status, used = os.wait4(int(number), 0)
            control.send(f"{status} {used.ru_utime + used.ru_stime}".encode())
            continue
        child = os.fork() if _is_unshared() else -1
        if child == 0:
            _become_sandboxed(pipes, int(number))
        for pipe in pipes:
            os.close(pipe)
        control.send(str(child).encode())


def _is_unshared() -> bool:
    """Return whether a child gets a memory of its own, and no lock that a thread holds."""
    mappings = Path("/proc/self/maps").read_text().splitlines()
    shared = any({"w", "s"} <= {*line.split(maxsplit=2)[1]} for line in mappings)
    return not shared and len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208


def _become_sandboxed(pipes: list[int], niceness: int) -> NoReturn:
    """Run `enter`'s steps in this forked process, and exit."""
    status = enter.EXIT_RAISED
    try:
        os.setsid()
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        told, printed, lines = pipes
        for place, pipe in enumerate((told, printed, printed, lines)):
            os.dup2(pipe, place)
        os.closerange(LINES + 1, os.sysconf("SC_OPEN_MAX"))
        if numpy_random := sys.modules.get("numpy.random"):
            numpy_random.seed()  # as of a process of its own; Python's generator does it by itself
        sys.argv[1:] = [str(LINES)]
        status = enter.run(enter.read_spec(), LINES)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
