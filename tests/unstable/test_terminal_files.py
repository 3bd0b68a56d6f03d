"""The dashboard's view of a run from its files."""

from __future__ import annotations

import fcntl
import json
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from unstable import trackers
from unstable.config import ConfigError
from unstable.dashboard import SourceError, make_view
from unstable.dashboard.drawing import headline
from unstable.dashboard.sources import RunFiles, Tail
from unstable.run import RunFolder, SelfPlayStatus
from unstable.trackers import Tracker


def run(tmp_path, steps=3):
    made = Tracker("demo", run_dir=tmp_path / "run")
    for step in range(1, steps + 1):
        made.log_learner({"step": step, "loss": 1 / step})
        made.add_eval_episode({0: 1.0, 1: -1.0}, 0, "A", f"ckpt-{step}", "x", invalid=step == 1)
    return made


def test_files_show_what_the_tracker_would(tmp_path):
    made = run(tmp_path)
    made.log_model_pool({("a", "b"): 2}, {"a": {"mu": 25.0, "sigma": 8.0}}, {"A": {"1-gram": 0.5}})
    made.log_scalars({"buffer/size": 7.0, "collector/failed": 1.0})
    made.close()
    view = RunFiles(tmp_path / "run").fetch()
    assert view.written is not None
    assert replace(view, written=None) == make_view(made.get_interface_info())
    assert view.buffer_size == 7


def test_learner_steps_and_evaluation_games_are_seen_before_the_first_flush(tmp_path):
    run(tmp_path)
    assert not (tmp_path / "run" / "interface.json").exists()
    view = RunFiles(tmp_path / "run").fetch()
    assert (view.run_name, view.step) == ("run", 3)
    assert view.curves[0].values == (1.0, 0.5, 1 / 3)
    assert [one.update for one in view.win_rates[0].history] == [1, 2, 3]
    assert all(one.win_rate == 1.0 for one in view.win_rates[0].history)


def test_the_time_left_follows_the_pace_of_the_latest_updates(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    made = run(tmp_path, steps=0)
    files = RunFiles(folder.path)
    with folder.held():
        folder.write_status(SelfPlayStatus("running", 0, 10, host=socket.gethostname()))
        for step in range(1, 5):
            monkeypatch.setattr(trackers.time, "time", lambda step=step: 1000.0 + 3 * step)
            made.log_learner({"step": step, "loss": 1.0})
            assert files.fetch().seconds_left == (None if step == 1 else 3 * (10 - step))
    folder.write_status(SelfPlayStatus("completed", 10, 10))
    assert files.fetch().seconds_left is None


def test_a_running_run_is_followed(tmp_path):
    made = run(tmp_path)
    files = RunFiles(tmp_path / "run")
    files.fetch()
    made.log_learner({"step": 4, "loss": 9.0})
    made.add_eval_episode({0: -1.0, 1: 1.0}, 0, "A", "ckpt-3", "x")
    view = files.fetch()
    assert view.curves[0].values == (1.0, 0.5, 1 / 3, 9.0)
    assert (view.win_rates[0].games, view.win_rates[0].win_rate) == (2, 0.5)


def test_a_resumed_run_takes_back_what_lay_beyond(tmp_path):
    made = run(tmp_path)
    state = json.loads(json.dumps(made.state_dict()))
    files = RunFiles(tmp_path / "run")
    assert files.fetch().step == 3
    again = Tracker("demo", run_dir=tmp_path / "run", resume_step=1)
    again.load_state_dict(state)
    again.log_learner({"step": 2, "loss": -2.0})
    view = files.fetch()
    assert view.curves[0].values == (1.0, -2.0)
    assert view.step == 2
    assert [one.update for one in view.win_rates[0].history] == [1]


def test_a_torn_line_is_read_when_it_is_whole(tmp_path):
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)
    assert tail.read() == (False, [])
    path.write_text('{"a": 1}\n{"a"')
    assert tail.read() == (False, [{"a": 1}])
    assert tail.read() == (False, [])
    with path.open("a") as stream:
        stream.write(': 2}\n\x00broken\n[3]\n{"a": 4}\n')
    assert tail.read() == (False, [{"a": 2}, {"a": 4}])
    path.write_text('{"a": 5}\n')
    assert tail.read() == (True, [{"a": 5}])
    path.unlink()
    assert tail.read() == (True, [])


def test_lines_that_lack_fields_are_passed_over(tmp_path):
    made = run(tmp_path)
    made.log_exploitability("ckpt-1", "A", 0.25)
    for name in ("games", "exploitability"):
        with (tmp_path / "run" / "eval_data" / f"{name}.jsonl").open("a") as file:
            file.write('{"ckpt_uid": "ckpt-2"}\n[]\n')
    view = RunFiles(tmp_path / "run").fetch()
    first, *others = view.win_rates[0].history
    assert first.exploitability == 0.25
    assert [one.exploitability for one in others] == [None, None]


def test_a_folder_that_is_no_run_is_said(tmp_path):
    with pytest.raises(SourceError, match=r"interface\.json"):
        RunFiles(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_interface_file_is_named(tmp_path, text):
    run(tmp_path)
    (tmp_path / "run" / "interface.json").write_text(text)
    with pytest.raises(SourceError, match=r"interface\.json"):
        RunFiles(tmp_path / "run").fetch()


def test_a_run_says_how_it_ended(tmp_path):
    run(tmp_path)
    folder = RunFolder(tmp_path / "run")
    folder.write_status(SelfPlayStatus("failed", 3, 40, "no space left"))
    view = RunFiles(folder.path).fetch()
    assert (view.status, view.updates, view.message) == ("failed", 40, "no space left")
    said = headline(view, now=view.written).plain
    assert said == "run  step 3 of 40  games 0  failed  written 0 s ago  no space left"


def test_a_run_whose_process_is_gone_has_failed(tmp_path: Path) -> None:
    Tracker("demo", run_dir=tmp_path).flush()
    folder = RunFolder(tmp_path)
    running = SelfPlayStatus("running", 3, 10, pid=1, host=socket.gethostname())
    with folder.held():
        folder.write_status(running)
        assert RunFiles(tmp_path).fetch().status == "running"
    view = RunFiles(tmp_path).fetch()
    assert view.status == "failed"
    assert f"unstable resume {tmp_path}" in view.message
    folder.write_status(replace(running, host="another-machine"))
    assert RunFiles(tmp_path).fetch().status == "running"


def test_who_looks_whether_a_run_is_held_keeps_nobody_from_running_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with (tmp_path / "run.lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with folder.held(), pytest.raises(ConfigError, match="another process"), folder.held():
            pass
