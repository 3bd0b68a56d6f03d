"""What the routes share: the runs folder, its index, lookup by id, and how busy the machine is."""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import psutil
from fastapi import Depends, Request
from fastapi import Path as PathParameter

from p2p.api.benchmark_reader import BenchmarkReader
from p2p.api.index import SessionIndex
from p2p.api.live import Watcher
from p2p.api.metrics import MetricsReader
from p2p.api.problems import ResourceNotFound
from p2p.api.schemas import GpuInfo, ResourceSample
from p2p.config import TrainConfig
from p2p.files import is_session
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.session_view import IterationView
from p2p.scheduler.store import Store
from p2p.settings import resolve_session_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REFRESH_S = 1.0
LISTED_S = 2.0
"""How long a server waits with its first answer for the sessions to be read."""
IDLE_SHARE = 10
"""After a refresh, so many times its length passes before the next one,"""
IDLE_MOST_S = 5.0
"""but no longer than this: one that read a thousand new sessions was long only once."""
GPU_QUERY = "--query-gpu=name,utilization.gpu,memory.used,memory.total"
KEPT = 600
GPUS_EVERY_S = 5.0
"""To ask for the GPUs is a process of its own: less often than the rest."""
_logger = logging.getLogger(__name__)


class ResourceHistory:
    """Samples of the last minutes; whoever keeps it calls `sample` every second or so."""

    def __init__(self) -> None:
        self.core_percent: list[float] = []
        """How busy each core was between the last two samples."""
        self._samples: deque[ResourceSample] = deque(maxlen=KEPT)
        self._gpus: tuple[float, ...] = ()
        self._gpus_at = float("-inf")

    def sample(self) -> None:
        now = time.time()
        if now - self._gpus_at >= GPUS_EVERY_S:
            self._gpus, self._gpus_at = tuple(gpu.busy for gpu in list_gpus()), now
        is_first = not self.core_percent
        self.core_percent = psutil.cpu_percent(percpu=True)
        if is_first:  # there is nothing yet that it could be a share of
            return
        memory = psutil.virtual_memory()
        self._samples.append(
            ResourceSample(
                time=now,
                cpu=sum(self.core_percent) / max(len(self.core_percent), 1) / 100,
                memory=1 - memory.available / memory.total,
                gpus=self._gpus,
            )
        )

    def samples(self) -> list[ResourceSample]:
        return list(self._samples)


def list_gpus() -> tuple[GpuInfo, ...]:
    """The GPUs that nvidia-smi lists; none where it is not installed."""
    command = ["nvidia-smi", GPU_QUERY, "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    gpus = []
    for line in output.stdout.splitlines():
        name, *numbers = (part.strip() for part in line.split(","))
        if len(numbers) == 3 and all(number.isdecimal() for number in numbers):
            busy, used, total = map(int, numbers)
            gpus.append(
                GpuInfo(name=name, busy=busy / 100, memory_used_mb=used, memory_total_mb=total)
            )
    return tuple(gpus)


class AppState:
    """One server's view of one runs folder.

    Args:
        runs_dir: where the sessions and benchmarks are.
        outputs_dir: where `unstable train` puts its runs.
    """

    def __init__(self, runs_dir: Path, outputs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.selfplay_dirs = (outputs_dir, runs_dir)
        self.index = SessionIndex(runs_dir)
        self.benchmarks = BenchmarkReader(runs_dir)
        self.metrics = MetricsReader()
        self.watcher = Watcher()
        self.resources = ResourceHistory()
        self._listed, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep_fresh, name="refresh", daemon=True)

    def open(self) -> None:
        """Keep the index fresh from now on; thousands of sessions go on being read after it."""
        self._thread.start()
        self._listed.wait(LISTED_S)

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def closing(self) -> bool:
        """Return whether the server is about to end."""
        return self._closing.is_set()

    def _keep_fresh(self) -> None:
        pause_s = 0.0
        while not self._closing.wait(pause_s):
            began = time.monotonic()
            try:
                self.resources.sample()
                self.index.refresh()
            except OSError as error:  # a full disk, a folder that may not be read
                _logger.warning("the list of sessions is not up to date: %s", error)
            self._listed.set()
            # With ten thousand sessions it takes a while: it stays a small part of the time.
            idle_s = min(IDLE_MOST_S, IDLE_SHARE * (time.monotonic() - began))
            pause_s = max(REFRESH_S, idle_s)

    @contextmanager
    def store(self, *, make: bool = False) -> Iterator[Store]:
        """The scheduler's store, opened for a request; without `make`, an absent one stays so."""
        store = Store(self.runs_dir, make=make)
        try:
            yield store
        finally:
            store.close()

    def session(self, session_id: str) -> SessionRecord:
        """The session of an id; raises NotFound."""
        try:
            folder = resolve_session_dir(session_id, self.runs_dir)
            if is_session(folder) and folder.resolve().is_relative_to(self.runs_dir.resolve()):
                return SessionRecord(folder)
        except (OSError, ValueError):
            pass
        raise ResourceNotFound(f"there is no session {session_id!r}")

    def view(self, session_id: str, name: str) -> IterationView:
        """An iteration by its number or its folder's name; raises NotFound."""
        session = self.session(session_id)
        try:
            iteration = session.get_iteration(f"iter_{name}" if name.isdecimal() else name)
        except (OSError, ValueError):
            iteration = None
        if iteration is None:
            raise ResourceNotFound(f"session {session_id} has no iteration {name!r}")
        return view_of(iteration)

    def run(self, session_id: str, iteration: str, run_id: str) -> IterationRecord:
        """A training run; raises NotFound."""
        view = self.view(session_id, iteration)
        for run in view.runs:
            if run.run_id == run_id:
                return run.record
        raise ResourceNotFound(f"{view.iteration_id} of session {session_id} has no run {run_id!r}")


def view_of(record: IterationRecord) -> IterationView:
    """An iteration, or a run, by itself."""
    return IterationView(record, record.number or 0, TrainConfig())


def _state(request: Request) -> AppState:
    state: AppState = request.app.state.p2p
    return state


State = Annotated[AppState, Depends(_state)]
PathNumber = Annotated[int, PathParameter(ge=0, lt=1 << 53)]
"""A number in an address: a step, an event, a case."""
