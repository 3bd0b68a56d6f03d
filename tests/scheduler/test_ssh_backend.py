"""Runs on another host, over a real SSH server: once, whole, and home with their results."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from launches import OVER, alive, reach
from processes import wait_until
from ssh_node import WAITS, Node, with_backend
from ssh_server import WHY_NOT, SSHServer, make_key
from test_launch import FAMILY

from p2p.files import MAX_FILE_BYTES
from p2p.scheduler.backends import BackendError, ssh
from p2p.scheduler.backends.ssh import SSHBackend
from p2p.scheduler.package import build_package

pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

SLEEPS = "open('count', 'a').write('x'); import time; time.sleep({})"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SSHServer]:
    made = SSHServer(tmp_path_factory.mktemp("ssh") / "server")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def node(server: SSHServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(ssh, "FRESH_S", 0.0)
    if server.process is None:
        server.start()
    return Node(server, tmp_path / "runs")


def test_ssh_run_has_its_folder_and_sends_results(node: Node) -> None:
    code = (
        "import os, sys, p2p; print(p2p.__file__, os.getcwd(), sys.argv[1:])\n"
        "os.mkdir('made'); open('made/result', 'w').write(open('given/config').read() * 2)"
    )
    launch = node.launch(code, "{folder}", "{runs_dir}")
    (node.here(launch) / "given").mkdir(parents=True)
    (node.here(launch) / "given" / "config").write_text("abc")

    async def scenario(backend: SSHBackend) -> None:
        assert (await backend.status(launch)).state == "absent"
        await backend.start(launch, {})
        assert (await reach(backend, launch, *OVER)).exit_code == 0
        await backend.collect(launch)
        there = node.there(launch)
        package = node.server.base_dir / "packages" / build_package().digest
        said = (
            f"{package}/p2p/__init__.py {there} {[str(there), str(node.control(launch) / 'runs')]}"
        )
        assert (await backend.logs(launch)).decode() == said + "\n"
        assert (await backend.logs(launch, len(said))) == b"\n"

    with_backend(node, scenario)
    assert (node.here(launch) / "made" / "result").read_text() == "abcabc"


def test_second_ssh_start_changes_nothing(node: Node) -> None:
    launch = node.launch(SLEEPS.format(0.5))

    async def scenario(backend: SSHBackend) -> None:
        await backend.start(launch, {})
        node.here(launch).mkdir(parents=True, exist_ok=True)
        (node.here(launch) / "count").write_text("older")
        other = node.backend()
        await asyncio.gather(backend.start(launch, {}), other.start(launch, {}))
        await reach(other, launch, *OVER)
        await other.start(launch, {})
        await backend.collect(launch)
        await other.close()

    with_backend(node, scenario)
    assert (node.here(launch) / "count").read_text() == "x"


def test_ssh_run_outlives_the_connection(node: Node) -> None:
    launch = node.launch(WAITS)

    async def scenario(backend: SSHBackend) -> None:
        await backend.start(launch, {})
        await node.file_there(backend, launch, "count")
        node.server.break_connections()
        assert (await reach(backend, launch, "running")).state == "running"
        (node.there(launch) / "go").touch()
        restarted = node.backend()
        assert (await reach(restarted, launch, *OVER)).exit_code == 0
        await restarted.collect(launch)
        await restarted.close()

    with_backend(node, scenario)
    assert (node.here(launch) / "count").read_text() == "x"


def test_ssh_node_ends_run_after_its_lease(node: Node) -> None:
    launch = node.launch(FAMILY + "time.sleep(1000)")

    async def scenario(backend: SSHBackend) -> None:
        await backend.start(launch, {})
        pids = [int(word) for word in (await node.file_there(backend, launch, "pids")).split()]
        node.server.stop()
        with pytest.raises(BackendError, match="node other"):
            await backend.status(launch)
        with pytest.raises(BackendError, match="cannot be reached"):
            await backend.status(launch)
        wait_until((node.control(launch) / "exit.json").exists)
        assert alive(pids) == []
        node.server.start()
        status = await backend.status(launch)
        assert status.state == "lost"
        assert "nobody asked" in status.message
        await backend.start(launch, {})
        assert await backend.status(launch) == status

    with_backend(node, scenario, lease_s=5)


@pytest.mark.slow
def test_runs_of_vanished_ssh_node_are_lost_after_lease(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = node.launch(SLEEPS.format(1000))
    monkeypatch.setattr(ssh, "LEASE_MARGIN_S", 0.0)
    monkeypatch.setattr(ssh, "GRACE_S", 1.0)

    async def scenario(backend: SSHBackend) -> None:
        await backend.start(launch, {})
        await backend.status(launch)
        node.server.stop()
        status = await reach(backend, launch, "lost")
        assert "longer than its lease" in status.message
        await backend.cancel(launch)  # nothing is left to cancel
        assert (node.control(launch) / "exit.json").exists()

    with_backend(node, scenario, lease_s=5)


def test_released_ssh_run_is_never_started_again(node: Node) -> None:
    launch, other, third = (node.launch(code) for code in (SLEEPS.format(0), WAITS, ""))

    async def scenario(backend: SSHBackend) -> None:
        await backend.start(launch, {})
        await backend.start(other, {})
        status = await reach(backend, launch, *OVER)
        await backend.collect(launch)
        for each in (launch, launch):
            await backend.release(each)
        assert {path.name for path in node.control(launch).iterdir()} == {"claim", "exit.json"}
        await backend.start(launch, {})
        assert await backend.status(launch) == status
        assert await backend.logs(launch) == b""
        with pytest.raises(BackendError, match="has not ended"):
            await backend.release(other)
        assert (await backend.status(other)).state == "running"

        # Long after, the last trace goes, too; of what was not released nothing does.
        (node.there(other) / "go").touch()
        await reach(backend, other, *OVER)
        for each in (launch, other):
            os.utime(node.control(each), (0, 0))
        await backend.release(third)
        assert not node.control(launch).exists()
        assert (node.there(other) / "count").exists()

    with_backend(node, scenario)
    assert (node.here(launch) / "count").read_text() == "x"


def test_ssh_secrets_are_in_environment_only(node: Node) -> None:
    code = (
        "import os, time; open('length', 'w').write(str(len(os.environ['MY_KEY'])))\n"
        "while not os.path.exists('go'): time.sleep(0.02)"
    )
    launch = node.launch(code, secrets=("MY_KEY",))
    secret = "s3cr3t-" + os.urandom(8).hex()

    async def scenario(backend: SSHBackend) -> None:
        await backend.start(launch, {"MY_KEY": secret, "OTHER": "other-" + secret})
        assert (await node.file_there(backend, launch, "length")) == str(len(secret))
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert secret.encode() not in line.read_bytes()
            except OSError:
                continue
        (node.there(launch) / "go").touch()
        assert (await reach(backend, launch, *OVER)).exit_code == 0
        await backend.collect(launch)

    with_backend(node, scenario)
    for folder in (node.server.folder, node.runs_dir):
        for path in folder.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_ssh_refuses_unknown_host_key(node: Node, tmp_path: Path) -> None:
    make_key(tmp_path / "impostor")
    wrong = tmp_path / "known_hosts"
    public = (tmp_path / "impostor.pub").read_text()
    wrong.write_text(f"[{node.server.address}]:{node.server.port} {public}")
    before = node.server.log.count("Accepted")

    async def scenario(backend: SSHBackend) -> None:
        with pytest.raises(BackendError, match=r"host key is not the one in .*ssh-keyscan"):
            await backend.check()

    with_backend(node, scenario, known_hosts=str(wrong))
    wrong.write_text("")
    with_backend(node, scenario, known_hosts=str(wrong))
    assert node.server.log.count("Accepted") == before


def test_ssh_check_says_what_is_wrong(node: Node, tmp_path: Path) -> None:
    problems = {
        r"there is no .*nowhere": {"known_hosts": str(tmp_path / "nowhere")},
        "set `user` and `key_file`": {"key_file": str(make_key(tmp_path / "stranger"))},
        "does not start with /no/python": {"python": "/no/python"},
        "registered with 4000 cores": {"cores": 4000},
    }
    for message, fields in problems.items():

        async def scenario(backend: SSHBackend, message: str = message) -> None:
            with pytest.raises(BackendError, match=message):
                await backend.check()

        with_backend(node, scenario, **fields)


def test_ssh_ignores_what_a_login_prints(tmp_path: Path) -> None:
    noise = 'ForceCommand echo "Welcome 12 34"; eval "$SSH_ORIGINAL_COMMAND"\n'
    server = SSHServer(tmp_path / "noisy", more=noise)
    server.start()
    try:

        async def scenario(backend: SSHBackend) -> None:
            assert "cores" in await backend.check()

        with_backend(Node(server, tmp_path / "runs"), scenario)
    finally:
        server.stop()


HOSTILE_RSYNC = (
    'ForceCommand case "$SSH_ORIGINAL_COMMAND" in '
    "rsync*) exec rsync --server --sender -logDtpre.iLsfxCIvu . {evil}/;; "
    '*) eval "$SSH_ORIGINAL_COMMAND";; esac\n'
)
"""It sends another folder than it is asked for, with links and devices."""


@pytest.mark.parametrize(
    "node_program", ["", HOSTILE_RSYNC], ids=["hostile files", "hostile rsync"]
)
def test_hostile_ssh_node_sends_plain_files_only(tmp_path: Path, node_program: str) -> None:
    secret, evil = tmp_path / "secret", tmp_path / "evil"
    secret.write_text("k-e-y")
    evil.mkdir()
    server = SSHServer(tmp_path / "hostile", more=node_program.format(evil=evil))
    server.start()
    try:
        node = Node(server, tmp_path / "a" / "b" / "runs")
        launch = node.launch("")
        there = evil if node_program else node.there(launch)
        there.mkdir(parents=True, exist_ok=True)
        (there / "good").write_text("good")
        (there / "link").symlink_to(secret)
        (there / "outside").symlink_to(tmp_path)
        os.mkfifo(there / "pipe")
        (there / "new\nline").touch()
        with (there / "sparse").open("wb") as stream:
            stream.truncate(MAX_FILE_BYTES + 1)

        async def scenario(backend: SSHBackend) -> None:
            for _ in range(2):  # also over what it sent before
                try:
                    await backend.collect(launch)
                except BackendError:
                    assert node_program  # it does not speak as it was asked to

        with_backend(node, scenario)
    finally:
        server.stop()
    came = [path for path in node.runs_dir.rglob("*") if not path.is_dir()]
    assert all(path.is_file() and not path.is_symlink() for path in came)
    assert {path.name for path in came} <= {"good"}
    assert node_program or came
    assert secret.read_text() == "k-e-y"
    assert not [path for path in (tmp_path / "a").rglob("*") if path.name in ("evil", "outside")]
