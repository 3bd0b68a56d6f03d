"""A random state of its own for code that uses the global one.

TextArena's games seed and use the module `random`: without this, two games in one process would
change each other's dice, and everybody else's.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_LOCK = threading.RLock()


class OwnRandom:
    """Within `with`, the global `random` is in this object's state; after it, as before.

    Threads take turns. Only `random` is swapped: no game here draws from NumPy.
    """

    def __init__(self, seed: int) -> None:
        self._state = random.Random(seed).getstate()

    def __enter__(self) -> None:
        _LOCK.acquire()
        self._outside = random.getstate()
        random.setstate(self._state)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._state = random.getstate()
        random.setstate(self._outside)
        _LOCK.release()
