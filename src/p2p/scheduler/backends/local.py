"""Runs on this machine, in the runs folder itself."""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from p2p.scheduler import launching
from p2p.scheduler.backends import BackendError
from p2p.scheduler.machine import gpu_numbers
from p2p.scheduler.records import Launch, LaunchReport, NodeConfig
from p2p.training.cpu_manager import default_pool

T = TypeVar("T")


class LocalBackend:
    """Programs on cores of their own, which wait while none is free; see `p2p.scheduler.attend`."""

    def __init__(self, node: NodeConfig, scheduler_dir: Path) -> None:
        self.node = node
        self.base = scheduler_dir.absolute()

    async def submit(self, launch: Launch, secrets: Mapping[str, str]) -> None:
        """Start it, unless it was started or cancelled before."""
        python = self.node.python or sys.executable
        await self._do(launching.start, launch, launch.runs_dir, secrets, python)

    async def status(self, launch: Launch) -> LaunchReport:
        """How it stands."""
        return await self._do(launching.report, launch.launch_id)

    async def cancel(self, launch: Launch) -> None:
        """End it with all its processes; one that was never started never will be."""
        await self._do(launching.cancel, launch.launch_id)

    async def logs(self, launch: Launch, offset: int = 0) -> bytes:
        """What it wrote to standard output and error, from this byte on."""
        return await self._do(launching.read_log, launch.launch_id, offset)

    async def _do(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.to_thread(function, self.base, *arguments)
        except (launching.LaunchError, OSError, ValueError) as error:
            raise BackendError(f"node {self.node.node_id}: {error}") from error

    async def collect(self, launch: Launch) -> None:
        """Nothing to do: it works in the runs folder."""

    async def release(self, launch: Launch) -> None:
        """Nothing to do: what it wrote has its place here."""

    async def check(self) -> str:
        """What this machine is, in a line."""
        cores, gpus = len(default_pool()), len(gpu_numbers())
        has = f"{cores} cores, {gpus} GPUs, Python {platform.python_version()}"
        if cores < self.node.cores or gpus < self.node.gpus:
            raise BackendError(
                f"node {self.node.node_id} is said to have {self.node.cores} cores and "
                f"{self.node.gpus} GPUs; this machine has {has}. Add it again with those"
            )
        return f"{platform.node()}: {has}"

    async def close(self) -> None:
        """Nothing is held."""
