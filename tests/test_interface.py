"""`import p2p`: what it gives, on folders that are there and on one training of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import wait_until

import p2p
from p2p.config import TrainConfig
from p2p.interface import Run, Session
from p2p.records.find import NotFound
from p2p.records.iteration_record import IterationRecord
from p2p.rewards.source import read_reward
from p2p.session.steering import pending_feedback
from p2p.training.reward_function import RewardFunction, RewardRefused
from session_folder import SessionFolder, judgment

WEIGHT = 0.1


def scale(value: float) -> float:
    return WEIGHT * value


def walk(obs, action, next_obs, info):  # type: ignore[no-untyped-def]
    effort = -scale(np.sum(action**2, axis=-1))
    return info["x_velocity"] + effort, {"speed": info["x_velocity"], "effort": effort}


class Still(RewardFunction):
    latex = "r = 1"
    terms = {"alive": "one per step"}  # noqa: RUF012

    def compute(self, obs, action, next_obs, info):  # type: ignore[no-untyped-def]
        return 1.0, {"alive": 1.0}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, 1.0, seeds=(1, 2))
    iteration.runs()[1].judgment.save(judgment(0.215))
    iteration.confirmation.save(judgment(1.0))
    folder.record.set_status("passed")
    return Session(folder.record.path)


def test_importing_p2p_loads_nothing_but_itself() -> None:
    code = "import p2p, sys; print(*sorted(m for m in sys.modules if m.startswith('p2p')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["p2p", "p2p.version"]


def test_every_name_is_there_and_no_other() -> None:
    assert all(getattr(p2p, name) is not None for name in p2p.__all__)
    with pytest.raises(AttributeError, match="runn"):
        p2p.runn  # type: ignore[attr-defined]  # noqa: B018


def test_a_session_says_what_was_asked_measured_and_met(session: Session) -> None:
    assert (session.passed, session.score, session.status) == (True, 1.0, "passed")
    speed = session.criteria[0]
    assert (speed.demand, speed.measured, speed.met) == ("Fast ≥ 3 m/s", "4 m/s", True)
    assert "1 of 2 training seeds passed; that policy held on 2 unseen" in session.verdict
    assert [run.path.name for run in session.runs] == ["base_seed_1", "base_seed_2"]
    assert session.runs[0].curve[0] == (5000, 5.0)
    assert session.video is None


def test_a_session_in_a_notebook_shows_foreign_text_as_text(tmp_path: Path) -> None:
    folder = SessionFolder.create(tmp_path)
    folder.iterate(1, 0.5)
    config = folder.record.config.read()
    assert config is not None
    folder.record.config.save(config.model_copy(update={"prompt": "<script>x</script>"}))
    page = Session(folder.record.path)._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "<td>Fast ≥ 3 m/s</td>" in page
    assert "<svg" in page


def test_a_remark_is_pending_feedback(session: Session) -> None:
    assert session.remark(" keep the body lower ") == 1
    assert pending_feedback(session.record)[1].remark == "keep the body lower"


def test_sessions_are_found_by_name_and_place(session: Session) -> None:
    folder = session.path.parent
    for name in ("last", "best", session.id, "00000000", "session_2026"):
        assert p2p.load(name, folder).path == session.path
    assert p2p.load(session.path).id == session.id
    assert [each.id for each in p2p.sessions(folder)] == [session.id]
    with pytest.raises(NotFound, match="no session 'x' in"):
        p2p.load("x", folder)
    with pytest.raises(NotFound, match=r"no sessions in .* yet"):
        p2p.load("last", folder / "none")


def test_a_wrong_option_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sedes"):
        p2p.run("hop", "Hopper-v5", runs_dir=tmp_path, sedes=2)
    assert not list(tmp_path.iterdir())


def test_a_refused_prompt_leaves_no_session(tmp_path: Path) -> None:
    with pytest.raises(p2p.PromptRefused):
        p2p.run("bcdf ghjk", "Hopper-v5", runs_dir=tmp_path, model="builtin", progress=False)
    assert not list(tmp_path.glob("session_*"))


def test_the_source_of_a_function_has_all_it_uses() -> None:
    code = read_reward(walk).code
    for line in ("import numpy as np", "WEIGHT = 0.1", "def scale(", "reward_fn = walk"):
        assert line in code
    assert "reward_fn = Still" in read_reward(Still).code
    assert "reward_fn = Still" in read_reward(Still()).code


def test_a_function_that_cannot_reach_the_sandbox_is_refused() -> None:
    handle = sys.stdout

    def leaky(obs, action, next_obs, info):  # type: ignore[no-untyped-def]
        return handle, {}

    for reward, message in ((leaky, "uses handle"), (lambda *_: 0, "lambda")):
        with pytest.raises(ValueError, match=message):
            read_reward(reward)


def test_a_reward_that_fails_is_refused_by_its_file_name(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def reward_fn(obs, action, next_obs, info):\n    return info['no'], {}\n")
    with pytest.raises(RewardRefused, match=r"bad\.py:2"):
        p2p.train(bad, "InvertedPendulum-v5", runs_dir=tmp_path)
    assert not list(tmp_path.glob("session_*"))


def test_a_function_trains_in_a_running_event_loop_and_a_thread(
    tmp_path: Path, small_config: TrainConfig
) -> None:
    fields = small_config.model_dump(exclude={"env_id", "iteration_id"})

    def train() -> Run:
        return p2p.train(Still, "InvertedPendulum-v5", runs_dir=tmp_path, videos=False,
                         progress=False, **fields)  # fmt: skip

    async def main() -> tuple[Run, Run]:
        return train(), await asyncio.to_thread(train)

    for run in asyncio.run(main()):
        assert run.status == "completed"
        assert run.mean_return is not None
        assert run.policy.act(np.zeros(4)).shape == (1,)
        assert run.policy.act(np.zeros((3, 4))).shape == (3, 1)


SHORT: dict[str, Any] = {
    "iterations": 1, "num_envs": 4, "num_steps": 32, "num_minibatches": 4, "update_epochs": 2,
    "steps": 1024, "max_episode_steps": 50, "num_evals": 1, "num_eval_rounds": 1,
    "judge_episodes": 2, "videos": False, "model": "builtin", "wait": False, "progress": False,
}  # fmt: skip
"""A session of seconds, too short to pass."""


def run_short(folder: Path, **options: object) -> Session:
    return p2p.run("balance the pole", "InvertedPendulum-v5", runs_dir=folder, **SHORT | options)


def test_run_works_in_a_running_event_loop(tmp_path: Path) -> None:
    async def main() -> Session:
        return run_short(tmp_path)

    session = asyncio.run(main())
    assert session.status == "max_iterations"
    assert session.runs[0].status == "completed"


def test_session_stopped_in_a_thread_resumes(tmp_path: Path) -> None:
    endless = threading.Thread(target=run_short, args=(tmp_path,), kwargs={"steps": 50_000_000})
    endless.start()
    wait_until(lambda: list(tmp_path.glob("*/iter_1/*/metrics/scalars.jsonl")), 120)
    session = p2p.load("last", tmp_path)
    assert session.status == "running"
    session.stop()
    endless.join(60)
    assert not endless.is_alive()
    assert session.status == "cancelled"
    with ThreadPoolExecutor() as pool:
        resumed = pool.submit(session.resume, progress=False, max_minutes=0.05).result(120)
    assert resumed.status == "time_exhausted"


def test_interrupted_run_leaves_a_session_that_resumes(tmp_path: Path) -> None:
    code = f"import p2p; p2p.run('balance the pole', 'InvertedPendulum-v5', **{SHORT})"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "P2P_RUNS_DIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(lambda: list(tmp_path.glob("*/iter_1/reward.json")) or child.poll(), 120)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    session = p2p.load("last", tmp_path)
    assert err.splitlines()[-1] == f"KeyboardInterrupt: {session.id} can be resumed"
    assert (session.status, session.verdict) == ("cancelled", "cancelled by user")
    assert session.resume(progress=False).status == "max_iterations"


def test_a_policy_is_evaluated_and_exported(trained_run: IterationRecord, tmp_path: Path) -> None:
    policy = Run(trained_run.path).policy
    assert len(policy.evaluate(episodes=2).all_returns) == 2
    assert policy.path in [*policy.path.parent.iterdir()]
    assert tmp_path / "card" / "README.md" in policy.export(tmp_path / "card")


def test_an_environment_shows_what_it_observes() -> None:
    page = p2p.envs("Hopper-v5")._repr_html_()
    assert "rooty_angle" in page
