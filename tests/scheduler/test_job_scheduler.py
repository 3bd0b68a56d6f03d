"""The scheduler on real processes: every run exactly once, whatever is killed and whenever."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest
from jobs_for_tests import (
    assert_each_ran_once,
    job_of,
    launches,
    plain_job,
    run_all,
    saying,
    states,
    the_run,
    with_slots,
)
from launches import alive, supervisor_pid
from processes import wait_until
from scheduler_process import KILLED, begin, schedule

from p2p.scheduler.job_scheduler import SchedulerStep
from p2p.scheduler.records import ENDED, RunSpec
from p2p.scheduler.service import ensure_scheduler, hold_scheduler_lock, is_running
from p2p.scheduler.store import Store
from p2p.scheduler.supervisor import TIME_LIMIT_CODE

pytestmark = pytest.mark.usefixtures("own_cores")


def is_live(store: Store, run_id: str) -> bool:
    """Whether its program has said that it runs."""
    return bool(launches(store.runs_dir, the_run(store, run_id).folder))


@pytest.mark.parametrize("step", get_args(SchedulerStep))
@pytest.mark.process
def test_killed_scheduler_is_continued_by_the_next(tmp_path: Path, step: SchedulerStep) -> None:
    store = with_slots(tmp_path, 2)
    store.submit(job_of("j", [saying("a", seconds=0.3), saying("b"), saying("c")]))
    if step == "cancel sent":
        store.submit(job_of("k", [saying("d", seconds=300)], priority=1))
        process = begin(tmp_path, step)
        wait_until(lambda: is_live(store, "d"))
        store.cancel("k")
        assert process.wait(60) == KILLED
        assert the_run(store, "d").state in ("starting", "running")
    else:
        assert schedule(tmp_path, step) == KILLED
    assert schedule(tmp_path) == 0
    assert_each_ran_once(store, "j")
    if step == "cancel sent":
        assert states(store, "k") == {"d": "cancelled"}
        assert launches(tmp_path, "d") == ["d.1"]


@pytest.mark.parametrize("step", ["assigned", "submitted", "running noted"])
@pytest.mark.process
def test_cancel_without_a_scheduler_is_kept(tmp_path: Path, step: SchedulerStep) -> None:
    store = with_slots(tmp_path, 1)
    store.submit(job_of("j", [saying("a", seconds=300), saying("b")]))
    assert schedule(tmp_path, step) == KILLED
    store.cancel("j")
    assert states(store, "j")["b"] == "cancelled"
    assert schedule(tmp_path) == 0
    assert states(store, "j") == {"a": "cancelled", "b": "cancelled"}
    assert launches(tmp_path, "a") in ([], ["a.1"])
    assert launches(tmp_path, "b") == []


@pytest.mark.process
def test_stopped_scheduler_leaves_its_runs_running(tmp_path: Path) -> None:
    store = with_slots(tmp_path, 1)
    store.submit(job_of("j", [saying("a", seconds=1.5)]))
    process = begin(tmp_path)
    wait_until(lambda: is_live(store, "a"))
    process.terminate()
    assert process.wait(30) == 0
    assert the_run(store, "a").state == "running"
    run_all(store)
    assert launches(tmp_path, "a") == ["a.1"]
    assert the_run(store, "a").state == "succeeded"


@pytest.mark.process
def test_lost_run_is_retried_up_to_its_limit(tmp_path: Path) -> None:
    store = with_slots(tmp_path, 1)
    store.submit(job_of("j", [saying("a", seconds=300, max_attempts=2)]))
    process = begin(tmp_path)
    for attempt in ("a.1", "a.2"):
        wait_until(lambda wanted=attempt: wanted in launches(tmp_path, "a"))  # type: ignore[misc]
        os.kill(supervisor_pid(store.folder / "launches" / attempt), signal.SIGKILL)
    assert process.wait(60) == 0
    run = the_run(store, "a")
    assert (run.state, run.attempt) == ("failed", 2)
    assert "the last" in run.message


def test_exit_code_decides_state_of_run(tmp_path: Path) -> None:
    store = with_slots(tmp_path, 4)
    store.submit(
        job_of(
            "j",
            [
                saying("fails", code=4),
                saying("again", code=5, retry_codes=(5,), max_attempts=3),
                saying("done", code=3, done_codes=(0, 3)),
                saying("slow", seconds=300, time_limit_s=0.5),
                saying("next", requires=("fails",)),
                saying("report", after=("fails", "next")),
            ],
        )
    )
    run_all(store)
    assert states(store, "j") == {
        "fails": "failed",
        "again": "failed",
        "done": "succeeded",
        "slow": "failed",
        "next": "skipped",
        "report": "succeeded",
    }
    assert launches(tmp_path, "again") == ["again.1", "again.2", "again.3"]
    assert launches(tmp_path, "next") == []
    assert the_run(store, "fails").exit_code == 4
    assert the_run(store, "slow").exit_code == TIME_LIMIT_CODE


@pytest.mark.process
def test_two_schedulers_work_on_different_jobs(tmp_path: Path) -> None:
    store = with_slots(tmp_path, 2)
    names = ("a", "b")
    for name in names:
        store.submit(plain_job(name, 4, seconds=0.05))
    command = [sys.executable, "-m", "p2p.scheduler.job_scheduler", "--runs-dir", str(tmp_path)]
    processes = [
        subprocess.Popen([*command, "--until-idle", "--job-id", name], stderr=subprocess.DEVNULL)
        for name in names
    ]
    assert [process.wait(60) for process in processes] == [0, 0]
    for name in names:
        assert_each_ran_once(store, name)


@pytest.mark.process
def test_ensure_scheduler_starts_one_that_ends_when_idle(
    tmp_path: Path,
) -> None:
    store = with_slots(tmp_path, 2)
    for name in ("first", "second"):
        store.submit(plain_job(name, 1, seconds=0.3))
        ensure_scheduler(tmp_path)
    wait_until(lambda: all(run.state in ENDED for run in store.runs()))
    wait_until(lambda: not is_running(tmp_path))
    assert {run.state for run in store.runs()} == {"succeeded"}
    assert launches(tmp_path, "first-0") == ["first-0.1"]
    assert (store.folder / "jobs" / "second" / "manifest.json").is_file()


@pytest.mark.process
def test_second_scheduler_of_a_folder_ends_with_busy(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "p2p.scheduler.job_scheduler", "--runs-dir", str(tmp_path)]
    with hold_scheduler_lock(tmp_path):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 9
    assert "works on" in done.stderr


def test_secret_reaches_its_run_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-1234")
    monkeypatch.setenv("GEMINI_API_KEY", "other-secret-5678")
    store = with_slots(tmp_path, 1)
    code = (
        "import os, sys; from pathlib import Path; "
        "Path(sys.argv[1], 'seen.txt').write_text("
        "os.environ['OPENAI_API_KEY'][::-1] + str('GEMINI_API_KEY' in os.environ))"
    )
    spec = RunSpec(
        run_id="a",
        folder="a",
        command=("{python}", "-c", code, "{folder}"),
        secrets=("OPENAI_API_KEY", "NOT_SET"),
    )
    store.submit(job_of("j", [spec]))
    run_all(store)
    assert (tmp_path / "a" / "seen.txt").read_text() == "sk-very-secret-1234"[::-1] + "False"
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"very-secret" not in path.read_bytes(), path
            assert b"other-secret" not in path.read_bytes(), path


@pytest.mark.slow
def test_scheduler_killed_twenty_times_runs_each_once(
    tmp_path: Path,
) -> None:
    store = with_slots(tmp_path, 4)
    store.submit(plain_job("j", 50, seconds=0.3))
    chance = random.Random(7)
    for _ in range(20):
        process = begin(tmp_path)
        time.sleep(chance.uniform(0.3, 2.0))
        process.kill()
        process.wait()
    assert schedule(tmp_path) == 0
    assert_each_ran_once(store, "j")
    pids = [supervisor_pid(path) for path in (store.folder / "launches").iterdir()]
    wait_until(lambda: not alive(pids))
