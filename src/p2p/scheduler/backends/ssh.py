"""Runs on a machine reached over SSH. They go on without it, as long as their lease lasts.

OpenSSH keeps one connection, made when it has to be, that carries everything: files travel by
rsync, everything else is a command there of its own (see `p2p.scheduler.node`).
"""

from __future__ import annotations

import asyncio
import base64
import importlib.metadata
import json
import re
import secrets as random_numbers
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from p2p.scheduler import transfer
from p2p.scheduler.backends import Backend, BackendError, describe_node
from p2p.scheduler.launch import GRACE_S, RunStatus, launch_file
from p2p.scheduler.package import build_package, package_folder
from p2p.scheduler.records import Launch, NodeConfig

FRESH_S = 2.0
"""One look at all runs there serves everybody who asks within this time."""
LEASE_MARGIN_S = 60.0
"""More than clocks that should run alike differ by."""
DISTRIBUTION = "prompt2policy"
CONNECT_S = 20.0
REQUEST_S = 120.0
KEEPALIVE_S = 10.0
IDLE_S = 60
"""So long a connection stays that nobody uses."""
LOG_BYTES = 4 * 2**20
COMMANDS_AT_ONCE = 6
"""sshd refuses more than ten sessions on a connection by default."""
NO_PACKAGE = 75
PROGRAM = (
    "import os, sys; folder = sys.argv.pop(1); "
    f"os.path.isdir(folder) or sys.exit({NO_PACKAGE}); "
    "sys.path.insert(0, folder); from p2p.scheduler.node import main; main()"
)
UNPACK = (
    "import os, sys; from pathlib import Path; os.umask(0o077); base, digest, name = sys.argv[1:]; "
    "archive = Path(base, 'packages', name); archive.parent.mkdir(parents=True, exist_ok=True); "
    "archive.write_bytes(sys.stdin.buffer.read()); sys.path.insert(0, str(archive)); "
    "from p2p.scheduler.package import unpack; unpack(Path(base), digest, archive); "
    "archive.unlink()"
)
SSH_FAILED = 255
CONFIGURATION = """Host {host}
BatchMode yes
StrictHostKeyChecking yes
GlobalKnownHostsFile /dev/null
UserKnownHostsFile "{known_hosts}"
Port {port}
{own}
ConnectTimeout {connect_s}
ServerAliveInterval {keepalive_s}
ServerAliveCountMax 3
ControlMaster auto
ControlPath {folder}/%C
ControlPersist {idle_s}
ForwardAgent no
ForwardX11 no
PermitLocalCommand no
LogLevel ERROR
Host *
Include ~/.ssh/config
"""
_UNREACHED = re.compile(
    r"connect to (host|address)|Could not resolve|Connection (refused|timed out)|banner exchange|"
    r"kex_exchange|No route|Network is unreachable"
)


class Output(NamedTuple):
    """The result of a command."""

    code: int
    text: str
    complaint: str


class SSHBackend(Backend):
    """A node with an SSH server; connects when it has to."""

    def __init__(self, node: NodeConfig, scheduler_dir: Path) -> None:
        assert node.base_dir is not None
        super().__init__(node, scheduler_dir, Path(node.base_dir))
        self.python = node.python or sys.executable
        self.known_hosts = Path(node.known_hosts or Path.home() / ".ssh" / "known_hosts")
        self._own = Path(tempfile.mkdtemp(prefix="p2p-ssh-"))
        weakref.finalize(self, shutil.rmtree, self._own, ignore_errors=True)
        self._write_configuration()
        self._commands = asyncio.Semaphore(COMMANDS_AT_ONCE)
        self._connecting = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._statuses: dict[str, RunStatus] = {}
        self._asked_at = float("-inf")
        self._answered: dict[str, float] = {}

    async def start(self, launch: Launch, secrets: Mapping[str, str]) -> RunStatus:
        with self.errors():
            launch_id, call = launch.launch_id, self.call
            self._statuses.pop(launch_id, None)  # what is known of it changes
            folder = launch.spec.folder
            status = RunStatus(**await call("prepare", launch_id=launch_id, folder=folder))
            if status.state != "absent":
                return status  # what its folder there holds is newer than ours
            async with self._commands:
                await transfer.send(self._shell, launch.folder, self._remote_folder(launch))
            runs_dir, python = self.folder(launch).runs_dir, self.python
            file = launch_file(launch.spec, runs_dir, python, lease_s=self.node.lease_s)
            fields = {"file": asdict(file), "secrets": secrets, "python": python}
            return RunStatus(**await call("start", launch_id=launch_id, **fields))

    async def status(self, launch: Launch) -> RunStatus:
        """The status of a launch; lost once the node must have ended it by itself."""
        try:
            async with self._asking:
                with self.errors():
                    status = await self._ask_statuses(launch.launch_id)
        except BackendError as error:
            silence = self._silence(launch)
            if silence < self._longest_silence:
                raise
            return RunStatus(
                "lost",
                message=f"no answer for {silence:.0f} s, longer than its lease lasts: {error}",
            )
        self._answered[launch.launch_id] = self._asked_at
        return status

    async def _ask_statuses(self, launch_id: str) -> RunStatus:
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
        return now - self._answered.setdefault(launch.launch_id, now)

    async def logs(self, launch: Launch, offset: int = 0) -> bytes:
        output = b""
        fields = {"launch_id": launch.launch_id, "limit": LOG_BYTES}
        with self.errors():
            while text := await self.call("log", offset=offset + len(output), **fields):
                output += base64.b64decode(text)
        return output

    async def collect(self, launch: Launch) -> None:
        with self.errors():
            async with self._commands:
                await transfer.collect(self._shell, self._remote_folder(launch), launch.folder)

    async def release(self, launch: Launch) -> None:
        with self.errors():
            await self.call("release", launch_id=launch.launch_id)

    async def check(self) -> str:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
        with self.errors():
            transfer.check_rsync()
            machine = await self.call("machine", requirements=requirements)
        if machine["missing"]:
            raise self._error(
                f"its Python lacks {', '.join(machine['missing'])}; "
                "install them there, or set `python` of the node to one that has them"
            )
        if not machine["rsync"]:
            raise self._error(f"there is no rsync: {transfer.INSTALL_RSYNC}")
        return describe_node(self.node, machine)

    async def close(self) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                await self._execute("-O", "exit", str(self.node.host))

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Perform one of the node's operations and return its result."""
        folder = str(package_folder(self.base, (await asyncio.to_thread(build_package)).digest))
        words = ["-c", PROGRAM, folder, str(self.base), operation]
        text = json.dumps(arguments).encode()
        async with self._commands:
            output = await self._run_python(words, text)
            if output.code == NO_PACKAGE:
                await self._install()
                output = await self._run_python(words, text)
        if output.code:
            raise self._start_error(output)
        try:
            answer = json.loads(output.text.strip().rpartition("\n")[2])
            if "error" in answer:
                raise self._error(f"{operation} failed there: {answer['error']}")
            return answer["result"]
        except (ValueError, TypeError, KeyError) as error:
            raise self._error(f"its answer cannot be read ({error})") from error

    async def _install(self) -> None:
        """Bring our package there, once for each version."""
        async with self._connecting:
            package = await asyncio.to_thread(build_package)
            name = f"{package.digest}.{random_numbers.token_hex(6)}.zip"
            words = ["-c", UNPACK, str(self.base), package.digest, name]
            output = await self._run_python(words, package.data)
            if output.code:
                raise self._start_error(output)

    def _start_error(self, output: Output) -> BackendError:
        return self._error(
            f"our program does not start with {self.python} (exit status {output.code}). "
            f"{output.complaint[-1500:]}\nThere must be a Python 3.11 or newer with "
            "this program's dependencies: see `python` of the node"
        )

    # --- OpenSSH ----------------------------------------------------------------------------------

    @property
    def _shell(self) -> str:
        return f"ssh -F {self._own}/config"

    def _remote_folder(self, launch: Launch) -> str:
        """The folder of a run, as rsync names it."""
        host = str(self.node.host)
        folder = self.folder(launch).runs_dir / launch.spec.folder
        return f"{f'[{host}]' if ':' in host else host}:{folder}"

    def _write_configuration(self) -> None:
        node = self.node
        own = [f"User {node.user}"] if node.user else []
        own += [f"IdentityFile {node.key_file}", "IdentitiesOnly yes"] if node.key_file else []
        text = CONFIGURATION.format(
            host=node.host,
            known_hosts=self.known_hosts,
            port=node.port,
            own="\n".join(own),
            connect_s=round(CONNECT_S),
            keepalive_s=max(1, round(KEEPALIVE_S)),
            idle_s=IDLE_S,
            folder=self._own,
        )
        (self._own / "config").write_text(text)

    async def _run_python(self, words: list[str], text: bytes) -> Output:
        """Run its Python. No part of the command has a meaning to a shell there."""
        if not self.known_hosts.is_file():
            raise self._error(
                f"its host key cannot be checked: there is no {self.known_hosts}. {self._how}"
            )
        command = shlex.join([self.python, "-P", *words])
        try:
            async with asyncio.timeout(REQUEST_S):
                output = await self._execute(str(self.node.host), command, text=text)
        except TimeoutError:
            await self.close()
            raise self._connection_error(f"no answer for {REQUEST_S:g} s") from None
        if output.code == SSH_FAILED or output.code < 0:
            raise self._explain_failure(output.complaint)
        return output

    async def _execute(self, *words: str, text: bytes = b"") -> Output:
        """Run ssh, and see its end whatever happens."""
        try:
            process = await asyncio.create_subprocess_exec(
                "ssh", "-F", str(self._own / "config"), *words,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
            )  # fmt: skip
        except FileNotFoundError:
            raise self._error(
                "there is no ssh on this machine: sudo apt-get install openssh-client"
            ) from None
        try:
            output, complaint = await process.communicate(text)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        decoded = output.decode(errors="replace"), complaint.decode(errors="replace").strip()
        return Output(process.returncode or 0, *decoded)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Make errors those of a backend."""
        try:
            yield
        except transfer.TransferError as error:
            text = str(error)
            cut = re.search(r"with code (255|12|30|10):", text)
            raise (self._explain_failure(text) if cut else self._error(text)) from error
        except (OSError, ValueError, TypeError) as error:
            raise self._error(str(error).strip() or type(error).__name__) from error

    def _error(self, text: str) -> BackendError:
        where = f"{self.node.host}:{self.node.port}"
        return BackendError(f"node {self.node.node_id} ({where}): {text}")

    def _connection_error(self, reason: str) -> BackendError:
        return self._error(
            f"the connection broke ({reason}); its runs continue, and are adopted when it is back"
        )

    @property
    def _how(self) -> str:
        node = self.node
        return (
            f"After you have compared its fingerprint: ssh-keyscan -p {node.port} {node.host} >> "
            f"{self.known_hosts}"
        )

    def _explain_failure(self, complaint: str) -> BackendError:
        """Return why ssh did not get through, and what to do."""
        lines = complaint.splitlines()
        last = lines[-1].strip() if lines else "it said nothing"
        if "ost key" in complaint or "HOST IDENTIFICATION" in complaint:
            return self._error(
                f"its host key is not the one in {self.known_hosts}, or it has none there; nothing "
                f"was sent. {self._how}"
            )
        if "Permission denied" in complaint:
            return self._error(
                f"it refuses our key ({last}); set `user` and `key_file` of the node, "
                "or add the key to the agent and to authorized_keys there"
            )
        if _UNREACHED.search(complaint):
            return self._error(f"it cannot be reached ({last}); is it up?")
        return self._connection_error(last)
