"""What there is to see: a session with two iterations, a benchmark, a self-play run with games."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import numpy as np

from p2p.benchmark.measuring import SEEDS, TruthResult, truth_path
from p2p.benchmark.planning import BenchmarkRequest, job_of, plan, prepare
from p2p.benchmark.records import case_record
from p2p.benchmark.suite import Case, Difficulty
from p2p.contracts import (
    AuthoredCode,
    JudgmentResult,
    Lesson,
    RewardSpec,
    SessionResult,
    StatusLiteral,
)
from p2p.event_log import EventLog
from p2p.files import save_model
from p2p.records.iteration_record import IterationRecord
from p2p.records.lineage import Lineage
from p2p.records.loop_files import BestRun
from p2p.scheduler.job_files import saved_log_path
from p2p.scheduler.records import JobSpec, RunSpec, RunState
from p2p.scheduler.store import Store, end_run, transaction
from p2p.training.video.playback import write_video
from session_folder import SessionFolder, reward
from unstable.config import RunConfig
from unstable.run import RunFolder, SelfPlayStatus

SESSION = "session_20260101_000000_00000000"
SELFPLAY = "tictactoe"
BENCHMARK = "bm_20260101_000000_00000000"
JOB = "nightly"
EARLIER = datetime(2026, 1, 1, tzinfo=UTC)
LABELS = ("p10", "median", "p90")
PROMPTS: dict[str, Difficulty] = {"reach": "easy", "reach fast": "medium", "reach slowly": "hard"}
A_POLICY = b"not one that is played here"


def make_runs(folder: Path) -> None:
    """All of it, in `folder`/runs and `folder`/outputs."""
    make_session(folder / "runs")
    make_benchmark(folder / "runs")
    make_selfplay(folder / "outputs" / SELFPLAY)
    make_job(folder / "runs")


def make_session(runs: Path) -> None:
    """It passed in its second iteration, and both have videos."""
    made = SessionFolder.create(runs, model="builtin")
    session = made.record
    for number, score in ((1, 0.45), (2, 0.92)):
        iteration = made.iterate(
            number,
            score,
            parent=number - 1 or None,
            changes="speed counts twice" if number == 2 else "",
        )
        code = AuthoredCode(code=reward(number), author="builtin", valid=True)
        iteration.reward.save(code)
        iteration.save_reward_spec(RewardSpec(latex="r = w v_x", terms={"speed": "forward"}))
        iteration.best_run.save(BestRun(run_id="base_seed_1", step=100_000, score=score))
        iteration.set_status("completed")
        for step in (50_000, 100_000):
            film(IterationRecord(iteration.path / "base_seed_1"), step, number)
    lesson = Lesson(text="too little speed", tier="STRONG", learned_at=1)
    data = made.view().lineage.data.model_copy(update={"lessons": (lesson,)})
    made.save_lineage(Lineage(data))
    session.result.save(SessionResult(
            status="passed", best_iteration=2, run_id="base_seed_1", step=100_000, score=0.92,
            confirmed_score=0.9, iterations=2, seconds=61.0,
            policy="iter_2/base_seed_1/checkpoints/step_100000/policy.zip",
            videos=tuple(f"iter_2/base_seed_1/videos/eval_100000_{each}.mp4" for each in LABELS),
        ),
    )  # fmt: skip
    policy = session.iteration(2).path / "base_seed_1" / "checkpoints" / "step_100000"
    policy.mkdir(parents=True)
    (policy / "policy.zip").write_bytes(A_POLICY)
    session.report_path.write_text("# run forward fast\n")
    log = EventLog(session.events_path)
    for number in range(3):
        log.emit("something.happened", number=number)
    session.set_status("passed")


def film(run: IterationRecord, step: int, brightness: int) -> None:
    """Two seconds of a ball that rolls, of a weak, a middling and a good episode."""
    run.videos_dir.mkdir(exist_ok=True)
    for pace, label in enumerate(LABELS, 1):
        frames = np.full((60, 96, 96, 3), 30 * brightness, np.uint8)
        for moment, frame in enumerate(frames):
            at = (moment * pace) % 80
            frame[40:56, at : at + 16] = (240, 180, 60)
        write_video(run.videos_dir / f"eval_{step}_{label}.mp4", frames, Fraction(30))


def make_benchmark(runs: Path) -> None:
    """Three prompts that have ended; the judge is wrong about the second."""
    cases = [
        Case(
            number=number, env_id="Reacher-v5", instruction=instruction, category="manipulation",
            difficulty=difficulty, truth="reach_gap", threshold=0.05,
        )
        for number, (instruction, difficulty) in enumerate(PROMPTS.items())
    ]  # fmt: skip
    planned = plan(cases, "tests.csv", BenchmarkRequest(model="builtin", vlm_model=""))
    made = planned.model_copy(update={"benchmark_id": BENCHMARK})
    folder = prepare(made, runs)
    with closing(Store(runs)) as store:
        store.submit(job_of(made, runs))
        for run in store.runs(BENCHMARK):
            end(store, run.run_id, "succeeded")
    for number, (score, attained) in enumerate(((0.9, 1.0), (0.85, 0.4), (0.3, 0.2))):
        end_case(folder, number, score)
        truth = TruthResult(
            truth="reach_gap", unit="m", better="at_most", threshold=0.05, value=0.05 / attained,
            std=0.01, values=(0.05 / attained,), passed=attained == 1.0, attained=attained,
            seeds=SEEDS, policy=hashlib.sha256(A_POLICY).hexdigest(),
        )  # fmt: skip
        save_model(truth_path(folder, number), truth)


def make_job(runs: Path) -> None:
    """Runs that ended in each of the ways there are; one of them has a log."""
    ends: dict[str, RunState] = {
        "good": "succeeded", "broken": "failed", "stopped": "cancelled", "needed": "skipped",
    }  # fmt: skip
    specs = tuple(
        RunSpec(run_id=f"{JOB}_{name}", folder=f"{JOB}/{name}", command=("true",)) for name in ends
    )
    with closing(Store(runs)) as store:
        job = JobSpec(job_id=JOB, kind="command", title="nightly", runs=specs, created_at=EARLIER)
        store.submit(job)
        for name, state in ends.items():
            message = "exit code 3" if state == "failed" else ""
            end(store, f"{JOB}_{name}", state, message)
        log = saved_log_path(store, f"{JOB}_broken.1")
        log.parent.mkdir(exist_ok=True)
        log.write_text("a line that is wider than a phone is, so that it has to be scrolled\n" * 40)


def end(store: Store, run_id: str, state: RunState, message: str = "") -> None:
    """As if it had run here."""
    with transaction(store.connection) as connection:
        connection.execute(
            "UPDATE runs SET node_id = 'local', started_at = ? WHERE run_id = ?",
            (EARLIER.timestamp(), run_id),
        )
        end_run(connection, run_id, state, message)


def end_case(folder: Path, number: int, score: float) -> None:
    """A session of one iteration with a policy and a video."""
    record = case_record(folder, number)
    run = IterationRecord(record.iteration(1).path / "base_seed_1")
    checkpoint = run.checkpoints_dir / "step_100"
    checkpoint.mkdir(parents=True)
    (checkpoint / "policy.safetensors").write_bytes(A_POLICY)
    film(run, 100, number + 1)
    status: StatusLiteral = "passed" if score >= 0.8 else "max_iterations"
    result = SessionResult(
        status=status, score=score, iterations=1, best_iteration=1, run_id="base_seed_1", step=100,
        seconds=90.0, policy="iter_1/base_seed_1/checkpoints/step_100/policy.zip",
        videos=tuple(f"iter_1/base_seed_1/videos/eval_100_{label}.mp4" for label in LABELS),
    )  # fmt: skip
    record.iteration(1).save_judgment(
        JudgmentResult(intent_score=score, passed=status == "passed", diagnosis="it reaches")
    )
    record.result.save(result)
    record.set_status("running")
    record.set_status(status)


def make_selfplay(path: Path) -> None:
    """A run of two updates that was evaluated."""
    folder = RunFolder(path)
    folder.path.mkdir(parents=True)
    folder.write_config(RunConfig())
    folder.write_status(SelfPlayStatus("completed", 2, 2))
    lines = [{"step": number, "learner/loss": 0.5 / number} for number in (1, 2)]
    write_lines(folder.path / "metrics.jsonl", lines)
    write_lines(folder.path / "games" / "eval.jsonl", [a_game(number) for number in (1, 2, 3)])
    won: dict[str, object] = {
        "env_id": "TicTacToe-v0", "player_id": 0, "invalid": False, "rewards": {"0": 1, "1": -1},
    }  # fmt: skip
    lost = {**won, "rewards": {"0": -1, "1": 1}}
    games = [
        {**game, "ckpt_uid": uid, "opponent": opponent}
        for opponent in ("random-legal", "minimax")
        for uid, results in (("ckpt--1", [lost, lost, won]), ("ckpt-2", [won, won, lost]))
        for game in results
    ]
    write_lines(folder.path / "eval_data" / "games.jsonl", games)


def a_game(number: int) -> dict[str, object]:
    """Three moves, the last of them illegal; as the run's tracker writes it."""
    players = [
        {"seat": 0, "uid": "ckpt-2", "kind": "checkpoint", "version": 2, "learner": True},
        {"seat": 1, "uid": "random-legal", "kind": "fixed", "version": -1, "learner": False},
    ]
    said = (("I take the middle: [4].", "[4]"), ("[0]", "[0]"), ("[0] is mine", "[0]"))
    moves = [
        {
            "seat": turn % 2, "observation": "0 1 2\n3 4 5\n6 7 8", "shared": 0, "answer": answer,
            "action": action, "legal": turn < 2, "board": "O 1 2\n3 X 5\n6 7 8", "opening": False,
        }
        for turn, (answer, action) in enumerate(said)
    ]  # fmt: skip
    return {
        "time": 0.0, "step": 2, "id": f"eval-{number}", "kind": "eval", "env_id": "TicTacToe-v0",
        "seed": number, "group": "", "players": players, "moves": moves,
        "rewards": {"0": -1.0, "1": 1.0}, "reason": "an illegal move", "ended_by_invalid": 0,
    }  # fmt: skip


def write_lines(path: Path, records: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
