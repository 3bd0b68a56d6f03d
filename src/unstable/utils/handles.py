"""Call a part of the run, an object here or a Ray actor elsewhere; and slow calls, in threads.

A part is typed as its plain class either way, so that calls are checked: `call(pool.sample, uid)`.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from functools import wraps
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")


def send(method: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Any:
    """Call a method without waiting for it; an actor's gives a reference to what it will return."""
    return getattr(method, "remote", method)(*args, **kwargs)


def call(method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    if not hasattr(method, "remote"):
        return method(*args, **kwargs)
    import ray

    result: R = ray.get(send(method, *args, **kwargs))
    return result


@overload
async def call_within(
    seconds: float, method: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
) -> R: ...
@overload
async def call_within(
    seconds: float, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R: ...
async def call_within(seconds: float, method: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a method, also a coroutine, and let others run meanwhile.

    Raises:
        TimeoutError: no answer within so many seconds.
    """
    answer = send(method, *args, **kwargs)
    if not inspect.isawaitable(answer):
        return answer
    async with asyncio.timeout(seconds):
        return await answer


def inside_ray_actor() -> bool:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None


class Lockable(Protocol):
    _lock: threading.RLock


S = TypeVar("S", bound=Lockable)


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let a method wait until no other locked method of its object runs."""

    @wraps(method)
    def waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return waiting


QUICK_SECONDS = 0.05
"""A call may keep everybody waiting for so long."""

T = TypeVar("T")
_CALLS: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()
_IDLE = threading.Semaphore(0)


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Await what a function gives in another thread; there are as many as calls at a time.

    A call that never ends keeps its caller waiting and nobody else: other than those of
    `asyncio.to_thread`, the threads are not limited in number, and do not hold up a program's end.
    Where calls are quick, nothing else happens meanwhile, so that their order is always the same.
    """
    future: Future[T] = Future()
    _CALLS.put((future, function, args))
    if not _IDLE.acquire(blocking=False):
        threading.Thread(target=_work, name="call", daemon=True).start()
    wait([future], QUICK_SECONDS)
    return future.result() if future.done() else await asyncio.wrap_future(future)


def _work() -> None:
    while True:
        future, function, args = _CALLS.get()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001 - it is for who asked
                future.set_exception(error)
        del future, function, args  # or they stay until the next call
        _IDLE.release()
