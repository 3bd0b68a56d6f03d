"""Runs on another host, over a real SSH server: once, whole, and home with their results."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from launches import alive, attendant_pid, until
from ssh_node import WAITS, Node, ended, with_backend
from ssh_server import WHY_NOT, SSHServer, make_key
from test_launching import FAMILY

from p2p.scheduler.backends import BackendError, ssh
from p2p.scheduler.backends.ssh import SSHBackend
from p2p.scheduler.package_wheel import build_wheel
from p2p.scheduler.records import LaunchReport

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

SLEEPS = "open('count', 'a').write('x'); import time; time.sleep({})"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SSHServer]:
    made = SSHServer(tmp_path_factory.mktemp("ssh") / "server")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def node(server: SSHServer, tmp_path: Path) -> Node:
    if server.process is None:
        server.start()
    return Node(server, tmp_path / "runs")


def test_a_run_there_has_its_folder_and_its_results_come_home(node: Node) -> None:
    code = (
        "import os, sys, p2p; print(p2p.__file__, os.getcwd(), sys.argv[1:])\n"
        "os.mkdir('made'); open('made/result', 'w').write(open('given/config').read() * 2)"
    )
    launch = node.launch(code, "{folder}", "{runs_dir}")
    (node.here(launch) / "given").mkdir(parents=True)
    (node.here(launch) / "given" / "config").write_text("abc")

    async def scenario(backend: SSHBackend) -> None:
        assert (await backend.status(launch)).state == "absent"
        await backend.submit(launch, {})
        assert (await ended(backend, launch)).exit_code == 0
        await backend.collect(launch)
        there = node.there(launch)
        package = node.server.base_dir / "packages" / build_wheel().digest
        said = (
            f"{package}/p2p/__init__.py {there} {[str(there), str(node.control(launch) / 'runs')]}"
        )
        assert (await backend.logs(launch)).decode() == said + "\n"
        assert (await backend.logs(launch, len(said))) == b"\n"

    with_backend(node, scenario)
    assert (node.here(launch) / "made" / "result").read_text() == "abcabc"


def test_a_second_request_finds_the_first_and_changes_nothing_there(node: Node) -> None:
    launch = node.launch(SLEEPS.format(0.5))

    async def scenario(backend: SSHBackend) -> None:
        await backend.submit(launch, {})
        node.here(launch).mkdir(parents=True, exist_ok=True)
        (node.here(launch) / "count").write_text("older")
        other = node.backend()
        await asyncio.gather(backend.submit(launch, {}), other.submit(launch, {}))
        await ended(other, launch)
        await other.submit(launch, {})
        await backend.collect(launch)
        await other.close()

    with_backend(node, scenario)
    assert (node.here(launch) / "count").read_text() == "x"


def test_a_run_outlives_the_link_and_is_found_again(node: Node) -> None:
    launch = node.launch(WAITS)

    async def scenario(backend: SSHBackend) -> None:
        await backend.submit(launch, {})
        await node.file_there(backend, launch, "count")
        node.server.break_connections()
        with pytest.raises(BackendError, match=r"node other .*its runs go on"):
            await backend.status(launch)
        assert (await backend.status(launch)).state == "running"
        node.server.break_connections()
        # Once the end of the connection is known here, the next request makes a new one.
        agent = backend.link._agent
        assert agent is not None
        await agent.wait_closed()
        assert (await backend.status(launch)).state == "running"
        (node.there(launch) / "go").touch()
        restarted = node.backend()
        assert (await ended(restarted, launch)).exit_code == 0
        await restarted.collect(launch)
        await restarted.close()

    with_backend(node, scenario)
    assert (node.here(launch) / "count").read_text() == "x"


def test_when_nobody_comes_back_the_node_ends_it_by_itself(node: Node) -> None:
    launch = node.launch(FAMILY + "time.sleep(1000)")

    async def scenario(backend: SSHBackend) -> None:
        await backend.submit(launch, {})
        pids = [int(word) for word in (await node.file_there(backend, launch, "pids")).split()]
        node.server.stop()
        with pytest.raises(BackendError, match="node other"):
            await backend.status(launch)
        with pytest.raises(BackendError, match="cannot be reached"):
            await backend.status(launch)
        until((node.control(launch) / "exit.json").exists)
        assert alive(pids) == []
        node.server.start()
        report = await backend.status(launch)
        assert report.state == "lost"
        assert "nobody asked" in report.message
        await backend.submit(launch, {})
        assert await backend.status(launch) == report

    with_backend(node, scenario, lease_s=5)


@pytest.mark.slow
def test_a_node_that_never_comes_back_has_lost_its_runs_once_their_lease_is_over(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = node.launch(SLEEPS.format(1000))
    monkeypatch.setattr(ssh, "LEASE_MARGIN_S", 0.0)
    monkeypatch.setattr(ssh, "GRACE_S", 1.0)

    async def scenario(backend: SSHBackend) -> None:
        await backend.submit(launch, {})
        await backend.status(launch)
        node.server.stop()
        report = await until_lost(backend)
        assert "longer than its lease" in report.message
        await backend.cancel(launch)  # nothing is left to cancel
        assert (node.control(launch) / "exit.json").exists()

    async def until_lost(backend: SSHBackend) -> LaunchReport:
        async with asyncio.timeout(60):
            while True:
                try:
                    return await backend.status(launch)
                except BackendError:
                    await asyncio.sleep(0.2)

    with_backend(node, scenario, lease_s=5)


def test_a_cancel_kills_everything_there(node: Node) -> None:
    launch = node.launch(FAMILY + "time.sleep(1000)")

    async def scenario(backend: SSHBackend) -> None:
        await backend.submit(launch, {})
        pids = [int(word) for word in (await node.file_there(backend, launch, "pids")).split()]
        assert len(alive(pids)) == 4
        await backend.cancel(launch)
        assert (await ended(backend, launch)).state == "cancelled"
        assert alive(pids) == []

    with_backend(node, scenario)


def test_a_cancel_before_the_start_is_kept_there(node: Node) -> None:
    launch = node.launch(SLEEPS.format(0))

    async def scenario(backend: SSHBackend) -> None:
        await backend.cancel(launch)
        await backend.submit(launch, {})
        assert (await backend.status(launch)).state == "cancelled"
        assert not (node.there(launch) / "count").exists()

    with_backend(node, scenario)


def test_when_the_attendant_there_is_killed_the_run_is_lost(node: Node) -> None:
    launch = node.launch(FAMILY + "time.sleep(1000)")

    async def scenario(backend: SSHBackend) -> None:
        await backend.submit(launch, {})
        pids = [int(word) for word in (await node.file_there(backend, launch, "pids")).split()]
        os.kill(attendant_pid(node.control(launch)), signal.SIGKILL)
        assert (await ended(backend, launch)).state == "lost"
        assert alive(pids) == []

    with_backend(node, scenario)


def test_a_file_that_grows_comes_home_piece_by_piece_while_the_run_goes_on(node: Node) -> None:
    code = (
        "import os, time\n"
        "for n in range(3):\n"
        "    open('metrics.jsonl', 'a').write('%d' % n * 1000 + '\\n')\n"
        "    open(f'step{n}', 'w').write('1')\n"
        "    while not os.path.exists(f'go{n}'): time.sleep(0.02)\n"
    )
    launch = node.launch(code)

    async def scenario(backend: SSHBackend) -> None:
        await backend.submit(launch, {})
        came: list[int] = []
        asking = backend.link.request

        async def counting(*arguments: object) -> object:
            answer = await asking(*arguments)  # type: ignore[arg-type]
            came.append(len(answer[1]))
            return answer

        backend.link.request = counting  # type: ignore[assignment, method-assign]
        for number in range(3):
            await node.file_there(backend, launch, f"step{number}")
            came.clear()
            await backend.collect(launch)
            lines = (node.here(launch) / "metrics.jsonl").read_text().split()
            assert lines == [str(n) * 1000 for n in range(number + 1)]
            assert sum(came) == 1001 + 1
            (node.there(launch) / f"go{number}").touch()
        assert (await ended(backend, launch)).exit_code == 0

    with_backend(node, scenario)


def test_what_a_person_orders_here_reaches_the_run_there_once(node: Node) -> None:
    launch = node.launch(WAITS)
    orders = node.here(launch) / "steering"

    async def scenario(backend: SSHBackend) -> None:
        await backend.submit(launch, {})
        orders.mkdir(parents=True)
        (orders / ".lock").touch()
        for number in (1, 2):
            (orders / f"000{number}.json").write_text(f"order {number}")
            await backend.collect(launch)
            there = node.there(launch) / "steering"
            assert (there / f"000{number}.json").read_text() == f"order {number}"
            (there / f"000{number}.json").write_text("as it was taken")
        await backend.collect(launch)
        assert (orders / "0001.json").read_text() == "as it was taken"
        assert sorted(path.name for path in there.iterdir()) == ["0001.json", "0002.json"]
        (node.there(launch) / "go").touch()
        await ended(backend, launch)

    with_backend(node, scenario)


def test_what_was_fetched_is_removed_there_and_never_runs_again(node: Node) -> None:
    launch, other = node.launch(SLEEPS.format(0)), node.launch(WAITS)

    async def scenario(backend: SSHBackend) -> None:
        await backend.submit(launch, {})
        await backend.submit(other, {})
        report = await ended(backend, launch)
        await backend.collect(launch)
        for each in (launch, launch):
            await backend.release(each)
        assert {path.name for path in node.control(launch).iterdir()} == {"claim", "exit.json"}
        await backend.submit(launch, {})
        assert await backend.status(launch) == report
        assert await backend.logs(launch) == b""
        with pytest.raises(BackendError, match="has not ended"):
            await backend.release(other)
        assert (await backend.status(other)).state == "running"

        # Long after, the last trace goes, too; of what was not released nothing does.
        (node.there(other) / "go").touch()
        await ended(backend, other)
        for each in (launch, other):
            os.utime(node.control(each), (0, 0))
        await backend.link.close()
        await backend.status(other)
        assert not node.control(launch).exists()
        assert (node.there(other) / "count").exists()

    with_backend(node, scenario)
    assert (node.here(launch) / "count").read_text() == "x"


def test_secrets_are_in_the_programs_environment_and_nowhere_else_there(node: Node) -> None:
    code = (
        "import os, time; open('length', 'w').write(str(len(os.environ['MY_KEY'])))\n"
        "while not os.path.exists('go'): time.sleep(0.02)"
    )
    launch = node.launch(code, secrets=("MY_KEY",))
    secret = "s3cr3t-" + os.urandom(8).hex()

    async def scenario(backend: SSHBackend) -> None:
        await backend.submit(launch, {"MY_KEY": secret, "OTHER": "other-" + secret})
        assert (await node.file_there(backend, launch, "length")) == str(len(secret))
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert secret.encode() not in line.read_bytes()
            except OSError:
                continue
        (node.there(launch) / "go").touch()
        assert (await ended(backend, launch)).exit_code == 0
        await backend.collect(launch)

    with_backend(node, scenario)
    for folder in (node.server.folder, node.runs_dir):
        for path in folder.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_a_host_key_that_is_not_the_known_one_is_refused(node: Node, tmp_path: Path) -> None:
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


def test_without_known_hosts_nothing_is_trusted(node: Node, tmp_path: Path) -> None:
    async def scenario(backend: SSHBackend) -> None:
        with pytest.raises(BackendError, match=r"there is no .*nowhere"):
            await backend.check()

    with_backend(node, scenario, known_hosts=str(tmp_path / "nowhere"))


def test_a_key_that_is_not_let_in_is_said_to_be_so(node: Node, tmp_path: Path) -> None:
    async def scenario(backend: SSHBackend) -> None:
        with pytest.raises(BackendError, match="set `user` and `key_file`"):
            await backend.check()

    with_backend(node, scenario, key_file=str(make_key(tmp_path / "stranger")))


def test_a_python_that_is_not_there_is_said_to_be_so(node: Node) -> None:
    async def scenario(backend: SSHBackend) -> None:
        with pytest.raises(BackendError, match="does not start with /no/python"):
            await backend.check()

    with_backend(node, scenario, python="/no/python")


def test_a_node_says_what_it_is(node: Node) -> None:
    async def scenario(backend: SSHBackend) -> None:
        assert "cores" in await backend.check()
        backend.node = node.config(cores=4000)
        with pytest.raises(BackendError, match="said to have 4000 cores"):
            await backend.check()

    with_backend(node, scenario)


def test_what_a_login_prints_is_not_taken_for_an_answer(tmp_path: Path) -> None:
    noise = 'ForceCommand echo "Welcome 12 34"; eval "$SSH_ORIGINAL_COMMAND"\n'
    server = SSHServer(tmp_path / "noisy", more=noise)
    server.start()
    try:
        node = Node(server, tmp_path / "runs")

        async def scenario(backend: SSHBackend) -> None:
            assert "cores" in await backend.check()

        with_backend(node, scenario)
    finally:
        server.stop()


HOSTILE_AGENT = """

def _hostile_scan(request):
    names = ["../../../evil", "/tmp/evil", "a/../../evil", "good", "new\\nline"]
    return {"stamps": {name: [4, 1] for name in names}}, b""

def _hostile_pieces(request):
    names = ["../../../evil", "good"]
    return {"pieces": [[name, 0, 4, 1, 4] for name in names], "settled": 99}, b"evilgood"

_OPERATIONS |= {"scan": _hostile_scan, "pieces": _hostile_pieces}
"""


def test_names_from_a_hostile_node_lead_nowhere(tmp_path: Path) -> None:
    server = SSHServer(tmp_path / "hostile")
    server.start()
    try:
        node = Node(server, tmp_path / "a" / "b" / "runs")

        async def scenario(backend: SSHBackend) -> None:
            await backend.check()
            agent = server.base_dir / "packages" / build_wheel().digest / "p2p/scheduler"
            with (agent / "node_agent.py").open("a") as stream:
                stream.write(HOSTILE_AGENT)
            await backend.close()
            await backend.collect(node.launch(""))

        with_backend(node, scenario)
    finally:
        server.stop()
    assert [path.name for path in node.runs_dir.rglob("*") if path.is_file()] == ["good"]
    assert not list(tmp_path.glob("**/evil"))


@pytest.mark.slow
def test_long_lists_and_long_logs_come_whole(node: Node) -> None:
    code = (
        "for n in range(12_000): open(f'{n:05}' + 'x' * 180, 'w').close()\nprint('y' * 20_000_000)"
    )
    launch = node.launch(code)

    async def scenario(backend: SSHBackend) -> None:
        await backend.submit(launch, {})
        assert (await ended(backend, launch)).exit_code == 0
        where = {"launch_id": launch.launch_id, "folder": launch.spec.folder}
        fields, _ = await backend.link.request("scan", where)
        assert len(fields["stamps"]) == 12_000
        assert len(await backend.logs(launch)) == 20_000_001

    with_backend(node, scenario)


def test_a_request_that_is_given_up_does_not_spoil_the_next(node: Node) -> None:
    launch = node.launch(SLEEPS.format(0))

    async def scenario(backend: SSHBackend) -> None:
        await backend.check()
        asking = asyncio.create_task(backend.submit(launch, {}))
        await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (await backend.status(launch)).state != "lost"
        await backend.submit(launch, {})
        assert (await ended(backend, launch)).exit_code == 0

    with_backend(node, scenario)
    assert (node.there(launch) / "count").read_text() == "x"
