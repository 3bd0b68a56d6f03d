"""Many training runs side by side, each a `python -m p2p.executor` of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from p2p.config import TrainConfig
from p2p.contracts import StatusLiteral
from p2p.records.iteration_record import IterationRecord
from p2p.records.statuses import UNFINISHED
from p2p.resource_auto import find_best_allocation
from p2p.training.cpu_manager import CoreLease, CPUManager
from p2p.training.passed_variables import PASSED_VARIABLES
from p2p.training.runner import TrainingFailed, finished_before

POLL_S = 0.25
GRACE_S = 15.0
"""How long a run that is told to stop may take to say so before it is killed."""
STARTED_ANEW: tuple[StatusLiteral, ...] = (
    "pending", "failed", "error", "cancelled", "stale", "unknown",
)  # fmt: skip


@dataclass(frozen=True)
class RunJob:
    """One run: its directory's name and its configuration, which has that name and the seed."""

    run_id: str
    config: TrainConfig


KILLED = -signal.SIGKILL
"""How a run's process ends that the machine had no memory for, or that a person has killed."""


@dataclass
class _Running:
    job: RunJob
    record: IterationRecord
    process: subprocess.Popen[bytes]
    lease: CoreLease


@dataclass
class _Batch:
    """The runs that are asked for, and how they stand."""

    reward_code: str
    iteration_dir: Path
    flags: tuple[str, ...]
    waiting: list[RunJob] = field(default_factory=list)
    running: list[_Running] = field(default_factory=list)
    progress: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    """Runs that somebody killed once: they went on, and will not a second time."""

    def record(self, job: RunJob) -> IterationRecord:
        return IterationRecord(self.iteration_dir / job.run_id)


def run_parallel(
    jobs: Sequence[RunJob],
    *,
    reward_path: Path,
    iteration_dir: Path,
    max_parallel: int = 0,
    cores_per_run: int = 0,
    cpu_manager: CPUManager | None = None,
    videos: bool = True,
    unsafe_local: bool = False,
    cancelled: Callable[[], bool] = lambda: False,
    on_progress: Callable[[dict[str, float]], None] = lambda _: None,
) -> dict[str, str]:
    """Do all runs; what each came to stands in its directory.

    Runs wait for free cores, which every process on the machine shares. One that is complete on
    disk is not done again; one that was killed goes on from its last saved state, and so does one
    that is killed meanwhile, once; one that an earlier, killed caller started and that still trains
    is waited for. On cancellation or an exception here, running ones are told to stop, and all that
    did not finish end as cancelled.

    Returns:
        For each run whose directory holds another run (and stays as it is): why it was refused.
    """
    if not iteration_dir.name.startswith(("iter_", "session_")):
        raise ValueError(f"{iteration_dir}: the folder of an iteration is named iter_<N>")
    flags = ("--no-progress", *([] if videos else ["--no-videos"]))
    flags += ("--unsafe-local",) if unsafe_local else ()
    batch = _Batch(reward_path.read_text(encoding="utf-8"), iteration_dir, flags)
    # All of them at once, so that progress counts those that still wait.
    batch.waiting += [job for job in jobs if _prepare(batch, job)]
    if not batch.waiting:
        return batch.refused
    manager = cpu_manager or CPUManager()
    allocation = find_best_allocation(
        len(batch.waiting), cores_per_run=cores_per_run, max_parallel=max_parallel
    )
    cores = min(allocation.cores_per_run, len(manager.pool))
    with _stopping_on_exit(batch):
        while (batch.waiting or batch.running) and not cancelled():
            while batch.waiting and len(batch.running) < allocation.parallel:
                lease = manager.try_allocate(cores)
                if lease is None:
                    break
                _start_next(batch, lease)
            time.sleep(POLL_S)
            _look_after(batch)
            on_progress(dict(batch.progress))
    return batch.refused


def _prepare(batch: _Batch, job: RunJob) -> bool:
    """Put what the run needs into its folder; False if there is nothing to do."""
    if not _has_work(batch, job):
        return False
    put_in_queue(batch.record(job), job.config, batch.reward_code)
    return True


def put_in_queue(record: IterationRecord, config: TrainConfig, reward_code: str) -> None:
    """Put what a run needs into its folder, whoever starts it then."""
    record.save_reward_source(reward_code)
    record.save_config(config)
    # Not over `running`, which may be true: a run outlives the process that started it.
    record.set_status_if("queued", STARTED_ANEW)


def _has_work(batch: _Batch, job: RunJob) -> bool:
    """Whether the run is still to be done; notes how far it is, or why it cannot be done."""
    try:
        done = finished_before(batch.record(job), job.config, batch.reward_code) is not None
    except TrainingFailed as failure:
        batch.refused[job.run_id] = str(failure)
        return False
    batch.progress[job.run_id] = 1.0 if done else 0.0
    return not done


def _start_next(batch: _Batch, lease: CoreLease) -> None:
    """Start the first of the waiting runs on these cores."""
    job = batch.waiting.pop(0)
    # A run that outlived an earlier caller may have come to its end since.
    if not _has_work(batch, job):
        lease.release()
        return
    record = batch.record(job)
    try:
        process = _start(record, job, batch, lease)
    except BaseException:
        lease.release()
        raise
    batch.running.append(_Running(job, record, process, lease))


def _start(
    record: IterationRecord, job: RunJob, batch: _Batch, lease: CoreLease
) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "p2p.executor",
        "--reward-fn", str(record.path / "reward_fn.py"),
        "--config", str(record.path / "config.json"),
        "--runs-dir", str(batch.iteration_dir),
        "--iteration-id", job.run_id,
        *batch.flags,
    ]  # fmt: skip
    with (record.path / "executor.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # The run holds its cores itself: they stay taken if this process dies before it.
            pass_fds=lease.descriptors,
            env={name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ},
        )
    with suppress(ProcessLookupError):  # it may have ended already
        os.sched_setaffinity(process.pid, lease.cores)
    return process


def _look_after(batch: _Batch) -> None:
    """Note how far the runs are, and take leave of those that ended."""
    for run in list(batch.running):
        if run.process.poll() is None:
            batch.progress[run.job.run_id] = run.record.compute_progress() or 0.0
            continue
        run.lease.release()
        batch.running.remove(run)
        if _may_go_on(batch, run):
            batch.killed.add(run.job.run_id)
            batch.waiting.append(run.job)
            continue
        batch.progress[run.job.run_id] = 1.0
        # A run whose process is gone is not running, whatever its last word was.
        run.record.set_status_if("error", UNFINISHED, _why_it_ended(run))


def _may_go_on(batch: _Batch, run: _Running) -> bool:
    """Whether it was killed, for the first time, and nobody has cancelled it."""
    status = run.record.read_status()
    unfinished = status is None or status.status in UNFINISHED
    first = run.job.run_id not in batch.killed
    return run.process.returncode == KILLED and first and unfinished


def _why_it_ended(run: _Running) -> str:
    code = run.process.returncode
    told = (
        "was killed from outside twice, perhaps because the machine ran out of memory"
        if code == KILLED
        else f"ended with code {code} before it finished"
    )
    return f"the run's process {told}; see {run.record.path / 'executor.log'}"


@contextmanager
def _stopping_on_exit(batch: _Batch) -> Iterator[None]:
    """Leave no run behind: on the way out, those that still run or wait become cancelled."""
    try:
        yield
    finally:
        unfinished = [run.record for run in batch.running] + [
            batch.record(job) for job in batch.waiting
        ]
        # The file first: a run that an earlier caller started hears no signal of ours, but reads.
        for record in unfinished:
            record.set_status_if("cancelled", UNFINISHED)
        for run in batch.running:
            _signal_group(run.process, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        for run in batch.running:
            try:
                run.process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal_group(run.process, signal.SIGKILL)
                run.process.wait()
            run.lease.release()
        for record in unfinished:  # a run that had just begun may have said so over our word
            record.set_status_if("cancelled", UNFINISHED)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)
