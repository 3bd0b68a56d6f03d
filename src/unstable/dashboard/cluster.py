"""The view of a run in a Ray cluster that another process started."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from typing import Any

from unstable.dashboard.gpus import local_gpus
from unstable.dashboard.source import SourceError
from unstable.dashboard.view import View, make_view

FIRST = 120.0
"""Seconds for Ray to start and connect."""
NEXT = 15.0
"""Seconds for each further line: the feed writes one every two, unless the tracker is busy."""


class ClusterRun:
    """A source of views: a process that asks the actors `Tracker` and `StepBuffer`.

    Args:
        address: of the cluster; `auto` is the one on this machine.
        namespace: of the actors.
    """

    def __init__(self, address: str = "auto", namespace: str = "unstable") -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._patience = FIRST
        self._ended = False
        self._last_error = "the process that asked the tracker has ended"
        module = "unstable.dashboard.feed"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--address", address, "--namespace", namespace],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, encoding="utf-8", start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, name="feed", daemon=True).start()

    def fetch(self) -> View:
        """The newest view; waits for the next one where there is no newer."""
        record = self._newest()
        if "error" in record:
            self._last_error = str(record["error"])
            raise SourceError(self._last_error)
        return make_view(record["info"], buffer=record["buffer"], gpus=local_gpus())

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def _newest(self) -> dict[str, Any]:
        """The last line that has come; older ones are of no interest."""
        line: str | None = None
        try:
            while not self._ended and (line is None or not self._lines.empty()):
                newer = self._lines.get(timeout=self._patience)
                line, self._ended = newer or line, newer is None
        except queue.Empty:
            raise SourceError(f"the cluster has not answered for {self._patience:g} s") from None
        self._patience = NEXT
        if line is None:
            raise SourceError(self._last_error)
        record: dict[str, Any] = json.loads(line)
        return record
