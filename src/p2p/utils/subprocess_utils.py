"""Programs of this package as processes of their own.

They may be started from a folder that is somebody else's: nothing is imported from it, and they
work in another one.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
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


def from_anywhere(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables for a program that starts in another folder; none of it means there."""
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
