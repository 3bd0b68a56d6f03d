"""A cancel is never lost, and a dead process does not count as running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import get_args

import pytest

from p2p.contracts import StatusLiteral
from p2p.files import hold_lock
from p2p.records.folder import STALE_AFTER_S
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.statuses import EXIT_BAD_INPUT, EXIT_BUSY, EXIT_CODES, STATUS
from p2p.utils.subprocess_utils import process_is_alive, process_start_time

_OWNER = """
import sys, pathlib, time
from p2p.records.iteration_record import IterationRecord
IterationRecord(pathlib.Path(sys.argv[1])).set_status("running")
print("running", flush=True)
time.sleep(60)
"""


def _age(record: IterationRecord | SessionRecord, seconds: float = STALE_AFTER_S + 60) -> None:
    """Make the last sign of life this old."""
    data = json.loads(record.status_path.read_text())
    then = time.time() - seconds
    data["updated_at"] = then
    record.status_path.write_text(json.dumps(data))
    os.utime(record.status_path, (then, then))


def test_every_status_has_a_meaning_and_an_exit_code_has_one(tmp_path):
    assert set(STATUS) == set(get_args(StatusLiteral))
    assert len(set(EXIT_CODES.values()) | {EXIT_BAD_INPUT, EXIT_BUSY}) == len(EXIT_CODES) + 2


@pytest.mark.parametrize("status", STATUS)
def test_every_status_reads_back(tmp_path, status):
    record = IterationRecord(tmp_path / "r")
    record.set_status(status, error="why")
    data = record.read_status()
    assert data is not None
    assert (data.status, data.error) == (status, "why")
    assert record.derive_status() == status
    assert (data.pid == os.getpid()) == (status in {"running", "paused"})


def test_no_later_status_is_written_over_a_cancel(tmp_path, caplog):
    record = IterationRecord(tmp_path)
    record.set_status("running")
    record.set_status("cancelled")
    for later in ("running", "completed", "error"):
        record.set_status(later)
        assert record.derive_status() == "cancelled"
    assert "is cancelled" in caplog.text
    assert not record.set_status_if("running", {"running", "pending"})
    assert record.set_status_if("running", {"cancelled"})
    assert record.derive_status() == "running"


def test_compare_and_set_knows_absent_and_unreadable(tmp_path):
    record = IterationRecord(tmp_path / "a")
    assert not record.set_status_if("running", {"queued"})
    assert record.set_status_if("queued", {"pending"})
    record.status_path.write_text("{")
    assert not record.set_status_if("running", {"queued", "pending"})
    assert record.set_status_if("running", {"unknown"})


def test_of_many_that_claim_one_wins(tmp_path):
    record = IterationRecord(tmp_path)
    record.set_status("queued")
    wins: list[bool] = []
    start = threading.Barrier(8)

    def claim() -> None:
        start.wait()
        wins.append(record.set_status_if("running", {"queued"}))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(wins) == 1


def test_a_cancel_survives_heartbeats_and_a_busy_worker(tmp_path):
    record = IterationRecord(tmp_path)
    record.set_status("running")
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            record.touch_heartbeat()
            record.set_status("running")

    worker = threading.Thread(target=work)
    worker.start()
    record.set_status("cancelled")
    time.sleep(0.05)
    stop.set()
    worker.join()
    record.set_status("completed")
    assert record.derive_status() == "cancelled"


def test_a_running_process_of_another_is_running_until_it_is_killed(tmp_path):
    record = IterationRecord(tmp_path / "r")
    arguments = [sys.executable, "-c", _OWNER, str(record.path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        _age(record)
        assert record.derive_status() == "running"  # silent, but there
        os.kill(owner.pid, signal.SIGKILL)
        while process_is_alive(owner.pid, None):
            time.sleep(0.01)
        assert record.derive_status() == "stale"  # still a zombie of ours here
    assert record.derive_status() == "stale"
    record.touch_heartbeat()
    assert record.derive_status() == "running"  # someone, perhaps on another machine, gives signs


def test_a_later_process_with_the_same_number_is_not_taken_for_it(tmp_path):
    record = SessionRecord(tmp_path)
    record.set_status("running")
    data = json.loads(record.status_path.read_text())
    assert data["pid_started"] == pytest.approx(process_start_time(os.getpid()))
    data["pid_started"] -= 1000
    record.status_path.write_text(json.dumps(data))
    _age(record)
    assert record.derive_status() == "stale"


def test_running_without_a_process_goes_stale_and_ended_ones_do_not(tmp_path):
    record = IterationRecord(tmp_path)
    record.set_status("running")
    data = json.loads(record.status_path.read_text())
    record.status_path.write_text(json.dumps({**data, "pid": None, "pid_started": None}))
    assert record.derive_status() == "running"
    _age(record)
    assert record.derive_status() == "stale"
    record.set_status("completed")
    _age(record)
    assert record.derive_status() == "completed"


def test_without_a_status_file_the_other_files_speak(tmp_path):
    record = IterationRecord(tmp_path / "iter_1")
    assert record.derive_status() == "unknown"
    record.path.mkdir()
    assert record.derive_status() == "pending"
    record.scalars_path.parent.mkdir()
    record.scalars_path.touch()
    assert record.derive_status() == "unknown"


@pytest.mark.parametrize(
    ("runs", "whole"),
    [
        (["running", "completed"], "running"),
        (["pending", "pending"], "pending"),
        (["pending", "completed"], "running"),
        (["completed", "error"], "completed"),
        (["error", "error"], "error"),
        (["cancelled", "error"], "cancelled"),
        (["completed", "unknown"], "unknown"),
    ],
)
def test_a_loop_iteration_stands_as_its_runs_do(tmp_path, runs, whole):
    iteration = IterationRecord(tmp_path)
    for seed, status in enumerate(runs):
        IterationRecord(tmp_path / f"base_seed_{seed}").set_status(status)
    assert iteration.derive_status() == whole
    iteration.set_status("passed")
    assert iteration.derive_status() == "passed"


def test_a_session_whose_lock_nobody_holds_is_gone_long_before_its_process_is_missed(tmp_path):
    session = SessionRecord(tmp_path / "session_x")
    session.set_status("running")
    _age(session, 60)
    assert session.derive_status() == "running"  # not of the loop: it has no lock
    with hold_lock(session.lock_path):
        assert session.derive_status() == "running"
    assert session.derive_status() == "stale"
    session.touch_heartbeat()
    assert session.derive_status() == "running"
