"""Runs on a Slurm cluster. Base folder and runs folder are seen by all of its machines.

Each run is a job of one batch script, with its supervisor in it. Whether a launch has begun and how
it ended stands in its folder, never in Slurm's memory: accounting need not be there. A second job
for the same launch finds the first one's claim and goes away, so a submit that may have got lost is
simply made again.

Jobs are never requeued by Slurm. One that it ends (its node fails, it is preempted, the
partition's time is up) is lost, and the scheduler, which counts attempts, starts it anew.
"""

from __future__ import annotations

import asyncio
import math
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from p2p import files
from p2p.scheduler.backends import Backend, BackendError, cluster_owner
from p2p.scheduler.launch import (
    LaunchError,
    LaunchFolder,
    RunStatus,
    forget_released,
    launch_environment,
    launch_file,
)
from p2p.scheduler.package import build_package, unpack
from p2p.scheduler.records import Launch, NodeConfig, RunSpec

FRESH_S = 1.0
"""One look at the queue serves everybody who asks within this time."""
COMMAND_S = 60.0
"""For one of Slurm's commands; a busy controller takes its time."""
LAG_S = 10.0
"""What a machine wrote may be seen here so much later, on a shared file system."""
GRACE_S = 20.0
"""Less than Slurm's KillWait, 30 s by default, after which it kills the supervisor, too."""
SECRETS_FILE = "secrets.env"
"""In the base folder: what the cluster itself provides. Slurm would write secrets to its disk."""
LOCAL_VARIABLES = {
    "XDG_RUNTIME_DIR", "TMPDIR", "CUDA_VISIBLE_DEVICES", "P2P_LAUNCH_ID", "P2P_CORE_LOCKS",
    "PYTHONPATH",
}  # fmt: skip
"""What means nothing on another machine."""
NOTE = "slurm.json"
"""In the launch's folder: the name of its job, and its number once known."""
SCRIPT = """#!/bin/bash
exec >> {folder}/supervisor.log 2>&1
export PYTHONPATH={package}
exec {python} -P -m p2p.scheduler.supervisor {base} {launch_id}
"""
ENDED = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY",
    "BOOT_FAIL", "DEADLINE", "REVOKED",
}  # fmt: skip


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


def read_queue(text: str) -> dict[str, SlurmJob]:
    """Read the output of squeue by job name; of equal names, the job that got furthest."""
    jobs: dict[str, SlurmJob] = {}
    for line in text.splitlines():
        name, job_id, state, reason = line.split("|", 3)
        job = SlurmJob(job_id, state, reason)
        if name not in jobs or _rank(job) >= _rank(jobs[name]):
            jobs[name] = job
    return jobs


def _rank(job: SlurmJob) -> int:
    return 0 if job.is_over else 1 if job.state == "PENDING" else 2


async def call(*command: str, text: str = "", variables: Mapping[str, str] | None = None) -> str:
    """Output of one of Slurm's commands; raises LaunchError."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=variables,
        )
    except OSError as error:
        raise LaunchError(
            f"{command[0]} cannot be started ({error.strerror}): is this machine part of the "
            "cluster?"
        ) from None
    try:
        async with asyncio.timeout(COMMAND_S):
            output, complaint = await process.communicate(text.encode())
    except TimeoutError:
        raise LaunchError(f"{command[0]} did not answer for {COMMAND_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise LaunchError(f"{command[0]}: {complaint.decode(errors='replace').strip()[-1000:]}")
    return output.decode(errors="replace")


class SLURMBackend(Backend):
    """The queue of a cluster; sbatch, squeue and scancel have to work on this machine."""

    def __init__(self, node: NodeConfig, scheduler_dir: Path) -> None:
        assert node.base_dir is not None
        base = Path(node.base_dir) / cluster_owner(scheduler_dir)
        super().__init__(node, scheduler_dir, base)
        self.python = node.python or sys.executable
        self._jobs: dict[str, SlurmJob] = {}
        self._seen_at = float("-inf")
        self._looking = asyncio.Lock()
        self._gone_since: dict[str, float] = {}

    async def start(self, launch: Launch, secrets: Mapping[str, str]) -> RunStatus:  # noqa: ARG002
        """Queue it, unless it was queued, started or cancelled before.

        Its secrets come from the cluster itself, as nothing that Slurm passes on stays off disks.
        """
        file = launch_file(
            launch.spec,
            launch.runs_dir.absolute(),
            self.python,
            grace_s=GRACE_S,
            secrets_file=str(self.base.parent / SECRETS_FILE),
        )
        with self.errors():
            folder = self.folder(launch)
            if await asyncio.to_thread(folder.prepare, file):
                job = await self._job_of(folder, at_once=True)
                if job is None or job.is_over:
                    await self.submit_job(folder, self._options(launch.spec))
        return await self.status(launch)

    def _options(self, spec: RunSpec) -> list[str]:
        """The options of sbatch for a run."""
        options = [f"--cpus-per-task={spec.cores}"]
        if spec.gpus:
            options.append(f"--gpus-per-node={spec.gpus}")
        if spec.time_limit_s is not None:
            # Enough for the supervisor to keep the limit itself.
            options.append(f"--time={math.ceil((spec.time_limit_s + GRACE_S) / 60) + 1}")
        if self.node.partition:
            options.append(f"--partition={self.node.partition}")
        return options

    async def submit_job(self, folder: LaunchFolder, options: Sequence[str]) -> None:
        """Submit a launch as a job of its own."""
        package = await asyncio.to_thread(build_package)
        script = SCRIPT.format(
            launch_id=folder.launch_id,
            folder=shlex.quote(str(folder.path)),
            base=shlex.quote(str(self.base)),
            package=shlex.quote(str(await asyncio.to_thread(unpack, self.base, *package))),
            python=shlex.quote(self.python),
        )
        name = f"p2p-{self.base.name}-{folder.launch_id}"
        # Noted before the job is there, so that it is found by its name after a crash.
        files.write_json(folder.path / NOTE, {"name": name})
        usual = launch_environment()
        variables = {name: usual[name] for name in usual.keys() - LOCAL_VARIABLES}
        cluster = {k: v for k, v in os.environ.items() if k.startswith(("SLURM_", "SBATCH_"))}
        number = await call(
            "sbatch", "--parsable", f"--job-name={name}", *options,
            "--ntasks=1", "--output=/dev/null", "--error=/dev/null", "--chdir=/",
            f"--export={','.join(variables) or 'NONE'}",
            # A launch runs once: who wants it again makes it a new attempt.
            "--no-requeue",
            text=script, variables={**variables, **cluster},
        )  # fmt: skip
        files.write_json(folder.path / NOTE, {"name": name, "job_id": number.strip()})

    async def status(self, launch: Launch) -> RunStatus:
        with self.errors():
            return await self._status(self.folder(launch))

    async def _status(self, folder: LaunchFolder) -> RunStatus:
        """The status of a launch by its folder and the queue."""
        if (end := folder.read_end()) is not None:
            return await self._check_scancel(folder, end) or end
        note = files.load_object(folder.path / NOTE)
        if note is None:
            return RunStatus("absent")
        job = await self._job_of(folder)
        if job is not None and not job.is_over:
            self._gone_since.pop(folder.launch_id, None)
            if folder.read_process() is not None:
                return RunStatus("running", message=str(job))
            waits = ", waits for free cores" if folder.read_claim() is not None else ""
            return RunStatus("waiting", message=f"{job}{waits}")
        if job is None and "job_id" not in note and folder.read_claim() is None:
            return RunStatus("absent")
        return self._status_after_job(folder, job)

    async def _check_scancel(self, folder: LaunchFolder, end: RunStatus) -> RunStatus | None:
        """The end of a job that a person ended with scancel, who does not want it back.

        What ended the supervisor is known as long as the job is in the queue, some minutes.
        """
        job = await self._job_of(folder) if end.state == "lost" else None
        if job is None or job.state != "CANCELLED":
            return None
        return folder.write_end(replace(end, state="cancelled", message=f"{job}, by scancel"))

    def _status_after_job(self, folder: LaunchFolder, job: SlurmJob | None) -> RunStatus:
        """The job is over; its folder has the last word, or will have it in a moment."""
        if (end := folder.read_end()) is not None:
            return end
        now = time.monotonic()
        if now - self._gone_since.setdefault(folder.launch_id, now) < LAG_S:
            begun = folder.read_process() is not None
            return RunStatus(
                "running" if begun else "waiting",
                message="its job has ended; waiting for its exit record",
            )
        # Nothing that starts late gets in any more.
        if (claim := folder.take_claim(gone=True)) is not None:
            os.close(claim)
        by_hand = folder.cancel_requested() or (job is not None and job.state == "CANCELLED")
        message = f"{job or 'its job is no longer in the queue'}; see {folder.path}"
        end = RunStatus("cancelled" if by_hand else "lost", message=message)
        folder.write_end(end)
        return end

    async def cancel(self, launch: Launch) -> None:
        with self.errors():
            folder = self.folder(launch)
            await asyncio.to_thread(folder.cancel)
            job = await self._job_of(folder, at_once=True)
            if job is not None and not job.is_over:
                await call("scancel", job.job_id)

    async def release(self, launch: Launch) -> None:
        with self.errors():
            await asyncio.to_thread(self.folder(launch).release)
            await asyncio.to_thread(forget_released, self.base)

    async def check(self) -> str:
        """Return the version of Slurm and the partition's resources."""
        partition = [f"--partition={self.node.partition}"] if self.node.partition else []
        with self.errors():
            await asyncio.to_thread(self.base.mkdir, mode=0o700, parents=True, exist_ok=True)
            version = (await call("sinfo", "--version")).strip()
            text = await call("sinfo", "--noheader", "--format=%R|%a|%D|%C", *partition)
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

    async def _job_of(self, folder: LaunchFolder, *, at_once: bool = False) -> SlurmJob | None:
        """The job of a launch; None long after its end. `at_once`: not from the last look."""
        note = files.load_object(folder.path / NOTE)
        if note is None:
            return None
        asked_at = time.monotonic()
        async with self._looking:
            if self._seen_at < (asked_at if at_once else asked_at - FRESH_S):
                looked_at = time.monotonic()
                text = await call(
                    "squeue", "--me", "--states=all", "--noheader", "--format=%j|%i|%T|%r"
                )  # fmt: skip
                self._jobs, self._seen_at = read_queue(text), looked_at
            return self._jobs.get(note["name"])
