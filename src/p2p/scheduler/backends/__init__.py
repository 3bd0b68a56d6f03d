"""Where a run can be launched: one file for each kind of place, one line for each in BACKENDS."""

from __future__ import annotations

import asyncio
import os
import secrets as random_numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from p2p import files
from p2p.scheduler.launch import LaunchError, LaunchFolder, RunStatus
from p2p.scheduler.records import Launch
from p2p.scheduler.transfer import TransferError
from p2p.settings import get_settings

if TYPE_CHECKING:
    from p2p.scheduler.records import BackendName, NodeConfig, RunSpec


class BackendError(Exception):
    """The node cannot be reached or refuses to work; the message names it and what to do.

    It says nothing about the runs there: they count as they did before.
    """


class Backend(ABC):
    """A place to run things. Every method may be called again after a crash, with the same effect.

    A launch is known by its id alone, so nothing has to be remembered between calls: the process,
    the Ray actor or the Slurm job is found again by that name. `base` has the folders of launches;
    without one it is the scheduler's own folder, which lies in the runs folder.
    """

    def __init__(self, node: NodeConfig, scheduler_dir: Path, base: Path | None = None) -> None:
        self.node = node
        self.runs_dir = scheduler_dir.absolute().parent
        self.base = (base or scheduler_dir).absolute()

    def folder(self, launch: Launch) -> LaunchFolder:
        return LaunchFolder(self.base, launch.launch_id)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise what goes wrong as BackendError, with the node's name."""
        try:
            yield
        except (LaunchError, TransferError, OSError, ValueError) as error:
            raise BackendError(f"node {self.node.node_id}: {error}") from error

    def submit(self, spec: RunSpec) -> RunStatus:
        """Start a run, and say what has become of it: for programs that need no scheduler.

        Its folder lies in the runs folder. It is its first attempt, so that a
        second call finds the first. The secrets that it names come from this process.
        """

        async def start() -> RunStatus:
            launch = Launch(launch_id=f"{spec.run_id}.1", spec=spec, runs_dir=self.runs_dir)
            try:
                return await self.start(launch, read_secrets(spec.secrets))
            finally:
                await self.close()

        return asyncio.run(start())

    @abstractmethod
    async def start(self, launch: Launch, secrets: Mapping[str, str]) -> RunStatus:
        """Start it, unless it was started or cancelled before. Sends its folder there first."""

    @abstractmethod
    async def status(self, launch: Launch) -> RunStatus:
        """The status of a launch; also renews its lease where there is one."""

    @abstractmethod
    async def cancel(self, launch: Launch) -> None:
        """End it with all its processes; one that was never started never will be."""

    @abstractmethod
    async def check(self) -> str:
        """Describe the node in a line; raises BackendError if it cannot be used."""

    async def logs(self, launch: Launch, offset: int = 0) -> bytes:
        """The output of a launch, from this byte on."""
        with self.errors():
            return await asyncio.to_thread(self.folder(launch).read_log, offset)

    async def collect(self, launch: Launch) -> None:  # noqa: B027 - nothing if it is shared
        """Bring what is new in its folder to the scheduler's runs folder."""

    async def release(self, launch: Launch) -> None:  # noqa: B027
        """Remove the files of a launch whose end is noted and whose results are here.

        That it was there is kept for a long while: nothing that asks late starts it again.
        """

    async def close(self) -> None:  # noqa: B027
        """Close connections; runs go on."""


BACKENDS: Mapping[BackendName, tuple[str, str]] = {
    "local": ("p2p.scheduler.backends.local", "LocalBackend"),
    "ssh": ("p2p.scheduler.backends.ssh", "SSHBackend"),
    "ray": ("p2p.scheduler.backends.ray", "RayBackend"),
    "slurm": ("p2p.scheduler.backends.slurm", "SLURMBackend"),
}


def make_backend(node: NodeConfig, scheduler_dir: Path) -> Backend:
    """The backend of a node; `scheduler_dir` is where the scheduler keeps its own files."""
    module, name = BACKENDS[node.backend]
    try:
        backend: Backend = getattr(import_module(module), name)(node, scheduler_dir)
    except ModuleNotFoundError as error:
        raise BackendError(
            f"node {node.node_id}: the backend {node.backend} needs {error.name}, which is not "
            "installed: pip install 'prompt2policy[cluster]'"
        ) from error
    return backend


def read_secrets(names: Iterable[str]) -> dict[str, str]:
    """The values of the variables that are set, in the environment or a `.env` file."""
    settings = get_settings()
    values: dict[str, str] = {}
    for name in names:
        value = os.environ.get(name)
        if value is None:
            setting = getattr(settings, name.lower(), None)
            value = setting.get_secret_value() if isinstance(setting, SecretStr) else setting
        if isinstance(value, str) and value:
            values[name] = value
    return values


def describe_node(node: NodeConfig, machine: Mapping[str, Any]) -> str:
    """A machine in a line; raises BackendError if it has less than the node is registered with."""
    line = f"{machine['cores']} cores, {machine['gpus']} GPUs, Python {machine['python']}"
    if machine["cores"] < node.cores or machine["gpus"] < node.gpus:
        raise BackendError(
            f"node {node.node_id} is registered with {node.cores} cores and {node.gpus} GPUs; "
            f"{machine['name']} has {line}. Add it again with those"
        )
    return f"{machine['name']}: {line}"


def cluster_owner(scheduler_dir: Path) -> str:
    """A name for this runs folder, drawn once: on a shared cluster, whose launches they are."""
    path = scheduler_dir / "owner"
    if not path.exists():
        drawn = path.with_name(f".owner.{random_numbers.token_hex(6)}{files.TEMPORARY_SUFFIX}")
        files.write_text(drawn, random_numbers.token_hex(4))
        try:
            os.link(drawn, path)
        except FileExistsError:
            pass  # another process was quicker: its name counts
        finally:
            drawn.unlink()
    return path.read_text(encoding="utf-8")
