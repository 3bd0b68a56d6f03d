"""Programs of this package as processes of their own."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def python_command(module: str, *arguments: str) -> list[str]:
    """`python -m module arguments`, with the interpreter that runs this."""
    return [sys.executable, "-m", module, *arguments]


def interrupt_on_sigterm() -> None:
    """Make SIGTERM raise KeyboardInterrupt, so that children end and temporary files go."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
