"""Files are whole or not there, locks hold between processes, and lines come out whole."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p import files


def test_write_json_replaces_and_leaves_no_temporary(tmp_path):
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
        files.hold_lock(lock),
        pytest.raises(TimeoutError, match="stayed locked"),
        files.hold_lock(lock, patience_s=0.05),
    ):
        pass
    with files.hold_lock(lock, patience_s=0.05):
        pass


def test_a_waiter_gets_its_turn_beside_one_who_takes_the_lock_again_at_once(tmp_path):
    lock, taken, done = tmp_path / "lock", threading.Event(), threading.Event()

    def take() -> None:
        while not done.is_set():
            with files.hold_lock(lock):
                taken.set()
                time.sleep(0.01)

    busy = threading.Thread(target=take)
    busy.start()
    try:
        for patience_s in (*[files.LOCK_PATIENCE_S] * 20, math.inf):
            taken.clear()
            assert taken.wait(60)
            with files.hold_lock(lock, patience_s=patience_s):
                pass
    finally:
        done.set()
        busy.join()


def test_who_gave_up_waiting_does_not_keep_the_lock_later(tmp_path):
    lock = tmp_path / "lock"
    with files.hold_lock(lock):
        for _ in range(3):
            with pytest.raises(TimeoutError), files.hold_lock(lock, patience_s=0.01):
                pass
    for _ in range(5):
        with files.hold_lock(lock, patience_s=5):
            pass


def test_a_killed_holder_frees_the_lock(tmp_path):
    lock = tmp_path / "lock"
    code = (
        "import sys, time, pathlib; from p2p.files import hold_lock\n"
        "with hold_lock(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(TimeoutError), files.hold_lock(lock, patience_s=0.05):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with files.hold_lock(lock):
        pass


# --- JSON lines ------------------------------------------------------------------------------


def _lines(*values: object) -> bytes:
    return b"".join(json.dumps(v).encode() + b"\n" for v in values)


def test_a_new_line_never_continues_a_torn_one(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(_lines({"a": 1}) + b'{"a": 2, "b')
    size = files.append_line(path, b'{"a": 3}')
    assert size == path.stat().st_size
    lines, _ = files.read_from(path)
    assert [files.parse_line(line) for line in lines] == [{"a": 1}, None, {"a": 3}]


def test_read_from_waits_for_a_complete_line(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(_lines({"a": 1}) + b'{"a"')
    lines, offset = files.read_from(path)
    assert len(lines) == 1
    with path.open("ab") as stream:
        stream.write(b": 2}\n")
    assert files.read_from(path, offset)[0] == [b'{"a": 2}']


def test_a_replaced_shorter_file_is_read_anew(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(_lines({"a": 1}))
    assert files.read_from(path, offset=1000)[0] == [b'{"a": 1}']


def test_a_line_longer_than_the_chunk_is_read_whole(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(_lines({"a": "z" * 1000}, {"b": 1}))
    lines, offset = files.read_from(path, 0, max_bytes=10)
    while len(lines) < 2:
        more, offset = files.read_from(path, offset, max_bytes=10)
        lines += more
    assert [len(line) for line in lines] == [1009, 8]


def test_an_absent_file_or_a_folder_has_no_lines(tmp_path):
    assert files.read_from(tmp_path / "no") == ([], 0)
    assert files.read_from(tmp_path) == ([], 0)
    assert list(files.lines_backward(tmp_path / "no")) == []


@pytest.mark.parametrize("line", [b"", b"[1]", b"3", b"{", b"\xff", b"[" * 100_000, b'"\\ud8"'])
def test_what_is_not_an_object_is_none(line):
    assert files.parse_line(line) is None


@given(
    st.lists(st.binary(max_size=50).map(lambda b: b.replace(b"\n", b"")).filter(bool), max_size=9),
    st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")),
    st.sampled_from([1, 2, 7, 1 << 14]),
)
def test_backward_is_forward_reversed(tmp_path_factory, lines, torn, block):
    path = tmp_path_factory.mktemp("jsonl") / "x"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + torn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_BLOCK", block)
        assert list(files.lines_backward(path)) == lines[::-1]
        with_torn = list(files.lines_backward(path, unfinished=True))
    assert with_torn == ([torn] if torn else []) + lines[::-1]


def test_numbers_are_given_to_each_writer_alone_and_nobody_waits(tmp_path: Path) -> None:
    def numbers() -> list[int]:
        return [int(path.stem) for path in tmp_path.glob("*.json")]

    with files.free_number(tmp_path, numbers) as slow, files.free_number(tmp_path, numbers) as fast:
        assert (slow, fast) == (1, 2)
        (tmp_path / "2.json").touch()
    with files.free_number(tmp_path, numbers) as after:  # 1 was never written
        assert after == 3
    listed = iter([[], [1], [1], [1]])  # 1 came between the look and the hold
    with files.free_number(tmp_path, lambda: next(listed)) as number:
        assert number == 2
    assert [path.name for path in tmp_path.iterdir()] == ["2.json"]
