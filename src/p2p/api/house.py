"""What the routes share: the runs folder, its index, and how an id in an address is looked up."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from p2p.api.benchmarks import BenchmarkReader
from p2p.api.channels import Channels
from p2p.api.index import SessionIndex
from p2p.api.metrics import MetricsReader
from p2p.api.problems import NotFound
from p2p.api.rows import is_session
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.scheduler.store import Store
from p2p.settings import resolve_session_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REFRESH_S = 1.0
SHARE = 10
"""After a look, so many times its length passes before the next one."""
_logger = logging.getLogger(__name__)


@dataclass
class House:
    """One server's view of one runs folder."""

    runs_dir: Path
    outputs_dir: Path
    """Where `unstable train` puts its runs."""
    metrics: MetricsReader = field(default_factory=MetricsReader)
    channels: Channels = field(default_factory=Channels)
    _closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Open the index, and keep it fresh in a thread of its own."""
        self.index = SessionIndex(self.runs_dir)
        self.benchmarks = BenchmarkReader(self.runs_dir)
        self._thread = threading.Thread(target=self._keep_fresh, name="index", daemon=True)

    def open(self) -> None:
        """Begin to keep the index fresh; what is on disk is in it when this returns."""
        self.index.refresh()
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self.index.close()

    def closing(self) -> bool:
        """Whether the server is about to end: what can be left should be."""
        return self._closing.is_set()

    def _keep_fresh(self) -> None:
        pause_s = REFRESH_S
        while not self._closing.wait(pause_s):
            began = time.monotonic()
            try:
                self.index.refresh()
            except (OSError, sqlite3.Error) as error:  # a full disk, a folder that may not be read
                _logger.warning("the list of sessions is not up to date: %s", error)
            # With ten thousand sessions a look takes a while: it is a small part of the time.
            pause_s = max(REFRESH_S, SHARE * (time.monotonic() - began))

    @property
    def selfplay_dirs(self) -> tuple[Path, ...]:
        """Where self-play runs may lie: those of jobs beside the sessions."""
        return (self.outputs_dir, self.runs_dir)

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The scheduler's store: opened for a request, as another process would."""
        opened = Store(self.runs_dir)
        try:
            yield opened
        finally:
            opened.close()

    def session(self, session_id: str) -> SessionRecord:
        """The session of an id; raises NotFound."""
        try:
            folder = resolve_session_dir(session_id, self.runs_dir)
            there = is_session(folder) and folder.resolve().is_relative_to(self.runs_dir.resolve())
        except (OSError, ValueError):
            there = False
        if not there:
            raise NotFound(f"there is no session {session_id!r}")
        return SessionRecord(folder)

    def iteration(self, session_id: str, name: str) -> IterationRecord:
        """An iteration by its number or its folder's name; raises NotFound."""
        session = self.session(session_id)
        try:
            found = session.get_iteration(f"iter_{name}" if name.isdecimal() else name)
        except (OSError, ValueError):
            found = None
        if found is None:
            raise NotFound(f"session {session_id} has no iteration {name!r}")
        return found

    def run(self, session_id: str, iteration: str, run_id: str) -> IterationRecord:
        """A training run; an iteration of `p2p train` is a run itself. Raises NotFound."""
        record = self.iteration(session_id, iteration)
        candidates = [record] if record.config_path.is_file() else record.runs()
        for run in candidates:
            if run.iteration_id == run_id:
                return run
        raise NotFound(f"{record.iteration_id} of session {session_id} has no run {run_id!r}")


def _of(request: Request) -> House:
    house: House = request.app.state.house
    return house


TheHouse = Annotated[House, Depends(_of)]
