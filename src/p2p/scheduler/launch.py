"""The folder of one launch: what makes a run happen once and never get lost.

    launch.json     what to start, filled in for this machine; no secret
    claim           who got here first: its supervisor, or a cancel. Made once, never changed
    process.json    the program and its cores, once it runs
    log.txt         what the program wrote to standard output and error
    supervisor.log  what went wrong in the supervisor itself
    cancel          there when somebody wants it to end
    lease           touched by whoever asks for its status
    exit.json       how it ended

The supervisor holds the kernel's lock on `claim` from before the file has its name until it dies,
however it dies. So there is no moment and no reuse of a process number at which a dead one looks
alive or a live one dead. Everything here may be done again after a crash, by another process, with
the same effect.

Every supervisor imports this, so pydantic is not imported here: it takes longer than all the rest.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets as random_numbers
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from p2p import files
from p2p.training.cpu_manager import PASSED_VARIABLES, CPUManager
from p2p.utils.subprocess_utils import (
    NEUTRAL,
    absolute_environment,
    find_marked_processes,
    kill_all,
)

if TYPE_CHECKING:
    from p2p.scheduler.records import RunSpec

T = TypeVar("T")

GRACE_S = 30.0
"""From the request to stop until everything is killed. A session gives its runs half of it."""
START_TIMEOUT_S = 60.0
KEPT_FILES = frozenset({"claim", "exit.json"})
"""What stays of a launch that was released, so that nothing starts it again."""
KEPT_S = 30 * 86_400.0
LAUNCH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
"""As `records.Id`."""
LAUNCH_VARIABLES = (
    *PASSED_VARIABLES,
    "USER", "LOGNAME", "SHELL", "TZ", "OMP_NUM_THREADS", "JAX_PLATFORMS",
    "HF_HOME", "HF_HUB_OFFLINE", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""What a program has of the environment it is launched from; keys and tokens are `secrets`."""


class LaunchError(Exception):
    """A launch could not be started or removed; it may be tried again."""


@dataclass(frozen=True)
class RunStatus:
    """The status of a launch, as its node knows it."""

    state: Literal["absent", "waiting", "running", "exited", "cancelled", "lost"]
    """absent: never started. waiting: started, but there are no free cores or the queue is long.
    lost: it was there, and is gone without a word."""
    exit_code: int | None = None
    """Without one the program had not begun, or nobody saw its end."""
    message: str = ""
    """For people: why it was lost, which time limit it ran into, its process or job number."""
    never_began: bool = False
    """Only where it is absent: nothing of it has begun, so that the same launch may be submitted
    again. A node that knows a launch by its files alone cannot say so: they may have been removed.
    """

    @property
    def is_over(self) -> bool:
        return self.state in ("exited", "cancelled", "lost")


@dataclass(frozen=True)
class LaunchFile:
    """The launch as its supervisor reads it."""

    command: Sequence[str]
    cwd: str
    cores: int
    gpus: int
    time_limit_s: float | None
    secrets: Sequence[str] = ()
    """The variables that the program is given of those that its supervisor has."""
    secrets_file: str | None = None
    """Where this machine keeps their values; None: they come with the request to start."""
    lease_s: float | None = None
    """The program is ended when nobody has asked after it for so long; None: never."""
    grace_s: float = GRACE_S


def launch_file(spec: RunSpec, runs_dir: Path, python: str, **options: Any) -> LaunchFile:
    """A run as it is on the machine where the runs folder and the interpreter are these."""
    folder = str(runs_dir / spec.folder)
    values = {"{python}": python, "{runs_dir}": str(runs_dir), "{folder}": folder}
    command, cwd = list(spec.command), folder
    if command[:2] == ["{python}", "-m"] and command[2].split(".")[0] in ("p2p", "unstable"):
        # Our own programs: the run's folder may be somebody else's, and they do not work in it.
        command.insert(1, "-P")
        cwd = NEUTRAL
    for name, value in values.items():
        command = [word.replace(name, value) for word in command]
    return LaunchFile(
        command, cwd, spec.cores, spec.gpus, spec.time_limit_s, spec.secrets, **options
    )


def launch_environment() -> dict[str, str]:
    """The variables that a program is given of this process's environment, without secrets."""
    variables = {name: os.environ[name] for name in LAUNCH_VARIABLES if name in os.environ}
    return {
        **absolute_environment(variables),
        "PYTHONUNBUFFERED": "1",
    }  # so that its log can be followed


@dataclass(frozen=True)
class LaunchFolder:
    """The folder of a launch below `base`."""

    base: Path
    launch_id: str

    def __post_init__(self) -> None:
        if not LAUNCH_ID.fullmatch(self.launch_id) or len(self.launch_id) > 200:
            raise ValueError(f"{self.launch_id[:80]!r} is not the id of a launch")
        object.__setattr__(self, "base", self.base.absolute())

    @property
    def path(self) -> Path:
        return self.base / "launches" / self.launch_id

    @property
    def runs_dir(self) -> Path:
        """On another machine: the runs folder of this launch alone, so that attempts cannot mix."""
        return self.path / "runs"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def lease(self) -> Path:
        return self.path / "lease"

    @property
    def marks(self) -> dict[str, str]:
        """Variables that every process of the program has, unless it clears its environment."""
        return {"P2P_LAUNCH_ID": self.launch_id, "P2P_CORE_LOCKS": str(self.path / "cores")}

    def make(self) -> None:
        """Make the folder, closed to other users."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    # --- start ------------------------------------------------------------------------------------

    def prepare(self, launch: LaunchFile) -> bool:
        """Write down what a supervisor is to start; False if it was started or cancelled before."""
        if self.read_claim() is not None:
            return False
        Path(launch.cwd).mkdir(parents=True, exist_ok=True)
        self.make()
        if launch.lease_s is not None:
            self.lease.touch()
        files.write_json(self.path / "launch.json", asdict(launch))
        return True

    def start(self, launch: LaunchFile, secrets: Mapping[str, str], python: str) -> None:
        """Start it, unless it was started or cancelled before. Then it is no longer `absent`."""
        if not self.prepare(launch):
            return
        module = "p2p.scheduler.supervisor"
        named = {name: secrets[name] for name in launch.secrets if name in secrets}
        try:
            process = subprocess.run(
                [python, "-P", "-m", module, str(self.base), self.launch_id, "--detach"],
                cwd=self.path,
                env={**launch_environment(), **named},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=START_TIMEOUT_S,
                check=False,
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise LaunchError(
                f"{self.launch_id} cannot be started with {python}: {error}"
            ) from None
        if process.returncode:
            output = process.stderr.decode(errors="replace").strip() or self._supervisor_log()
            raise LaunchError(f"{self.launch_id} could not be started: {output[-2000:]}")

    def read_launch(self) -> LaunchFile:
        """Read launch.json; raises OSError or ValueError."""
        launch = self._read("launch.json", LaunchFile)
        if launch is None:
            raise FileNotFoundError(f"{self.path / 'launch.json'} is not there")
        return launch

    def take_claim(self, **note: Any) -> int | None:
        """Claim the launch while the descriptor is open; return None if it is claimed."""
        temporary = self.path / f".claim.{random_numbers.token_hex(6)}{files.TEMPORARY_SUFFIX}"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Locked before it has its name: nobody ever sees a claim whose holder looks dead.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, json.dumps(note).encode())
            os.fsync(descriptor)
            os.link(temporary, self.path / "claim")
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, FileExistsError):
                return None
            raise
        finally:
            temporary.unlink(missing_ok=True)
        return descriptor

    def read_claim(self) -> dict[str, Any] | None:
        return self._read("claim", dict)

    def claim_is_held(self) -> bool:
        return not files.is_free(self.path / "claim")

    def write_process(self, **note: Any) -> None:
        files.write_json(self.path / "process.json", note)

    def read_process(self) -> dict[str, Any] | None:
        """The program's number and cores; None if it does not run yet."""
        return self._read("process.json", dict)

    # --- status -----------------------------------------------------------------------------------

    def status(self) -> RunStatus:
        """The status of the launch; renews its lease and kills what a dead supervisor left."""
        if self.read_claim() is None:
            return RunStatus("absent")
        # In this order: a supervisor that is gone wrote down the end before.
        alive = self.claim_is_held()
        if (end := self.read_end()) is not None:
            return end
        if not alive:
            return self._handle_dead_supervisor()
        if self.lease.exists():
            self.lease.touch()
        process = self.read_process()
        if process is None:
            launch = self.read_launch()
            held = "" if launch.gpus else CPUManager().describe_wait(launch.cores)
            return RunStatus("waiting", message=held or "waits for free cores and GPUs")
        cores = ", ".join(str(core) for core in process["cores"])
        return RunStatus("running", message=f"process {process['pid']} on core {cores}")

    def _handle_dead_supervisor(self) -> RunStatus:
        if left := kill_all(lambda: find_marked_processes(self.marks)):
            message = f"its supervisor died; processes {left} cannot be killed"
            return RunStatus("running", message=message)
        message = f"its supervisor died without an exit record {self._supervisor_log()}".strip()
        return self.write_end(RunStatus("lost", message=message))

    def write_end(self, end: RunStatus) -> RunStatus:
        """Record the end; a lost launch that was to be cancelled counts as cancelled."""
        if end.state == "lost" and self.cancel_requested():
            end = RunStatus("cancelled")
        fields = {**asdict(end), "when": datetime.now(UTC).isoformat()}
        files.write_json(self.path / "exit.json", fields)
        return end

    def read_end(self) -> RunStatus | None:
        """Read the recorded end, or return None if there is none."""
        claim = self.read_claim()
        if claim is not None and claim.get("cancelled"):
            return RunStatus("cancelled", message="cancelled before it was started")
        return self._read("exit.json", lambda when="", **fields: RunStatus(**fields))  # noqa: ARG005

    def read_log(self, offset: int = 0, limit: int = -1) -> bytes:
        """The output from this byte on, `limit` bytes at most; empty if there is none yet."""
        try:
            with self.log.open("rb") as stream:
                stream.seek(max(0, offset))
                return stream.read(limit)
        except FileNotFoundError:
            return b""

    # --- end --------------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """End it with all its processes, soon; True if it was not started, and never will be."""
        self.make()
        files.write_bytes(self.path / "cancel", b"")
        descriptor = self.take_claim(cancelled=True)
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is not None

    def cancel_requested(self) -> bool:
        return (self.path / "cancel").exists()

    def release(self) -> None:
        """Remove the launch's files, except the record of its end.

        Raises LaunchError if it has not ended.
        """
        if self.read_claim() is None:
            return
        if self.read_end() is None or self.claim_is_held():
            raise LaunchError(f"{self.launch_id} has not ended: nothing of it is removed")
        for path in self.path.iterdir():
            if path.name in KEPT_FILES:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    # --- files ------------------------------------------------------------------------------------

    def _supervisor_log(self) -> str:
        try:
            return (self.path / "supervisor.log").read_text(errors="replace")[-1000:]
        except FileNotFoundError:
            return ""

    def _read(self, name: str, make: Callable[..., T]) -> T | None:
        path = self.path / name
        try:
            fields = files.load_object(path)
            return None if fields is None else make(**fields)
        except (files.UnreadableError, TypeError) as error:
            message = f"{path} is damaged ({error}); remove the folder to forget it"
            raise ValueError(message) from error


def forget_released(base: Path) -> None:
    """Remove the folders of launches that were released long ago."""
    now = time.time()
    for folder in (base / "launches").glob("*"):
        with suppress(FileNotFoundError):  # somebody else does the same
            names = {path.name for path in folder.iterdir()}
            if names and names <= KEPT_FILES and now - folder.stat().st_mtime > KEPT_S:
                shutil.rmtree(folder)
