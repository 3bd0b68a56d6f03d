"""A host in a network of its own whose cable is pulled: nothing is said, everything just stops."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launches import OVER, reach
from processes import wait_until
from ssh_node import WAITS, Node, with_backend
from ssh_server import WHY_NOT, SSHServer

from p2p.scheduler.backends import BackendError, ssh
from p2p.scheduler.backends.ssh import SSHBackend

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

HERE, THERE = "10.213.57.1", "10.213.57.2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Cable:
    """A pair of network devices between this network and one of the test's own."""

    def __init__(self) -> None:
        self.network = self.device = f"p2p{secrets.token_hex(4)}"
        ip("netns", "add", self.network)
        far = f"{self.device}x"
        ip("link", "add", self.device, "type", "veth", "peer", "name", far, "netns", self.network)
        ip("addr", "add", f"{HERE}/30", "dev", self.device)
        ip("link", "set", self.device, "up")
        ip("-n", self.network, "addr", "add", f"{THERE}/30", "dev", far)
        ip("-n", self.network, "link", "set", far, "up")
        ip("-n", self.network, "link", "set", "lo", "up")

    def pull(self) -> None:
        ip("link", "set", self.device, "down")

    def plug_in(self) -> None:
        ip("link", "set", self.device, "up")

    def remove(self) -> None:
        ip("link", "delete", self.device)  # at once; the network stays until nobody is left in it
        ip("netns", "delete", self.network)


@pytest.fixture
def cable() -> Iterator[Cable]:
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("a network of its own needs root and iproute2")
    try:
        made = Cable()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine gives out no networks: {error.stderr.decode().strip()}")
    yield made
    made.remove()


@pytest.fixture
def node(cable: Cable, tmp_path: Path) -> Iterator[Node]:
    prefix = ("ip", "netns", "exec", cable.network)
    server = SSHServer(tmp_path / "server", THERE, prefix, port=2222)
    server.start()
    yield Node(server, tmp_path / "runs")
    server.stop()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test does not wait for minutes; nothing else is different."""
    monkeypatch.setattr(ssh, "FRESH_S", 0.0)
    monkeypatch.setattr(ssh, "KEEPALIVE_S", 2.0)
    monkeypatch.setattr(ssh, "CONNECT_S", 10.0)
    monkeypatch.setattr(ssh, "REQUEST_S", 30.0)  # keepalives see a cut line sooner


def test_run_is_found_when_the_cable_is_back(node: Node, cable: Cable) -> None:
    launch = node.launch(WAITS)

    async def scenario(backend: SSHBackend) -> None:
        await backend.start(launch, {})
        await node.file_there(backend, launch, "count")
        cable.pull()
        for _ in range(2):
            with pytest.raises(BackendError, match="node other"):
                await backend.status(launch)
        (node.there(launch) / "go").touch()
        wait_until((node.control(launch) / "exit.json").exists)
        cable.plug_in()
        async with asyncio.timeout(60):
            while True:
                try:
                    await backend.start(launch, {})
                    break
                except BackendError:
                    await asyncio.sleep(0.5)
        assert (await reach(backend, launch, *OVER)).exit_code == 0
        await backend.collect(launch)

    with_backend(node, scenario)
    assert (node.here(launch) / "count").read_text() == "x"


def test_run_ends_when_the_cable_stays_out(node: Node, cable: Cable) -> None:
    launch = node.launch(WAITS)

    async def scenario(backend: SSHBackend) -> None:
        await backend.start(launch, {})
        await node.file_there(backend, launch, "count")
        cable.pull()
        with pytest.raises(BackendError, match="node other"):
            await backend.status(launch)
        wait_until((node.control(launch) / "exit.json").exists)
        cable.plug_in()
        status = await reach(node.backend(), launch, *OVER)
        assert status.state == "lost"
        assert "nobody asked" in status.message

    with_backend(node, scenario, lease_s=15)


def test_rsync_continues_a_partial_file(node: Node, cable: Cable) -> None:
    code = "import os; open('big.bin', 'wb').write(os.urandom(60_000_000))"
    launch = node.launch(code)

    async def scenario(backend: SSHBackend) -> None:
        await backend.start(launch, {})
        assert (await reach(backend, launch, *OVER)).exit_code == 0
        collecting = asyncio.create_task(backend.collect(launch))
        await asyncio.to_thread(wait_until, lambda: list(node.here(launch).glob(".big.bin.*")))
        cable.pull()
        with pytest.raises(BackendError, match="node other"):
            await collecting
        part = node.here(launch) / ".partial.tmp" / "big.bin"
        assert 0 < part.stat().st_size < 60_000_000
        assert not (node.here(launch) / "big.bin").exists()
        cable.plug_in()
        again = node.backend()
        await again.collect(launch)
        await again.close()
        assert not part.exists()
        assert (node.here(launch) / "big.bin").read_bytes() == (
            node.there(launch) / "big.bin"
        ).read_bytes()

    with_backend(node, scenario)
