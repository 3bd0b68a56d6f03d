"""The folder of a run: configuration, status, and states to resume from.

    config.json   the configuration
    status.json   its status
    states/       step-<N>/, each whole or not there

Everything else in it is the tracker's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from unstable.config import ConfigError, RunConfig, make_config
from unstable.utils.files import new_folder, read_json, refuse_links, to_json, write_whole
from unstable.utils.plugins import could_be_own_part

Status = Literal["running", "completed", "cancelled", "failed"]
_STATE = "step-"
HOLD_SECONDS = 1.0
"""Who looks whether a run is held has its lock for a moment."""


@dataclass(frozen=True)
class SelfPlayStatus:
    status: Status
    step: Annotated[int, Field(ge=-1, lt=1 << 53)]
    updates: Annotated[int, Field(ge=0, lt=1 << 53)]
    message: str = ""
    pid: int | None = None
    host: str = ""
    """The machine that it runs on."""


_STATUS = TypeAdapter(SelfPlayStatus)


class RunFolder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open an existing run; raise ConfigError if the folder is none."""
        folder = cls(path)
        if not (folder.path / "config.json").is_file():
            raise ConfigError(f"{path} is not a run: it has no config.json")
        return folder

    def write_config(self, config: RunConfig) -> None:
        write_whole(self.path / "config.json", config.model_dump_json(indent=2) + "\n")

    def config(self) -> RunConfig:
        """Read the configuration; raise ConfigError when it cannot be read."""
        path = self.path / "config.json"
        try:
            values = read_json(path, self.path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        return make_config(values, str(path))

    def config_to_run(self, *, trusted: bool) -> RunConfig:
        """Read the configuration of a run that is to be executed, and may be somebody else's.

        The modules that it names are imported, and run as the user: raises ConfigError, with what
        to do, where there are some and the user has not said that the run is trusted.
        """
        config = self.config()
        if trusted:
            return config
        if names := list_own_parts(config):
            raise ConfigError(
                f"{self.path} names code that would run as you: {', '.join(names)[:200]}. Look at "
                "it, in the modules and the folders of import_path, then add --trust"
            )
        return config.model_copy(update={"import_path": ()})

    def write_status(self, status: SelfPlayStatus) -> None:
        write_whole(self.path / "status.json", to_json(asdict(status)) + "\n")

    def status(self) -> SelfPlayStatus | None:
        try:
            return _STATUS.validate_python(read_json(self.path / "status.json", self.path))
        except (OSError, ValueError):
            return None

    def seen_status(self) -> SelfPlayStatus | None:
        """Return the status as seen from here: a run whose process is gone has failed.

        Of a run on another machine that cannot be seen.
        """
        status = self.status()
        if status is None or status.status != "running" or status.host != socket.gethostname():
            return status
        if self._is_held():
            return status
        message = f"its process is gone; resume with: unstable resume {self.path}"
        return replace(status, status="failed", message=message)

    def _is_held(self) -> bool:
        """Return whether a process of this machine runs it; its lock ends with the process."""
        try:
            descriptor = os.open(self.path / "run.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the run's lock; raise ConfigError if another process has it."""
        try:
            refuse_links(self.path)
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}") from error
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path / "run.lock", flags, 0o600)
        try:
            if not _lock_within(HOLD_SECONDS, descriptor):
                raise ConfigError(f"{self.path} is being run by another process")
            yield
        finally:
            os.close(descriptor)

    # --- states -------------------------------------------------------------------------------

    def states(self) -> list[Path]:
        """Return the whole states, oldest first."""
        folders = (self.path / "states").glob(f"{_STATE}*")
        own = (path for path in folders if path.name.removeprefix(_STATE).isdecimal())
        return sorted(own, key=parse_step)

    @contextmanager
    def new_state(self, step: int, keep: int) -> Iterator[Path]:
        """Yield a folder for a state; it counts when the block ends, and the oldest are removed."""
        states = self.path / "states"
        for unfinished in states.glob(".*"):  # a process was killed while it wrote
            shutil.rmtree(unfinished, ignore_errors=True)
        with new_folder(states / f"{_STATE}{step}") as state:
            yield state
        for old in self.states()[:-keep]:
            shutil.rmtree(old, ignore_errors=True)


def _lock_within(seconds: float, descriptor: int) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def list_own_parts(config: RunConfig) -> list[str]:
    """Return the code that a configuration names: modules, and `my_module:name`."""

    def strings(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            value = [*value, *value.values()]
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            for item in value:
                yield from strings(item)

    values = config.model_dump(exclude={"plugins", "templates", "name"})
    named = (n for n in strings(values) if could_be_own_part(n, config.import_path))
    return [*config.plugins, *dict.fromkeys(named)]


def parse_step(path: Path) -> int:
    return int(path.name.removeprefix(_STATE))
