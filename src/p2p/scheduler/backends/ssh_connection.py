"""A connection to a node over SSH, made when it has to be; commands and files travel over it."""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import asyncssh

from p2p.scheduler.backends import BackendError
from p2p.scheduler.package import Package, build_package, package_folder
from p2p.scheduler.records import NodeConfig

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


class SSHConnection:
    """Calls of the node's operations, and its files."""

    def __init__(self, node: NodeConfig) -> None:
        assert node.base_dir is not None
        self.node = node
        self.base = Path(node.base_dir)
        self.python = node.python or sys.executable
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._commands = asyncio.Semaphore(COMMANDS_AT_ONCE)

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
            archive = f"{folder}.{secrets.token_hex(6)}.zip"
            async with sftp.open(archive, "wb") as stream:
                await stream.write(package.data)
            await self._run(connection, ["-c", UNPACK, str(self.base), package.digest, archive])
        return str(folder)

    @asynccontextmanager
    async def errors(self) -> AsyncIterator[None]:
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


def _words(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__
