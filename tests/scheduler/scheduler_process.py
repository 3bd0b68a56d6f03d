"""A scheduler as a process that may kill itself right after a step of its protocol.

python scheduler_process.py RUNS_DIR [STEP [TIMES [forgetful]]]
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

from failing_places import ForgetsQueue

from p2p.scheduler import job_scheduler
from p2p.scheduler.job_scheduler import SchedulerStep, run_scheduler

KILLED = -signal.SIGKILL


def schedule(runs_dir: Path, *arguments: object) -> int:
    """Run one until there is nothing left to do, or it kills itself; returns its exit status."""
    return begin(runs_dir, *arguments).wait(120)


def begin(runs_dir: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """Start one."""
    command = [sys.executable, __file__, str(runs_dir), *map(str, arguments)]
    with (runs_dir / "scheduler.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def main() -> None:
    runs_dir, *rest = sys.argv[1:]
    fatal = rest[0] if rest else ""
    left = int(rest[1]) if len(rest) > 1 else 1

    def step(name: SchedulerStep) -> None:
        nonlocal left
        logging.getLogger("p2p").info("step: %s", name)
        left -= name == fatal
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if "forgetful" in rest:
        job_scheduler.make_backend = ForgetsQueue
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    run_scheduler(Path(runs_dir), until_idle=True, step=step)


if __name__ == "__main__":
    main()
