"""Sessions as real processes: stopped in every way, and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_servers import Failure, ModelServer, Reply, Slow
from model_wire import Received
from played_by_builtin import too_easy_at_first
from processes import command_line, descendants, is_there, kill_process, wait_until
from session_process import ENDLESS, TINY, TWO_ROUNDS, Sessions, kill_all, run_here, status

from p2p.event_log import read_events
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.statuses import EXIT_CODES
from p2p.session.stopping import read_worked_seconds

pytestmark = pytest.mark.process

EVERY_FILE = (
    "session.json",
    "intent.json",
    "iter_1/plan.json",
    "judge.json",
    "iter_1/reward.json",
    "iter_1/base_seed_1/config.json",
    "iter_1/base_seed_1/metrics/scalars.jsonl",
    "iter_1/aggregation.json",
    "iter_1/base_seed_1/judged",
    "iter_1/base_seed_1/judgment.json",
    "iter_1/best_run.json",
    "iter_1/judgment.json",
    "iter_1/revision.json",
    "iter_2/plan.json",
    "iter_2/reward.json",
    "iter_2/base_seed_1/checkpoints",
    "iter_2/base_seed_1/judged",
    "iter_2/judgment.json",
)
SOME_FILES = (
    "iter_1/reward.json",
    "iter_1/base_seed_1/metrics/scalars.jsonl",
    "iter_1/base_seed_1/judged",
    "iter_1/revision.json",
)


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    made = Sessions(tmp_path)
    yield made
    made.clean_up()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SessionRecord:
    """A session of two iterations that nobody interrupted."""
    made = Sessions(tmp_path_factory.mktemp("undisturbed"))
    process = made.new("session_u", TWO_ROUNDS)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 3, err
    assert Path(out.splitlines()[-1]) == made.runs / "session_u"
    return made.record("session_u")


def records(session: SessionRecord) -> dict[str, Any]:
    """What a session came to, without times and names."""
    found: dict[str, Any] = {}
    for path in sorted(session.path.rglob("*.json")):
        name = str(path.relative_to(session.path))
        if "streaming_judgments" in name or path.name in {"session.json", "status.json"}:
            continue  # the first is made while there is time, the others have times in them
        if path.parent.name == "llm":
            name = f"llm {path.stem.partition('_')[2]} {json.loads(path.read_text())['key']}"
            found[name] = True
            continue
        value = json.loads(path.read_text())
        for unlike in ("seconds", "training_time_s", "session_id"):
            value.pop(unlike, None)
        found[name] = value
    return found


def reached(process: subprocess.Popen[str], path: Path) -> None:
    wait_until(lambda: path.exists() or process.poll() is not None)


def interrupted_at(sessions: Sessions, files: tuple[str, ...]) -> SessionRecord:
    """A session that is killed whenever one of these is there, and gone on with each time."""
    record = sessions.record("session_k")
    process = sessions.new("session_k", TWO_ROUNDS)
    for number, name in enumerate(files):
        reached(process, record.path / name)
        if number % 2:
            kill_all(process)
        else:
            process.kill()  # what it has started goes on
            process.wait()
        process = sessions.resume("session_k")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 3, err
    return record


def same(session: SessionRecord, other: SessionRecord) -> None:
    ours, theirs = records(session), records(other)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name] == value, name


def test_killed_and_resumed_it_comes_to_the_same_and_asks_nothing_twice(
    sessions: Sessions, undisturbed: SessionRecord
) -> None:
    record = interrupted_at(sessions, SOME_FILES)
    same(record, undisturbed)
    assert status(record) == "max_iterations"
    assert record.validate() == []


@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_killed_while_confirming_it_confirms_the_same_checkpoint_once(
    sessions: Sessions, alone: bool
) -> None:
    train = {**TINY, "num_envs": 8, "num_steps": 64, "total_timesteps": 400_000, "num_evals": 20}
    episodes = {"judge_episodes": 3, "confirm_episodes": 128}  # long enough to be killed in
    process = sessions.new(
        "session_c", {**TWO_ROUNDS, "train": train, "pass_threshold": 0.8, **episodes}
    )
    iteration = sessions.record("session_c").iteration(1)
    log = iteration.path.parent / "events.jsonl"
    wait_until(lambda: "confirm.start" in log.read_text() if log.exists() else False)
    if alone:  # its training goes on
        process.kill()
        process.wait()
    else:
        kill_all(process)
    tries = iteration.confirmation_tries.read()
    assert tries is not None, process.communicate()
    (begun,) = tries.tries
    assert begun.passed is None, "it was killed too late"
    policy = iteration.path / begun.run_id / f"checkpoints/step_{begun.step}/policy.safetensors"
    trained = policy.read_bytes()

    process = sessions.resume("session_c")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    tries, best = iteration.confirmation_tries.read(), iteration.best_run.read()
    assert tries is not None
    assert tries.tries == (begun.model_copy(update={"passed": True}),)
    assert best is not None
    assert best.step == begun.step
    assert policy.read_bytes() == trained
    events = [event.event for event in read_events(log)]
    asked = [
        events.count(f"{name}.{part}") for name in ("judge", "confirm") for part in ("start", "end")
    ]
    assert asked == [1, 1, 2, 1]
    assert sessions.record("session_c").validate() == []


def test_a_request_in_flight_at_a_kill_is_counted(sessions: Sessions) -> None:
    asked = threading.Event()

    def hold(_: Received) -> Reply:
        asked.set()
        return Slow(60, Failure(500))

    with ModelServer(hold) as server:
        sessions.env = {**server.environment("anthropic"), "P2P_VLM_MODEL": ""}
        budget = {"model": server.model("anthropic"), "budget_usd": 0.17, "env_id": TINY["env_id"]}
        process = sessions.new("session_m", budget)
        assert asked.wait(240), process.communicate()
        kill_all(process)
        # What is left of the budget does not pay for a second one.
        again = sessions.resume("session_m")
        _, err = again.communicate(timeout=240)
    assert again.returncode == EXIT_CODES["budget_exhausted"], err
    assert "went to requests without an answer" in err
    assert len(server.requests) == 1
    record = sessions.record("session_m")
    result = record.result.read()
    assert result is not None
    assert (result.model_calls, result.unanswered) == (0, 1)
    assert 0.16 < result.unanswered_usd <= 0.17
    assert "1 without an answer, which may have cost up to $" in record.report_path.read_text()
    started = [e.data for e in read_events(record.events_path) if e.event == "session.started"]
    assert started == [{"resumed": False}, {"resumed": True}]


def test_killed_while_criteria_are_rewritten_it_gets_them_once(sessions: Sessions) -> None:
    asked = threading.Event()

    def hold(received: Received) -> Reply:
        if "rejected" in received.block[1] and not asked.is_set():
            asked.set()
            return Slow(60, Failure(500))
        return too_easy_at_first(received)

    record = sessions.record("session_w")
    with ModelServer(hold) as server:
        sessions.env = {**server.environment("anthropic"), "P2P_VLM_MODEL": ""}
        short = {"max_iterations": 1, "review_reward": False, "review_judge": False}
        loop = {**TWO_ROUNDS, **short, "model": server.model("anthropic")}
        process = sessions.new("session_w", loop)
        assert asked.wait(240), process.communicate()
        kill_all(process)  # while it waits for the answer
        first = record.intent.read()
        process = sessions.resume("session_w")
        wait_until(lambda: process.poll() is not None or record.intent.read() != first)
        kill_all(process)  # as soon as it has the answer
        process = sessions.resume("session_w")
        _, err = process.communicate(timeout=240)
    assert process.returncode == EXIT_CODES["max_iterations"], err
    elicited = [
        received.block[1] for received in server.requests if received.block[0] == "intent_elicitor"
    ]
    assert ["rejected" in request for request in elicited] == [False, True, True]
    assert elicited[1] == elicited[2]  # the one that was never answered
    last = record.intent.read()
    assert first is not None
    assert last is not None
    assert (first.final, last.final) == (False, True)
    assert {c.id for c in first.criteria} == {c.id for c in last.criteria}
    assert first.criteria != last.criteria
    assert record.validate() == []


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_killed_after_every_phase_and_in_the_middle_of_them_it_comes_to_the_same(
    sessions: Sessions, undisturbed: SessionRecord, first: int
) -> None:
    same(interrupted_at(sessions, EVERY_FILE[first::2]), undisturbed)


def under_way(sessions: Sessions, name: str = "session_s") -> tuple[Any, SessionRecord, list[int]]:
    """A session in the middle of a training that would take for ever, and all its processes."""
    process = sessions.new(name, ENDLESS)
    record = sessions.record(name)
    scalars = record.path / "iter_1/base_seed_1/metrics/scalars.jsonl"
    reached(process, scalars)
    assert process.poll() is None, process.communicate()
    family = descendants(process.pid)
    assert len(family) >= 2  # the executor and its sandbox
    return process, record, family


def test_a_signal_or_a_cancel_in_the_status_file_ends_it_and_leaves_no_process(
    sessions: Sessions,
) -> None:
    process, record, family = under_way(sessions)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "cancelled" in err
    wait_until(lambda: not any(map(is_there, family)))
    assert status(record) == "cancelled"
    assert status(record.iteration(1).runs()[0]) == "cancelled"  # type: ignore[arg-type]
    result = record.result.read()
    assert result is not None
    assert result.status == "cancelled"
    again = sessions.resume("session_s", "--max-iterations", "1")
    wait_until(lambda: record.events_path.read_text().count('"train.start"') == 2)
    family = descendants(again.pid)
    assert record.set_status_if("cancelled", {"running"})
    again.communicate(timeout=60)
    assert again.returncode == 130
    assert status(record) == "cancelled"
    wait_until(lambda: not any(map(is_there, family)))


def test_a_second_signal_ends_everything_at_once(sessions: Sessions) -> None:
    process, _, family = under_way(sessions)
    executor = next(pid for pid in family if "p2p.executor" in command_line(pid))
    os.kill(executor, signal.SIGSTOP)  # it will not end for being asked
    process.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 137
    wait_until(lambda: not any(map(is_there, family)))


@pytest.mark.slow
def test_out_of_time_it_ends_by_itself_and_given_more_it_comes_to_the_same(
    sessions: Sessions, undisturbed: SessionRecord
) -> None:
    process = sessions.new("session_t", {**TWO_ROUNDS, "max_minutes": 0.02})
    _, err = process.communicate(timeout=120)
    assert process.returncode == 10, err
    assert "time_exhausted: its time of 0.02 minutes is used up" in err
    record = sessions.record("session_t")
    assert read_worked_seconds(record) >= 1.2
    again = sessions.resume("session_t", "--max-minutes", "60")
    _, err = again.communicate(timeout=240)
    assert again.returncode == 3, err
    same(record, undisturbed)


def test_one_process_works_on_a_session_and_who_follows_a_killed_one_can_stop_its_training(
    sessions: Sessions,
) -> None:
    process, record, family = under_way(sessions)
    second = sessions.resume("session_s")
    _, err = second.communicate(timeout=60)
    assert second.returncode == 9
    assert f"being worked on by process {process.pid}" in err
    assert status(record) == record.derive_status() == "running"
    training = [pid for pid in family if "p2p.executor" in command_line(pid)]
    training += descendants(training[0])
    process.kill()  # its training goes on; its own time is in its files
    process.wait()
    wait_until(lambda: all(is_there(pid) == (pid in training) for pid in family), 30)
    worked = read_worked_seconds(record)
    assert worked > 0
    # Out of time, a training under way is stopped, and is no result.
    again = sessions.resume("session_s", "--max-minutes", str((worked + 8.0) / 60))
    _, err = again.communicate(timeout=120)
    assert again.returncode == 10, err
    assert record.events_path.read_text().count('"train.start"') == 2  # it took the training over
    assert status(record) == "time_exhausted"
    wait_until(lambda: not any(map(is_there, family)), 30)
    (run,) = record.iteration(1).runs()
    assert status(run) == "cancelled"  # type: ignore[arg-type]
    assert not record.iteration(1).aggregation.path.exists()
    assert not list(record.path.rglob("judgment.json"))
    result = record.result.read()
    assert result is not None
    assert (result.score, result.best_iteration) == (None, None)


@pytest.mark.slow
def test_a_training_that_the_machine_kills_twice_is_no_bad_code_and_can_go_on(
    sessions: Sessions,
) -> None:
    process, record, _ = under_way(sessions)
    run = IterationRecord(record.iteration(1).path / "base_seed_1")

    def steps() -> int:
        training, _ = run.parse_scalars()
        return int(training[-1]["global_step"]) if training else 0

    for _ in range(2):
        before = steps()
        wait_until(lambda least=before: steps() > least)  # type: ignore[misc]
        executor = run.read_status()
        assert executor is not None
        kill_process("sandbox/enter.py", below=executor.pid)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    told = record.read_status()
    assert told is not None
    assert told.status == "error"
    assert "killed from outside" in (told.error or "")
    assert "killed from outside" in err
    assert not record.iteration(1).aggregation.path.exists()  # so that it trains again


@pytest.mark.slow
def test_two_sessions_at_once_come_to_the_same_and_no_key_is_in_any_file(
    sessions: Sessions,
) -> None:
    key = "sk-canary-0123456789abcdef"
    sessions.env = {"ANTHROPIC_API_KEY": key, "OPENAI_API_KEY": key, "GEMINI_API_KEY": key}
    once, prompt = {**TWO_ROUNDS, "max_iterations": 1}, f"balance {key}"
    both = [sessions.new(f"session_{n}", once, prompt) for n in "ab"]
    for process in both:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 3, err
        assert key not in out + err
    same(sessions.record("session_a"), sessions.record("session_b"))
    files = [path for path in sessions.runs.rglob("*") if path.is_file()]
    assert len(files) > 50
    assert [path for path in files if key.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "say what the agent should do"),
        (("--prompt", " ", "--env", "InvertedPendulum-v5"), 2, "the prompt is empty"),
        (("--prompt", "balance", "--env", "Antt-v5"), 2, "did you mean Ant-v5"),
        (("--prompt", "x", "--loop-config", '{"sedes": 3}', "--env", "Ant-v5"), 2, "mean seeds"),
        (("--prompt", "x", "--loop-config", "none.json"), 2, "none.json does not exist"),
        (("--prompt", "x", "--env", "Ant-v5", "--loop-config", '{"max_minutes": 0}'), 2,
         "--max-minutes: Input should be greater than 0"),
        (("--resume", "--session-id", "session_z", "--seeds", "2"), 2, "--seeds: cannot be"),
        (("--resume",), 2, "--session-id"),
        (("--resume", "--session-id", "session_z"), 2, "is not a session"),
        (("--prompt", "frobnicate", "--env", "Ant-v5", "--loop-config", '{"model": "builtin"}'),
         1, "API_KEY"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int,
    said: str,
) -> None:  # fmt: skip
    assert run_here("--runs-dir", tmp_path, *arguments) == code
    assert said in " ".join(capsys.readouterr().err.split())
