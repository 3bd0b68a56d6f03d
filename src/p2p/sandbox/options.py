"""What a sandbox allows, and how one ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GIB = 1 << 30
LIBRARIES_BYTES = 8 * GIB
"""Addresses of PyTorch, if it was built for CUDA: it loads those libraries without a GPU, too."""

EndReason = Literal[
    "finished",  # the module's main returned
    "failed",  # it raised
    "crashed",  # the process ended by a signal or by leaving without a word
    "memory",
    "disk",
    "threads",
    "cpu time",
    "wall clock",
    "stalled",
    "protocol",  # what came up the pipe was not lines, or the pipe was closed
    "killed",  # by the parent
    "killed from outside",  # neither by the parent nor by a limit: the machine, or a person
]

UNSAFE_LOCAL_WARNING = (
    "--unsafe-local: the code runs WITHOUT a sandbox. It can read and change every file that you "
    "can, see what your other programs do, use the network and start programs. What is left: "
    "your environment variables are not passed on, memory, file size and CPU time are limited, "
    "and the process is killed when it runs too long. Use it only for code that you have read."
)


@dataclass(slots=True)
class _Process:
    unsafe_local: bool = False


_process = _Process()


def set_unsafe_local(unsafe: bool) -> None:
    """Say whether this process runs code without a sandbox; see ``UNSAFE_LOCAL_WARNING``.

    It is the user's word on a command line, or in a program of theirs. No file, job or request
    holds it; ``unsafe_local_flags`` hands it on.
    """
    _process.unsafe_local = unsafe


def is_unsafe_local() -> bool:
    return _process.unsafe_local


def unsafe_local_flags() -> list[str]:
    """What a program of ours is started with to run code as this process does."""
    return ["--unsafe-local"] * 2 * _process.unsafe_local


class SandboxUnavailable(Exception):
    """The kernel cannot provide the sandbox, and the code was not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """What the code inside may use. Everything else is refused."""

    folder: Path
    """The one folder it may write to; also its working, home and temporary directory. What lies in
    it can be read there; what is written then lies in ``SandboxedProcess.folder``."""
    readable: tuple[Path, ...] = ()
    """Files and folders that it may read, besides Python, its libraries and this package."""
    import_paths: tuple[Path, ...] = ()
    """Folders that it may read and import from, put in front of ``sys.path``."""
    memory_bytes: int = 8 * GIB
    """Its files included, where the kernel keeps them in memory."""
    address_bytes: int = 256 << 20
    """Addresses besides: for libraries that it loads later, and what these reserve and never touch.
    Memory in so many the parent bounds alone, by looking."""
    disk_bytes: int = 2 * GIB
    """Of what it writes to the folder."""
    max_files: int = 4096
    max_threads: int = 512
    cpu_seconds: float | None = None
    """Of all threads together."""
    wall_seconds: float | None = None
    stall_seconds: float | None = None
    """The longest silence on the pipe."""
    max_lines: int | None = None
    """Lines that it may send."""
    env: Mapping[str, str] = field(default_factory=dict)
    """All that it finds in its environment, besides a small fixed set."""
    python: Path | None = None
    """The interpreter to run in, with its own libraries; None: this one. This package is importable
    in it, so it must have what the module imports."""
    gpu: bool = False
    """Whether it may compute on this machine's NVIDIA GPUs. Their driver reserves hundreds of GB of
    addresses, so these are not bounded; memory is, as seen from outside or by a cgroup."""


@dataclass(frozen=True, slots=True)
class SandboxExit:
    """How a sandboxed process ended."""

    returncode: int
    """Negative: the signal that ended it."""
    reason: EndReason
    message: str
    """One sentence for a person."""
    output_tail: str
    """What it printed: the first and the last kilobytes."""
    cpu_seconds: float

    @property
    def ok(self) -> bool:
        return self.reason == "finished"
