"""Waiting for something asynchronous from ordinary code, in any thread; it can be stopped."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, TypeVar

from p2p.inference.question import AskingCancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Result = TypeVar("Result")

POLL_S = 0.1
GRACE_S = 5.0
"""How long something that was stopped may take to close its connections."""


def run_and_wait(
    work: Callable[[], Coroutine[object, object, Result]], cancelled: Callable[[], bool]
) -> Result:
    """Run to the end in a thread and event loop of its own.

    Ctrl-C comes through at once and `cancelled` is polled; either stops the work. May be called
    where an event loop is running already, as inside a tool.
    """
    outcome: list[Result] = []
    failure: list[BaseException] = []
    task: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Result]]] = []
    started = threading.Event()

    async def main() -> Result:
        running = asyncio.ensure_future(work())
        task.append((asyncio.get_running_loop(), running))
        started.set()
        return await running

    def body() -> None:
        try:
            outcome.append(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            failure.append(error)
        finally:
            started.set()

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(body,), name="p2p-asking", daemon=True)
    thread.start()
    try:
        _join(thread, cancelled)
    except BaseException:
        started.wait(GRACE_S)
        for loop, running in task:
            _stop(loop, running)
        thread.join(GRACE_S)
        raise
    if failure:
        raise failure[0]
    return outcome[0]


def _join(thread: threading.Thread, cancelled: Callable[[], bool]) -> None:
    while thread.is_alive():
        thread.join(POLL_S)
        if thread.is_alive() and cancelled():
            raise AskingCancelled("stopped while waiting for a model")


def _stop(loop: asyncio.AbstractEventLoop, running: asyncio.Task[Result]) -> None:
    try:
        loop.call_soon_threadsafe(running.cancel)
    except RuntimeError:  # it has ended by itself in this moment
        return
