"""Feedback to a session that runs on another machine."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from ssh_node import Node
from ssh_server import WHY_NOT, SSHServer

from p2p.contracts import SteeringOrder, utc_now
from p2p.records.iteration_record import SessionRecord
from p2p.scheduler import job_scheduler
from p2p.scheduler.controllers import JobOptions, session_job
from p2p.scheduler.job_scheduler import Scheduler
from p2p.scheduler.store import Store
from p2p.session.request import SessionRequest
from p2p.session.steering import give_feedback

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

REQUEST = SessionRequest(
    prompt="balance",
    env_id="InvertedPendulum-v5",
    model="builtin",
    max_iterations=2,
    total_timesteps=40_000,
    pass_threshold=1.0,
    videos=False,
    settings={
        "judge_episodes": 3, "num_envs": 4, "num_steps": 64, "max_episode_steps": 50,
        "num_evals": 1, "num_eval_rounds": 1,
    },
)  # fmt: skip


def test_feedback_during_training_applies_to_next_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_scheduler, "COLLECT_S", 0.2)
    monkeypatch.setattr(job_scheduler, "REMOTE_POLL_S", (0.2, 0.2))
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
                    feedback = SteeringOrder(given_at=utc_now(), remark="keep it low")
                    give_feedback(record.path, feedback)
                    await task

            asyncio.run(steered())
            (run,) = store.runs(job.job_id)
    finally:
        server.stop()
    assert (run.state, run.node_id) == ("succeeded", "other")
    applied = record.iteration(1).steering.read()
    assert applied is not None
    assert applied.remarks == ("keep it low",)
