"""What a job of Slurm runs: the attendant of one launch, in the foreground."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from p2p.scheduler import halves
from p2p.scheduler.attend import attend
from p2p.scheduler.control import Control


def attend_in_job(base: str, launch_id: str) -> None:
    """See the launch through; nothing if it was started or cancelled before."""
    control = Control(Path(base), launch_id)
    # Slurm announces the end of a job's time to submitit, which would queue the job again.
    # A handler, not SIG_IGN: that the program would inherit.
    signal.signal(signal.SIGUSR2, lambda *_: None)
    first = os.environ.pop(halves.VARIABLE, None)
    if control.read_claim() is not None:
        return
    if first is not None:
        os.environ.update(halves.join(control.path, first))
    attend(control)
