"""One thread at a time: parts of a run that are not Ray actors are shared by threads."""

from __future__ import annotations

import threading
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


class Lockable(Protocol):
    """Has a lock of its own."""

    _lock: threading.RLock


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Lockable)


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let a method wait until no other locked method of its object runs."""

    @wraps(method)
    def waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return waiting
