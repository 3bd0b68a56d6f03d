"""The Trainer protocol: configurations x seeds of one iteration in, their aggregation out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
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
    TrainSummary,
    describe_errors,
)
from p2p.records.iteration_record import IterationRecord
from p2p.training.cpu_manager import CPUManager
from p2p.training.parallel_trainer import RunJob, run_parallel


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
        ...


@dataclass
class LocalTrainer:
    """Runs on this machine, side by side as cores and memory allow.

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
        """See Trainer. A run that is complete on disk is not done again."""
        jobs, problems = plan_runs(configs, seeds, base_config)
        problems |= run_parallel(
            jobs,
            reward_path=reward_path,
            iteration_dir=iteration_dir,
            max_parallel=self.max_parallel,
            cores_per_run=self.cores_per_run,
            cpu_manager=self.cpu_manager,
            videos=self.videos,
            unsafe_local=self.unsafe_local,
            cancelled=self.cancelled,
            on_progress=self.on_progress,
        )
        return results_of(configs, seeds, problems, iteration_dir)


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
    """The name of a run, and of its directory."""
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
            if taken := sorted({"seed", "iteration_id"} & entry.params.keys()):
                problems[name] = f"params: {', '.join(taken)} is given by the run itself"
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
    """The mean evaluation return of the checkpoint that stands for the run."""
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
