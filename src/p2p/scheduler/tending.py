"""One run on its node, from its start to its end, as the scheduler sees it.

Whatever has been done may be done again: a scheduler that takes over after a crash begins here
with what the store says, asks the node, and goes on.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from p2p.files import write_bytes
from p2p.scheduler.backends import BackendError
from p2p.scheduler.writer import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from p2p.scheduler.backends import Backend
    from p2p.scheduler.records import Launch, LaunchReport, RunRow
    from p2p.scheduler.writer import Writer

Step = Literal[
    "assigned", "submitted", "running noted", "cancel sent", "end seen", "collected", "end noted"
]
"""Where a scheduler may be killed: between any two of them everything is kept."""

LOCAL_POLL_S, POLL_S = (1.0, 1.0), (2.0, 5.0)
"""How long to wait between looks: at first, and after many."""
COLLECT_S = 10.0
LONGEST_PAUSE_S = 60.0
LONGEST_LOG = 16 << 20
REFUSALS = 3
"""After so many submits that failed, its backend is asked how it stands all the same."""

_logger = logging.getLogger(__name__)


@dataclass
class Tender:
    """Looks after one launch."""

    run: RunRow
    launch: Launch
    backend: Backend
    writer: Writer
    secrets: Callable[[], Mapping[str, str]]
    is_here: bool
    """On this machine: it is heard of at once, and its output stays where it is."""
    log_path: Path
    """Where its output is kept after its end: another machine may forget it."""
    step: Callable[[Step], None]
    look: asyncio.Event = field(default_factory=asyncio.Event)
    unreached: bool = False
    """Its node was out of reach until nothing of it could run there any more."""
    _submitted: bool = False
    _cancel_wanted: bool = False
    _cancel_sent: bool = False
    _refusals: int = 0
    _collected_at: float = field(default_factory=time.monotonic)
    _told: str = ""

    def __post_init__(self) -> None:
        self._submitted = self.run.state == "running"
        self._cancel_wanted = self.run.cancel_requested

    def cancel(self) -> None:
        """Its end was asked for."""
        if not self._cancel_wanted:
            self._cancel_wanted = True
            self.look.set()

    async def tend(self) -> None:
        """Stay with it to its end, through all failures of its node."""
        pause, longest = LOCAL_POLL_S if self.is_here else POLL_S
        failures = 0
        while True:
            try:
                if await self._advance():
                    return
                failures = 0
                wait = pause
                pause = min(pause * 1.5, longest)
            except LeaseLost as error:
                _logger.info("%s", error)
                return
            except BackendError as error:
                failures += 1
                wait = min(longest * 2**failures, LONGEST_PAUSE_S)
                self._tell(f"{error}; trying again")
            except Exception as error:
                # One run's trouble must not end the others': say so, and try again later.
                _logger.exception("%s", self.launch.launch_id)
                failures += 1
                wait = min(longest * 2**failures, LONGEST_PAUSE_S)
                self._tell(f"{type(error).__name__}: {error}; trying again")
            with suppress(TimeoutError):
                await asyncio.wait_for(self.look.wait(), wait)
            self.look.clear()

    async def _advance(self) -> bool:
        """Do what is next; True if it has come to its end."""
        if self._cancel_wanted and not self._cancel_sent:
            await self.backend.cancel(self.launch)
            self._cancel_sent = True
            self.step("cancel sent")
        elif not self._submitted and not self._cancel_sent:
            await self._submit()
            self.step("submitted")
            self.writer.mark_running(self.run)
            self._submitted = True
            self.step("running noted")
        report = await self.backend.status(self.launch)
        if report.state in ("waiting", "running"):
            self._tell(report.message)
            await self._collect_now_and_then()
            return False
        if report.never_began and not self._cancel_sent:
            # Nothing is lost but its place in a queue: the same launch, no new attempt.
            self._submitted = False
            self._tell("it got lost before it began; submitting it again")
            return False
        self.step("end seen")
        all_here = await self._bring_home(report)
        self.step("collected")
        self._settle(report)
        _logger.info("%s: %s %s", self.launch.launch_id, report.state, report.exit_code)
        self.step("end noted")
        if all_here:
            await self._release()
        return True

    async def _submit(self) -> None:
        """Start it. Where that keeps failing, it may have begun all the same, or have ended."""
        try:
            await self.backend.submit(self.launch, self.secrets())
        except BackendError:
            self._refusals += 1
            if self._refusals < REFUSALS:
                raise
            report = await self.backend.status(self.launch)
            if report.state == "absent":
                raise
            self.unreached = report.state == "lost"

    async def _collect_now_and_then(self) -> None:
        if time.monotonic() - self._collected_at > COLLECT_S:
            await self.backend.collect(self.launch)
            self._collected_at = time.monotonic()

    async def _bring_home(self, report: LaunchReport) -> bool:
        """Fetch files and output; of a run that is lost, what can still be had.

        Returns whether all of it is here now.
        """
        if report.state == "absent":
            return False
        try:
            await self.backend.collect(self.launch)
            output = b"" if self.is_here else await self.backend.logs(self.launch, 0)
        except BackendError:
            if report.state != "lost":
                raise
            return False
        if output and not self.log_path.exists():
            write_bytes(self.log_path, output[-LONGEST_LOG:])
        return report.state != "lost" and len(output) <= LONGEST_LOG

    async def _release(self) -> None:
        """Let its node forget it; where that fails, some space there stays taken."""
        try:
            await self.backend.release(self.launch)
        except BackendError as error:
            _logger.warning("%s is not removed from its node: %s", self.launch.launch_id, error)

    def _settle(self, report: LaunchReport) -> None:
        """Note the end, or that there is to be another attempt."""
        run, writer, code = self.run, self.writer, report.exit_code
        if report.state == "exited" and code in self.launch.spec.done_codes:
            writer.finish(run, "succeeded", report.message, code)
        elif report.state == "cancelled" or self._cancel_sent:
            writer.finish(run, "cancelled", report.message, code)
        elif report.state == "exited":
            told = report.message or f"it ended with exit code {code}"
            if code in self.launch.spec.retry_codes:
                writer.try_again(run, told, code)
            else:
                writer.finish(run, "failed", told, code)
        else:
            told = report.message or "it is gone without a word"
            writer.try_again(run, told, counts=not self.unreached)

    def _tell(self, message: str) -> None:
        if message != self._told:
            with suppress(LeaseLost, sqlite3.OperationalError):
                self.writer.note(self.run, message[:1000])
                self._told = message
