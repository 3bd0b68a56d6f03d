"""Runs on this machine, in the runs folder itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from p2p.scheduler.backends import Backend, describe_node
from p2p.scheduler.launch import RunStatus, launch_file
from p2p.scheduler.node import describe_machine
from p2p.scheduler.records import Launch


class LocalBackend(Backend):
    """Programs on cores of their own, which wait while none is free; see `launch`."""

    async def start(self, launch: Launch, secrets: Mapping[str, str]) -> RunStatus:
        python = self.node.python or sys.executable
        file = launch_file(launch.spec, launch.runs_dir.absolute(), python)
        with self.errors():
            await asyncio.to_thread(self.folder(launch).start, file, secrets, python)
        return await self.status(launch)

    async def status(self, launch: Launch) -> RunStatus:
        with self.errors():
            return await asyncio.to_thread(self.folder(launch).status)

    async def cancel(self, launch: Launch) -> None:
        with self.errors():
            await asyncio.to_thread(self.folder(launch).cancel)

    async def check(self) -> str:
        return describe_node(self.node, describe_machine())
