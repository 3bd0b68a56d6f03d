"""Calling a part of the run, whether it is an object here or a Ray actor elsewhere."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


def tell(target: Any, method: str, *args: Any, **kwargs: Any) -> None:
    """Call a method and do not wait for it; without a target nothing happens."""
    if target is None:
        return
    bound = getattr(target, method)
    getattr(bound, "remote", bound)(*args, **kwargs)


def ask(target: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    bound = getattr(target, method)
    if not hasattr(bound, "remote"):
        return bound(*args, **kwargs)
    import ray

    return ray.get(bound.remote(*args, **kwargs))


async def request(
    target: Any, method: str, *args: Any, timeout: float | None = None, **kwargs: Any
) -> Any:
    """Call a method, also one that is a coroutine, and wait without keeping others from running.

    Raises:
        TimeoutError: no answer within `timeout` seconds.
    """
    bound = getattr(target, method)
    answer = getattr(bound, "remote", bound)(*args, **kwargs)
    if not inspect.isawaitable(answer):
        return answer
    async with asyncio.timeout(timeout):
        return await answer


class Lockable(Protocol):
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
