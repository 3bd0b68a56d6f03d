"""Configurations x seeds of one iteration in, their aggregation out: here, side by side."""

from __future__ import annotations

import math
import os
import signal
import statistics
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from p2p import files
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
from p2p.event_log import emit
from p2p.records.iteration_record import IterationRecord
from p2p.records.statuses import UNFINISHED
from p2p.resource_auto import find_best_allocation
from p2p.sandbox import unsafe_local_flags
from p2p.training.cpu_manager import (
    PASSED_VARIABLES,
    TRACKER_VARIABLES,
    CoreHolder,
    CoreLease,
    CPUManager,
)
from p2p.training.runner import TrainingFailed, load_completed_run
from p2p.utils.subprocess_utils import end_programs, python_command, start_program

POLL_S = 0.25
WAIT_S = 2.0
"""A wait for cores is told of after so long, and again when others have them."""
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
        reward_path: Path | None = None,
        base_config: TrainConfig | None = None,
        iteration_dir: Path | None = None,
    ) -> IterationAggregation:
        """Train every configuration with every seed; failed runs are reported, not raised.

        What is left out is as the trainer was made.
        """

    def train_runs(
        self,
        runs: Sequence[tuple[TrainConfig, str]],
        iteration_dir: Path,
        *,
        until: int | None = None,
        pause: bool = False,
    ) -> dict[str, str]:
        """Train these configurations, each with its reward's code, as `train` does.

        Args:
            runs: each goes into the folder that its iteration_id names.
            iteration_dir: where these folders are.
            until: train no further than to this step.
            pause: at `until` the runs wait, queued, to be trained further by another call.

        Returns:
            By name, why a run could not be started.
        """


@dataclass(kw_only=True)
class IterationTrainer(ABC):
    """Trains an iteration; what it was made with counts where a call names nothing else.

    Args:
        reward_path: the reward; None: reward_fn.py in the folder of the iteration.
        base_config: what the configurations change.
        iteration_dir: the folder of the iteration.
        max_parallel: runs at once; 0 chooses.
        cores_per_run: cores of each run; 0 chooses.
        videos: draw each run's median episode and export its policy; else when they are wanted.
        trackers: where metrics go besides the files of a run.
        cancelled: asked between polls; True stops all runs, which end as cancelled.
    """

    reward_path: Path | None = None
    base_config: TrainConfig = field(default_factory=TrainConfig)
    iteration_dir: Path | None = None
    max_parallel: int = 0
    cores_per_run: int = 0
    videos: bool = True
    trackers: tuple[str, ...] = ()
    cancelled: Callable[[], bool] = field(default=lambda: False)

    def train(
        self,
        configs: Sequence[RunConfigEntry],
        seeds: Sequence[int],
        *,
        reward_path: Path | None = None,
        base_config: TrainConfig | None = None,
        iteration_dir: Path | None = None,
    ) -> IterationAggregation:
        """See Trainer. What each run came to is in its directory."""
        folder = iteration_dir or self.iteration_dir
        if folder is None:
            raise ValueError("iteration_dir: the folder of the iteration is needed")
        path = reward_path or self.reward_path or IterationRecord(folder).reward_fn_path
        runs, problems = plan_runs(configs, seeds, base_config or self.base_config)
        reward_code = files.load_text(path) or ""
        problems |= self.train_runs([(run, reward_code) for run in runs], folder)
        return results_of(configs, seeds, problems, folder)

    def train_runs(
        self,
        runs: Sequence[tuple[TrainConfig, str]],
        iteration_dir: Path,
        *,
        until: int | None = None,
        pause: bool = False,
    ) -> dict[str, str]:
        """See Trainer. Runs that are complete on disk are not done again."""
        if not iteration_dir.name.startswith(("iter_", "session_")):
            raise ValueError(f"{iteration_dir}: the folder of an iteration is named iter_<N>")
        self.await_earlier(iteration_dir)
        problems: dict[str, str] = {}
        waiting = queue_runs(runs, iteration_dir, problems)
        if waiting:
            flags = [] if self.videos else ["--no-videos", "--no-export"]
            flags += [] if until is None else ["--until", str(until)]
            flags += ["--pause"] if pause else []
            flags += [word for name in self.trackers for word in ("--log", name)]
            # What SAC has learnt from is not in its policy's file.
            flags += ["--keep-state"] if any(c.algorithm == "sac" for c, _ in runs) else []
            progress = {c.iteration_id: 1.0 for c, _ in runs if c.iteration_id not in problems}
            progress |= {run.iteration_id: 0.0 for run in waiting}
            codes = {config.iteration_id: code for config, code in runs}
            self.run_all(RunBatch(codes, iteration_dir, tuple(flags), waiting, progress, problems))
        return problems

    def await_earlier(self, iteration_dir: Path) -> None:  # noqa: B027 - most have nothing to do
        """Wait for what an earlier, killed caller has left running, if runs do not do so."""

    @abstractmethod
    def run_all(self, batch: RunBatch) -> None:
        """Do all runs that wait; in the end, none is left in a state that is not its last."""


@dataclass
class RunBatch:
    """Runs that are to be done, each with what it needs in its folder."""

    codes: dict[str, str]
    """The reward of each run, by its name."""
    iteration_dir: Path
    flags: tuple[str, ...]
    """Of the executor."""
    waiting: list[TrainConfig]
    progress: dict[str, float]
    """Each run's share done, 0 to 1, those included that were complete before."""
    problems: dict[str, str]
    """By name, why a run could not be started."""

    @property
    def pauses(self) -> bool:
        return "--pause" in self.flags

    def record(self, config: TrainConfig) -> IterationRecord:
        return IterationRecord(self.iteration_dir / config.iteration_id)


@dataclass
class LocalTrainer(IterationTrainer):
    """Runs on this machine, side by side as cores and memory allow, each a process of its own.

    Runs wait for free cores, which every process on the machine shares. One that was killed resumes
    from its last saved state, and so does one that is killed meanwhile, once; one that an earlier,
    killed caller started and that still trains is waited for. On cancellation or an exception here,
    running ones are told to stop, and all that did not finish end as cancelled.

    Args:
        cpu_manager: whose cores to use; by default all that this process may run on.
        wait_for_cores: else runs start at once, on all cores, where too few are free.
        on_progress: told of each run's share done, 0 to 1.
    """

    cpu_manager: CPUManager | None = None
    wait_for_cores: bool = True
    on_progress: Callable[[dict[str, float]], None] = field(default=lambda _: None)

    def run_all(self, batch: RunBatch) -> None:
        """See IterationTrainer."""
        manager = self.cpu_manager or CPUManager()
        allocation = find_best_allocation(
            len(batch.waiting), cores_per_run=self.cores_per_run, max_parallel=self.max_parallel
        )
        cores = min(allocation.cores_per_run, len(manager.pool))
        wait = _CoreWait(manager, cores, IterationRecord(batch.iteration_dir).number)
        processes = _Processes(batch)
        try:
            while (batch.waiting or processes.running) and not self.cancelled():
                while batch.waiting and len(processes.running) < allocation.parallel:
                    lease = manager.try_allocate(cores)
                    if lease is None and not self.wait_for_cores:
                        lease = CoreLease(manager.pool, [])
                    if lease is None:
                        if not processes.running:
                            wait.report()
                        break
                    wait.end()
                    processes.start_next(lease)
                time.sleep(POLL_S)
                processes.poll()
                self.on_progress(dict(batch.progress))
        finally:
            processes.stop()


def results_of(
    configs: Sequence[RunConfigEntry],
    seeds: Sequence[int],
    problems: dict[str, str],
    iteration_dir: Path,
) -> IterationAggregation:
    """Return what all runs came to, from their folders; `problems`: why some could not be."""
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
) -> tuple[list[TrainConfig], dict[str, str]]:
    """Every run's configuration, named by its iteration_id; and by name what is wrong with one."""
    names = [run_name(entry, seed) for entry in configs for seed in seeds]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"asked for twice: {', '.join(twice)}")
    runs: list[TrainConfig] = []
    problems: dict[str, str] = {}
    for entry in configs:
        for seed in seeds:
            name = run_name(entry, seed)
            if reserved := sorted({"seed", "iteration_id"} & entry.params.keys()):
                problems[name] = f"params: {', '.join(reserved)} is given by the run itself"
                continue
            try:
                runs.append(base_config.with_updates(**entry.params, seed=seed, iteration_id=name))
            except ValidationError as error:
                problems[name] = f"params: {describe_errors(error)}"
    return runs, problems


def queue_runs(
    runs: Sequence[tuple[TrainConfig, str]], iteration_dir: Path, problems: dict[str, str]
) -> list[TrainConfig]:
    """The runs still to be done, each with what it needs in its folder, whoever starts it then.

    A folder that holds another run stays as it is, and is added to the problems.
    """
    waiting = []
    for config, reward_code in runs:
        record = IterationRecord(iteration_dir / config.iteration_id)
        try:
            if load_completed_run(record, config, reward_code) is not None:
                continue
        except TrainingFailed as failure:
            problems[config.iteration_id] = str(failure)
            continue
        record.save_reward_source(reward_code)
        record.save_config(config)
        # Not over `running`, which may be true: a run outlives the process that started it.
        record.set_status_if("queued", RESTARTABLE)
        waiting.append(config)
    return waiting


def seed_result(run_id: str, seed: int, record: IterationRecord) -> SeedResult:
    """Return how one run ended, from its directory."""
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


def final_return(summary: TrainSummary, step: int | None = None) -> float | None:
    """The mean evaluation return of a checkpoint, else of the selected one."""
    for checkpoint in summary.checkpoints:
        if checkpoint.step == (summary.selected_step if step is None else step):
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
    means = [(row.mean_return, row) for row in rows if row.mean_return is not None]
    if not means:
        return IterationAggregation(configs=tuple(rows), best_config_id=None, best_run_id=None)
    best = max(means, key=itemgetter(0))[1]
    runs = [(value, run) for run in best.per_seed if (value := finite_return(run)) is not None]
    return IterationAggregation(
        configs=tuple(rows),
        best_config_id=best.config_id,
        best_run_id=max(runs, key=itemgetter(0))[1].run_id,
    )


def finite_return(result: SeedResult) -> float | None:
    """The return of a completed run, None if there is none that can be compared."""
    value = result.final_return if result.status == "completed" else None
    return value if value is not None and math.isfinite(value) else None


# --- the processes of the runs -----------------------------------------------------------------


class _CoreWait:
    """Tells the event log what the runs wait for, while none of them trains."""

    def __init__(self, manager: CPUManager, count: int, iteration: int | None) -> None:
        self._manager, self._count, self._iteration = manager, count, iteration
        self._since: float | None = None
        self._next = 0.0
        self._holders: dict[int, CoreHolder | None] | None = None

    def report(self) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since, self._next = now, now + WAIT_S
        if now < self._next:
            return
        self._next = now + WAIT_S
        holders = self._manager.holders()
        if not holders or holders == self._holders:
            return
        self._holders = holders
        emit(
            "cores.wait",
            iteration=self._iteration,
            reason=self._manager.describe_wait(self._count),
            cores=self._count,
            held={core: holder and asdict(holder) for core, holder in holders.items()},
        )

    def end(self) -> None:
        if self._since is not None and self._holders is not None:
            waited = time.monotonic() - self._since
            emit("cores.granted", iteration=self._iteration, seconds=round(waited, 1))
        self._since = self._holders = None


@dataclass
class _Running:
    config: TrainConfig
    record: IterationRecord
    process: subprocess.Popen[bytes]
    lease: CoreLease


class _Processes:
    """The processes of a batch's runs."""

    def __init__(self, batch: RunBatch) -> None:
        self.batch = batch
        self.running: list[_Running] = []
        self.killed: set[str] = set()
        """Runs that were killed once and resumed; a second time they are not."""

    def start_next(self, lease: CoreLease) -> None:
        batch = self.batch
        config = batch.waiting.pop(0)
        record = batch.record(config)
        if record.stated_status() == "cancelled":  # while it waited
            batch.progress[config.iteration_id] = 1.0
            lease.release()
            return
        try:
            # A run that outlived an earlier caller may have come to its end since.
            if load_completed_run(record, config, batch.codes[config.iteration_id]) is not None:
                batch.progress[config.iteration_id] = 1.0
                lease.release()
                return
            process = self._start(record, lease)
        except TrainingFailed as failure:
            batch.problems[config.iteration_id] = str(failure)
            lease.release()
            return
        except BaseException:
            lease.release()
            raise
        self.running.append(_Running(config, record, process, lease))

    def _start(self, record: IterationRecord, lease: CoreLease) -> subprocess.Popen[bytes]:
        command = python_command(
            "p2p.executor",
            "--reward-fn", str(record.path / "reward_fn.py"),
            "--config", str(record.path / "config.json"),
            "--runs-dir", str(self.batch.iteration_dir),
            "--iteration-id", record.path.name,
            *self.batch.flags,
            "--no-progress",
            *unsafe_local_flags(),
        )  # fmt: skip
        with files.open_log(record.path / "executor.log") as log:
            names = (*PASSED_VARIABLES, *(TRACKER_VARIABLES if "--log" in self.batch.flags else ()))
            variables = {name: os.environ[name] for name in names if name in os.environ}
            # The run holds its cores itself: they stay taken if this process dies before it.
            process = start_program(command, variables, log, pass_fds=lease.descriptors)
        lease.sign(process.pid, "/".join(record.path.parts[-3:]))
        with suppress(ProcessLookupError):  # it may have ended already
            os.sched_setaffinity(process.pid, lease.cores)
        return process

    def poll(self) -> None:
        """Note how far the runs are, and take leave of those that ended."""
        for run in list(self.running):
            name = run.config.iteration_id
            if run.process.poll() is None:
                self.batch.progress[name] = run.record.compute_progress() or 0.0
                continue
            run.lease.release()
            self.running.remove(run)
            status = run.record.read_status()
            unfinished = status is None or status.status in UNFINISHED  # nobody has cancelled it
            if run.process.returncode == KILLED and unfinished and name not in self.killed:
                self.killed.add(name)
                self.batch.waiting.append(run.config)
                continue
            self.batch.progress[name] = 1.0
            if run.process.returncode == 0 and self.batch.pauses:
                continue  # it waits to be trained further
            # A run whose process is gone is not running, whatever its last word was.
            run.record.set_status_if("error", UNFINISHED, _describe_end(run))

    def stop(self) -> None:
        """Leave no run behind: those that still run or wait become cancelled."""
        unfinished = [run.record for run in self.running] + [
            *map(self.batch.record, self.batch.waiting)
        ]
        # The file first: a run that an earlier caller started hears no signal of ours, but reads.
        for record in unfinished:
            record.set_status_if("cancelled", UNFINISHED)
        end_programs([run.process for run in self.running], grace_s=GRACE_S)
        for run in self.running:
            run.lease.release()
        for record in unfinished:  # a run that had just begun may have said so over our word
            record.set_status_if("cancelled", UNFINISHED)


def _describe_end(run: _Running) -> str:
    code = run.process.returncode
    reason = (
        "was killed from outside twice, perhaps because the machine ran out of memory"
        if code == KILLED
        else f"ended with code {code} before it finished"
    )
    return f"the run's process {reason}; see {run.record.path / 'executor.log'}"
