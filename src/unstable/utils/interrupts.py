"""Interrupts that are not lost.

A signal's handler raises wherever the program is. Code in C that is called there may take the
exception for one of its own, and the run would go on.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

_received = threading.Event()


def interrupt(number: int, _: FrameType | None) -> None:
    """Handle a signal: raise KeyboardInterrupt, and remember it for `check_interrupt`."""
    _received.set()
    raise KeyboardInterrupt(signal.Signals(number).name)


def check_interrupt() -> None:
    """Raise KeyboardInterrupt if one was received and lost."""
    if _received.is_set():
        _received.clear()
        raise KeyboardInterrupt
