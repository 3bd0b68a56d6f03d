"""Programs of this package as processes of their own.

They may be started from a folder that is somebody else's: nothing is imported from it, and they
work in another one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

NEUTRAL = "/"
"""Where a program works that is told of every file by its whole path."""
_FOLDERS = (
    "PYTHONPATH", "P2P_ENV_PATH", "P2P_ENV_FILE", "P2P_CACHE_DIR", "P2P_ENGINES_DIR",
    "P2P_MODELS_DIR", "P2P_RUNS_DIR", "RUNS_DIR", "P2P_PRICES",
)  # fmt: skip


def python_command(module: str, *arguments: str) -> list[str]:
    """`python -P -m module arguments`, with the interpreter that runs this."""
    return [sys.executable, "-P", "-m", module, *arguments]


def start_program(
    command: Sequence[str],
    variables: Mapping[str, str],
    output: int | IO[bytes],
    *,
    errors: int | IO[bytes] = subprocess.STDOUT,
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own: Ctrl-C in the terminal is the caller's to handle."""
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=output,
        stderr=errors,
        pass_fds=pass_fds,
        start_new_session=True,
        env=absolute_environment(variables),
        cwd=NEUTRAL,
    )


def absolute_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Make the folders in environment variables absolute, for a program in another folder."""
    absolute = dict(variables)
    for name in absolute.keys() & _FOLDERS:
        paths = filter(None, absolute[name].split(os.pathsep))
        absolute[name] = os.pathsep.join(os.path.abspath(os.path.expanduser(p)) for p in paths)  # noqa: PTH100, PTH111
    return absolute


def interrupt_on_sigterm() -> None:
    """Make SIGTERM raise KeyboardInterrupt, so that children end and temporary files go."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
