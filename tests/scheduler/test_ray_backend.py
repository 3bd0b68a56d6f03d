"""The Ray backend, on a real cluster of two nodes on this machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from launches import OVER, alive, python_launch, reach
from processes import wait_until

from p2p.scheduler.backends import BackendError, cluster_owner, make_backend
from p2p.scheduler.backends import ray as ray_backend
from p2p.scheduler.backends.ray import RayBackend
from p2p.scheduler.records import Launch, NodeConfig

pytestmark = pytest.mark.process

ray_cluster = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed")

Do = Callable[[Coroutine[Any, Any, Any]], Any]
SECRET = "a-key-that-is-nowhere-on-disk"
NOTE_START = "import os, sys, time; open('starts.txt', 'a').write(f'{os.getpid()}\\n')"
SLEEP = f"{NOTE_START}; print('begun'); time.sleep(600)"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head with one core, and a node with two that the last test takes away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else any load at all keeps workers waiting
        patch.setenv("P2P_CORE_LOCKS", str(tmp_path_factory.mktemp("locks")))
        patch.setenv("UNRELATED_KEY", SECRET)
        memory = {"object_store_memory": 80 * 1024 * 1024}
        cluster = ray_cluster.Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False, **memory},
        )
        cluster.add_node(num_cpus=2, **memory)
        yield cluster
        cluster.shutdown()


class Place:
    """Two schedulers' backends for the cluster: starting one takes seconds."""

    def __init__(self, do: Do, address: str, folder: Path) -> None:
        self.do = do
        self.address = address
        self.folder = folder
        self.launches: list[Launch] = []
        self.first, self.second = self.backend(), self.backend()

    def backend(self, **changes: Any) -> RayBackend:
        fields = {"cores": 3, "address": self.address, "base_dir": str(self.folder / "node")}
        node = NodeConfig(node_id="cluster", backend="ray", **(fields | changes))
        made = make_backend(node, self.folder / "scheduler")
        assert isinstance(made, RayBackend)
        return made

    def launch(self, code: str, name: str, **fields: Any) -> Launch:
        self.launches.append(
            python_launch(self.folder / "runs", code, launch_id=f"{name}.1", **fields)
        )
        return self.launches[-1]

    def local(self, launch: Launch, name: str) -> Path:
        return self.folder / "runs" / launch.spec.folder / name

    def remote(self, launch: Launch, name: str) -> Path:
        base = self.folder / "node" / f"p2p-{cluster_owner(self.folder / 'scheduler')}"
        return base / "launches" / launch.launch_id / "runs" / launch.spec.folder / name

    def end_all(self) -> None:
        for launch in self.launches:
            self.do(self.first.cancel(launch))
            self.do(reach(self.first, launch, *OVER))
            self.do(self.first.collect(launch))
        self.launches.clear()


@pytest.fixture(scope="module")
def shared_place(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with asyncio.Runner() as runner:
        place = Place(runner.run, cluster.address, tmp_path_factory.mktemp("place"))
        yield place
        place.do(place.first.close())
        place.do(place.second.close())


@pytest.fixture
def place(shared_place: Place) -> Iterator[Place]:
    yield shared_place
    shared_place.end_all()


@pytest.fixture
def do(place: Place) -> Do:
    return place.do


def program_of(place: Place, backend: RayBackend, launch: Launch) -> int:
    """Its process, once it has noted its start."""
    place.do(reach(backend, launch, "running"))
    wait_until(lambda: place.do(backend.logs(launch)), 60)
    return int(place.remote(launch, "starts.txt").read_text().split()[-1])


def test_check_describes_ray_cluster_or_error(do, place):
    assert "2 nodes, 3 cores, 0 GPUs" in do(place.first.check())
    larger = place.backend(cores=4)
    assert "3 cores, 0 GPUs now, but is registered with 4 cores" in do(larger.check())
    do(larger.close())
    nowhere = place.backend(address="127.0.0.1:1")
    with pytest.raises(
        BackendError, match=r"node cluster: no Ray cluster answers at 127\.0\.0\.1:1"
    ):
        do(nowhere.check())
    do(nowhere.close())


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_silent_ray_address_is_given_up_soon(do, place, monkeypatch, scheme):
    monkeypatch.setattr(ray_backend, "CHECK_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"{scheme}127.0.0.1:{silent.getsockname()[1]}"
        mute = place.backend(address=address)
        with pytest.raises(BackendError, match=f"node cluster: something listens at {address}"):
            do(mute.check())
        do(mute.close())


def test_ray_run_folder_travels_there_and_back(do, place, cluster):
    program = (
        "import os, time; from pathlib import Path\n"
        "print(len(os.environ['KEY']), os.environ.get('UNRELATED_KEY'))\n"
        "Path('out').mkdir(); log = open('out/log.jsonl', 'a')\n"
        "log.write(Path('input.txt').read_text() + '\\n'); log.flush()\n"
        "while not Path('go').exists(): time.sleep(0.05)\n"
        "log.write('second\\n'); Path('big.bin').write_bytes(bytes(20_000_000))\n"
        "raise SystemExit(3)"
    )
    launch = place.launch(program, "copied", secrets=("KEY",), cores=2)
    place.local(launch, "input.txt").parent.mkdir(parents=True)
    place.local(launch, "input.txt").write_text("first")
    assert do(place.first.status(launch)).state == "absent"
    do(place.first.start(launch, {"KEY": SECRET, "OTHER": SECRET}))
    do(reach(place.first, launch, "running"))
    result = place.local(launch, "out/log.jsonl")

    def came() -> bool:
        do(place.first.collect(launch))
        return result.exists() and result.stat().st_size > 0

    wait_until(came, 60)
    assert result.read_text() == "first\n"
    place.local(launch, "steering").mkdir()
    place.local(launch, "steering/0001.json").write_text('{"remark": "lower"}')
    do(place.first.collect(launch))
    assert place.remote(launch, "steering/0001.json").read_text() == '{"remark": "lower"}'
    place.remote(launch, "go").touch()
    assert do(reach(place.first, launch, "exited")).exit_code == 3
    do(place.first.collect(launch))
    assert result.read_text() == "first\nsecond\n"
    assert place.local(launch, "big.bin").stat().st_size == 20_000_000
    assert do(place.first.logs(launch)) == f"{len(SECRET)} None\n".encode()

    # Nothing is left there, and what is known here is enough for the next scheduler.
    assert not place.remote(launch, "").exists()
    assert do(place.second.status(launch)).exit_code == 3
    assert do(place.second.logs(launch, 3)) == b"None\n"
    session = Path(cluster.head_node.get_session_dir_path())
    kept = [path for folder in (session, place.folder) for path in folder.rglob("*")]
    assert [path for path in kept if path.is_file() and SECRET.encode() in path.read_bytes()] == []


def test_second_start_finds_the_first_run(do, place):
    launch = place.launch(SLEEP, "twice")

    async def submit_everywhere() -> None:
        asked = (place.first, place.second, place.first)
        await asyncio.gather(*(backend.start(launch, {}) for backend in asked))

    do(submit_everywhere())
    program = program_of(place, place.first, launch)
    assert do(place.second.status(launch)).state == "running"
    do(place.second.start(launch, {}))
    do(place.second.cancel(launch))
    do(reach(place.first, launch, "cancelled"))
    assert place.remote(launch, "starts.txt").read_text() == f"{program}\n"
    assert alive([program]) == []


def test_run_cancelled_before_room_never_starts(do, place):
    never, waiting = place.launch(SLEEP, "never"), place.launch(SLEEP, "waiting", cores=50)
    do(place.first.cancel(never))
    do(place.first.start(never, {}))
    do(place.first.start(waiting, {}))
    assert do(place.first.status(waiting)).state == "waiting"
    assert do(place.second.status(waiting)).state == "waiting"
    do(place.second.cancel(waiting))
    for launch in (never, waiting):
        for backend in (place.first, place.second):
            assert do(reach(backend, launch, "cancelled")).exit_code is None
        assert not place.remote(launch, "").exists()


@pytest.mark.slow
def test_runs_survive_a_killed_ray_process(do, place):
    launch, behind = place.launch(SLEEP, "ahead", cores=2), place.launch(SLEEP, "behind", cores=2)
    do(place.first.start(launch, {}))
    program = program_of(place, place.first, launch)
    do(place.second.start(behind, {}))
    assert do(place.second.status(behind)).state == "waiting"
    for child in psutil.Process().children():
        if "spawn_main" in " ".join(child.cmdline()):
            child.kill()
    assert do(place.first.status(launch)).state == "running"
    assert do(place.first.status(behind)).state == "waiting"
    do(place.first.cancel(launch))
    do(reach(place.first, launch, "cancelled"))
    do(place.first.collect(launch))
    assert alive([program]) == []
    # There is room for its actor now, and whoever asks is not the one who can start it.
    assert do(reach(place.first, behind, "absent")).never_began
    do(place.first.start(behind, {}))
    assert program_of(place, place.first, behind) != program


@pytest.mark.slow
def test_run_on_a_dead_ray_node_is_lost(do, place, cluster):
    launch = place.launch(SLEEP, "lost", cores=2)
    do(place.first.start(launch, {}))
    program = program_of(place, place.first, launch)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    assert do(reach(place.first, launch, "lost")).message
    do(place.first.start(launch, {}))  # only a new attempt starts it again
    assert do(place.second.status(launch)).state == "lost"
    wait_until(lambda: not alive([program]), 60)
