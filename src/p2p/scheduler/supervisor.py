"""What stands beside every program that is launched: `python -m p2p.scheduler.supervisor BASE ID`.

It takes the launch's claim, or goes away if somebody has it; waits for free cores and GPUs, holds
them, starts the program on them, and ends it with everything that came of it when it is cancelled,
runs out of time or of its lease, or is over. It answers to files only (see `launch`), so it needs
nobody: whoever started it may die. If it dies itself, the kernel kills the program, and whoever
asks next kills what the program leaves behind.

With `--detach` it goes into the background as soon as it has the claim.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from p2p.sandbox import kernel
from p2p.scheduler.launch import LaunchFile, LaunchFolder, RunStatus
from p2p.scheduler.notify import notify
from p2p.training.cpu_manager import CoreLease, CPUManager, gpu_manager
from p2p.utils.subprocess_utils import kill_descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

POLL_S = 0.5
"""How soon a cancel, a lease or a time limit is noticed; the program's end is at once."""
CORE_POLL_S = 0.1
LATE_SIGNAL_S = 0.2
"""How much later than a program that it killed a signal may come here."""
TIME_LIMIT_CODE = 124
REFUSED_CODE = 125
"""As `timeout` has them; no program of ours ends with either."""
KILLED = "it was killed from outside, perhaps because its machine ran out of memory"

PR_SET_CHILD_SUBREAPER = 36
_STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_AWAITED = {*_STOPPING, signal.SIGCHLD}


class _Stop(Exception):
    """A reason to end the program, and how its end counts."""

    def __init__(self, end: RunStatus) -> None:
        super().__init__(end.message)
        self.end = end


class _Supervisor:
    """Supervises a launch from its claim to its end. Signals are blocked but in `_wait`."""

    def __init__(self, folder: LaunchFolder, launch: LaunchFile) -> None:
        self.folder = folder
        self.launch = launch
        self.started = 0.0
        self.program: int | None = None
        self.code: int | None = None
        self.lease_seen: tuple[float, float] | None = None

    def run(self) -> RunStatus:
        stopped: RunStatus | None = None
        try:
            self._start(*self._allocate())
            while self.code is None:
                self._wait(POLL_S)
        except _Stop as stop:
            stopped = stop.end
            self._terminate()
        finally:
            # A program that is over leaves nothing running, whatever it has started.
            kill_descendants()
            self._reap()
        if stopped is None:
            return _status_of_exit(self.code or 0)
        return replace(stopped, exit_code=self.code) if stopped.state == "cancelled" else stopped

    def _allocate(self) -> tuple[CoreLease, CoreLease | None]:
        """Wait for cores and GPUs; both stay held until this process ends."""
        try:
            cores = self._wait_for(CPUManager(), self.launch.cores)
            if not self.launch.gpus:
                return cores, None
            return cores, self._wait_for(gpu_manager(), self.launch.gpus)
        except ValueError as error:  # more than there are: waiting would not help
            raise _Stop(RunStatus("exited", REFUSED_CODE, str(error))) from error

    def _wait_for(self, manager: CPUManager, count: int) -> CoreLease:
        while True:
            self._check()
            lease = manager.try_allocate(count)
            if lease is not None:
                lease.sign(os.getpid(), f"launch {self.folder.path.name}")
                return lease
            self._wait(CORE_POLL_S)

    def _start(self, cores: CoreLease, gpus: CoreLease | None) -> None:
        os.sched_setaffinity(0, cores.cores)
        # A run that asks for no GPU sees none, so that it cannot disturb one that does.
        visible = ",".join(str(gpu) for gpu in gpus.cores) if gpus else ""
        try:
            secrets = _read_machine_secrets(self.launch)
        except OSError as error:
            raise _Stop(RunStatus("exited", REFUSED_CODE, str(error))) from error
        variables = {
            **os.environ, **secrets, **self.folder.marks, "CUDA_VISIBLE_DEVICES": visible
        }  # fmt: skip
        supervisor = os.getpid()
        self.started = time.monotonic()
        self.program = os.fork()
        if self.program == 0:
            _become_program(self.launch, self.folder.log, variables, supervisor)
        self.folder.write_process(pid=self.program, cores=cores.cores, gpus=visible)

    def _wait(self, seconds: float) -> None:
        """Wait for a signal; raises when there is a reason to stop."""
        received = signal.sigtimedwait(_AWAITED, seconds)
        self._reap()
        if self.code and (received is None or received.si_signo not in _STOPPING):
            # Slurm signals all processes of a job, one after the other, and this one may come last.
            received = signal.sigtimedwait(_STOPPING, LATE_SIGNAL_S if self.code < 0 else 0)
            if received is None:
                return
        if self.code == 0:
            return
        self._check()
        if received is not None and received.si_signo in _STOPPING:
            name = signal.Signals(received.si_signo).name
            raise _Stop(RunStatus("lost", message=f"its supervisor was sent {name}"))

    def _check(self) -> None:
        """Raise if the launch has a reason to end."""
        if self.folder.cancel_requested():
            raise _Stop(RunStatus("cancelled"))
        limit, lease = self.launch.time_limit_s, self.launch.lease_s
        if limit is not None and self.program and time.monotonic() - self.started > limit:
            message = f"it reached its time limit of {limit:g} s"
            raise _Stop(RunStatus("exited", TIME_LIMIT_CODE, message))
        if lease is not None and self._seconds_since_lease() > lease:
            raise _Stop(RunStatus("lost", message=f"nobody asked for its status for {lease:g} s"))

    def _seconds_since_lease(self) -> float:
        """Return the seconds since the lease was renewed, by a clock that counts suspended time."""
        try:
            touched = self.folder.lease.stat().st_mtime
        except FileNotFoundError:
            touched = 0.0
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if self.lease_seen is None or self.lease_seen[0] != touched:
            self.lease_seen = (touched, now)
        return now - self.lease_seen[1]

    def _reap(self) -> None:
        """Reap ended children: the program and adopted orphans."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.program:
                    self.code = os.waitstatus_to_exitcode(ended[1])

    def _terminate(self) -> None:
        """Ask the program to end; what is left after its grace is killed by `run`."""
        deadline = time.monotonic() + self.launch.grace_s
        if self.program and self.code is None:
            os.kill(self.program, signal.SIGTERM)  # ours, and not reaped: the number is its own
        while self.program and self.code is None and time.monotonic() < deadline:
            signal.sigtimedwait({signal.SIGCHLD}, min(POLL_S, deadline - time.monotonic()))
            self._reap()


def _status_of_exit(code: int) -> RunStatus:
    if code == -signal.SIGKILL:
        # Nobody who may end it kills a program that is not to end: the machine did.
        return RunStatus("lost", message=KILLED)
    return RunStatus("exited", code, f"ended by signal {-code}" if code < 0 else "")


def _become_program(
    launch: LaunchFile, log: Path, variables: dict[str, str], parent: int
) -> NoReturn:
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
            os.execvpe(launch.command[0], [*launch.command], variables)  # noqa: S606 - ours
        except (OSError, ValueError) as error:
            os.write(2, f"{launch.command[0]} cannot be started: {error}\n".encode())
            os._exit(127)
    finally:
        os._exit(1)


def _read_machine_secrets(launch: LaunchFile) -> dict[str, str]:
    """The values that the machine itself provides, in lines NAME=value for this user only."""
    if launch.secrets_file is None or not launch.secrets:
        return {}
    path = Path(launch.secrets_file)
    if not path.is_file():
        return {}
    if path.stat().st_mode & 0o077 or path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} is open to others, so it is not read: chmod 600 {path}")
    lines = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines())
    values = {name.strip(): value.strip() for name, equals, value in lines if equals}
    return {name: values[name] for name in launch.secrets if name in values}


def supervise(
    folder: LaunchFolder, on_claim: Callable[[], None] = lambda: None
) -> RunStatus | None:
    """Run the folder's launch to its end; return None if it is claimed already."""
    launch = folder.read_launch()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by inheritance, ends would be missed
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
    claim = folder.take_claim(pid=os.getpid())
    on_claim()
    if claim is None:
        return None
    end = _Supervisor(folder, launch).run()
    folder.write_end(end)
    notify(folder.base)
    os.close(claim)  # only now: whoever finds it free finds the end, too
    return end


def _detach(folder: LaunchFolder) -> Callable[[], None]:
    """Continue in the background; the calling process exits when the claim is settled."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os._exit(0 if os.read(reading, 1) else 1)
    os.close(reading)
    os.setsid()
    log = os.open(folder.path / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate((nothing, nothing, log)):
        os.dup2(descriptor, number)

    def report_settled() -> None:
        os.write(writing, b"!")
        os.close(writing)

    return report_settled


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervise a launch; in the foreground, ends with the program's code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    detached = "--detach" in words
    if detached:
        words.remove("--detach")
    if len(words) != 2:
        sys.stderr.write("use: python -m p2p.scheduler.supervisor BASE LAUNCH_ID [--detach]\n")
        return 2
    folder = LaunchFolder(Path(words[0]), words[1])
    folder.read_launch()  # a bad one is complained about while somebody listens
    end = supervise(folder, _detach(folder)) if detached else supervise(folder)
    if end is None:
        sys.stderr.write(f"{folder.launch_id} was started or cancelled before\n")
        return 0
    code = end.exit_code if end.state == "exited" else None
    return code if code is not None and code >= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
