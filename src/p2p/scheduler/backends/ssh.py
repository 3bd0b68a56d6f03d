"""Runs on a machine reached over SSH. They go on without it, as long as their lease lasts.

One connection, made when it has to be, carries everything: files travel over SFTP, everything else
is a command there of its own (see `p2p.scheduler.node`).
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import secrets as random_numbers
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import asyncssh

from p2p.scheduler import copying
from p2p.scheduler.backends import Backend, BackendError, described
from p2p.scheduler.launch import GRACE_S, RunStatus, launch_file
from p2p.scheduler.package import Package, build_package, package_folder
from p2p.scheduler.records import Launch, NodeConfig

FRESH_S = 2.0
"""One look at all runs there serves everybody who asks within this time."""
LEASE_MARGIN_S = 60.0
"""More than clocks that should run alike differ by."""
DISTRIBUTION = "prompt2policy"
CONNECT_S = 20.0
REQUEST_S = 120.0
KEEPALIVE_S = 10.0
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from p2p.scheduler.node import main; main()"
)
UNPACK = (
    "import sys; from pathlib import Path; base, digest, archive = sys.argv[1:]; "
    "sys.path.insert(0, archive); from p2p.scheduler.package import unpack; "
    "unpack(Path(base), digest, Path(archive)); Path(archive).unlink()"
)
COMMANDS_AT_ONCE = 4
"""sshd refuses more than ten sessions on a connection by default."""
BROKEN = (
    TimeoutError, ConnectionError, asyncssh.DisconnectError, asyncssh.ChannelOpenError,
    asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection,
)  # fmt: skip
"""What is raised when a connection is gone."""


class Link(NamedTuple):
    """A connection, its file transfer, and the folder of our package there."""

    connection: asyncssh.SSHClientConnection
    sftp: asyncssh.SFTPClient
    package: str


class SSHBackend(Backend):
    """A node with an SSH server; connects when it has to."""

    def __init__(self, node: NodeConfig, scheduler_dir: Path) -> None:
        assert node.base_dir is not None
        super().__init__(node, scheduler_dir, Path(node.base_dir))
        self.python = node.python or sys.executable
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._commands = asyncio.Semaphore(COMMANDS_AT_ONCE)
        self._asking = asyncio.Lock()
        self._statuses: dict[str, RunStatus] = {}
        self._asked_at = float("-inf")
        self._heard: dict[str, float] = {}

    async def start(self, launch: Launch, secrets: Mapping[str, str]) -> RunStatus:
        with self.errors():
            launch_id, call = launch.launch_id, self.call
            self._statuses.pop(launch_id, None)  # what is known of it changes
            status = RunStatus(**await call("prepare", launch_id=launch_id))
            if status.state != "absent":
                return status  # what its folder there holds is newer than ours
            await copying.send(_Folder(self, launch), launch.folder)
            runs_dir, python = self.folder(launch).runs_dir, self.python
            file = launch_file(launch.spec, runs_dir, python, lease_s=self.node.lease_s)
            fields = {"file": asdict(file), "secrets": secrets, "python": python}
            return RunStatus(**await call("start", launch_id=launch_id, **fields))

    async def status(self, launch: Launch) -> RunStatus:
        """Its status; lost once the node must have ended it by itself."""
        try:
            async with self._asking:
                with self.errors():
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
            answers = await self.call("statuses", launch_ids=sorted({launch_id, *names}))
            self._statuses = {name: RunStatus(**fields) for name, fields in answers.items()}
            self._asked_at = asked_at
        return self._statuses[launch_id]

    async def cancel(self, launch: Launch) -> None:
        try:
            with self.errors():
                self._statuses.pop(launch.launch_id, None)
                await self.call("cancel", launch_id=launch.launch_id)
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
        with self.errors():
            return await self.read(self.folder(launch).log, offset)

    async def collect(self, launch: Launch) -> None:
        with self.errors():
            await copying.collect(_Folder(self, launch), launch.folder)

    async def release(self, launch: Launch) -> None:
        with self.errors():
            await self.call("release", launch_id=launch.launch_id)

    async def check(self) -> str:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
        with self.errors():
            machine = await self.call("machine", requirements=requirements)
        if machine["missing"]:
            raise BackendError(
                f"node {self.node.node_id}: its Python lacks {', '.join(machine['missing'])}; "
                "install them there, or set `python` of the node to one that has them"
            )
        return described(self.node, machine)

    async def close(self) -> None:
        link = self._link
        self._drop()
        if link is not None:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(5):
                    await link.connection.wait_closed()

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.connection.abort()

    async def call(self, operation: str, **arguments: Any) -> Any:
        """What one of the node's operations returns."""
        async with self._commands:
            link = await self._linked()
            words = ["-c", PROGRAM, link.package, str(self.base), operation]
            output = await self._run(link.connection, words, json.dumps(arguments))
        try:
            answer = json.loads(output.strip().rpartition("\n")[2])
            if "error" in answer:
                raise self._error(f"{operation} failed there: {answer['error']}")
            return answer["result"]
        except (ValueError, TypeError, KeyError) as error:
            raise self._error(f"its answer makes no sense ({error}); is it ours?") from error

    async def read(self, path: Path, offset: int, length: int = -1) -> bytes:
        """Part of a file there; nothing if there is none."""
        link = await self._linked()
        with suppress(asyncssh.SFTPNoSuchFile):
            async with link.sftp.open(str(path), "rb") as stream:
                data: Any = await stream.read(length, offset)
                return bytes(data)
        return b""

    async def put(self, source: Path, target: Path) -> None:
        """Send a file."""
        await (await self._linked()).sftp.put(str(source), str(target))

    async def _run(
        self, connection: asyncssh.SSHClientConnection, words: list[str], text: str = ""
    ) -> str:
        """Run its Python; the output. No part of the command has a meaning to a shell there."""
        command = shlex.join([self.python, "-P", *words])
        process = await connection.run(command, input=text, timeout=REQUEST_S, errors="replace")
        if process.exit_status is None and process.exit_signal is None:
            raise ConnectionError("it was cut off")
        if process.exit_status != 0:
            self._drop()  # perhaps our package is gone there: connect anew
            complaint = str(process.stderr or "").strip()[-1500:]
            raise self._error(
                f"our program does not start with {self.python} (exit status "
                f"{process.exit_status}). {complaint}\nThere must be a Python 3.11 or newer with "
                "this program's dependencies: see `python` of the node"
            )
        return str(process.stdout or "")

    async def _linked(self) -> Link:
        async with self._connecting:
            if self._link is None or self._link.connection.is_closed():
                package = await asyncio.to_thread(build_package)
                connection = await self._connect()
                try:
                    sftp = await connection.start_sftp_client()
                    folder = await self._install(connection, sftp, package)
                except BaseException:
                    connection.abort()
                    raise
                self._link = Link(connection, sftp, folder)
            return self._link

    async def _install(
        self, connection: asyncssh.SSHClientConnection, sftp: asyncssh.SFTPClient, package: Package
    ) -> str:
        """Bring our package there, once for each version; returns its folder."""
        folder = package_folder(self.base, package.digest)
        if not await sftp.isdir(str(folder)):
            private = asyncssh.SFTPAttrs(permissions=0o700)
            await sftp.makedirs(str(folder.parent), private, exist_ok=True)
            archive = f"{folder}.{random_numbers.token_hex(6)}.zip"
            async with sftp.open(archive, "wb") as stream:
                await stream.write(package.data)
            await self._run(connection, ["-c", UNPACK, str(self.base), package.digest, archive])
        return str(folder)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Make errors those of a backend; after one of the connection, the next call connects."""
        try:
            yield
        except BROKEN as error:
            self._drop()
            raise self._error(
                f"the connection broke ({_words(error)}); its runs go on, and are found again when "
                "it is back"
            ) from error
        except (OSError, ValueError, TypeError, asyncssh.Error) as error:
            raise self._error(_words(error)) from error

    def _error(self, text: str) -> BackendError:
        where = f"{self.node.host}:{self.node.port}"
        return BackendError(f"node {self.node.node_id} ({where}): {text}")

    async def _connect(self) -> asyncssh.SSHClientConnection:
        node = self.node
        known_hosts = Path(node.known_hosts or Path.home() / ".ssh" / "known_hosts")
        how = (
            f"After you have compared its fingerprint: ssh-keyscan -p {node.port} {node.host} >> "
            f"{known_hosts}"
        )
        if not known_hosts.is_file():
            raise self._error(f"its host key cannot be checked: there is no {known_hosts}. {how}")
        try:
            return await asyncssh.connect(
                node.host or "",
                node.port,
                username=node.user or (),
                known_hosts=str(known_hosts),
                client_keys=[node.key_file] if node.key_file else (),
                password_auth=False,
                kbdint_auth=False,
                agent_forwarding=False,
                x11_forwarding=False,
                connect_timeout=CONNECT_S,
                login_timeout=CONNECT_S,
                keepalive_interval=KEEPALIVE_S,
                keepalive_count_max=3,
            )
        except asyncssh.HostKeyNotVerifiable as error:
            raise self._error(
                f"its host key is not the one in {known_hosts}, or it has none there; nothing was "
                f"sent. {how}"
            ) from error
        except asyncssh.PermissionDenied as error:
            raise self._error(
                f"it lets nobody in with our key ({error.reason}); set `user` and `key_file` of "
                "the node, or add the key to the agent and to authorized_keys there"
            ) from error
        except (OSError, TimeoutError, ValueError, asyncssh.Error) as error:
            raise self._error(f"it cannot be reached ({_words(error)}); is it up?") from error


class _Folder:
    """The folder of a run on the node."""

    def __init__(self, node: SSHBackend, launch: Launch) -> None:
        self._node = node
        self._where = {"launch_id": launch.launch_id, "folder": launch.spec.folder}
        self._launch = node.folder(launch)

    async def scan(self, held: Mapping[str, copying.FileStamp]) -> dict[str, copying.FileStamp]:
        stamps = await self._node.call("scan", **self._where, held=held)
        return {path: copying.FileStamp(*stamp) for path, stamp in stamps.items()}

    async def read(self, path: str, offset: int, length: int) -> bytes:
        folder = self._launch.runs_dir / self._where["folder"]
        return await self._node.read(folder / path, offset, length)

    async def put(self, folder: Path, stamps: Mapping[str, copying.FileStamp]) -> None:
        files = {str(n): (path, stamp.mtime_ns) for n, (path, stamp) in enumerate(stamps.items())}
        for name, (path, _) in files.items():
            await self._node.put(folder / path, self._launch.path / "incoming" / name)
        if files:
            await self._node.call("place", **self._where, files=files)


def _words(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__
