"""Runs on a Ray cluster that is already there: a detached actor for each, named by its launch.

Ray lets only one actor have a name, so asking twice starts once, and whoever comes later finds it.
The actor waits in Ray's queue until a node has room; then the launch's folder is sent there and the
program is started under a supervisor, as everywhere. A folder of the launch here (see `launch`)
keeps what Ray forgets with the actor: that it was started or cancelled, its end and its log.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import secrets as random_numbers
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

from p2p.scheduler import transfer
from p2p.scheduler.backends import Backend, BackendError, cluster_owner
from p2p.scheduler.backends.ray_cluster import (
    PROGRAM_LEASE_S,
    ActorBusy,
    ActorGone,
    ClusterError,
    RayCluster,
)
from p2p.scheduler.launch import LaunchFolder, RunStatus, launch_file
from p2p.scheduler.package import build_package
from p2p.scheduler.records import Launch, NodeConfig

CHECK_S = 15.0
"""For whoever waits at a terminal."""
CALLS_AT_ONCE = 32
LOG_BYTES = 4 * 2**20
CHUNK_BYTES = 8 * 2**20
QUEUED = RunStatus("waiting", message="waits for room in the Ray cluster")
NEVER_BEGAN = RunStatus("absent", never_began=True)


class _RayProcess(BaseManager):
    """A process that uses Ray for us.

    Ray ends a process whose cluster has gone, connects it to one cluster only, and writes to its
    terminal. None of that must happen to a scheduler.
    """


_RayProcess.register("cluster", RayCluster)


def _archive_name() -> str:
    """A name of its own for each archive on its way: two schedulers may start one launch."""
    return f"{random_numbers.token_hex(6)}.tar"


def _set_up_ray_process() -> None:
    os.setsid()  # Ctrl-C is for the scheduler
    os.environ.pop("RAY_ADDRESS", None)  # the node's own counts
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(nothing, number)
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()


class RayBackend(Backend):
    """A cluster by its address: `host:6379` from a machine of it, `ray://host:10001` from any."""

    def __init__(self, node: NodeConfig, scheduler_dir: Path) -> None:
        super().__init__(node, scheduler_dir, scheduler_dir / "ray" / node.node_id)
        self._cluster_arguments = (
            node.address, f"p2p-{cluster_owner(scheduler_dir)}", node.base_dir, node.lease_s
        )  # fmt: skip
        self._secrets: dict[str, dict[str, str]] = {}
        """Of launches that wait for room."""
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="ray")
        self._starting = threading.Lock()
        self._process: _RayProcess | None = None
        self._cluster: Any = None

    async def start(self, launch: Launch, secrets: Mapping[str, str]) -> RunStatus:
        if self.folder(launch).read_claim() is None:
            self._secrets[launch.launch_id] = dict(secrets)
            await self._ask("make", launch.launch_id, launch.spec.cores, launch.spec.gpus)
        return await self.status(launch)

    async def status(self, launch: Launch) -> RunStatus:
        folder = self.folder(launch)
        if (end := folder.read_end()) is not None:
            return end
        if folder.read_claim() is None:
            return await self._begin(launch, folder)
        reason = "the process that was to start it died"
        try:
            status = RunStatus(**await self._call(launch, "status"))
            if status.state != "absent":
                return status
            if folder.claim_is_held():
                return QUEUED  # it is being started
            await self._ask("remove", launch.launch_id)
        except ActorGone as error:
            reason = str(error)[:500]
        return folder.write_end(RunStatus("lost", message=reason))

    async def _begin(self, launch: Launch, folder: LaunchFolder) -> RunStatus:
        """Start it, if there is room for its actor by now."""
        try:
            base, python = await self._call(launch, "ready")
        except ActorBusy:
            return QUEUED
        except ActorGone:
            return NEVER_BEGAN
        secrets = self._secrets.get(launch.launch_id)
        if secrets is None:
            # Whoever was to start it died before. It must not keep its room.
            await self._ask("remove", launch.launch_id)
            return NEVER_BEGAN
        python = self.node.python or python
        package = await asyncio.to_thread(build_package)
        if not await self._call(launch, "install", package.digest, None):
            await self._call(launch, "install", package.digest, package.data)
        await self._send(launch)
        runs_dir = LaunchFolder(Path(base), launch.launch_id).runs_dir
        file = launch_file(launch.spec, runs_dir, python, lease_s=PROGRAM_LEASE_S)
        folder.make()
        claim = folder.take_claim(begun=True)  # either this or a cancel is first
        if claim is None:
            return await self.status(launch)
        try:
            fields = {"file": asdict(file), "secrets": secrets, "python": python}
            await self._call(launch, "start", **fields)
        finally:
            os.close(claim)
            del self._secrets[launch.launch_id]
        return await self.status(launch)

    async def cancel(self, launch: Launch) -> None:
        folder = self.folder(launch)
        if folder.cancel():
            await self._ask("remove", launch.launch_id)
        elif folder.read_end() is None:
            try:
                await self._call(launch, "cancel")
            except ActorGone:
                return  # as its status will say

    async def logs(self, launch: Launch, offset: int = 0) -> bytes:
        folder = self.folder(launch)
        if folder.read_end() is None and folder.read_claim() is not None:
            with suppress(ActorGone):
                return b"".join([data async for data in self._log(launch, offset)])
        return await super().logs(launch, offset)

    async def _log(self, launch: Launch, offset: int) -> AsyncIterator[bytes]:
        while data := await self._call(launch, "log", offset=offset, limit=LOG_BYTES):
            yield data
            offset += len(data)

    async def collect(self, launch: Launch) -> None:
        """Bring what is new; after its end, its actor and its files there are removed."""
        folder = self.folder(launch)
        if folder.read_claim() is None or folder.read_end() is not None:
            return
        with suppress(ActorGone), self.errors():  # one that is gone is lost, as its status will say
            # First, so that all of one that is over comes with it.
            status = RunStatus(**await self._call(launch, "status"))
            if status.state == "absent":
                return
            if (launch.folder / transfer.FEEDBACK).is_dir():
                await self._send(launch, transfer.FEEDBACK)
            await self._fetch(launch)
            with folder.log.open("ab") as stream:
                async for data in self._log(launch, stream.tell()):
                    stream.write(data)
            if status.is_over:
                folder.write_end(status)
                await self._call(launch, "remove")
                await self._ask("remove", launch.launch_id)

    async def check(self) -> str:
        await self._ask("load")
        try:
            async with asyncio.timeout(CHECK_S):
                has = await self._ask("resources")
        except TimeoutError:
            raise BackendError(
                f"node {self.node.node_id}: something listens at {self.node.address}, but no Ray "
                f"cluster answered within {CHECK_S:g} s; see `ray status` there, and the port: "
                "6379 from a machine of the cluster, ray://HOST:10001 from any other"
            ) from None
        line = f"{has['nodes']} nodes, {has['cores']} cores, {has['gpus']} GPUs"
        if has["cores"] < self.node.cores or has["gpus"] < self.node.gpus:
            # No error: some clusters grow when there is work.
            line += f" now, but is registered with {self.node.cores} cores, {self.node.gpus} GPUs"
        return f"Ray {has['version']} at {self.node.address}: {line}"

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.shutdown)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, launch: Launch, method: str, /, *arguments: Any, **named: Any) -> Any:
        """Call a method of the launch's actor; raises ActorGone and ActorBusy."""
        return await self._ask("call", launch.launch_id, method, arguments, named)

    async def _send(self, launch: Launch, below: str = "") -> None:
        """Send the launch's folder; of what is `below` in it, only what is not there."""
        with tempfile.TemporaryDirectory(prefix="p2p-ray-") as name:
            archive, there = Path(name) / "files.tar", _archive_name()
            await asyncio.to_thread(transfer.pack, launch.folder, archive, {}, below)
            with archive.open("rb") as stream:
                while data := stream.read(CHUNK_BYTES):
                    offset = stream.tell() - len(data)
                    await self._call(launch, "write", archive=there, data=data, offset=offset)
        await self._call(
            launch, "unpack", archive=there, folder=launch.spec.folder, keep=bool(below)
        )

    async def _fetch(self, launch: Launch) -> None:
        """Bring what changed in the launch's folder there."""
        known, there = await asyncio.to_thread(transfer.read_stamps, launch.folder), _archive_name()
        fields = {"archive": there, "folder": launch.spec.folder, "known": known}
        size = await self._call(launch, "pack", **fields)
        with tempfile.TemporaryDirectory(prefix="p2p-ray-") as name:
            archive = Path(name) / "files.tar"
            with archive.open("wb") as stream:
                while stream.tell() < size:
                    length = min(CHUNK_BYTES, size - stream.tell())
                    part = {"archive": there, "offset": stream.tell(), "length": length}
                    data = await self._call(launch, "read", **part)
                    if not data:
                        break
                    stream.write(data[:length])
            await asyncio.to_thread(transfer.unpack, archive, launch.folder)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._request, method, *arguments)
        except ClusterError as error:
            raise type(error)(f"node {self.node.node_id}: {error}") from error

    def _request(self, method: str, *arguments: Any) -> Any:
        """Ask the Ray process, which the first request starts, and the next one after its end."""
        for last in (False, True):
            with self._starting:
                if self._process is None:
                    self._process = _RayProcess(ctx=multiprocessing.get_context("spawn"))
                    self._process.start(_set_up_ray_process)
                    make = getattr(self._process, "cluster")  # noqa: B009 - made by `register`
                    self._cluster = make(*self._cluster_arguments)
                cluster = self._cluster
            try:
                return getattr(cluster, method)(*arguments)
            except (EOFError, OSError) as error:
                with self._starting:
                    if self._cluster is cluster:
                        self._process = None
                if last:
                    raise ClusterError(f"the process that uses Ray has ended: {error!r}") from error
        raise AssertionError
