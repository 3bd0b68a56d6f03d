"""One launch and a place that fails: started once, attempts spent only on what has begun."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from failing_places import AnswersTooLate, ForgetsQueue, OutOfReach
from jobs_for_tests import job_of, launches, saying, with_slots
from scheduler_process import KILLED, schedule

from p2p.scheduler import job_scheduler, run_monitor
from p2p.scheduler.backends.local import LocalBackend
from p2p.scheduler.job_scheduler import Scheduler
from p2p.scheduler.records import NodeConfig
from p2p.scheduler.run_monitor import SchedulerStep
from p2p.scheduler.store import Store

pytestmark = pytest.mark.usefixtures("own_cores")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_monitor, "LOCAL_POLL_S", (0.02, 0.05))


def use(monkeypatch: pytest.MonkeyPatch, **places: type[LocalBackend]) -> None:
    """Let nodes be such places; the others are as they are."""

    def make(node: NodeConfig, folder: Path) -> LocalBackend:
        return places.get(node.node_id, LocalBackend)(node, folder)

    monkeypatch.setattr(job_scheduler, "make_backend", make)


def work(store: Store) -> None:
    """Schedule until nothing is left to do."""

    async def run() -> None:
        await asyncio.wait_for(Scheduler(store).run(until_idle=True), 60)

    asyncio.run(run())


def test_what_never_began_is_submitted_again_without_a_new_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, local=ForgetsQueue)
    store = with_slots(tmp_path, 1)
    store.submit(job_of("j", [saying("a", max_attempts=1)]))
    work(store)
    run = store.run("a")
    assert run is not None
    assert (run.state, run.attempt) == ("succeeded", 1)
    assert launches(tmp_path, "a") == ["a.1"]


@pytest.mark.parametrize(
    ("step", "times"), [("submitted", 1), ("running noted", 1), ("submitted", 2), ("end seen", 1)]
)
def test_a_scheduler_killed_around_a_second_submit_starts_nothing_twice(
    tmp_path: Path, step: SchedulerStep, times: int
) -> None:
    store = with_slots(tmp_path, 1)
    store.submit(job_of("j", [saying("a", max_attempts=1)]))
    assert schedule(tmp_path, step, times, "forgetful") == KILLED
    assert schedule(tmp_path, "never", 1, "forgetful") == 0
    run = store.run("a")
    assert run is not None
    assert (run.state, run.attempt) == ("succeeded", 1)
    assert launches(tmp_path, "a") == ["a.1"]


def test_one_that_began_though_its_submit_keeps_failing_is_found_and_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, local=AnswersTooLate)
    store = with_slots(tmp_path, 1)
    store.submit(job_of("j", [saying("a", seconds=0.2)]))
    work(store)
    run = store.run("a")
    assert run is not None
    assert (run.state, run.attempt) == ("succeeded", 1)
    assert launches(tmp_path, "a") == ["a.1"]


def test_from_a_node_that_was_never_reached_a_run_goes_to_another_and_loses_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, far=OutOfReach)
    store = with_slots(tmp_path, 1)
    store.add_node(NodeConfig(node_id="far", cores=8))  # the emptier one
    store.submit(job_of("j", [saying("a", max_attempts=1)]))
    work(store)
    run = store.run("a")
    assert run is not None
    assert (run.state, run.node_id) == ("succeeded", "local")
    assert launches(tmp_path, "a") == ["a.2"]


def test_a_run_that_no_node_will_ever_take_says_so(tmp_path: Path) -> None:
    store = with_slots(tmp_path, 1)
    store.add_node(NodeConfig(node_id="other", cores=1))
    store.submit(job_of("j", [saying("gate", nodes=("local",))]))
    store.submit(job_of("k", [saying("large", cores=2)]))
    store.add_node(NodeConfig(node_id="local", cores=1, enabled=False), replace=True)

    async def look() -> None:
        scheduler = Scheduler(store)
        task = asyncio.create_task(scheduler.run())
        async with asyncio.timeout(20):
            while not all(run.message for run in store.runs()):
                await asyncio.sleep(0.02)
        scheduler.stop()
        await task

    asyncio.run(look())
    told = {run.run_id: run.message for run in store.runs()}
    assert "it may run on local only, which is disabled or gone" in told["gate"]
    assert "none has 2 cores" in told["large"]
    store.add_node(NodeConfig(node_id="local", cores=2), replace=True)
    work(store)
    assert {run.state: run.message for run in store.runs()} == {"succeeded": ""}
