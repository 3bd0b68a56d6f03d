"""One run on its node, from its start to its end, as the scheduler sees it.

Whatever has been done may be done again: a scheduler that takes over after a crash begins here
with what the store says, asks the node, and goes on.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from p2p.files import write_bytes
from p2p.scheduler.backends import Backend, BackendError, secret_values
from p2p.scheduler.launch import RunStatus
from p2p.scheduler.records import Launch, RunRow
from p2p.scheduler.writer import NotOurRun, Writer

SchedulerStep = Literal[
    "assigned", "submitted", "running noted", "cancel sent", "end seen", "collected", "end noted"
]
"""Where a scheduler may be killed: between any two of them everything is kept."""

LOCAL_POLL_S, POLL_S = (1.0, 1.0), (2.0, 5.0)
"""How long to wait between looks: at first, and after many."""
COLLECT_S = 10.0
MAX_PAUSE_S = 60.0
MAX_LOG_BYTES = 16 << 20
MAX_REFUSALS = 3
"""After so many submits that failed, its backend is asked for its status all the same."""

_logger = logging.getLogger(__name__)


@dataclass
class RunMonitor:
    """Looks after one launch."""

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
        """Its end was asked for."""
        if not self._cancel_wanted:
            self._cancel_wanted = True
            self.look.set()

    async def watch(self) -> None:
        """Stay with it to its end, through all failures of its node."""
        pause, max_pause = LOCAL_POLL_S if self.is_here else POLL_S
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
        """Do what is next; True if it has come to its end."""
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
            self._note("it got lost before it began; submitting it again")
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
            return await self.backend.start(self.launch, secret_values(self.launch.spec.secrets))
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
        """Note the end, or that there is to be another attempt."""
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
            message = status.message or "it is gone without a word"
            writer.try_again(run, message, counts=not self.unreached)

    def _note(self, message: str) -> None:
        if message != self._last_message:
            with suppress(NotOurRun, sqlite3.OperationalError):
                self.writer.note(self.run, message[:1000])
                self._last_message = message
