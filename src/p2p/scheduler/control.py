"""The folder of one launch: what it is, who has it, how it ended.

    launch.json     what to start, filled in for this machine; no secret
    claim           who got here first: its attendant, or a cancel. Made once, never changed
    process.json    the program and its cores, once it runs
    log.txt         what the program wrote to standard output and error
    attendant.log   what the attendant had to complain about
    cancel          there when somebody wants it to end
    lease           touched by whoever asks after it
    exit.json       how it ended

The attendant holds the kernel's lock on `claim` from before the file has its name until it dies,
however it dies. So there is no moment and no reuse of a process number at which a dead one looks
alive or a live one dead.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from p2p import files

LAUNCH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
"""As `names.Id`, which the attendant does without for the sake of a quick start."""

Ending = Literal[
    "exited", "cancelled", "time_limit", "lease", "terminated", "refused", "lost"
]  # fmt: skip
"""terminated: the attendant was told to stop, not by a cancel. refused: it could never start."""


@dataclass(frozen=True)
class LaunchFile:
    """What the attendant has to know."""

    command: tuple[str, ...]
    cwd: str
    cores: int
    gpus: int
    time_limit_s: float | None
    lease_s: float | None
    """The program is ended when nobody has asked after it for so long; None: never."""
    grace_s: float
    """From the request to stop until everything is killed."""


@dataclass(frozen=True)
class Exit:
    """How a launch ended. Without a code the program had not begun, or nobody saw its end."""

    how: Ending
    code: int | None
    when: str
    message: str = ""


@dataclass(frozen=True)
class Control:
    """The control folder of a launch below `base`."""

    base: Path
    launch_id: str

    def __post_init__(self) -> None:
        if not LAUNCH_ID.fullmatch(self.launch_id) or len(self.launch_id) > 200:
            raise ValueError(f"{self.launch_id[:80]!r} is not the id of a launch")

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.base / "launches" / self.launch_id

    @property
    def log(self) -> Path:
        """What the program wrote."""
        return self.path / "log.txt"

    @property
    def lease(self) -> Path:
        """Its time of change is when somebody last asked."""
        return self.path / "lease"

    @property
    def marks(self) -> dict[str, str]:
        """Variables that every process of the program has, unless it clears its environment."""
        return {"P2P_LAUNCH_ID": self.launch_id, "P2P_CORE_LOCKS": str(self.path / "cores")}

    def make(self) -> None:
        """Make the folder, closed to other users."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write_launch(self, launch: LaunchFile) -> None:
        """Say what to start. Again after a crash, with the same words."""
        files.write_json(self.path / "launch.json", asdict(launch))

    def read_launch(self) -> LaunchFile:
        """What to start; raises OSError or ValueError."""
        fields = self._read("launch.json")
        if fields is None:
            raise FileNotFoundError(f"{self.path / 'launch.json'} is not there")
        try:
            return LaunchFile(**{**fields, "command": tuple(fields["command"])})
        except (TypeError, KeyError) as error:
            raise self._damaged("launch.json", error) from error

    def take_claim(self, **note: Any) -> int | None:
        """Get here first, and stay as long as the descriptor is open; None if somebody has."""
        temporary = self.path / f".claim.{secrets.token_hex(6)}{files.TEMPORARY_SUFFIX}"
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
        """Who got here first, or None."""
        return self._read("claim")

    def claim_is_held(self) -> bool:
        """Whether the one who got here first lives."""
        return not files.is_free(self.path / "claim")

    def ask_to_cancel(self) -> None:
        """Leave word that it is to end."""
        self.make()
        files.write_bytes(self.path / "cancel", b"")

    def cancel_asked(self) -> bool:
        """Whether it is to end."""
        return (self.path / "cancel").exists()

    def write_process(self, **note: Any) -> None:
        """Say that the program runs."""
        files.write_json(self.path / "process.json", note)

    def read_process(self) -> dict[str, Any] | None:
        """The program's number and cores; None if it does not run yet."""
        return self._read("process.json")

    def write_exit(self, ended: Exit) -> None:
        """Say how it ended."""
        files.write_json(self.path / "exit.json", asdict(ended))

    def read_exit(self) -> Exit | None:
        """How it ended; None if it has not, or died without a word."""
        fields = self._read("exit.json")
        try:
            return None if fields is None else Exit(**fields)
        except TypeError as error:
            raise self._damaged("exit.json", error) from error

    def _damaged(self, name: str, why: object) -> ValueError:
        return ValueError(f"{self.path / name} is damaged ({why}); remove the folder to forget it")

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            fields = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self._damaged(name, error) from error
        if not isinstance(fields, dict):
            raise self._damaged(name, "not an object")
        return fields
