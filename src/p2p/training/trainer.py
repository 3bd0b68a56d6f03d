"""Configurations x seeds of one iteration in, their aggregation out: here, side by side."""

from __future__ import annotations

import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from p2p.config import TrainConfig
from p2p.contracts import (
    ConfigAggregation,
    IterationAggregation,
    RunConfigEntry,
    SeedResult,
    StatusLiteral,
    TrainSummary,
    describe_errors,
)
from p2p.records.iteration_record import IterationRecord
from p2p.records.statuses import UNFINISHED
from p2p.resource_auto import find_best_allocation
from p2p.training.cpu_manager import PASSED_VARIABLES, CoreLease, CPUManager
from p2p.training.runner import TrainingFailed, finished_before

POLL_S = 0.25
GRACE_S = 15.0
"""How long a run that is told to stop may take to say so before it is killed."""
RESTARTABLE: tuple[StatusLiteral, ...] = (
    "pending", "failed", "error", "cancelled", "stale", "unknown",
)  # fmt: skip
KILLED = -signal.SIGKILL
"""How a run's process ends that the machine had no memory for, or that a person has killed."""


class Trainer(Protocol):
    """How the runs of one iteration are done: here, or spread over machines."""

    def train(
        self,
        configs: Sequence[RunConfigEntry],
        seeds: Sequence[int],
        *,
        reward_path: Path,
        base_config: TrainConfig,
        iteration_dir: Path,
    ) -> IterationAggregation:
        """Train every configuration with every seed; failed runs are reported, not raised."""


@dataclass
class LocalTrainer:
    """Runs on this machine, side by side as cores and memory allow, each a process of its own.

    Args:
        max_parallel: runs at once; 0 chooses.
        cores_per_run: cores of each run; 0 chooses.
        cpu_manager: whose cores to use; by default all that this process may run on.
        videos: render the evaluation episodes.
        unsafe_local: train outside the sandbox where the kernel has none.
        cancelled: asked between polls; True stops all runs, which end as cancelled.
        on_progress: told of each run's share done, 0 to 1.
    """

    max_parallel: int = 0
    cores_per_run: int = 0
    cpu_manager: CPUManager | None = None
    videos: bool = True
    unsafe_local: bool = False
    cancelled: Callable[[], bool] = field(default=lambda: False)
    on_progress: Callable[[dict[str, float]], None] = field(default=lambda _: None)

    def train(
        self,
        configs: Sequence[RunConfigEntry],
        seeds: Sequence[int],
        *,
        reward_path: Path,
        base_config: TrainConfig,
        iteration_dir: Path,
    ) -> IterationAggregation:
        """See Trainer. What each run came to is in its directory.

        Runs wait for free cores, which every process on the machine shares. One that is complete
        on disk is not done again; one that was killed resumes from its last saved state, and so
        does one that is killed meanwhile, once; one that an earlier, killed caller started and
        that still trains is waited for. On cancellation or an exception here, running ones are
        told to stop, and all that did not finish end as cancelled.
        """
        jobs, problems = plan_runs(configs, seeds, base_config)
        if not iteration_dir.name.startswith(("iter_", "session_")):
            raise ValueError(f"{iteration_dir}: the folder of an iteration is named iter_<N>")
        flags = ("--no-progress", *([] if self.videos else ["--no-videos"]))
        flags += ("--unsafe-local",) if self.unsafe_local else ()
        batch = _Batch(reward_path.read_text(encoding="utf-8"), iteration_dir, flags)
        # All of them at once, so that progress counts those that still wait.
        batch.waiting += [job for job in jobs if _prepare(batch, job)]
        if batch.waiting:
            self._run(batch)
        return results_of(configs, seeds, problems | batch.refused, iteration_dir)

    def _run(self, batch: _Batch) -> None:
        manager = self.cpu_manager or CPUManager()
        allocation = find_best_allocation(
            len(batch.waiting), cores_per_run=self.cores_per_run, max_parallel=self.max_parallel
        )
        cores = min(allocation.cores_per_run, len(manager.pool))
        with _stopping_on_exit(batch):
            while (batch.waiting or batch.running) and not self.cancelled():
                while batch.waiting and len(batch.running) < allocation.parallel:
                    lease = manager.try_allocate(cores)
                    if lease is None:
                        break
                    _start_next(batch, lease)
                time.sleep(POLL_S)
                _poll(batch)
                self.on_progress(dict(batch.progress))


def results_of(
    configs: Sequence[RunConfigEntry],
    seeds: Sequence[int],
    problems: dict[str, str],
    iteration_dir: Path,
) -> IterationAggregation:
    """What all runs came to, from their folders; `problems`: why some could not be."""
    results: dict[str, SeedResult] = {}
    for entry in configs:
        for seed in seeds:
            name = run_name(entry, seed)
            results[name] = (
                SeedResult(run_id=name, seed=seed, status="error", error=problems[name])
                if name in problems
                else seed_result(name, seed, IterationRecord(iteration_dir / name))
            )
    return aggregate(configs, seeds, results)


def run_name(entry: RunConfigEntry, seed: int) -> str:
    return f"{entry.config_id}_seed_{seed}"


def plan_runs(
    configs: Sequence[RunConfigEntry], seeds: Sequence[int], base_config: TrainConfig
) -> tuple[list[RunJob], dict[str, str]]:
    """A job for each run, and what is wrong with the configuration of those that cannot be."""
    names = [run_name(entry, seed) for entry in configs for seed in seeds]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"asked for twice: {', '.join(twice)}")
    jobs: list[RunJob] = []
    problems: dict[str, str] = {}
    for entry in configs:
        for seed in seeds:
            name = run_name(entry, seed)
            if reserved := sorted({"seed", "iteration_id"} & entry.params.keys()):
                problems[name] = f"params: {', '.join(reserved)} is given by the run itself"
                continue
            try:
                config = base_config.with_updates(**entry.params, seed=seed, iteration_id=name)
            except ValidationError as error:
                problems[name] = f"params: {describe_errors(error)}"
            else:
                jobs.append(RunJob(name, config))
    return jobs, problems


def seed_result(run_id: str, seed: int, record: IterationRecord) -> SeedResult:
    """How one run ended, from its directory."""
    status = record.read_status()
    summary = record.read_summary()
    if status is None or status.status != "completed" or summary is None:
        return SeedResult(
            run_id=run_id,
            seed=seed,
            status=status.status if status else "unknown",
            error=status.error if status else "the run left no status",
        )
    return SeedResult(
        run_id=run_id, seed=seed, status="completed", final_return=final_return(summary)
    )


def final_return(summary: TrainSummary) -> float | None:
    """The mean evaluation return of the selected checkpoint."""
    for checkpoint in summary.checkpoints:
        if checkpoint.step == summary.selected_step:
            return checkpoint.mean_return
    return summary.final_episodic_return


def aggregate(
    configs: Sequence[RunConfigEntry], seeds: Sequence[int], results: dict[str, SeedResult]
) -> IterationAggregation:
    """Mean and spread per configuration, over the seeds that completed.

    The best configuration is the one with the highest mean, and the best run its best seed. A run
    that failed, or whose return is not finite, counts for nothing: it neither wins nor is a zero.
    """
    rows: list[ConfigAggregation] = []
    for entry in configs:
        per_seed = tuple(results[run_name(entry, seed)] for seed in seeds)
        returns = [value for result in per_seed if (value := finite_return(result)) is not None]
        rows.append(
            ConfigAggregation(
                config_id=entry.config_id,
                label=entry.label,
                per_seed=per_seed,
                mean_return=statistics.fmean(returns) if returns else None,
                std_return=statistics.pstdev(returns) if returns else None,
            )
        )
    best = max(
        (row for row in rows if row.mean_return is not None),
        key=lambda row: row.mean_return if row.mean_return is not None else -math.inf,
        default=None,
    )
    best_run = max(
        (run for run in best.per_seed if finite_return(run) is not None) if best else (),
        key=lambda run: finite_return(run) or 0.0,
        default=None,
    )
    return IterationAggregation(
        configs=tuple(rows),
        best_config_id=best.config_id if best else None,
        best_run_id=best_run.run_id if best_run else None,
    )


def finite_return(result: SeedResult) -> float | None:
    """The return of a completed run, None if there is none that can be compared."""
    value = result.final_return if result.status == "completed" else None
    return value if value is not None and math.isfinite(value) else None


# --- the processes of the runs -----------------------------------------------------------------


@dataclass(frozen=True)
class RunJob:
    """One run: its directory's name and its configuration, which has that name and the seed."""

    run_id: str
    config: TrainConfig


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
    """Runs whose directory holds another run, and stays as it is: why they were not done."""
    killed: set[str] = field(default_factory=set)
    """Runs that were killed once and resumed; a second time they are not."""

    def record(self, job: RunJob) -> IterationRecord:
        return IterationRecord(self.iteration_dir / job.run_id)


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
    record.set_status_if("queued", RESTARTABLE)


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


def _poll(batch: _Batch) -> None:
    """Note how far the runs are, and take leave of those that ended."""
    for run in list(batch.running):
        if run.process.poll() is None:
            batch.progress[run.job.run_id] = run.record.compute_progress() or 0.0
            continue
        run.lease.release()
        batch.running.remove(run)
        if _may_resume(batch, run):
            batch.killed.add(run.job.run_id)
            batch.waiting.append(run.job)
            continue
        batch.progress[run.job.run_id] = 1.0
        # A run whose process is gone is not running, whatever its last word was.
        run.record.set_status_if("error", UNFINISHED, _why_it_ended(run))


def _may_resume(batch: _Batch, run: _Running) -> bool:
    """Whether it was killed, for the first time, and nobody has cancelled it."""
    status = run.record.read_status()
    unfinished = status is None or status.status in UNFINISHED
    first = run.job.run_id not in batch.killed
    return run.process.returncode == KILLED and first and unfinished


def _why_it_ended(run: _Running) -> str:
    code = run.process.returncode
    reason = (
        "was killed from outside twice, perhaps because the machine ran out of memory"
        if code == KILLED
        else f"ended with code {code} before it finished"
    )
    return f"the run's process {reason}; see {run.record.path / 'executor.log'}"


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
