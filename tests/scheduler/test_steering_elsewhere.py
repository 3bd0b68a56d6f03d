"""A person's word to a session that runs on another machine."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from ssh_node import Node
from ssh_server import WHY_NOT, SSHServer

from p2p.config import TrainConfig
from p2p.contracts import SteeringOrder, utc_now
from p2p.records.iteration_record import SessionRecord
from p2p.scheduler import tending
from p2p.scheduler.controllers import JobOptions, session_job
from p2p.scheduler.job_scheduler import Scheduler
from p2p.scheduler.store import Store
from p2p.session.request import SessionRequest
from p2p.session.steering import give_order

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

REQUEST = SessionRequest(
    prompt="balance",
    env_id="InvertedPendulum-v5",
    model="builtin",
    max_iterations=2,
    pass_threshold=1.0,
    videos=False,
    settings={
        "judge_episodes": 3,
        "train": TrainConfig(
            num_envs=4,
            num_steps=64,
            total_timesteps=40_000,
            max_episode_steps=50,
            num_evals=1,
            num_eval_rounds=1,
        ),
    },
)


def test_an_order_given_while_it_trains_is_taken_up_after_that_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tending, "COLLECT_S", 0.2)
    monkeypatch.setattr(tending, "POLL_S", (0.2, 0.2))
    runs = tmp_path / "runs"
    server = SSHServer(tmp_path / "ssh")
    server.start()
    try:
        with closing(Store(runs)) as store:
            store.add_node(Node(server, runs).config())
            job = session_job(REQUEST, runs, JobOptions(nodes=("other",)))
            record = SessionRecord(runs / job.job_id)
            store.submit(job)

            async def steered() -> None:
                task = asyncio.create_task(Scheduler(store).run(until_idle=True))
                async with asyncio.timeout(900):
                    while not (record.iteration(1).path / "base_seed_1" / "metrics").exists():
                        await asyncio.sleep(0.05)
                    give_order(record.path, SteeringOrder(given_at=utc_now(), remark="keep it low"))
                    await task

            asyncio.run(steered())
            (run,) = store.runs(job.job_id)
    finally:
        server.stop()
    assert (run.state, run.node_id) == ("succeeded", "other")
    taken = record.iteration(1).steering.read()
    assert taken is not None
    assert taken.remarks == ("keep it low",)
