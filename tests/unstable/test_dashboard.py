"""The dashboard: its view of a tracker and of a run's files, drawn in Textual's own harness."""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from textual.pilot import Pilot
from textual.widgets import Static, TabbedContent

from unstable import TerminalInterface, trackers
from unstable import dashboard as gpus
from unstable.config import ConfigError
from unstable.core import Trajectory
from unstable.dashboard import (
    Curve,
    Gpu,
    Match,
    Number,
    RatingRow,
    SourceError,
    Throughput,
    View,
    make_view,
)
from unstable.dashboard.drawing import PANELS, draw_headline, draw_snapshot, draw_sparkline
from unstable.dashboard.sources import RunFiles, Tail
from unstable.run import RunFolder, SelfPlayStatus
from unstable.terminal_interface import Dashboard
from unstable.trackers import Tracker


def tracker(folder: Path) -> Tracker:
    """One that has seen a little of everything."""
    made = Tracker("demo", run_dir=folder)
    game = Trajectory(
        pid=[0], obs=["the board"], actions=["[4]"], final_rewards={0: 1.0, 1: -1.0},
        num_turns=3, format_feedbacks=[{"correct_answer_format": True, "invalid_move": False}],
    )  # fmt: skip
    made.add_trajectory(game, 0, "Nim-v0")
    move = {"seat": 0, "answer": "", "action": "[4] \x1b[2J", "legal": True, "opening": False,
            "board": "the board", "shared": 0, "observation": ""}  # fmt: skip
    made.add_transcript(
        {"id": "train-1", "kind": "train", "env_id": "Nim-v0", "reason": "", "rewards": {0: 1.0},
         "players": [{"uid": "ckpt-2"}], "moves": [move]}
    )  # fmt: skip
    for step in (1, 2, 3):
        made.log_learner({"step": step, "lr": 0.1, "loss": 1 / step, "grad_norm": math.nan})
    for ckpt, reward in (("ckpt-10", 1.0), ("ckpt-2", -1.0), ("ckpt-10", 1.0)):
        made.add_eval_episode({0: reward, 1: -reward}, 0, "Nim-v0", ckpt, "random-legal")
    made.log_inference("actor-0", [0], {"queued": 1, "running": 2, "tok_s": 300.0})
    made.log_model_pool(
        {("ckpt-2", "fixed-x"): 3, ("ckpt-2", "ckpt-2"): 9},
        {"ckpt-2": {"mu": 20.0, "sigma": 8.0, "active": False}, "fixed-x": {"mu": 30, "sigma": 2}},
        {"Nim-v0": {"1-gram": 0.5}},
    )
    made.log_scalars({"buffer/size": 7.0, "collector/failed": 2.0, "collector/games": 5.0})
    return made


def shown(panel: Any) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(panel)
    return captured.get()


def test_view_has_all_fields_of_the_tracker(tmp_path):
    view = make_view(tracker(tmp_path).get_interface_info(), buffer={"size": 11})
    assert (view.run_name, view.step, view.buffer_size) == ("demo", 3, 11)
    assert view.engines == (Throughput("actor-0", 300.0, 2.0, 1.0),)
    assert [curve.name for curve in view.curves] == ["loss", "grad_norm", "reward", "lr"]
    assert view.curves[0].values == (1.0, 0.5, 1 / 3)
    assert view.curves[1].values == (None, None, None)
    assert [row.uid for row in view.ratings] == ["fixed-x", "ckpt-2"]
    assert [row.active for row in view.ratings] == [True, False]
    assert view.matches == (Match("ckpt-2", "ckpt-2", 9), Match("ckpt-2", "fixed-x", 3))
    assert view.exploration == (("Nim-v0", (Number("1-gram", 0.5),)),)
    assert view.games == (Number("train Nim-v0", 1.0), Number("eval Nim-v0", 3.0))
    assert Number("game length", 3.0) in view.collected


def test_view_lists_only_failures(tmp_path):
    made = tracker(tmp_path)
    assert make_view(made.get_interface_info()).failures == (Number("collector/failed", 2.0),)
    made.write_failures = 4
    buffer = {"size": 1, "evicted": 5, "csv_failures": 1, "csv_skipped": 0}
    for count in (3, 5):
        made.log_counts({"buffer/lost_evicted": count, "buffer/lost_cleared": 0})
    named = {n.name: n.value for n in make_view(made.get_interface_info(), buffer=buffer).failures}
    assert named == {
        "collector/failed": 2, "metrics not written": 4, "buffer/csv_failures": 1,
        "buffer/lost_evicted": 5,
    }  # fmt: skip
    assert made.get_metrics()["buffer/lost_evicted"] == 5


def test_view_shows_the_newest_checkpoint(tmp_path):
    (rate,) = make_view(tracker(tmp_path).get_interface_info()).win_rates
    assert (rate.env_id, rate.opponent, rate.ckpt_uid) == ("Nim-v0", "random-legal", "ckpt-10")
    assert (rate.games, rate.win_rate) == (2, 1.0)
    assert [one.win_rate for one in rate.history] == [0.0, 1.0]
    assert rate.low < 0.5 < rate.high


def test_view_strips_escape_codes(tmp_path):
    view = make_view(tracker(tmp_path).get_interface_info())
    assert "[4]" in view.latest_game
    assert "\x1b" not in view.latest_game
    assert "\x1b[2J" not in shown(draw_snapshot(view, 120))


def test_empty_view_draws_all_panels():
    view = make_view({})
    assert view == View(run_name="", step=0)
    text = shown(draw_snapshot(view, 80))
    assert text.count("nothing yet") == len(PANELS)


@pytest.mark.parametrize("width", [36, 80, 200])
def test_panels_keep_to_their_width(tmp_path, width):
    view = make_view(tracker(tmp_path).get_interface_info(), gpus=(GPU,))
    for name in ("learner", "engines", "ratings", "matches"):  # text of the others wraps
        _, draw = PANELS[name]
        console = Console(width=500, color_system=None)
        with console.capture() as captured:
            console.print(draw(view, width, 30))
        assert all(len(line.rstrip()) <= width for line in captured.get().splitlines())


def test_snapshot_shows_the_numbers(tmp_path):
    view = make_view(tracker(tmp_path).get_interface_info(), gpus=(GPU,))
    text = shown(draw_snapshot(view, 120))
    for expected in (
        "300 tok/s", "2 running", "1 queued", "0.3333", "not finite", "100.0% (34% to 100%)",
        "30.0 ± 2.0", "GPU 0", "50% busy", "10 of 80 GiB", "1-gram", "collector/failed",
        "the board",
    ):  # fmt: skip
        assert expected in text


@given(
    st.lists(st.none() | st.floats(-1e12, 1e12), min_size=1, max_size=50),
    st.integers(1, 60),
    st.integers(1, 4),
)
def test_sparklines_are_never_wider_or_higher_than_asked(values, width, height):
    lines = draw_sparkline(values, width, height).split("\n")
    assert all(len(line) <= width for line in lines)
    assert len(lines) in (1, height)


GPU = Gpu(0, "NVIDIA H200", 0.5, 10.0, 80.0, None)


def test_gpus_are_read_from_nvidia_smi():
    table = "0, NVIDIA H200, 37, 10240, 143771, 301.20\n1, Old card, [N/A], 1, 2048, [N/A]\nnoise\n"
    first, second = gpus.parse_gpus(table)
    assert first == Gpu(0, "NVIDIA H200", 0.37, 10.0, 143771 / 1024, 301.2)
    assert (second.busy, second.watts) == (None, None)


def test_a_machine_without_nvidia_smi_has_no_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.read_gpus() == ()
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'Failed to initialize NVML' >&2; exit 9\n")
    tool.chmod(0o755)
    assert gpus.read_gpus() == ()


VIEW = View(
    "demo", 7, curves=(Curve("loss", (3.0, 2.0, 1.0)),),
    ratings=tuple(RatingRow(f"ckpt-{i}", 25.0 + i, 2.0, active=True) for i in range(60)),
    latest_game="a [bold]game[/]",
)  # fmt: skip


class Scripted:
    """Gives views, or raises, one after the other; the last one for ever."""

    def __init__(self, *answers: View | Exception) -> None:
        self._answers = list(answers)

    def fetch(self) -> View:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def until(pilot: Pilot[Any], holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await pilot.pause(0.02)


def text(app: Dashboard, selector: str) -> str:
    widget = app.query_one(selector)
    return "\n".join(strip.text for strip in widget.render_lines(widget.size.region))


def in_dashboard(app: Dashboard, size: tuple[int, int], check: Any) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await check(pilot)

    asyncio.run(run())


@pytest.mark.parametrize("size", [(40, 12), (120, 40)])
def test_every_panel_has_its_place_at_any_size(size):
    async def check(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "demo" in text(app, "#headline"))
        assert app.query_one("#headline").region.y == 0
        for key, ids in (
            ("1", ("learner", "engines", "evaluation", "games")),
            ("2", ("ratings", "matches", "exploration")),
            ("3", ("game",)),
        ):
            await pilot.press(key)
            await pilot.pause()
            for panel_id in ids:
                region = app.query_one(f"#{panel_id}").region
                assert region.area > 0
                assert app.screen.region.contains_region(region)

    app = Dashboard(Scripted(VIEW), refresh=60.0)
    in_dashboard(app, size, check)


def test_keys_change_tabs_and_leave():
    async def check(pilot: Pilot[Any]) -> None:
        tabs = app.query_one(TabbedContent)
        for key, tab in (
            ("right", "players"), ("right", "game"), ("right", "run"), ("left", "game"),
            ("2", "players"),
        ):  # fmt: skip
            await pilot.press(key)
            await pilot.pause()
            assert tabs.active == tab
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)

    app = Dashboard(Scripted(VIEW), refresh=60.0)
    in_dashboard(app, (80, 24), check)
    assert app.return_code == 0


def test_dashboard_keeps_last_view_when_tracker_is_gone():
    async def check(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "the tracker is gone" in text(app, "#headline"))
        assert "step 7" in text(app, "#headline")
        assert "loss" in text(app, "#learner Static")

    app = Dashboard(Scripted(VIEW, SourceError("the tracker is gone")), refresh=0.05)
    in_dashboard(app, (100, 30), check)


def test_dashboard_quits_while_a_source_hangs():
    release = threading.Event()

    class Hanging(Scripted):
        def fetch(self) -> View:
            release.wait(60)
            return VIEW

    async def check(pilot: Pilot[Any]) -> None:
        assert "waiting" in text(app, "#headline")
        await pilot.press("2")
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)

    app = Dashboard(Hanging(VIEW))
    in_dashboard(app, (80, 24), check)
    release.set()


def test_the_interface_of_a_live_tracker_follows_it(tmp_path):
    tracker = Tracker("demo", run_dir=tmp_path)
    interface = TerminalInterface(tracker)

    async def check(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "step 0" in text(app, "#headline"))
        tracker.log_learner({"step": 5, "loss": 0.5})
        await until(pilot, lambda: "step 5" in text(app, "#headline"))
        assert isinstance(app.query_one("#headline"), Static)

    app = Dashboard(interface.source, refresh=0.05)
    in_dashboard(app, (80, 24), check)
    assert interface.view().step == 5


def test_without_a_terminal_the_interface_prints_once(tmp_path, capsys):
    TerminalInterface(Tracker("demo", run_dir=tmp_path)).run()
    assert "demo  step 0" in capsys.readouterr().out


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


def test_view_reads_metrics_before_the_first_flush(tmp_path):
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
    with folder.hold_lock():
        folder.write_status(SelfPlayStatus("running", 0, 10, host=socket.gethostname()))
        for step in range(1, 5):
            monkeypatch.setattr(trackers.time, "time", lambda step=step: 1000.0 + 3 * step)
            made.log_learner({"step": step, "loss": 1.0})
            assert files.fetch().seconds_left == (None if step == 1 else 3 * (10 - step))
    folder.write_status(SelfPlayStatus("completed", 10, 10))
    assert files.fetch().seconds_left is None


def test_view_drops_steps_beyond_the_resumed_state(tmp_path):
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


def test_tail_reads_a_torn_line_once_complete(tmp_path):
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


def test_lines_without_fields_are_skipped(tmp_path):
    made = run(tmp_path)
    made.log_exploitability("ckpt-1", "A", 0.25)
    for name in ("games", "exploitability"):
        with (tmp_path / "run" / "eval_data" / f"{name}.jsonl").open("a") as file:
            file.write('{"ckpt_uid": "ckpt-2"}\n[]\n')
    view = RunFiles(tmp_path / "run").fetch()
    first, *others = view.win_rates[0].history
    assert first.exploitability == 0.25
    assert [one.exploitability for one in others] == [None, None]


def test_folder_without_run_is_refused(tmp_path):
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
    said = draw_headline(view, now=view.written).plain
    assert said == "run  step 3 of 40  games 0  failed  written 0 s ago  no space left"


def test_a_run_whose_process_is_gone_has_failed(tmp_path: Path) -> None:
    Tracker("demo", run_dir=tmp_path).flush()
    folder = RunFolder(tmp_path)
    running = SelfPlayStatus("running", 3, 10, pid=1, host=socket.gethostname())
    with folder.hold_lock():
        folder.write_status(running)
        assert RunFiles(tmp_path).fetch().status == "running"
    view = RunFiles(tmp_path).fetch()
    assert view.status == "failed"
    assert f"unstable resume {tmp_path}" in view.message
    folder.write_status(replace(running, host="another-machine"))
    assert RunFiles(tmp_path).fetch().status == "running"


def test_checking_the_lock_does_not_block_a_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with (tmp_path / "run.lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with (
            folder.hold_lock(),
            pytest.raises(ConfigError, match="another process"),
            folder.hold_lock(),
        ):
            pass
