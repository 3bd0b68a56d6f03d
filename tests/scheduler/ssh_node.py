"""A server as the scheduler sees it, and launches there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

from launches import python_launch
from ssh_server import SSHServer

from p2p.scheduler.backends.ssh import SSHBackend
from p2p.scheduler.records import Launch, NodeConfig

WAITS = """
import os, time
open('count', 'a').write('x')
while not os.path.exists('go'): time.sleep(0.02)
"""
"""Runs until it is let go."""

_numbers = itertools.count()


class Node:
    """A server as the scheduler sees it, and launches there."""

    def __init__(self, server: SSHServer, runs_dir: Path) -> None:
        self.server = server
        self.runs_dir = runs_dir

    def config(self, **fields: object) -> NodeConfig:
        own = {
            "node_id": "other", "backend": "ssh", "cores": 1, "host": self.server.address,
            "port": self.server.port, "base_dir": str(self.server.base_dir),
            "key_file": str(self.server.user_key), "known_hosts": str(self.server.known_hosts),
        }  # fmt: skip
        return NodeConfig.model_validate({**own, **fields})

    def backend(self, **fields: object) -> SSHBackend:
        return SSHBackend(self.config(**fields), self.runs_dir / "scheduler")

    def launch(self, code: str, *arguments: str, **fields: object) -> Launch:
        return python_launch(
            self.runs_dir, code, *arguments, launch_id=f"run{next(_numbers)}.1", **fields
        )

    def control(self, launch: Launch) -> Path:
        return self.server.base_dir / "launches" / launch.launch_id

    def there(self, launch: Launch) -> Path:
        return self.control(launch) / "runs" / launch.spec.folder

    def here(self, launch: Launch) -> Path:
        return self.runs_dir / launch.spec.folder

    async def file_there(self, backend: SSHBackend, launch: Launch, name: str) -> str:
        """What stands in a file of the run, as soon as there is something; keeps its lease."""
        path = self.there(launch) / name
        async with asyncio.timeout(60):
            while not (path.exists() and path.read_text()):
                await backend.status(launch)
                await asyncio.sleep(0.05)
        return path.read_text()


def with_backend(
    node: Node, scenario: Callable[[SSHBackend], Awaitable[None]], **of: object
) -> None:
    async def run() -> None:
        backend = node.backend(**of)
        try:
            await scenario(backend)
        finally:
            await backend.close()

    asyncio.run(run())
