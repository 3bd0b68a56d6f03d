"""Slurm's commands and its queue: no accounting, so what ended a while ago is not in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

FRESH_S = 1.0
"""One look at the queue serves everybody who asks within this time."""
COMMAND_S = 60.0
"""For one of Slurm's commands; a busy controller takes its time."""
ENDED = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY",
    "BOOT_FAIL", "DEADLINE", "REVOKED",
}  # fmt: skip

Place = tuple[str, int | None]
"""Where a launch is in the queue: the name of its job, and its index if that is an array."""


class SlurmError(Exception):
    """One of Slurm's commands failed; what it said."""


@dataclass(frozen=True)
class SlurmJob:
    """A line of the queue."""

    job_id: str
    state: str
    reason: str

    @property
    def is_over(self) -> bool:
        """Whether it has ended; in a state that we do not know it has not."""
        return self.state in ENDED

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason not in ("None", "") else ""
        return f"Slurm job {self.job_id}: {self.state}{why}"


def read_queue(text: str) -> dict[Place, SlurmJob]:
    """What squeue wrote; of several jobs for one launch, the one that got furthest and lives."""
    jobs: dict[Place, SlurmJob] = {}
    for line in text.splitlines():
        name, index, job_id, state, reason = line.split("|", 4)
        place = (name, int(index) if index.isdigit() else None)
        job = SlurmJob(job_id, state, reason)
        if place not in jobs or _rank(job) >= _rank(jobs[place]):
            jobs[place] = job
    return jobs


def _rank(job: SlurmJob) -> int:
    return 0 if job.is_over else 1 if job.state == "PENDING" else 2


async def call(*command: str, text: str = "", variables: Mapping[str, str] | None = None) -> str:
    """Output of one of Slurm's commands; raises SlurmError."""
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
        async with asyncio.timeout(COMMAND_S):
            output, complaint = await process.communicate(text.encode())
    except TimeoutError:
        raise SlurmError(f"{command[0]} did not answer for {COMMAND_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise SlurmError(f"{command[0]}: {complaint.decode(errors='replace').strip()[-1000:]}")
    return output.decode(errors="replace")


class SlurmQueue:
    """This user's jobs, looked at as seldom as possible."""

    def __init__(self) -> None:
        self._jobs: dict[Place, SlurmJob] = {}
        self._seen_at = float("-inf")
        self._looking = asyncio.Lock()

    async def jobs(self, *, at_once: bool = False) -> dict[Place, SlurmJob]:
        """Those that wait, run or ended lately; `at_once`: as it is now, not a moment ago."""
        asked_at = time.monotonic()
        async with self._looking:
            if self._seen_at < (asked_at if at_once else asked_at - FRESH_S):
                looked_at = time.monotonic()
                text = await call(
                    "squeue", "--me", "--array", "--states=all", "--noheader",
                    "--format=%j|%K|%i|%T|%r",
                )  # fmt: skip
                self._jobs, self._seen_at = read_queue(text), looked_at
            return self._jobs
