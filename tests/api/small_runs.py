"""Sessions as the loop leaves them, without training anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from p2p.api.app import create_app
from p2p.contracts import (
    AuthoredCode,
    Criterion,
    Intent,
    JudgmentResult,
    LineageData,
    LineageNode,
    RewardSpec,
    SessionResult,
    StatusLiteral,
)
from p2p.event_log import EventLog
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.loop_files import BestRun, IterationPlan
from p2p.session.request import loop_config
from p2p.session.start import create_session

TOKEN = "the-token-of-this-server"
CRITERION = Criterion(
    id="goes_forward",
    title="goes forward",
    description="the torso moves forward",
    measure="mean forward speed",
    comparison="at_least",
    threshold=1.0,
    unit="m/s",
    weight=1.0,
    category="task",
)


def make_session(
    runs: Path,
    name: str,
    *,
    prompt: str = "run forward fast",
    status: StatusLiteral = "passed",
    score: float = 0.9,
    lines: int = 5,
) -> SessionRecord:
    """A finished session with one iteration, one run, a video and a policy."""
    loop = loop_config("HalfCheetah-v5", model="builtin")
    session = create_session(prompt, loop, session_id=name, runs_dir=runs)
    intent = Intent(prompt=prompt, env_id="HalfCheetah-v5", criteria=(CRITERION,), author="builtin")
    session.intent.save(intent)
    judgment = JudgmentResult(intent_score=score, passed=score > 0.8, diagnosis="it runs")
    iteration = session.create_iteration()
    iteration.plan.save(
        IterationPlan(iteration=1, train=loop.train, configs=loop.configs, seeds=loop.seeds)
    )
    iteration.reward.save(AuthoredCode(code="x = 1\n", author="builtin", valid=True))
    iteration.save_reward_spec(RewardSpec(latex="r = v_x", terms={"speed": "forward"}))
    iteration.save_judgment(judgment)
    iteration.best_run.save(BestRun(run_id="base_seed_1", step=100, score=score))
    run = make_run(iteration.path / "base_seed_1", lines)
    run.save_judgment(judgment)
    iteration.set_status("completed")
    node = LineageNode(iteration=1, score=score, passed=True)
    session.lineage.save(LineageData(nodes=(node,)))
    session.result.save(
        SessionResult(
            status=status,
            best_iteration=1,
            run_id="base_seed_1",
            step=100,
            score=score,
            iterations=1,
            policy="iter_1/base_seed_1/checkpoints/step_100",
            videos=("iter_1/base_seed_1/videos/eval_100_median.mp4",),
        ),
    )
    log = EventLog(session.events_path)
    for number in range(3):
        log.emit("something.happened", number=number, text="x" * 500)
    session.set_status(status)
    return session


def make_run(folder: Path, lines: int = 5) -> IterationRecord:
    """A training run with curves, a video and a policy."""
    run = IterationRecord(folder)
    run.path.mkdir(parents=True)
    run.save_config(loop_config("HalfCheetah-v5").train.with_updates(seed=1))
    run.save_reward_source("def reward_fn(obs, action, next_obs, info):\n    return 0.0, {}\n")
    write_curve(run, [line(100 * (i + 1), float(i)) for i in range(lines)])
    run.videos_dir.mkdir()
    (run.videos_dir / "eval_100_median.mp4").write_bytes(bytes(range(256)) * 4)
    policy = run.checkpoints_dir / "step_100"
    policy.mkdir(parents=True)
    (policy / "policy.zip").write_bytes(b"PK\x03\x04 a policy")
    run.set_status("completed")
    return run


def line(step: int, value: float, **more: Any) -> dict[str, Any]:
    return {"type": "train", "global_step": step, "iteration": 1, "episodic_return": value, **more}


def write_curve(run: IterationRecord, lines: list[dict[str, Any]]) -> None:
    run.scalars_path.parent.mkdir(parents=True, exist_ok=True)
    run.scalars_path.write_text("".join(json.dumps(each) + "\n" for each in lines))


@contextmanager
def signed_in(runs: Path, outputs: Path | None = None) -> Iterator[TestClient]:
    """A client with the token, of a server of its own."""
    with TestClient(create_app(runs, outputs, token=TOKEN), base_url="http://localhost") as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield client
