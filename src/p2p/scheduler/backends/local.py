"""Runs on this machine, in the runs folder itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from p2p.scheduler.backends import BackendError, described
from p2p.scheduler.launch import LaunchError, LaunchFolder, RunStatus, launch_file
from p2p.scheduler.machine import machine
from p2p.scheduler.records import Launch, NodeConfig

T = TypeVar("T")


class LocalBackend:
    """Programs on cores of their own, which wait while none is free; see `launch`."""

    def __init__(self, node: NodeConfig, scheduler_dir: Path) -> None:
        self.node = node
        self.base = scheduler_dir.absolute()

    async def submit(self, launch: Launch, secrets: Mapping[str, str]) -> RunStatus:
        python = self.node.python or sys.executable
        folder = LaunchFolder(self.base, launch.launch_id)
        file = launch_file(launch.spec, launch.runs_dir.absolute(), python)
        await self._do(folder.start, file, secrets, python)
        return await self.status(launch)

    async def status(self, launch: Launch) -> RunStatus:
        return await self._do(LaunchFolder(self.base, launch.launch_id).status)

    async def cancel(self, launch: Launch) -> None:
        await self._do(LaunchFolder(self.base, launch.launch_id).cancel)

    async def logs(self, launch: Launch, offset: int = 0) -> bytes:
        return await self._do(LaunchFolder(self.base, launch.launch_id).read_log, offset)

    async def _do(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.to_thread(function, *arguments)
        except (LaunchError, OSError, ValueError) as error:
            raise BackendError(f"node {self.node.node_id}: {error}") from error

    async def collect(self, launch: Launch) -> None:
        """Nothing to do: it works in the runs folder."""

    async def release(self, launch: Launch) -> None:
        """Nothing to do: what it wrote has its place here."""

    async def check(self) -> str:
        return described(self.node, machine())

    async def close(self) -> None:
        """Nothing is held."""
