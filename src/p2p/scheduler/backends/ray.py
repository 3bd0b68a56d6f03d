"""Runs on a Ray cluster that is already there: a detached actor for each, named by its launch.

Ray lets only one actor have a name, so asking twice starts once, and whoever comes later finds it.
The actor waits in Ray's queue until a node has room; then the launch's folder is sent there and the
program is started under a supervisor, as everywhere. A folder of the launch here (see `launch`)
keeps what Ray forgets with the actor: that it was started or cancelled, its end and its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import secrets as random_numbers
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.scheduler import package, transfer
from p2p.scheduler.backends import Backend, BackendError, cluster_owner
from p2p.scheduler.launch import LaunchFolder, RunStatus, launch_file
from p2p.scheduler.package import build_package, unpack
from p2p.scheduler.records import Launch, NodeConfig

if TYPE_CHECKING:
    from p2p.scheduler.launch import LaunchFolder


CONNECT_S = 5.0
ANSWER_S = 20.0
"""For an actor to answer; after that its node counts as out of reach for now."""
TIMEOUTS: Mapping[str, float] = {
    "ready": 2.0,  # one that waits for room is seen by its silence
    "install": 300.0, "pack": 300.0, "read": 300.0, "write": 300.0, "unpack": 300.0,
    "start": 120.0,
}  # fmt: skip
PROGRAM_LEASE_S = 15.0
"""The program ends so long after its actor died."""
RENEW_EVERY_S = 2.0


class ClusterError(BackendError):
    """The cluster or an actor does not answer now; this says nothing about the launch."""


class ActorGone(ClusterError):
    """The actor has died, its node has, or there was none."""


class ActorBusy(ClusterError):
    """The actor does not answer in time; it may wait for room."""


class LaunchActor:
    """A launch on its node: holds its resources, starts it, copies files.

    Ray is given this class as it is written here, with all it needs: nothing but the standard
    library may be imported until `install` has brought our package. The program runs beside the
    actor, under a supervisor with a short lease that the actor renews: if the actor dies, the
    program does not go on unseen.

    Args:
        launch_id: which.
        owner: a name for the scheduler it belongs to.
        base_dir: a folder for ours on the node; None: one in its folder for temporary files.
        silence_s: the launch is ended, and its place given up, when nobody has asked for so long.
    """

    def __init__(self, launch_id: str, owner: str, base_dir: str | None, silence_s: float) -> None:
        self.launch_id = launch_id
        ours = Path(base_dir or Path(tempfile.gettempdir()) / f"p2p-ray-{os.getuid()}")
        ours.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ours.is_symlink() or ours.stat().st_uid != os.getuid():
            raise PermissionError(f"{ours} does not belong to this user")
        self.base = ours / owner
        self.silence_s = silence_s
        self.installed = False
        self.asked = time.monotonic()
        threading.Thread(target=self._renew, daemon=True).start()

    def ready(self) -> tuple[str, str]:
        """There is room for it: its base folder and the interpreter here."""
        self.asked = time.monotonic()
        return str(self.base), sys.executable

    def install(self, digest: str, data: bytes | None) -> bool:
        """Import the package from here on; False if it is not here and was not given."""
        self.asked = time.monotonic()
        folder = self.base / "packages" / digest
        if not folder.is_dir():
            if data is None:
                return False
            unpack(self.base, digest, data)
        os.environ["PYTHONPATH"] = str(folder)  # the program's
        sys.path.insert(0, str(folder))
        self.do("prepare")
        self.installed = True
        return True

    def status(self) -> dict[str, Any]:
        """The status of the launch."""
        self.asked = time.monotonic()
        return asdict(self._folder().status()) if self.installed else {"state": "absent"}

    def do(self, operation: str, **arguments: Any) -> Any:
        """Perform an operation of `p2p.scheduler.node` on the launch."""
        from p2p.scheduler.node import perform

        self.asked = time.monotonic()
        return perform(self.base, operation, self.launch_id, **arguments)

    def _folder(self) -> LaunchFolder:
        from p2p.scheduler.launch import LaunchFolder

        return LaunchFolder(self.base, self.launch_id)

    def _renew(self) -> None:
        """Renew the program's lease while it is polled; then release the place."""
        while True:
            time.sleep(RENEW_EVERY_S)
            is_silent = time.monotonic() - self.asked > self.silence_s
            if self.installed:
                folder = self._folder()
                if not is_silent:
                    folder.status()  # renews it
                    continue
                if folder.read_claim() is not None and folder.claim_is_held():
                    continue
            if is_silent:
                os._exit(0)


class RayCluster:
    """A cluster, and its actors by the ids of their launches. Connects when it is first asked."""

    def __init__(
        self, address: str, namespace: str, base_dir: str | None, silence_s: float
    ) -> None:
        self._address = address
        self._namespace = namespace
        self._actor_arguments = (namespace, base_dir, silence_s)
        self._connecting = threading.Lock()
        self._ray: Any = None

    def load(self) -> None:
        """Import Ray, which is slow and says nothing about the cluster."""
        try:
            import ray  # noqa: F401
        except ImportError:
            raise ClusterError(
                "Ray is not installed: pip install 'prompt2policy[cluster]'"
            ) from None

    def make(self, launch_id: str, cores: int, gpus: int) -> None:
        """Put an actor into Ray's queue, unless it is there; it outlives this process."""
        ray = self._get_ray()
        ray.remote(LaunchActor).options(
            name=launch_id,
            namespace=self._namespace,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=cores,
            num_gpus=gpus,
        ).remote(launch_id, *self._actor_arguments)

    def call(self, launch_id: str, method: str, arguments: Any, named: Mapping[str, Any]) -> Any:
        """Call a method of an actor, or one of its operations."""
        ray = self._get_ray()
        errors, timeout = ray.exceptions, TIMEOUTS.get(method, ANSWER_S)
        try:
            actor = ray.get_actor(launch_id, self._namespace)
            if not hasattr(LaunchActor, method):
                method, arguments = "do", (method, *arguments)
            return ray.get(getattr(actor, method).remote(*arguments, **named), timeout=timeout)
        except ValueError:
            raise ActorGone("its actor is gone") from None
        except errors.GetTimeoutError:
            raise ActorBusy(f"its actor did not answer for {timeout:g} s") from None
        except errors.ActorUnavailableError as error:
            raise ActorBusy(f"its actor is out of reach: {_first_line(error)}") from None
        except errors.RayActorError as error:
            raise ActorGone(_first_line(error)) from None
        except errors.RayTaskError as error:
            raise ClusterError(f"on its node: {error.cause!r}") from None
        except errors.RayError as error:
            raise ClusterError(_first_line(error)) from None

    def remove(self, launch_id: str) -> None:
        """End an actor; its room in the cluster is free then."""
        ray = self._get_ray()
        try:
            ray.kill(ray.get_actor(launch_id, self._namespace))
        except ValueError:
            return  # there is none
        except ray.exceptions.RayError as error:
            raise ClusterError(_first_line(error)) from None

    def resources(self) -> dict[str, Any]:
        """The version, nodes, cores and GPUs of the cluster."""
        ray = self._get_ray()
        total = ray.cluster_resources()
        return {
            "version": ray.__version__,
            "nodes": sum(node["Alive"] for node in ray.nodes()),
            "cores": int(total.get("CPU", 0)),
            "gpus": int(total.get("GPU", 0)),
        }

    def _get_ray(self) -> Any:
        with self._connecting:
            if self._ray is None:
                self._ray = _connect(self._address, self._namespace)
            return self._ray


def _connect(address: str, namespace: str) -> Any:
    import ray

    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():
            # Where nobody listens Ray itself would try again for minutes.
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        with contextlib.chdir("/"):  # workers import from the folder that Ray is started in
            ray.init(
                address, namespace=namespace, log_to_driver=False, configure_logging=False,
                logging_level=logging.ERROR,
            )  # fmt: skip
    except ray.exceptions.AuthenticationError as error:
        raise ClusterError(
            f"the cluster at {address} refuses our token (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or "
            f"~/.ray/auth_token must be the cluster's): {_first_line(error)}"
        ) from None
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ClusterError(f"no Ray cluster answers at {address}: {_first_line(error)}") from None
    for module in (sys.modules[__name__], package):
        ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return ray


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


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
