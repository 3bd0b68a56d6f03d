"""One SSH connection to a node, with an agent at its other end; made anew when it breaks."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh
from pydantic import TypeAdapter, ValidationError

from p2p.scheduler import node_bootstrap
from p2p.scheduler.backends import BackendError
from p2p.scheduler.package_wheel import build_wheel
from p2p.scheduler.records import AbsolutePath

if TYPE_CHECKING:
    from collections.abc import Mapping

    from p2p.scheduler.node_bootstrap import Message
    from p2p.scheduler.records import NodeConfig

CONNECT_S = 20.0
AGENT_START_S = 120.0
"""With the package on its way over a slow line."""
REQUEST_S = 120.0
KEEPALIVE_S = 10.0
_ABSOLUTE_PATH: TypeAdapter[str] = TypeAdapter(AbsolutePath)


class SSHLink:
    """Requests to the agent of a node, one at a time. Connects when it has to."""

    def __init__(self, node: NodeConfig) -> None:
        self.node = node
        self._turn = asyncio.Lock()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._agent: asyncssh.SSHClientProcess[bytes] | None = None

    async def request(
        self, op: str, fields: Mapping[str, Any] | None = None, data: bytes = b""
    ) -> Message:
        """Ask the agent; raises BackendError, after which the next request connects anew."""
        async with self._turn:
            try:
                if self._agent is None or self._agent.is_closing():
                    self._drop()
                    await self._connect()
                answer = await self._exchange({**(fields or {}), "op": op}, data)
            except BaseException:
                # Half a conversation cannot be gone on with, whoever broke it off.
                self._drop()
                raise
        if "error" in answer[0]:
            raise self._error(f"{op} failed there: {answer[0]['error']}")
        return answer

    async def close(self) -> None:
        """Hang up; what runs there goes on."""
        async with self._turn:
            connection = self._connection
            self._drop()
            if connection is not None:
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(5):
                        await connection.wait_closed()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.abort()
        self._connection = self._agent = None

    def _error(self, text: str) -> BackendError:
        where = f"{self.node.host}:{self.node.port}"
        return BackendError(f"node {self.node.node_id} ({where}): {text}")

    async def _exchange(self, fields: dict[str, Any], data: bytes) -> Message:
        agent = self._agent
        assert agent is not None
        try:
            async with asyncio.timeout(REQUEST_S):
                agent.stdin.write(node_bootstrap.packed(fields, data))
                await agent.stdin.drain()
                return await self._receive(agent)
        except (OSError, EOFError, TimeoutError, asyncssh.Error) as error:
            raise self._error(
                f"the connection broke ({_said(error)}); its runs go on, and are found again when "
                "it is back"
            ) from error

    async def _receive(self, agent: asyncssh.SSHClientProcess[bytes]) -> Message:
        line = await agent.stdout.readuntil(b"\n")
        try:
            length, more = node_bootstrap.lengths(line)
            fields = json.loads(await agent.stdout.readexactly(length))
        except ValueError as error:
            raise self._error(f"its agent does not speak as ours does: {error}") from None
        if not isinstance(fields, dict):
            raise self._error("its agent does not speak as ours does")
        return fields, await agent.stdout.readexactly(more)

    async def _connect(self) -> None:
        python, base = self._validated(self.node.python or sys.executable), self.node.base_dir
        self._connection = await self._connected()
        # The only thing a shell there ever sees, and no part of it has a meaning to one.
        command = shlex.join([python, "-P", "-c", node_bootstrap.LOADER])
        try:
            async with asyncio.timeout(AGENT_START_S):
                self._agent = await self._connection.create_process(
                    command, encoding=None, request_pty=False
                )
                await self._hand_over(self._agent, {"base": base})
        except (OSError, EOFError, TimeoutError, asyncssh.Error) as error:
            complaint = await self._last_words()
            raise self._error(
                f"the agent does not start with {python} ({_said(error)}). {complaint}\nThere must "
                "be a Python 3.11 or newer with this program's dependencies: see `python` of the "
                "node"
            ) from error

    async def _hand_over(
        self, agent: asyncssh.SSHClientProcess[bytes], hello: dict[str, Any]
    ) -> None:
        source = Path(node_bootstrap.__file__).read_bytes()
        wheel = await asyncio.to_thread(build_wheel)
        agent.stdin.write(b"%d\n" % len(source) + source)
        await agent.stdout.readuntil(node_bootstrap.GREETING)
        agent.stdin.write(node_bootstrap.packed({**hello, "digest": wheel.digest}))
        if (await self._receive(agent))[0]["needs_package"]:
            agent.stdin.write(node_bootstrap.packed({"name": wheel.name}, wheel.data))
            await agent.stdin.drain()
        await self._receive(agent)

    async def _last_words(self) -> str:
        """What the agent complained of before it went."""
        if self._agent is None:
            return ""
        try:
            async with asyncio.timeout(2):
                return (await self._agent.stderr.read()).decode(errors="replace")[-1500:].strip()
        except (OSError, TimeoutError, asyncssh.Error):
            return ""

    def _validated(self, path: str) -> str:
        try:
            return _ABSOLUTE_PATH.validate_python(path)
        except ValidationError as error:
            raise self._error(
                f"{path!r} cannot be the path of its Python; set `python` of the node"
            ) from error

    async def _connected(self) -> asyncssh.SSHClientConnection:
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
            raise self._error(f"it cannot be reached ({_said(error)}); is it up?") from error


def _said(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__
