"""Writing that nobody waits for."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING

from unstable.utils.handles import one_line
from unstable.utils.logging import is_news

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger(__name__)
_END = None


class BackgroundWriter:
    """Runs writes one after the other in a thread; a failed one is counted, not raised.

    At most `waiting` writes wait. On a disk that cannot follow, further ones are skipped and
    counted, since what is written here is for people to look at and must not stop a run.
    """

    def __init__(self, name: str, waiting: int = 16) -> None:
        self.name = name
        self.failures = 0
        self.skipped = 0
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(waiting)
        self._thread: threading.Thread | None = None

    def put(self, write: Callable[[], None]) -> None:
        """Have it called soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(write)
        except queue.Full:
            self.skipped += 1

    def flush(self) -> None:
        """Return when everything that was put has been tried."""
        self._queue.join()

    def close(self) -> None:
        """Flush and end the thread."""
        if self._thread is not None:
            self._queue.put(_END)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (write := self._queue.get()) is not _END:
            try:
                write()
            # Tolerating a full disk is the job here; the count says that something is missing.
            except Exception as error:  # noqa: BLE001
                self.failures += 1
                if is_news(self.failures):
                    _LOG.warning(
                        "%s: %d writes have failed, the last one: %s",
                        self.name, self.failures, one_line(error),
                    )  # fmt: skip
            finally:
                self._queue.task_done()
        self._queue.task_done()
