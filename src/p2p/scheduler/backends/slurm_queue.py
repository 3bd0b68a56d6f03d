"""Slurm's queue as it shows itself: no accounting, so what ended a while ago is not in it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

FRESH_S = 1.0
"""One look at the queue serves everybody who asks within this time."""
PATIENCE_S = 60.0
"""For one of Slurm's commands; a busy controller takes its time."""

Stage = Literal["queued", "running", "ended"]
_QUEUED = {
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT",
    "RESV_DEL_HOLD", "POWER_UP_NODE",
}  # fmt: skip
_ENDED = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY",
    "BOOT_FAIL", "DEADLINE", "REVOKED",
}  # fmt: skip
_FORMAT = "%j|%K|%i|%T|%r"


class SlurmError(Exception):
    """One of Slurm's commands failed; what it said."""


@dataclass(frozen=True)
class Place:
    """Where a launch is in the queue: the name of its job, and its index if that is an array."""

    name: str
    index: int | None = None


@dataclass(frozen=True)
class QueuedJob:
    """A line of the queue."""

    job_id: str
    state: str
    reason: str

    @property
    def stage(self) -> Stage:
        """What its state comes to; one that we do not know is a kind of running."""
        if self.state in _QUEUED:
            return "queued"
        return "ended" if self.state in _ENDED else "running"

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason not in ("None", "") else ""
        return f"Slurm job {self.job_id}: {self.state}{why}"


def read_queue(text: str) -> dict[Place, QueuedJob]:
    """What squeue wrote; of several jobs for one launch, the one that got furthest and lives."""
    rank = {"ended": 0, "queued": 1, "running": 2}
    found: dict[Place, QueuedJob] = {}
    for line in text.splitlines():
        name, index, job_id, state, reason = line.split("|", 4)
        place = Place(name, int(index) if index.isdigit() else None)
        job = QueuedJob(job_id, state, reason)
        if place not in found or rank[job.stage] >= rank[found[place].stage]:
            found[place] = job
    return found


async def call(*command: str, given: str = "", variables: Mapping[str, str] | None = None) -> str:
    """Output of a command; raises SlurmError."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=variables,
        )
    except OSError as error:
        raise SlurmError(
            f"{command[0]} cannot be started ({error.strerror}): is this machine part of the "
            "cluster?"
        ) from None
    try:
        async with asyncio.timeout(PATIENCE_S):
            output, complaints = await process.communicate(given.encode())
    except TimeoutError:
        raise SlurmError(f"{command[0]} did not answer for {PATIENCE_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = complaints.decode(errors="replace").strip()
        raise SlurmError(f"{os.path.basename(command[0])}: {said[-1000:]}")  # noqa: PTH119
    return output.decode(errors="replace")


class SlurmQueue:
    """This user's jobs, looked at as seldom as possible."""

    def __init__(self) -> None:
        self._seen: dict[Place, QueuedJob] = {}
        self._seen_at = float("-inf")
        self._looking = asyncio.Lock()

    async def jobs(self, *, at_once: bool = False) -> dict[Place, QueuedJob]:
        """Those that wait, run or ended lately; `at_once`: as it is now, not a moment ago."""
        asked_at = time.monotonic()
        async with self._looking:
            wanted = asked_at if at_once else asked_at - FRESH_S
            if self._seen_at < wanted:
                looked_at = time.monotonic()
                text = await call(
                    "squeue", "--me", "--array", "--states=all", "--noheader", f"--format={_FORMAT}"
                )
                self._seen, self._seen_at = read_queue(text), looked_at
            return self._seen
