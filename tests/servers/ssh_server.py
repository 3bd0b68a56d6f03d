"""A real OpenSSH server of the test's own: its port, keys, configuration and users' keys."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
MISSING = [
    name for name, path in {"sshd": SSHD, "rsync": shutil.which("rsync")}.items() if not path
]
WHY_NOT = f"there is no {MISSING[0]}: run scripts/ssh_packages.sh as root" if MISSING else ""


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def make_key(path: Path) -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


class SSHServer:
    """An sshd in the foreground, and whatever serves its connections.

    Args:
        folder: where its files are made.
        address: what it listens on.
        prefix: a command to run it with, such as `ip netns exec NAME`.
        port: where it listens; 0: any that is free.
        more: further lines of its configuration.
    """

    def __init__(
        self,
        folder: Path,
        address: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        port: int = 0,
        more: str = "",
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.address = address
        self.port = port or free_port(address)
        self.prefix = tuple(prefix)
        self.host_key = make_key(folder / "host_key")
        self.user_key = make_key(folder / "user_key")
        self.known_hosts = folder / "known_hosts"
        public = (folder / "host_key.pub").read_text()
        self.known_hosts.write_text(f"[{address}]:{self.port} {public}")
        self.base_dir = folder / "home" / "p2p"
        self.base_dir.parent.mkdir()
        keys = folder / "authorized_keys"
        keys.write_text((folder / "user_key.pub").read_text())
        keys.chmod(0o600)
        self.configuration = folder / "sshd_config"
        self.configuration.write_text(
            f"ListenAddress {address}\nPort {self.port}\nHostKey {self.host_key}\n"
            f"AuthorizedKeysFile {keys}\nPidFile none\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\nAllowAgentForwarding no\nLogLevel VERBOSE\n"
            f"SetEnv P2P_CORE_LOCKS={folder / 'cores'}\n{more}"
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    def start(self) -> None:
        assert SSHD
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it drops its rights
        command = [*self.prefix, SSHD, "-D", "-e", "-f", str(self.configuration)]
        with (self.folder / "sshd.log").open("ab") as log:
            before = self.log.count("Server listening")
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        deadline = time.monotonic() + 20
        while self.log.count("Server listening") == before:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def serving(self) -> list[int]:
        """The processes that serve connections: each a child of the server."""
        assert self.process
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def break_connections(self) -> None:
        """Kill what serves connections, as if the line had been cut; it still takes new ones."""
        for pid in self.serving():
            with contextlib.suppress(ProcessLookupError):  # its client has just left
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """No more connections, old or new."""
        if self.process is not None:
            self.break_connections()
            self.process.kill()
            self.process.wait()
            self.process = None
