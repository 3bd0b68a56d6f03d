"""Runs on a machine reached over SSH. They go on without it, as long as their lease lasts.

Files travel over SFTP; everything else is a command there of its own (see `p2p.scheduler.node`).
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from p2p.scheduler import copying
from p2p.scheduler.backends import Backend, BackendError, described
from p2p.scheduler.backends.ssh_connection import SSHConnection
from p2p.scheduler.launch import GRACE_S, LaunchFolder, RunStatus, launch_file
from p2p.scheduler.records import Launch, NodeConfig

FRESH_S = 2.0
"""One look at all runs there serves everybody who asks within this time."""
LEASE_MARGIN_S = 60.0
"""More than clocks that should run alike differ by."""
DISTRIBUTION = "prompt2policy"


class SSHBackend(Backend):
    """A node with an SSH server; connects when it has to."""

    def __init__(self, node: NodeConfig, scheduler_dir: Path) -> None:  # noqa: ARG002
        self.connection = SSHConnection(node)
        super().__init__(node, self.connection.base)
        self._asking = asyncio.Lock()
        self._statuses: dict[str, RunStatus] = {}
        self._asked_at = float("-inf")
        self._heard: dict[str, float] = {}

    async def submit(self, launch: Launch, secrets: Mapping[str, str]) -> RunStatus:
        async with self.connection.errors():
            launch_id, call = launch.launch_id, self.connection.call
            self._statuses.pop(launch_id, None)  # what is known of it changes
            status = RunStatus(**await call("prepare", launch_id=launch_id))
            if status.state != "absent":
                return status  # what its folder there holds is newer than ours
            await copying.send(_Folder(self.connection, launch), launch.folder)
            runs_dir, python = self.folder(launch).runs_dir, self.connection.python
            file = launch_file(launch.spec, runs_dir, python, lease_s=self.node.lease_s)
            fields = {"launch": asdict(file), "secrets": secrets, "python": python}
            return RunStatus(**await call("start", launch_id=launch_id, **fields))

    async def status(self, launch: Launch) -> RunStatus:
        """Its status; lost once the node must have ended it by itself."""
        try:
            async with self._asking, self.connection.errors():
                status = await self._look(launch.launch_id)
        except BackendError as error:
            silence = self._silence(launch)
            if silence < self._longest_silence:
                raise
            return RunStatus(
                "lost",
                message=f"no word for {silence:.0f} s, longer than its lease lasts: {error}",
            )
        self._heard[launch.launch_id] = self._asked_at
        return status

    async def _look(self, launch_id: str) -> RunStatus:
        """Ask after this launch, and after all others that run there, unless it was just done."""
        if launch_id not in self._statuses or time.monotonic() - self._asked_at > FRESH_S:
            asked_at = time.monotonic()
            names = {name for name, status in self._statuses.items() if not status.is_over}
            answers = await self.connection.call("statuses", launch_ids=sorted({launch_id, *names}))
            self._statuses = {name: RunStatus(**fields) for name, fields in answers.items()}
            self._asked_at = asked_at
        return self._statuses[launch_id]

    async def cancel(self, launch: Launch) -> None:
        try:
            async with self.connection.errors():
                self._statuses.pop(launch.launch_id, None)
                await self.connection.call("cancel", launch_id=launch.launch_id)
        except BackendError:
            if self._silence(launch) < self._longest_silence:
                raise

    @property
    def _longest_silence(self) -> float:
        """After so long without a word of ours, nothing can run there any more."""
        return self.node.lease_s + GRACE_S + LEASE_MARGIN_S

    def _silence(self, launch: Launch) -> float:
        now = time.monotonic()
        return now - self._heard.setdefault(launch.launch_id, now)

    async def logs(self, launch: Launch, offset: int = 0) -> bytes:
        async with self.connection.errors():
            return await self.connection.read(self.folder(launch).log, offset)

    async def collect(self, launch: Launch) -> None:
        async with self.connection.errors():
            await copying.collect(_Folder(self.connection, launch), launch.folder)

    async def release(self, launch: Launch) -> None:
        async with self.connection.errors():
            await self.connection.call("release", launch_id=launch.launch_id)

    async def check(self) -> str:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
        async with self.connection.errors():
            machine = await self.connection.call("machine", requirements=requirements)
        if machine["missing"]:
            raise BackendError(
                f"node {self.node.node_id}: its Python lacks {', '.join(machine['missing'])}; "
                "install them there, or set `python` of the node to one that has them"
            )
        return described(self.node, machine)

    async def close(self) -> None:
        await self.connection.close()


class _Folder:
    """The folder of a run on the node."""

    def __init__(self, connection: SSHConnection, launch: Launch) -> None:
        self._connection = connection
        self._where = {"launch_id": launch.launch_id, "folder": launch.spec.folder}
        self._launch = LaunchFolder(connection.base, launch.launch_id)

    async def scan(self, held: Mapping[str, copying.FileStamp]) -> dict[str, copying.FileStamp]:
        stamps = await self._connection.call("scan", **self._where, held=held)
        return {path: copying.FileStamp(*stamp) for path, stamp in stamps.items()}

    async def read(self, path: str, offset: int, length: int) -> bytes:
        folder = self._launch.runs_dir / self._where["folder"]
        return await self._connection.read(folder / path, offset, length)

    async def put(self, folder: Path, stamps: Mapping[str, copying.FileStamp]) -> None:
        files = {str(n): (path, stamp.mtime_ns) for n, (path, stamp) in enumerate(stamps.items())}
        for name, (path, _) in files.items():
            await self._connection.put(folder / path, self._launch.path / "incoming" / name)
        if files:
            await self._connection.call("place", **self._where, files=files)
