"""The scheduler: `python -m p2p.scheduler.job_scheduler --runs-dir runs`.

It gives waiting runs to nodes, stays with each to its end, and notes it. It keeps nothing that is
not in the store or known to the nodes, so it can be killed at any moment: the next one goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from p2p.files import write_bytes
from p2p.scheduler.backends import Backend, BackendError, make_backend, read_secrets
from p2p.scheduler.job_files import Exporter, saved_log_path
from p2p.scheduler.launch import RunStatus
from p2p.scheduler.notify import listen
from p2p.scheduler.records import Launch, NodeConfig, RunRow
from p2p.scheduler.service import EXIT_BUSY, SchedulerBusy, hold_scheduler_lock
from p2p.scheduler.store import Store, StoreError
from p2p.scheduler.writer import NotOurRun, Writer
from p2p.settings import get_settings

SchedulerStep = Literal[
    "assigned", "submitted", "running noted", "cancel sent", "end seen", "collected", "end noted"
]
"""Where a scheduler may be killed: between any two of them everything is kept."""

LOCAL_POLL_S, REMOTE_POLL_S = (1.0, 1.0), (2.0, 5.0)
"""How long to wait between looks: at first, and after many."""
COLLECT_S = 10.0
MAX_PAUSE_S = 60.0
MAX_LOG_BYTES = 16 << 20
MAX_REFUSALS = 3
"""After so many submits that failed, its backend is asked for its status all the same."""
POLL_S = 1.0
"""Between looks at the store without a notice."""
AVOID_S = 300.0
"""So long no further run goes to a node that could not be reached for as long as a lease lasts."""
EXPLAIN_EVERY_S = 5.0
"""How often runs that wait are told what for."""

_logger = logging.getLogger("p2p.scheduler")


@dataclass
class RunMonitor:
    """Looks after one launch, from its start to its end.

    Whatever has been done may be done again: a scheduler that takes over after a crash begins here
    with what the store says, asks the node, and continues.
    """

    run: RunRow
    launch: Launch
    backend: Backend
    writer: Writer
    is_here: bool
    """On this machine: it is heard of at once, and its output stays where it is."""
    log_path: Path
    """Where its output is kept after its end: another machine may forget it."""
    step: Callable[[SchedulerStep], None]
    look: asyncio.Event = field(default_factory=asyncio.Event)
    unreached: bool = False
    """Its node was out of reach until nothing of it could run there any more."""
    _submitted: bool = False
    _cancel_wanted: bool = False
    _cancel_sent: bool = False
    _refusals: int = 0
    _collected_at: float = field(default_factory=time.monotonic)
    _last_message: str = ""

    def __post_init__(self) -> None:
        self._submitted = self.run.state == "running"
        self._cancel_wanted = self.run.cancel_requested

    def cancel(self) -> None:
        """Ask for its end."""
        if not self._cancel_wanted:
            self._cancel_wanted = True
            self.look.set()

    async def watch(self) -> None:
        """Watch the launch to its end, through all failures of its node."""
        pause, max_pause = LOCAL_POLL_S if self.is_here else REMOTE_POLL_S
        failures = 0
        while True:
            try:
                if await self._advance():
                    return
                failures = 0
                wait = pause
                pause = min(pause * 1.5, max_pause)
            except NotOurRun as error:
                _logger.info("%s", error)
                return
            # One run's trouble must not end the others': say so, and try again later.
            except Exception as error:
                message = str(error)
                if not isinstance(error, BackendError):
                    _logger.exception("%s", self.launch.launch_id)
                    message = f"{type(error).__name__}: {error}"
                failures += 1
                wait = min(max_pause * 2**failures, MAX_PAUSE_S)
                self._note(f"{message}; trying again")
            with suppress(TimeoutError):
                await asyncio.wait_for(self.look.wait(), wait)
            self.look.clear()

    async def _advance(self) -> bool:
        """Take the next step; return True at the end."""
        status: RunStatus | None = None
        if self._cancel_wanted and not self._cancel_sent:
            await self.backend.cancel(self.launch)
            self._cancel_sent = True
            self.step("cancel sent")
        elif not self._submitted and not self._cancel_sent:
            status = await self._submit()
            self.step("submitted")
            self.writer.mark_running(self.run)
            self._submitted = True
            self.step("running noted")
        status = status or await self.backend.status(self.launch)
        if status.state in ("waiting", "running"):
            self._note(status.message)
            if time.monotonic() - self._collected_at > COLLECT_S:
                await self.backend.collect(self.launch)
                self._collected_at = time.monotonic()
            return False
        if status.never_began and not self._cancel_sent:
            # Nothing is lost but its place in a queue: the same launch, no new attempt.
            self._submitted = False
            self._note("it was lost before it started; submitting it again")
            return False
        self.step("end seen")
        is_complete = await self._collect_all(status)
        self.step("collected")
        self._settle(status)
        _logger.info("%s: %s %s", self.launch.launch_id, status.state, status.exit_code)
        self.step("end noted")
        if is_complete:
            try:
                await self.backend.release(self.launch)
            except BackendError as error:  # some space there stays taken
                _logger.warning("%s is not removed from its node: %s", self.launch.launch_id, error)
        return True

    async def _submit(self) -> RunStatus:
        """Start it. Where that keeps failing, it may have begun all the same, or have ended."""
        try:
            return await self.backend.start(self.launch, read_secrets(self.launch.spec.secrets))
        except BackendError:
            self._refusals += 1
            if self._refusals < MAX_REFUSALS:
                raise
            status = await self.backend.status(self.launch)
            if status.state == "absent":
                raise
            self.unreached = status.state == "lost"
            return status

    async def _collect_all(self, status: RunStatus) -> bool:
        """Fetch files and output; of a run that is lost, what can still be had.

        Returns whether all of it is here now.
        """
        if status.state == "absent":
            return False
        try:
            await self.backend.collect(self.launch)
            output = b"" if self.is_here else await self.backend.logs(self.launch, 0)
        except BackendError:
            if status.state != "lost":
                raise
            return False
        if output and not self.log_path.exists():
            write_bytes(self.log_path, output[-MAX_LOG_BYTES:])
        return status.state != "lost" and len(output) <= MAX_LOG_BYTES

    def _settle(self, status: RunStatus) -> None:
        """Record the end, or schedule another attempt."""
        run, writer, code = self.run, self.writer, status.exit_code
        spec = self.launch.spec
        if status.state == "exited" and code in spec.done_codes:
            writer.finish(run, "succeeded", status.message, code)
        elif status.state == "cancelled" or self._cancel_sent:
            writer.finish(run, "cancelled", status.message, code)
        elif status.state == "exited":
            message = status.message or f"it ended with exit code {code}"
            if code in spec.retry_codes:
                writer.try_again(run, message, code)
            else:
                writer.finish(run, "failed", message, code)
        else:
            message = status.message or "it disappeared without an exit status"
            writer.try_again(run, message, counts=not self.unreached)

    def _note(self, message: str) -> None:
        if message != self._last_message:
            with suppress(NotOurRun, sqlite3.OperationalError):
                self.writer.note(self.run, message[:1000])
                self._last_message = message


class Scheduler:
    """Works on the jobs of a store until it is told to stop.

    Args:
        store: the jobs.
        job_id: work on this one only, also beside another scheduler.
        step: told of every step, right after it; tests end the process there.
    """

    def __init__(
        self,
        store: Store,
        *,
        job_id: str | None = None,
        step: Callable[[SchedulerStep], None] = lambda _: None,
    ) -> None:
        self.store = store
        self.job_id = job_id
        self.step = step
        self.stopped = False
        self._wake_up = asyncio.Event()
        self._monitors: dict[str, RunMonitor] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._backends: dict[str, tuple[NodeConfig, Backend]] = {}
        self._avoided: dict[str, float] = {}
        self._explained_at = float("-inf")
        self._exporter = Exporter(store)

    def stop(self) -> None:
        """End soon; runs go on, and the next scheduler finds them."""
        self.stopped = True
        self._wake_up.set()

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until `stop`, or until nothing is left to do."""
        writer = Writer(self.store)
        try:
            with ExitStack() as stack:
                if self.job_id is None:
                    stack.enter_context(self._listen())
                while not self.stopped:
                    self._wake_up.clear()
                    self._run_once(writer)
                    if until_idle and not self._monitors and not self._has_work():
                        break
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._wake_up.wait(), POLL_S)
        finally:
            await self._shut_down()
            writer.close()

    def _has_work(self) -> bool:
        """Return whether anything is left to do; what others do might be left to us."""
        if self.job_id is None:
            return bool(self.store.jobs(1, unended=True))
        job = self.store.job(self.job_id)
        return job is not None and job.state in ("pending", "running")

    def _run_once(self, writer: Writer) -> None:
        """Do what is to be done now. A disk that is full or a lock that is held will pass."""
        try:
            self._assign(writer)
            self._exporter.export(self.job_id)
        except (sqlite3.OperationalError, OSError) as error:
            _logger.warning("trying again: %s", error)

    def _assign(self, writer: Writer) -> None:
        """Take unowned jobs, read requests, and start the runs that fit."""
        writer.take_jobs(self.job_id)
        for run in writer.live_runs():
            monitor = self._monitors.get(run.launch_id)
            if monitor is None:
                self._start_monitor(run, writer)
            elif run.cancel_requested:
                monitor.cancel()
        for run in writer.assign(avoided=self._list_avoided_nodes()):
            _logger.info("%s goes to %s", run.launch_id, run.node_id)
            self.step("assigned")
            self._start_monitor(run, writer)
        if time.monotonic() - self._explained_at > EXPLAIN_EVERY_S:
            self._explained_at = time.monotonic()
            writer.explain_unplaceable()

    def _list_avoided_nodes(self) -> frozenset[str]:
        """Return the nodes that are avoided for now."""
        now = time.monotonic()
        self._avoided = {node: until for node, until in self._avoided.items() if until > now}
        return frozenset(self._avoided)

    def _start_monitor(self, run: RunRow, writer: Writer) -> None:
        node = self.store.node(run.node_id or "")
        if node is None:
            writer.try_again(run, f"its node {run.node_id} no longer exists")
            return
        try:
            backend = self._get_backend(node)
        except (BackendError, ImportError) as error:
            writer.note(run, f"node {node.node_id}: {error}")
            return  # looked at again with the next look
        monitor = RunMonitor(
            run=run,
            launch=self.store.launch(run),
            backend=backend,
            writer=writer,
            is_here=node.backend == "local",
            log_path=saved_log_path(self.store, run.launch_id),
            step=self.step,
        )
        self._monitors[run.launch_id] = monitor
        task = asyncio.create_task(monitor.watch(), name=run.launch_id)
        self._tasks.add(task)
        task.add_done_callback(self._on_monitor_end)

    def _on_monitor_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        monitor = self._monitors.pop(task.get_name(), None)
        if monitor is not None and monitor.unreached and monitor.run.node_id is not None:
            self._avoided[monitor.run.node_id] = time.monotonic() + AVOID_S
        self._wake_up.set()

    @contextmanager
    def _listen(self) -> Iterator[None]:
        """Look at once when notified."""

        def wake_up() -> None:
            with suppress(BlockingIOError):
                while listener.recv(64):
                    pass
            # The sender is on this machine: a supervisor whose program has ended, or a command.
            for monitor in self._monitors.values():
                if monitor.is_here:
                    monitor.look.set()
            self._wake_up.set()

        loop = asyncio.get_running_loop()
        with listen(self.store.folder) as listener:
            loop.add_reader(listener, wake_up)
            yield
            loop.remove_reader(listener)

    def _get_backend(self, node: NodeConfig) -> Backend:
        config, backend = self._backends.get(node.node_id, (None, None))
        if backend is None or config != node:
            # One whose settings changed is left to those who still use it.
            backend = make_backend(node, self.store.folder)
            self._backends[node.node_id] = (node, backend)
        return backend

    async def _shut_down(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _, backend in self._backends.values():
            with suppress(BackendError):
                await backend.close()
        with suppress(sqlite3.OperationalError, OSError):
            self._exporter.export(self.job_id, everything=True)


def run_scheduler(
    runs_dir: Path,
    *,
    job_id: str | None = None,
    until_idle: bool = False,
    step: Callable[[SchedulerStep], None] = lambda _: None,
) -> None:
    """Run the scheduler of a runs folder until a signal to stop or until idle.

    Raises SchedulerBusy if there is one already, unless it is for one job only, and StoreError if
    there is no such job, or the folder was made by somebody else.
    """

    async def until_signal() -> bool:
        scheduler = Scheduler(store, job_id=job_id, step=step)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, scheduler.stop)
        await scheduler.run(until_idle=until_idle)
        return scheduler.stopped

    with closing(Store(runs_dir)) as store:
        store.check_trusted()
        if job_id is not None and store.job(job_id) is None:
            raise StoreError(f"there is no job {job_id} in {runs_dir}")
        while True:
            with ExitStack() as stack:
                if job_id is None:
                    stack.enter_context(hold_scheduler_lock(runs_dir))
                stopped = asyncio.run(until_signal())
            # A job that came after the last look, while the lock was still held, waits for us.
            if stopped or job_id is not None or not store.jobs(1, unended=True):
                return


def log_to_stderr() -> None:
    """Log the events of runs and errors to standard error."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s", force=True
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m p2p.scheduler.job_scheduler",
        description="Run the jobs of a runs folder. Ctrl-C ends the scheduler, not the runs.",
        epilog="exit status: 0 done or told to stop, 2 bad arguments, 9 there is one already",
    )
    parser.add_argument("--runs-dir", type=Path, help="where sessions lie (default: runs)")
    parser.add_argument("--job-id", help="work on this job only")
    parser.add_argument("--until-idle", action="store_true", help="end when nothing is left to do")
    arguments = parser.parse_args(argv)
    log_to_stderr()
    runs_dir = (arguments.runs_dir or get_settings().runs_dir).absolute()
    try:
        run_scheduler(runs_dir, job_id=arguments.job_id, until_idle=arguments.until_idle)
    except (SchedulerBusy, StoreError) as error:
        _logger.error("error: %s", error)  # noqa: TRY400 - no traceback: nothing is broken
        return EXIT_BUSY if isinstance(error, SchedulerBusy) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
