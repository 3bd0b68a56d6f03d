"""The backend of this machine: what is wrong with a node or a launch is said with its name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from launches import OVER, python_launch, reach

from p2p.scheduler.backends import Backend, BackendError, make_backend
from p2p.scheduler.records import Launch, NodeConfig, RunSpec
from p2p.training.cpu_manager import default_pool


@pytest.fixture
def backend(tmp_path: Path, own_cores: Path) -> Backend:
    node = NodeConfig(node_id="here", cores=len(default_pool()))
    return make_backend(node, tmp_path / "runs" / "scheduler")


def test_start_error_names_the_node(own_cores: Path, tmp_path: Path) -> None:
    node = NodeConfig(node_id="here", cores=1, python="/no/python")
    launch = python_launch(tmp_path / "runs", "")
    with pytest.raises(BackendError, match=r"node here: .*/no/python"):
        asyncio.run(make_backend(node, tmp_path / "base").start(launch, {}))


def test_check_rejects_node_with_too_many_cores(backend: Backend, tmp_path: Path) -> None:
    assert f"{len(default_pool())} cores" in asyncio.run(backend.check())
    boast = make_backend(NodeConfig(node_id="boast", cores=4000), tmp_path)
    with pytest.raises(BackendError, match="boast is registered with 4000 cores"):
        asyncio.run(boast.check())


def test_damaged_launch_file_is_named_and_not_an_end(backend: Backend, tmp_path: Path) -> None:
    launch = python_launch(tmp_path / "runs", "exit(0)")

    async def scenario() -> None:
        await backend.start(launch, {})
        await reach(backend, launch, *OVER)
        path = tmp_path / "runs" / "scheduler" / "launches" / launch.launch_id / "exit.json"
        for damage in ("", "[]", '{"how": "exited"}'):
            path.write_text(damage)
            with pytest.raises(BackendError, match=r"node here: .*exit\.json is damaged"):
                await backend.status(launch)

    asyncio.run(scenario())


def test_submit_without_scheduler_starts_once(backend: Backend, tmp_path: Path) -> None:
    command = ("{python}", "-c", "import os; print(os.environ['MY_KEY'])")
    spec = RunSpec(run_id="one", folder="one", command=command, secrets=("MY_KEY",))
    (tmp_path / "runs" / "one").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_KEY", "of this process")
        first = backend.submit(spec)
    assert first.state in ("waiting", "running", "exited")
    launch = Launch(launch_id="one.1", spec=spec, runs_dir=tmp_path / "runs")
    assert asyncio.run(reach(backend, launch, *OVER)).exit_code == 0
    assert asyncio.run(backend.logs(launch)) == b"of this process\n"
    assert backend.submit(spec).state == "exited"
