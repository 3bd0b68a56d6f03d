"""Files are whole or not there, and locks hold between processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from p2p import files


def test_a_written_file_replaces_the_old_one_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "deep" / "a.json"
    files.write_json(path, {"a": 1})
    files.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(path, {"a": float("nan")})
    path.unlink()
    (tmp_path / "a.json" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match=r"a\.json"):
        files.write_text(path, "x")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_link_is_replaced_and_its_target_left_alone(tmp_path):
    target = tmp_path / "target"
    target.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(target)
    files.write_text(link, "new")
    assert target.read_text() == "mine"
    assert link.read_text() == "new"
    assert not link.is_symlink()


def test_a_written_file_has_the_permissions_of_an_ordinary_file(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("x")
    files.write_text(tmp_path / "ours", "x")
    assert (tmp_path / "ours").stat().st_mode == plain.stat().st_mode


def test_text_that_utf8_cannot_hold_is_written_all_the_same(tmp_path):
    files.write_text(tmp_path / "t", "a\ud800b")
    assert (tmp_path / "t").read_text() == "a?b"


def test_readers_never_see_a_half_written_file(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"x": ""})
    done = threading.Event()

    def write() -> None:
        for size in range(0, 200_000, 5000):
            files.write_json(path, {"x": "y" * size})
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        json.loads(path.read_text())
    writer.join()


def test_a_second_holder_waits_and_then_gives_up(tmp_path):
    lock = tmp_path / "lock"
    with (
        files.locked(lock),
        pytest.raises(TimeoutError, match="stayed locked"),
        files.locked(lock, patience_s=0.05),
    ):
        pass
    with files.locked(lock, patience_s=0.05):
        pass


def test_a_killed_holder_frees_the_lock(tmp_path):
    lock = tmp_path / "lock"
    code = (
        "import sys, time, pathlib; from p2p.files import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(TimeoutError), files.locked(lock, patience_s=0.05):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    start = time.monotonic()
    with files.locked(lock, patience_s=5):
        assert time.monotonic() - start < 5
