"""Runs on a Slurm cluster, through submitit. Base folder and runs folder are seen by all nodes.

Each run is a job with its attendant in it; runs that are submitted together and ask for the same
become one array. Whether a launch has begun and how it ended stands in its control folder, never
in Slurm's memory: accounting need not be there. A second job for the same launch finds the first
one's claim and goes away, so a submit that may have got lost is simply made again.

Jobs are never requeued by Slurm. One that it ends (its node fails, it is preempted, the
partition's time is up) is lost, and the scheduler, which counts attempts, starts it anew.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from p2p.scheduler import halves, launching
from p2p.scheduler.backends import BackendError
from p2p.scheduler.backends.owner import owner
from p2p.scheduler.backends.slurm_entrance import (
    GRACE_S,
    Entrance,
    forget_job,
    place_of,
    read_note,
)
from p2p.scheduler.backends.slurm_queue import QueuedJob, SlurmError, SlurmQueue, call
from p2p.scheduler.control import Control, Exit
from p2p.scheduler.records import Launch, LaunchReport, NodeConfig

LAG_S = 10.0
"""What a node wrote may be seen here so much later, on a shared file system."""


class SlurmBackend:
    """The queue of a cluster; sbatch, squeue and scancel have to work on this machine."""

    def __init__(self, node: NodeConfig, scheduler_dir: Path) -> None:
        assert node.base_dir is not None
        self.node = node
        self.base = Path(node.base_dir) / owner(scheduler_dir)
        self._queue = SlurmQueue()
        self._entrance = Entrance(self.base, node)
        self._gone_since: dict[str, float] = {}
        self._tidied = False

    async def submit(self, launch: Launch, secrets: Mapping[str, str]) -> None:
        """Queue it, unless it was queued, started or cancelled before."""
        python = self._entrance.python
        try:
            control = await asyncio.to_thread(
                launching.prepare, self.base, launch, launch.runs_dir, python, grace_s=GRACE_S
            )
            if control is not None and not await self._is_queued(control):
                await self._entrance.hand_in(control, launch.spec, secrets)
        except (SlurmError, OSError) as error:
            raise self._error(error) from error

    async def _is_queued(self, control: Control) -> bool:
        note = read_note(control)
        if note is None:
            return False
        job = (await self._queue.jobs(at_once=True)).get(place_of(note))
        return job is not None and job.stage != "ended"

    async def status(self, launch: Launch) -> LaunchReport:
        """How it stands, as its folder and the queue say."""
        control = Control(self.base, launch.launch_id)
        try:
            return await self._status(control)
        except (SlurmError, OSError) as error:
            raise self._error(error) from error

    async def _status(self, control: Control) -> LaunchReport:
        if (known := launching.known_end(control)) is not None:
            halves.sweep(control.path)
            return await self._if_by_hand(control) or known
        note = read_note(control)
        if note is None:
            return LaunchReport(state="absent")
        job = (await self._queue.jobs()).get(place_of(note))
        if job is not None and job.stage != "ended":
            self._gone_since.pop(control.launch_id, None)
            begun = job.stage == "running" and control.read_process() is not None
            return LaunchReport(state="running" if begun else "waiting", message=str(job))
        if job is None and "job_id" not in note and control.read_claim() is None:
            return LaunchReport(state="absent")
        return self._after_the_job(control, job)

    async def _if_by_hand(self, control: Control) -> LaunchReport | None:
        """The report on a job that was ended by a person with scancel, who does not want it back.

        What ended the attendant is known as long as the job is in the queue, some minutes.
        """
        ended, note = control.read_exit(), read_note(control)
        if ended is None or ended.how != "terminated" or note is None:
            return None
        job = (await self._queue.jobs()).get(place_of(note))
        if job is None or job.state != "CANCELLED":
            return None
        ended = replace(ended, how="cancelled", message=f"{job}, by scancel")
        control.write_exit(ended)
        return launching.as_report(ended)

    def _after_the_job(self, control: Control, job: QueuedJob | None) -> LaunchReport:
        """The job is over; its folder has the last word, or will have it in a moment."""
        if (known := launching.known_end(control)) is not None:
            return known
        now = time.monotonic()
        if now - self._gone_since.setdefault(control.launch_id, now) < LAG_S:
            begun = control.read_process() is not None
            return LaunchReport(
                state="running" if begun else "waiting",
                message="its job is over; waiting for its last word",
            )
        # Nothing that starts late gets in any more.
        if (tombstone := control.take_claim(gone=True)) is not None:
            os.close(tombstone)
        by_hand = control.cancel_asked() or (job is not None and job.state == "CANCELLED")
        message = f"{job or 'its job is no longer in the queue'}; see {self.base / 'slurm'}"
        ended = Exit(
            "cancelled" if by_hand else "lost", None, datetime.now(UTC).isoformat(), message
        )
        control.write_exit(ended)
        return launching.as_report(ended)

    async def cancel(self, launch: Launch) -> None:
        """End it, in the queue or with all its processes; it never begins after this."""
        control = Control(self.base, launch.launch_id)
        try:
            await asyncio.to_thread(launching.cancel, self.base, launch.launch_id)
            halves.sweep(control.path)
            note = read_note(control)
            if note is None:
                return
            job = (await self._queue.jobs(at_once=True)).get(place_of(note))
            if job is not None and job.stage != "ended":
                await call("scancel", job.job_id)
        except (SlurmError, OSError) as error:
            raise self._error(error) from error

    async def logs(self, launch: Launch, offset: int = 0) -> bytes:
        """What it wrote to standard output and error, from this byte on."""
        return await asyncio.to_thread(launching.read_log, self.base, launch.launch_id, offset)

    async def collect(self, launch: Launch) -> None:
        """Nothing to do: it works in the runs folder, which all nodes see."""

    async def release(self, launch: Launch) -> None:
        """Remove its output, and what submitit keeps of its job."""
        try:
            await asyncio.to_thread(self._remove, Control(self.base, launch.launch_id))
        except (launching.LaunchError, OSError) as error:
            raise self._error(error) from error

    def _remove(self, control: Control) -> None:
        note = read_note(control)
        launching.release(self.base, control.launch_id)
        if note is not None and "job_id" in note:
            forget_job(self.base, note)
        if not self._tidied:
            self._tidied = True
            launching.forget_released(self.base)

    async def check(self) -> str:
        """Which Slurm it is, and what the partition has."""
        if importlib.util.find_spec("submitit") is None:
            raise BackendError(
                f"node {self.node.node_id}: submitit is not installed: "
                "pip install 'prompt2policy[cluster]'"
            )
        try:
            await asyncio.to_thread(self.base.mkdir, mode=0o700, parents=True, exist_ok=True)
            version = (await call("sinfo", "--version")).strip()
            partition = [f"--partition={self.node.partition}"] if self.node.partition else []
            text = await call("sinfo", "--noheader", "--format=%R|%a|%D|%C", *partition)
        except (SlurmError, OSError) as error:
            raise self._error(error) from error
        lines = [line.split("|") for line in text.splitlines()]
        if not any(available == "up" for _, available, _, _ in lines):
            raise BackendError(
                f"node {self.node.node_id}: no partition "
                f"{self.node.partition or 'of the cluster'} that is up; see sinfo"
            )
        return f"{version}: " + "; ".join(
            f"partition {name} ({state}), {nodes} nodes, {cpus.rpartition('/')[2]} CPUs"
            for name, state, nodes, cpus in lines
        )

    async def close(self) -> None:
        """Nothing is held."""

    def _error(self, error: Exception) -> BackendError:
        return BackendError(f"node {self.node.node_id}: {error}")
