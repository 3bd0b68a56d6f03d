"""The runs of one iteration, spread over the scheduler's nodes."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2p.contracts import utc_now
from p2p.records.iteration_record import IterationRecord
from p2p.records.statuses import UNFINISHED
from p2p.scheduler.controllers import JobOptions, executor_run
from p2p.scheduler.records import JobSpec
from p2p.scheduler.service import ensure_scheduler
from p2p.scheduler.store import Store
from p2p.settings import command_in
from p2p.training.model_files.store import copy_into
from p2p.training.trainer import IterationTrainer, RunBatch

if TYPE_CHECKING:
    from pathlib import Path

    from p2p.config import LoopConfig, TrainConfig
    from p2p.session.stopping import StopSwitch
    from p2p.training.trainer import Trainer

POLL_S = 0.25
LOOK_AFTER_S = 5.0
"""How often to see that a scheduler is there."""


def make_trainer(loop: LoopConfig, switch: StopSwitch) -> Trainer:
    """The trainer that a session names: this machine, or the scheduler's nodes.

    A session that is itself a run of a job trains on the cores of that run: if it waited for other
    nodes, such sessions could hold all cores and wait for each other.
    """
    from p2p.session.context import local_trainer

    if loop.trainer == "local" or "P2P_LAUNCH_ID" in os.environ:
        return local_trainer(loop, switch)
    return ScheduledTrainer(
        max_parallel=loop.max_parallel,
        cores_per_run=loop.cores_per_run,
        videos=False,
        trackers=loop.trackers,
        cancelled=switch.is_cancelled,
    )


@dataclass
class ScheduledTrainer(IterationTrainer):
    """Runs as a job of the scheduler: by default with one core each, and as many as have room."""

    def await_earlier(self, iteration_dir: Path) -> None:
        """Wait for the job that an earlier, killed caller has left."""
        runs_dir, name, _ = _locate_iteration(iteration_dir)
        with closing(Store(runs_dir)) as store:
            earlier = store.jobs(prefix=f"{name}.")
            if earlier and earlier[0].state in ("pending", "running"):
                self._wait(store, earlier[0].job_id)

    def run_all(self, batch: RunBatch) -> None:
        """A run's folder travels with its saved state, so what waits may continue elsewhere."""
        runs_dir, name, folder = _locate_iteration(batch.iteration_dir)
        if not self.cancelled():
            with closing(Store(runs_dir)) as store:
                for run in batch.waiting:  # its folder alone goes to another machine
                    copy_into(batch.record(run).path, run.env_id)
                job_id = f"{name}.{len(store.jobs(prefix=f'{name}.')) + 1}"
                store.submit(self._make_job(job_id, batch.waiting, folder, store, batch.flags))
                self._wait(store, job_id)
        for run in batch.waiting if self.cancelled() or not batch.pauses else ():
            batch.record(run).set_status_if("cancelled", UNFINISHED)

    def _make_job(
        self,
        job_id: str,
        unfinished: Sequence[TrainConfig],
        folder: str,
        store: Store,
        flags: Sequence[str],
    ) -> JobSpec:
        most = max((node.cores for node in store.nodes() if node.enabled), default=1)
        options = JobOptions(cores=min(self.cores_per_run or 1, most))
        runs = [
            executor_run(f"{job_id}.{number}", f"{folder}/{run.iteration_id}", options, flags)
            for number, run in enumerate(unfinished, 1)
        ]
        return JobSpec(
            job_id=job_id,
            kind="training",
            title=folder[-200:],
            max_parallel=self.max_parallel,
            runs=tuple(runs),
            created_at=utc_now(),
        )

    def _wait(self, store: Store, job_id: str) -> None:
        """Wait for the end of all runs; cancels them when interrupted."""
        cancelled, looked = False, 0.0
        try:
            while (job := store.job(job_id)) and job.state in ("pending", "running"):
                if time.monotonic() - looked > LOOK_AFTER_S:
                    ensure_scheduler(store.runs_dir)
                    looked = time.monotonic()
                if not cancelled and self.cancelled():
                    cancelled = True
                    store.cancel(job_id)
                    ensure_scheduler(store.runs_dir)
                time.sleep(POLL_S)
        except BaseException:
            store.cancel(job_id)
            ensure_scheduler(store.runs_dir)
            raise
        self._note_ends(store, job_id)

    def _note_ends(self, store: Store, job_id: str) -> None:
        """A run whose process is gone is not running, whatever its last word was."""
        for run in store.runs(job_id):
            record = IterationRecord(store.runs_dir / run.folder)
            if run.state == "cancelled":
                record.set_status_if("cancelled", UNFINISHED)
                continue
            if run.state == "succeeded" and record.stated_status() == "queued":
                continue  # it waits to be trained further
            reason = run.message or f"it is {run.state}"
            hint = "see " + command_in(store.runs_dir, f"p2p jobs logs {job_id} {run.run_id}")
            message = f"the run ended before it finished: {reason}; {hint}"
            record.set_status_if("error", UNFINISHED, message)


def _locate_iteration(iteration_dir: Path) -> tuple[Path, str, str]:
    """The runs folder of an iteration, the prefix of its jobs, and its own path in there.

    It is the folder with a scheduler, else two above the iteration.
    """
    path = iteration_dir.absolute()
    stores = [p for p in path.parents if (p / "scheduler" / "scheduler.sqlite").is_file()]
    runs_dir = stores[0] if stores else path.parents[1]
    folder = path.relative_to(runs_dir).as_posix()
    return runs_dir, f"train_{hashlib.sha256(folder.encode()).hexdigest()[:16]}", folder
