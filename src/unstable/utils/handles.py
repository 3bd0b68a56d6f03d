"""Call the parts of a run, as objects or as Ray actors; and run slow calls in threads.

A part is typed as its plain class either way, so that calls are checked: `call(pool.sample, uid)`.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import wraps
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")


def send(method: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Any:
    """Call a method without waiting; an actor's returns a reference to the result."""
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
    """Call a method, also a coroutine, without blocking the event loop.

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


def make_actor_class(plain: type) -> Any:
    """Return the Ray actor of a class, with its RAY_OPTIONS and CARRIED attributes.

    An actor's process imports the class anew: what was set on the actor class here is passed as the
    argument that CARRIED names.
    """
    import ray

    options = getattr(plain, "RAY_OPTIONS", {})
    actor_class: Any = ray.remote(**options)(plain) if options else ray.remote(plain)
    carried: dict[str, str] = getattr(plain, "CARRIED", {})
    start = actor_class._remote  # noqa: SLF001 - shared by `remote` and `options(...).remote`

    def start_with_attributes(
        args: Any = None, kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        values = {argument: getattr(actor_class, name) for name, argument in carried.items()}
        return start(args=args, kwargs=values | (kwargs or {}), **options)

    if carried:
        actor_class._remote = start_with_attributes  # noqa: SLF001
    return actor_class


def run_coroutine(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end, also where an event loop is running, as in a notebook.

    There it runs in a thread of its own. An interrupt cancels it, and is raised when it has ended.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def run() -> R:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        return await main

    with ThreadPoolExecutor(1, "run") as thread:
        ended = thread.submit(asyncio.run, run())
        try:
            return ended.result()
        except KeyboardInterrupt:
            loop, task = started.result()
            loop.call_soon_threadsafe(task.cancel)
            wait([ended])
            raise


class Lockable(Protocol):
    _lock: threading.RLock


S = TypeVar("S", bound=Lockable)


def lock_method(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Run a method only while no other locked method of its object runs."""

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


async def run_in_thread(function: Callable[..., T], *args: Any) -> T:
    """Await a function in a thread of its own; the number of threads is not limited.

    A call that never ends blocks its caller alone: other than those of
    `asyncio.to_thread`, the threads are not limited in number, and do not hold up a program's end.
    Where calls are quick, nothing else happens meanwhile, so that their order is always the same.
    """
    future: Future[T] = Future()
    _CALLS.put((future, function, args))
    if not _IDLE.acquire(blocking=False):
        threading.Thread(target=_run_calls, name="call", daemon=True).start()
    wait([future], QUICK_SECONDS)
    return future.result() if future.done() else await asyncio.wrap_future(future)


def _run_calls() -> None:
    while True:
        future, function, args = _CALLS.get()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001 - it is for who asked
                future.set_exception(error)
        del future, function, args  # or they stay until the next call
        _IDLE.release()
