"""The dashboard's view of what a tracker says, and how it is drawn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from unstable import dashboard as gpus
from unstable.core import Trajectory
from unstable.dashboard import Gpu, Match, Number, Throughput, View, make_view
from unstable.dashboard.drawing import PANELS, snapshot, sparkline
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


def test_a_view_has_what_the_tracker_says(tmp_path):
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


def test_only_what_went_wrong_is_a_failure(tmp_path):
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


def test_the_newest_checkpoint_is_the_one_shown_however_late_others_were_evaluated(tmp_path):
    (rate,) = make_view(tracker(tmp_path).get_interface_info()).win_rates
    assert (rate.env_id, rate.opponent, rate.ckpt_uid) == ("Nim-v0", "random-legal", "ckpt-10")
    assert (rate.games, rate.win_rate) == (2, 1.0)
    assert [one.win_rate for one in rate.history] == [0.0, 1.0]
    assert rate.low < 0.5 < rate.high


def test_a_model_that_writes_escape_codes_moves_no_cursor(tmp_path):
    view = make_view(tracker(tmp_path).get_interface_info())
    assert "[4]" in view.latest_game
    assert "\x1b" not in view.latest_game
    assert "\x1b[2J" not in shown(snapshot(view, 120))


def test_nothing_is_needed_for_a_view():
    view = make_view({})
    assert view == View(run_name="", step=0)
    text = shown(snapshot(view, 80))
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


def test_what_is_drawn_has_the_numbers(tmp_path):
    view = make_view(tracker(tmp_path).get_interface_info(), gpus=(GPU,))
    text = shown(snapshot(view, 120))
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
    lines = sparkline(values, width, height).split("\n")
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
    assert gpus.local_gpus() == ()
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'Failed to initialize NVML' >&2; exit 9\n")
    tool.chmod(0o755)
    assert gpus.local_gpus() == ()
