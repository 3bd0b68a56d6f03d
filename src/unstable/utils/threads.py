"""Calls that may take long, in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, TypeVar

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
