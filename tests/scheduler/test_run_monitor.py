"""One launch and a place that fails: started once, attempts spent only on what has begun."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from failing_places import AnswersTooLate, ForgetsQueue, OutOfReach
from jobs_for_tests import (
    assert_each_ran_once,
    job_of,
    launches,
    run_all,
    saying,
    the_run,
    with_slots,
)
from scheduler_process import KILLED, schedule

from p2p.scheduler import job_scheduler
from p2p.scheduler.backends.local import LocalBackend
from p2p.scheduler.job_scheduler import Scheduler, SchedulerStep
from p2p.scheduler.records import NodeConfig

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("own_cores")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_scheduler, "LOCAL_POLL_S", (0.02, 0.05))


def use(monkeypatch: pytest.MonkeyPatch, **places: type[LocalBackend]) -> None:
    """Let nodes be such places; the others are as they are."""

    def make(node: NodeConfig, folder: Path) -> LocalBackend:
        return places.get(node.node_id, LocalBackend)(node, folder)

    monkeypatch.setattr(job_scheduler, "make_backend", make)


@pytest.mark.parametrize("place", [ForgetsQueue, AnswersTooLate])
def test_forgetful_node_starts_run_once_in_one_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: type[LocalBackend]
) -> None:
    use(monkeypatch, local=place)
    store = with_slots(tmp_path, 1)
    store.submit(job_of("j", [saying("a", seconds=0.2, max_attempts=1)]))
    run_all(store)
    assert_each_ran_once(store, "j")


@pytest.mark.parametrize(
    ("step", "times"), [("submitted", 1), ("running noted", 1), ("submitted", 2), ("end seen", 1)]
)
def test_scheduler_killed_near_resubmit_starts_run_once(
    tmp_path: Path, step: SchedulerStep, times: int
) -> None:
    store = with_slots(tmp_path, 1)
    store.submit(job_of("j", [saying("a", max_attempts=1)]))
    assert schedule(tmp_path, step, times, "forgetful") == KILLED
    assert schedule(tmp_path, "never", 1, "forgetful") == 0
    assert_each_ran_once(store, "j")


def test_run_moves_from_unreachable_node_without_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, far=OutOfReach)
    store = with_slots(tmp_path, 1)
    store.add_node(NodeConfig(node_id="far", cores=8))  # the emptier one
    store.submit(job_of("j", [saying("a", max_attempts=1)]))
    run_all(store)
    run = the_run(store, "a")
    assert (run.state, run.node_id) == ("succeeded", "local")
    assert launches(tmp_path, "a") == ["a.2"]


def test_unplaceable_run_says_why_it_waits(tmp_path: Path) -> None:
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
    run_all(store)
    assert {run.state: run.message for run in store.runs()} == {"succeeded": ""}
