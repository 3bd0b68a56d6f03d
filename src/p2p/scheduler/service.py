"""One scheduler for each runs folder: started when there is something to do, gone when idle."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from p2p.files import hold_lock, is_free, open_log
from p2p.scheduler.notify import notify
from p2p.scheduler.store import Store, StoreError, scheduler_folder
from p2p.settings import file_variables
from p2p.utils.subprocess_utils import python_command, start_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXIT_BUSY = 9
START_TIMEOUT_S = 30.0


class SchedulerBusy(Exception):
    """Another scheduler works on this runs folder."""


def lock_path(runs_dir: Path) -> Path:
    """Locked while a scheduler works on the folder."""
    return scheduler_folder(runs_dir) / "scheduler.lock"


def log_path(runs_dir: Path) -> Path:
    """The log of a scheduler in the background."""
    return scheduler_folder(runs_dir) / "scheduler.log"


@contextmanager
def hold_scheduler_lock(runs_dir: Path) -> Iterator[None]:
    """Hold the lock of the folder's scheduler; raises SchedulerBusy if another has it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(lock_path(runs_dir), patience_s=1.0))
        except TimeoutError:
            raise SchedulerBusy(f"a scheduler works on {runs_dir} already") from None
        yield


def is_running(runs_dir: Path) -> bool:
    """Return whether a scheduler works on the folder."""
    path = lock_path(runs_dir)
    return path.exists() and not is_free(path)


def cancel_run_in(store: Store, runs_dir: Path, folder: Path) -> bool:
    """Cancel the run that works in this folder; False where there is none that can be cancelled."""
    run = store.run_in(folder.relative_to(runs_dir).as_posix())
    if run is None or not store.cancel(run.job_id, [run.run_id]):
        return False
    ensure_scheduler(runs_dir)
    return True


def ensure_scheduler(runs_dir: Path) -> None:
    """See to it that a scheduler works on the folder, now that there is something to do.

    Call it after the job is in the store. A scheduler started here outlives this process and ends
    when nothing is left to do. It has this process's environment, where the keys are that runs may
    ask for. Raises StoreError if it cannot be started.
    """
    if is_running(runs_dir):
        notify(scheduler_folder(runs_dir))
        return
    log = log_path(runs_dir)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = python_command(
        "p2p.scheduler.job_scheduler", "--runs-dir", str(runs_dir), "--until-idle"
    )
    with open_log(log) as stream:
        process = start_program(command, {**file_variables(), **os.environ}, stream)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_running(runs_dir) and time.monotonic() < deadline:
        # One that was quicker than this look, or that found another one at work, is no failure.
        if process.poll() in (0, EXIT_BUSY):
            return
        if process.returncode is not None:
            last = log.read_text("utf-8", "replace").strip().splitlines()[-1:]
            raise StoreError(f"the scheduler did not start: {' '.join(last)} (see {log})")
        time.sleep(0.02)
