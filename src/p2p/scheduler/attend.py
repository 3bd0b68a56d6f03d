"""What stands beside every program that is launched: `python -m p2p.scheduler.attend BASE ID`.

It takes the launch's claim, or goes away if somebody has it; waits for free cores and GPUs, holds
them, starts the program on them, and ends it with everything that came of it when it is cancelled,
runs out of time or of its lease, or is over. It answers to files only (see `control`), so it needs
nobody: whoever started it may die. If it dies itself, the kernel kills the program, and whoever
asks next kills what the program leaves behind.

With `--detach` it goes into the background as soon as it has the claim.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from p2p.sandbox import kernel
from p2p.scheduler import processes, wake
from p2p.scheduler.control import Control, Ending, Exit, LaunchFile
from p2p.scheduler.machine import gpu_manager
from p2p.training.cpu_manager import CoreLease, CPUManager

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

POLL_S = 0.5
"""How soon a cancel, a lease or a time limit is noticed; the program's end is at once."""
CORE_POLL_S = 0.1
TOLD_LATE_S = 0.2
"""How much later than a program that it killed a signal may come here."""
TIME_LIMIT_CODE = 124
REFUSED_CODE = 125
"""As `timeout` has them; no program of ours ends with either."""

PR_SET_CHILD_SUBREAPER = 36
_STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_AWAITED = {*_STOPPING, signal.SIGCHLD}


class _EndedEarly(Exception):
    """It is to end."""

    def __init__(self, how: Ending, message: str = "") -> None:
        super().__init__(message)
        self.how: Ending = how
        self.message = message


class _Attendant:
    """One launch, from its claim to its end. Signals are blocked, and taken up in `_pause`."""

    def __init__(self, control: Control, launch: LaunchFile) -> None:
        self.control = control
        self.launch = launch
        self.started = 0.0
        self.program: int | None = None
        self.code: int | None = None
        self.lease_seen: tuple[float, float] | None = None

    def run(self) -> Exit:
        how: Ending = "exited"
        message = ""
        try:
            cores, gpus = self._resources()
            self._start(cores, gpus)
            while self.code is None:
                self._pause(POLL_S)
        except _EndedEarly as reason:
            how, message = reason.how, reason.message
            self._stop()
        finally:
            # A program that is over leaves nothing running, whatever it has started.
            processes.kill_all(partial(processes.descendants, os.getpid()))
            self._take_leave()
        return Exit(how, self.code, datetime.now(UTC).isoformat(), message)

    def _resources(self) -> tuple[CoreLease, CoreLease | None]:
        """Wait for cores and GPUs; both stay held until this process ends."""
        try:
            cores = self._wait_for(CPUManager(), self.launch.cores)
            if not self.launch.gpus:
                return cores, None
            return cores, self._wait_for(gpu_manager(), self.launch.gpus)
        except ValueError as error:  # more than there are: waiting would not help
            raise _EndedEarly("refused", str(error)) from error

    def _wait_for(self, manager: CPUManager, count: int) -> CoreLease:
        while True:
            self._look()
            lease = manager.try_allocate(count)
            if lease is not None:
                return lease
            self._pause(CORE_POLL_S)

    def _start(self, cores: CoreLease, gpus: CoreLease | None) -> None:
        os.sched_setaffinity(0, cores.cores)
        # A run that asks for no GPU sees none, so that it cannot disturb one that does.
        visible = ",".join(str(gpu) for gpu in gpus.cores) if gpus else ""
        variables = {**os.environ, **self.control.marks, "CUDA_VISIBLE_DEVICES": visible}
        attendant = os.getpid()
        self.started = time.monotonic()
        self.program = os.fork()
        if self.program == 0:
            _become(self.launch, self.control.log, variables, attendant)
        self.control.write_process(pid=self.program, cores=cores.cores, gpus=visible)

    def _pause(self, seconds: float) -> None:
        """Wait for a signal; raises when there is a reason to stop."""
        arrived = signal.sigtimedwait(_AWAITED, seconds)
        self._take_leave()
        if self.code and (arrived is None or arrived.si_signo not in _STOPPING):
            # Slurm signals all processes of a job, one after the other, and this one may come last.
            arrived = signal.sigtimedwait(_STOPPING, TOLD_LATE_S if self.code < 0 else 0)
            if arrived is None:
                return
        if self.code == 0:
            return
        self._look()
        if arrived is not None and arrived.si_signo in _STOPPING:
            name = signal.Signals(arrived.si_signo).name
            raise _EndedEarly("terminated", f"its attendant was sent {name}")

    def _look(self) -> None:
        """Whether somebody or something wants it to end."""
        if self.control.cancel_asked():
            raise _EndedEarly("cancelled")
        limit = self.launch.time_limit_s
        if limit is not None and self.program and time.monotonic() - self.started > limit:
            raise _EndedEarly("time_limit", f"it ran into its time limit of {limit:g} s")
        if self.launch.lease_s is not None and self._silence() > self.launch.lease_s:
            raise _EndedEarly("lease", f"nobody asked after it for {self.launch.lease_s:g} s")

    def _silence(self) -> float:
        """Seconds since somebody asked, by a steady clock that goes on while the machine sleeps."""
        try:
            touched = self.control.lease.stat().st_mtime
        except FileNotFoundError:
            touched = 0.0
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if self.lease_seen is None or self.lease_seen[0] != touched:
            self.lease_seen = (touched, now)
        return now - self.lease_seen[1]

    def _take_leave(self) -> None:
        """Reap what has ended: the program, and orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.program:
                self.code = os.waitstatus_to_exitcode(status)

    def _stop(self) -> None:
        """Ask the program to end; what is left after its grace is killed by `run`."""
        deadline = time.monotonic() + self.launch.grace_s
        if self.program and self.code is None:
            os.kill(self.program, signal.SIGTERM)  # ours, and not reaped: the number is its own
        while self.program and self.code is None and time.monotonic() < deadline:
            signal.sigtimedwait({signal.SIGCHLD}, min(POLL_S, deadline - time.monotonic()))
            self._take_leave()


def _become(launch: LaunchFile, log: Path, variables: dict[str, str], parent: int) -> NoReturn:
    """Turn this process, a fresh child, into the program; it dies with its parent."""
    try:
        os.setsid()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in (1, 2):
            os.dup2(output, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            os.chdir(launch.cwd)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
            os.execvpe(launch.command[0], launch.command, variables)  # noqa: S606 - as it should be
        except (OSError, ValueError) as error:
            os.write(2, f"{launch.command[0]} cannot be started: {error}\n".encode())
            os._exit(127)
    finally:
        os._exit(1)


def attend(control: Control, on_claim: Callable[[], None] = lambda: None) -> Exit | None:
    """Launch what the folder says and see it through; None if somebody was there before."""
    launch = control.read_launch()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by inheritance, ends would be missed
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
    claim = control.take_claim(pid=os.getpid())
    on_claim()
    if claim is None:
        return None
    ended = _Attendant(control, launch).run()
    control.write_exit(ended)
    wake.poke(control.base)
    os.close(claim)  # only now: whoever finds it free finds the end, too
    return ended


def _detach(control: Control) -> Callable[[], None]:
    """Go on in the background; the process that was called ends when the claim is settled."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os._exit(0 if os.read(reading, 1) else 1)
    os.close(reading)
    os.setsid()
    complaints = os.open(
        control.path / "attendant.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate((nothing, nothing, complaints)):
        os.dup2(descriptor, number)

    def settled() -> None:
        os.write(writing, b"!")
        os.close(writing)

    return settled


def main(arguments: Sequence[str] | None = None) -> int:
    """Attend a launch; in the foreground, ends with the program's code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    detached = "--detach" in words
    if detached:
        words.remove("--detach")
    if len(words) != 2:
        sys.stderr.write("use: python -m p2p.scheduler.attend BASE LAUNCH_ID [--detach]\n")
        return 2
    control = Control(Path(words[0]).absolute(), words[1])
    control.read_launch()  # a bad one is complained about while somebody listens
    ended = attend(control, _detach(control)) if detached else attend(control)
    if ended is None:
        sys.stderr.write(f"{control.launch_id} was started or cancelled before\n")
        return 0
    if ended.how == "exited":
        return ended.code if ended.code is not None and ended.code >= 0 else 1
    return {"time_limit": TIME_LIMIT_CODE, "refused": REFUSED_CODE}.get(ended.how, 1)


if __name__ == "__main__":
    sys.exit(main())
