"""One sequence over all writers, and readers that page and never choke."""

from __future__ import annotations

import contextvars
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from p2p import event_log, settings
from p2p.contracts import RewardSpec
from p2p.event_log import EventLog, read_event, read_events, span, use_log

_WRITER = """
import sys, pathlib
from p2p.event_log import EventLog
log = EventLog(pathlib.Path(sys.argv[1]))
for i in range(int(sys.argv[3])):
    log.emit("e", writer=sys.argv[2], i=i, text="x" * 3000)
    if i == 0: print("on the way", flush=True)
"""


def _start_writer(path: Path, name: str, count: int) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", _WRITER, str(path), name, str(count)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def test_several_processes_and_threads_write_one_sequence(path):
    writers = [_start_writer(path, str(n), 100) for n in range(3)]
    log = EventLog(path)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: log.emit("t", i=i), range(100)))
    assert [w.wait() for w in writers] == [0, 0, 0]
    for w in writers:
        w.stdout.close()
    events = read_events(path, limit=10_000)
    assert [e.seq for e in events] == list(range(1, 401))
    for name in "012":
        own = [e.data["i"] for e in events if e.data.get("writer") == name]
        assert own == list(range(100))
    assert sorted(e.data["i"] for e in events if e.event == "t") == list(range(100))


def test_a_killed_writer_costs_neither_the_lock_nor_a_number(path):
    for round_number in range(2):
        with _start_writer(path, "killed", 1_000_000) as writer:
            writer.stdout.readline()
            log = EventLog(path)
            for _ in range(20):
                log.emit("mine", round=round_number)
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
        log.emit("after", round=round_number)
    seqs = [e.seq for e in read_events(path, limit=100_000)]
    assert seqs == list(range(1, len(seqs) + 1))


def test_torn_event_line_is_skipped(path):
    log = EventLog(path)
    log.emit("a")
    with path.open("ab") as stream:
        stream.write(b'{"seq": 2, "timestamp": "2026-')
    assert [e.event for e in read_events(path)] == ["a"]
    log.emit("b")
    EventLog(path).emit("c")
    assert [(e.seq, e.event) for e in read_events(path)] == [(1, "a"), (2, "b"), (3, "c")]


def test_a_line_that_lacks_only_its_newline_keeps_its_number(path):
    EventLog(path).emit("a")
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size - 1)
    assert EventLog(path).emit("b").seq == 2
    assert [(e.seq, e.event) for e in read_events(path)] == [(1, "a"), (2, "b")]


def test_foreign_lines_are_skipped(path):
    path.write_bytes(b'[]\nnoise\n{"seq": "x"}\n{"seq": 99, "other": 1}\n\xff\xfe\n\n')
    assert EventLog(path).emit("a").seq == 1
    assert [e.event for e in read_events(path)] == ["a"]


def test_the_sequence_is_taken_from_the_end_of_the_file_only(path):
    EventLog(path).emit("a")
    line = path.read_bytes()
    with path.open("wb") as stream:
        stream.seek(1 << 33)  # a hole of 8 GiB that no test could read
        stream.write(b"\n" + line)
    assert EventLog(path).emit("b").seq == 2


@pytest.mark.parametrize("text", ["", "x" * 2000])
def test_pages_join_into_the_whole(path, text):
    log = EventLog(path)
    for i in range(250):
        log.emit("e", i=i, text=text)
        if i % 50 == 10:
            with path.open("ab") as stream:
                stream.write(b"noise\n")
    seen = []
    while page := read_events(path, after_seq=seen[-1] if seen else 0, limit=37):
        assert len(page) <= 37
        seen += [e.seq for e in page]
    assert seen == list(range(1, 251))
    for seq in (1, 2, 125, 249, 250):
        event = read_event(path, seq)
        assert event is not None
        assert event.data == {"i": seq - 1, "text": text}
    assert read_event(path, 0) is None
    assert read_event(path, 251) is None
    assert read_events(path, limit=0) == []


def test_read_events_shortens_and_read_event_does_not(path):
    long = "y" * 50_000
    data = {
        "conversation": [{"role": "user", "content": [{"text": long}]}] * 300,
        "tool": {"payload": {"deep": long}},
        "many": {str(i): i for i in range(500)},
    }
    EventLog(path).emit("llm.call", **data)
    (short,) = read_events(path)
    assert len(short.model_dump_json()) < 20_000
    assert "50000 characters" in short.data["tool"]["payload"]["deep"]
    assert "300 items" in short.data["conversation"][-1]
    full = read_event(path, 1)
    assert full is not None
    assert full.data == data


def test_a_span_tells_its_start_its_end_and_how_long(path):
    with use_log(EventLog(path)), span("train", iteration=3, seed=1) as outcome:
        outcome["steps"] = 7
        outcome["event"] = "any name may be used"
    start, end = read_events(path)
    assert (start.event, start.iteration, start.data) == ("train.start", 3, {"seed": 1})
    assert end.event == "train.end"
    assert end.data == {"seed": 1, "steps": 7, "event": "any name may be used"}
    assert start.duration_ms is None
    assert end.duration_ms is not None


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
def test_a_span_tells_its_error_and_passes_it_on(path, error):
    with pytest.raises(type(error)), use_log(EventLog(path)), span("judge"):
        raise error
    last = read_events(path)[-1]
    assert last.event == "judge.error"
    assert last.data["error_type"] == type(error).__name__
    assert last.duration_ms is not None


def test_without_a_log_nothing_happens_and_the_body_runs(tmp_path):
    event_log.emit("nobody", listens=1)
    with event_log.span("nor", here=1) as outcome:
        outcome["x"] = 1
    assert list(tmp_path.iterdir()) == []


def test_the_current_log_is_the_contexts_own(path, tmp_path):
    other = tmp_path / "other.jsonl"
    with event_log.use_log(EventLog(path)):
        event_log.emit("a")
        with event_log.use_log(EventLog(other)):
            event_log.emit("b")
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: context.run(event_log.emit, "c"))
        thread.start()
        thread.join()
        bare = threading.Thread(target=lambda: event_log.emit("lost"))
        bare.start()
        bare.join()
    event_log.emit("lost")
    assert [e.event for e in read_events(path)] == ["a", "c"]
    assert [e.event for e in read_events(other)] == ["b"]


def test_anything_can_be_told_and_the_line_is_plain_json(path):
    data = {
        "nan": float("nan"),
        "inf": np.float32("inf"),
        "number": np.int64(3),
        "path": Path("/x"),
        "spec": RewardSpec(latex="r"),
        "odd": "\ud800",
        "set": {1},
        "newline": "a\nb\r\u2028",
    }
    EventLog(path).emit("e", **data)
    (line,) = path.read_bytes().splitlines()
    json.loads(line, parse_constant=pytest.fail)
    (event,) = read_events(path)
    assert event.data["nan"] == "nan"
    assert event.data["number"] == 3
    assert event.data["spec"]["latex"] == "r"
    assert event.data["newline"] == data["newline"]


def test_a_secret_does_not_reach_the_file(path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-very-secret-key")
    settings.get_settings.cache_clear()
    try:
        EventLog(path).emit(
            "e", said="my key is sk-very-secret-key", nested=[{"k": "sk-very-secret-key"}]
        )
    finally:
        settings.get_settings.cache_clear()
    assert b"very-secret" not in path.read_bytes()
    assert len(read_events(path)) == 1
