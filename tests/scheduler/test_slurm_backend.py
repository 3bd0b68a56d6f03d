"""The Slurm backend, on a real Slurm of one node."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from launches import python_launch, reach
from processes import is_there, wait_until
from slurm_cluster import SlurmCluster

from p2p.scheduler.backends import BackendError, make_backend
from p2p.scheduler.backends import slurm as slurm_backend
from p2p.scheduler.backends.slurm import SLURMBackend, read_queue
from p2p.scheduler.launch import LaunchFolder
from p2p.scheduler.records import Launch, NodeConfig

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing()),
]

NOTE_START = "import os, time; open('starts.txt', 'a').write(f'{os.getpid()}\\n')"
SLEEP = f"{NOTE_START}; print('begun', flush=True); time.sleep(600)"
Do = Callable[[Coroutine[Any, Any, Any]], Any]
SECRET = "a-key-that-is-nowhere-on-disk"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm_cluster.running_cluster() as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.configuration))
        patch.setattr(slurm_backend, "LAG_S", 1.0)  # this file system has none
        yield cluster


@pytest.fixture
def do() -> Iterator[Do]:
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def backend(cluster: SlurmCluster, tmp_path: Path) -> SLURMBackend:
    return new_backend(tmp_path)


def new_backend(tmp_path: Path, **changes: Any) -> SLURMBackend:
    fields = {"backend": "slurm", "cores": 8, "base_dir": str(tmp_path / "base")} | changes
    made = make_backend(NodeConfig(node_id="slurm", **fields), tmp_path / "scheduler")
    assert isinstance(made, SLURMBackend)
    return made


def launch(tmp_path: Path, program: str, name: str = "run", **changes: Any) -> Launch:
    return python_launch(tmp_path / "runs", program, launch_id=f"{name}.1", folder=name, **changes)


async def program_of(backend: SLURMBackend, asked: Launch) -> int:
    """Its process, once it has noted its start."""
    await reach(backend, asked, "running")
    async with asyncio.timeout(30):
        while not await backend.logs(asked):
            await asyncio.sleep(0.05)
    return int(starts(asked)[-1])


def control(backend: SLURMBackend, asked: Launch) -> LaunchFolder:
    return LaunchFolder(backend.base, asked.launch_id)


def starts(asked: Launch) -> list[str]:
    return (asked.runs_dir / asked.spec.folder / "starts.txt").read_text().split()


def end_of(pid: int) -> None:
    wait_until(lambda: not is_there(pid), 30)


def test_slurm_runs_are_jobs_with_folders_of_their_own(do, backend, cluster, tmp_path):
    program = "open('result.txt', 'w').write('x'); print('done')"
    launches = [launch(tmp_path, program, f"run{n}") for n in range(3)]
    assert do(backend.status(launches[0])).state == "absent"

    async def submit_all() -> None:
        await asyncio.gather(*(backend.start(each, {}) for each in launches))

    do(submit_all())
    for each in launches:
        assert do(reach(backend, each, "exited")).exit_code == 0
        assert (tmp_path / "runs" / each.spec.folder / "result.txt").read_text() == "x"
        assert do(backend.logs(each, 2)) == b"ne\n"
    paths = (control(backend, each).path for each in launches)
    notes = [json.loads((path / "slurm.json").read_text()) for path in paths]
    assert len({note["job_id"] for note in notes}) == 3
    assert list((cluster.folder / "cores").iterdir())  # theirs alone, else they wait for others


def test_slurm_submit_finds_its_first_job_again(cluster, tmp_path):
    made = SLURMBackend(
        NodeConfig(node_id="slurm", backend="slurm", cores=8, base_dir=str(tmp_path / "base")),
        tmp_path / "runs" / "scheduler",
    )
    spec = launch(tmp_path, f"{NOTE_START}; open('result.txt', 'w').write('x')").spec
    states = [made.submit(spec).state]
    wait_until(lambda: states.append(made.submit(spec).state) or states[-1] == "exited", 60)
    assert set(states) <= {"waiting", "running", "exited"}
    folder = tmp_path / "runs" / spec.folder
    assert (folder / "result.txt").read_text() == "x"
    assert len((folder / "starts.txt").read_text().split()) == 1


def test_slurm_secrets_come_from_the_cluster_only(do, backend, cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("UNRELATED_KEY", SECRET)
    program = f"{NOTE_START}; print(os.environ.get('KEY'), os.environ.get('UNRELATED_KEY'))"
    asked, refused = (
        launch(tmp_path, program, name, secrets=("KEY",)) for name in ("asked", "refused")
    )
    provided = tmp_path / "base" / "secrets.env"
    provided.parent.mkdir()
    provided.write_text("OTHER=1\nKEY=of-the-cluster\n")
    provided.chmod(0o600)
    cluster.call("scontrol", "update", "partitionname=main", "state=down")
    try:
        do(backend.start(asked, {"KEY": SECRET}))
        assert "PartitionDown" in do(reach(backend, asked, "waiting")).message
        for folder in (cluster.folder / "state", tmp_path):
            files = [path for path in folder.rglob("*") if path.is_file()]
            assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    finally:
        cluster.call("scontrol", "update", "partitionname=main", "state=up")
    do(reach(backend, asked, "exited"))
    assert do(backend.logs(asked)) == b"of-the-cluster None\n"
    provided.chmod(0o644)
    do(backend.start(refused, {"KEY": SECRET}))
    status = do(reach(backend, refused, "exited"))
    assert (status.exit_code, "chmod 600" in status.message) == (125, True)


def test_released_slurm_run_is_never_started_again(do, backend, tmp_path):
    group = [launch(tmp_path, NOTE_START, f"run{n}") for n in range(2)]

    async def submit_all() -> None:
        await asyncio.gather(*(backend.start(each, {}) for each in group))

    do(submit_all())
    for each in group:
        status = do(reach(backend, each, "exited"))
        do(backend.release(each))
        left = {path.name for path in control(backend, each).path.iterdir()}
        assert left == {"claim", "exit.json"}
        do(backend.start(each, {}))
        assert do(backend.status(each)) == status
        assert len(starts(each)) == 1


def test_slurm_reports_exit_code_and_time_limit(do, backend, tmp_path):
    failing = launch(tmp_path, "raise SystemExit(7)", "failing")
    endless = launch(tmp_path, SLEEP, "endless", time_limit_s=1.0)
    do(backend.start(failing, {}))
    do(backend.start(endless, {}))
    assert do(reach(backend, failing, "exited")).exit_code == 7
    status = do(reach(backend, endless, "exited"))
    assert (status.exit_code, "time limit" in status.message) == (124, True)


def test_second_start_finds_the_first_run(do, backend, cluster, tmp_path):
    asked = launch(tmp_path, SLEEP)
    do(backend.start(asked, {}))
    do(backend.start(asked, {}))
    # As after a crash between sbatch and the note of its number, with the queue out of sight.
    do(backend.submit_job(control(backend, asked), []))
    program = do(program_of(backend, asked))
    other = new_backend(tmp_path)
    assert do(other.status(asked)).state == "running"
    do(other.start(asked, {}))
    # The second job takes its leave.
    wait_until(lambda: len(cluster.call("squeue", "--noheader").splitlines()) == 1, 60)
    assert starts(asked) == [str(program)]
    do(other.cancel(asked))
    assert do(reach(backend, asked, "cancelled")).state == "cancelled"
    end_of(program)


def test_slurm_run_cancelled_in_queue_never_starts(do, backend, cluster, tmp_path):
    never, queued = launch(tmp_path, SLEEP, "never"), launch(tmp_path, SLEEP, "queued")
    do(backend.cancel(never))
    do(backend.start(never, {}))
    cluster.call("scontrol", "update", "partitionname=main", "state=down")
    try:
        do(backend.start(queued, {}))
        do(backend.cancel(queued))
    finally:
        cluster.call("scontrol", "update", "partitionname=main", "state=up")
    for each in (never, queued):
        assert do(backend.status(each)).state == "cancelled"
        do(backend.cancel(each))
        assert not (tmp_path / "runs" / each.spec.folder / "starts.txt").exists()


def test_scancel_is_a_cancel_and_node_failure_a_loss(do, backend, cluster, tmp_path):
    by_hand, by_node = launch(tmp_path, SLEEP, "by_hand"), launch(tmp_path, SLEEP, "by_node")
    do(backend.start(by_hand, {}))
    program = do(program_of(backend, by_hand))
    cluster.call("scancel", f"--name=p2p-{backend.base.name}-by_hand.1")
    assert "by scancel" in do(reach(backend, by_hand, "cancelled")).message
    end_of(program)

    do(backend.start(by_node, {}))
    program = do(program_of(backend, by_node))
    cluster.call("scontrol", "update", f"nodename={cluster.host}", "state=down", "reason=test")
    status = do(reach(backend, by_node, "lost"))
    end_of(program)
    cluster.wait_until_idle()  # its daemon reports for duty again
    assert status.message
    assert do(new_backend(tmp_path).status(by_node)) == status
    do(backend.start(by_node, {}))  # only a new attempt starts it again
    assert do(backend.status(by_node)).state == "lost"


def test_slurm_job_killed_with_supervisor_is_lost(do, backend, tmp_path):
    asked = launch(tmp_path, SLEEP)
    do(backend.start(asked, {}))
    program = do(program_of(backend, asked))
    claim = control(backend, asked).read_claim()
    assert claim is not None
    os.kill(claim["pid"], signal.SIGKILL)
    assert "FAILED" in do(reach(backend, asked, "lost")).message
    end_of(program)


def test_check_describes_slurm_cluster_or_error(do, backend, tmp_path, monkeypatch):
    assert "partition main (up), 1 nodes, 8 CPUs" in do(backend.check())
    with pytest.raises(BackendError, match=r"node slurm: .*nowhere"):
        do(new_backend(tmp_path, partition="nowhere").check())
    with pytest.raises(BackendError, match=r"node slurm: .*nowhere"):
        do(new_backend(tmp_path, partition="nowhere").start(launch(tmp_path, SLEEP, "x"), {}))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="is this machine part of the cluster"):
        do(backend.check())


def test_read_queue_prefers_the_living_job():
    text = "a.1|5|FAILED|NonZeroExitCode\na.1|6|RUNNING|None\na.1|7|PENDING|Priority\n"
    queue = read_queue(text + "p2p-1|8|STRANGE|a|b\n")
    assert str(queue["a.1"]) == "Slurm job 6: RUNNING"
    assert not queue["p2p-1"].is_over
    assert str(queue["p2p-1"]) == "Slurm job 8: STRANGE (a|b)"
