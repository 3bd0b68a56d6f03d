"""Where a run can be launched: one file for each kind of place, one line for each in BACKENDS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from p2p.scheduler.records import BackendName, Launch, LaunchReport, NodeConfig


class BackendError(Exception):
    """The place cannot be reached or refuses to work; the message names the node and what to do.

    It says nothing about the runs there: they count as they did before.
    """


class Backend(Protocol):
    """A place to run things. Every method may be called again after a crash, with the same effect.

    A launch is known by its id alone, so nothing has to be remembered between calls: the process,
    the unit, the Ray actor or the Slurm job is found again by that name.
    """

    async def submit(self, launch: Launch, secrets: Mapping[str, str]) -> None:
        """Start it, unless it was started or cancelled before. Sends its folder there first."""
        ...

    async def status(self, launch: Launch) -> LaunchReport:
        """How it stands; also renews its lease where there is one."""
        ...

    async def cancel(self, launch: Launch) -> None:
        """End it with all its processes; one that was never started never will be."""
        ...

    async def logs(self, launch: Launch, offset: int = 0) -> bytes:
        """What it wrote to standard output and error, from this byte on."""
        ...

    async def collect(self, launch: Launch) -> None:
        """Bring what is new in its folder to the scheduler's runs folder; nothing if shared."""
        ...

    async def release(self, launch: Launch) -> None:
        """Its end is noted, and all of it is here: remove what is there of it.

        That it was there is kept for a long while: nothing that asks late starts it again.
        """
        ...

    async def check(self) -> str:
        """What the place is, in a line; raises BackendError if it cannot be used."""
        ...

    async def close(self) -> None:
        """Let go of connections; runs go on."""
        ...


BACKENDS: Mapping[BackendName, tuple[str, str]] = {
    "local": ("p2p.scheduler.backends.local", "LocalBackend"),
    "ssh": ("p2p.scheduler.backends.ssh", "SSHBackend"),
    "ray": ("p2p.scheduler.backends.ray", "RayBackend"),
    "slurm": ("p2p.scheduler.backends.slurm", "SlurmBackend"),
}


def make_backend(node: NodeConfig, scheduler_dir: Path) -> Backend:
    """The backend of a node; `scheduler_dir` is where the scheduler keeps its own files."""
    module, name = BACKENDS[node.backend]
    try:
        made: Callable[[NodeConfig, Path], Backend] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise BackendError(
            f"node {node.node_id}: the backend {node.backend} needs {error.name}, which is not "
            "installed: pip install 'prompt2policy[cluster]'"
        ) from error
    return made(node, scheduler_dir)
