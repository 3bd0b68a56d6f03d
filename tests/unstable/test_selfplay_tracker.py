"""The tracker: what it takes, what it says, what stays on disk and goes to other trackers."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unstable.console import describe_evaluation
from unstable.core import BaseTracker, Trajectory, outcome
from unstable.evaluation import Evaluation, wilson
from unstable.trackers import Tracker
from unstable.writers import WRITERS, MissingExtraError, truncate_lines


def tracker(tmp_path: Path, **options: Any) -> Tracker:
    return Tracker("demo", run_dir=tmp_path / "run", **options)


def game(reward: float = 1.0, *, good: bool = True, turns: int = 2) -> Trajectory:
    return Trajectory(
        pid=[0] * turns, obs=["board"] * turns, actions=["[4]"] * turns,
        final_rewards={0: reward, 1: -reward}, num_turns=2 * turns - 1,
        format_feedbacks=[{"correct_answer_format": good, "invalid_move": not good}] * turns,
    )  # fmt: skip


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_folders_of_a_run_are_made_below_the_output_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = BaseTracker("demo")
    monkeypatch.chdir("/")
    for folder in (
        base.get_train_dir(), base.get_eval_dir(), base.get_checkpoints_dir(), base.get_log_dir()
    ):  # fmt: skip
        assert Path(folder).is_absolute()
        assert Path(folder).is_dir()
    assert Path(base.get_run_dir()).relative_to(tmp_path / "outputs").parts[-1] == "demo"


def test_runs_of_one_name_and_second_do_not_share_a_folder(tmp_path):
    folders = {BaseTracker("Qwen/Qwen3", output_dir=tmp_path).get_run_dir() for _ in range(5)}
    assert len(folders) == 5
    assert all(Path(folder).name.startswith("Qwen-Qwen3") for folder in folders)


def test_non_finite_metrics_are_written_as_null(tmp_path):
    made = tracker(tmp_path)
    made.log_learner({"step": 1, "loss": float("nan"), "norm": float("inf")})
    made.add_eval_episode({0: float("nan"), 1: 0.0}, 0, "A", "ckpt-1")
    made.close()
    for path in (tmp_path / "run").rglob("*.json*"):
        for line in path.read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)
    assert made.write_failures == 0


def test_training_games_are_averaged_in_their_namespace(tmp_path):
    made = tracker(tmp_path)
    made.add_trajectory(game(1.0), 0, "A")
    made.add_trajectory(game(-1.0, good=False), 0, "A")
    made.add_trajectory(game(0.0), 0, "B")
    metrics = made.get_metrics()
    assert metrics["collection-A/Reward"] == 0.0
    assert metrics["collection-A/Win Rate"] == metrics["collection-A/Loss Rate"] == 0.5
    assert metrics["collection-A/Draw Rate"] == 0.0
    assert metrics["collection-A/Format Success Rate"] == 0.5
    assert metrics["collection-A/Invalid Move Rate"] == 0.5
    assert metrics["collection-A/Game Length"] == 3.0
    assert metrics["collection-B/Draw Rate"] == 1.0


def test_single_player_games_report_mean_reward(tmp_path):
    made = tracker(tmp_path)
    for reward in (1.0, 0.25, -1.0):
        made.add_trajectory(Trajectory(final_rewards={0: reward}), 0, "A")
        made.add_eval_episode({0: reward}, 0, "A", "ckpt-1", invalid=reward < 0)
    made.flush()
    assert made.get_metrics()["collection-A/Reward"] == pytest.approx(0.25 / 3)
    assert not [name for name in made.get_metrics() if "Win Rate" in name]
    assert not [name for line in lines(tmp_path / "run" / "metrics.jsonl") for name in line
                if "Win Rate" in name]  # fmt: skip
    (row,) = made.get_evaluations()
    shares = (row["players"], row["win_rate"], row["loss_rate"], row["invalid_rate"])
    assert shares == pytest.approx((1, 1 / 3, 1 / 3, 1 / 3))
    words = describe_evaluation(row)
    assert "reward 0.083 ± 0.583" in words
    assert "won" not in words


def test_learner_steps_go_with_the_reward_of_the_latest_games(tmp_path):
    made = tracker(tmp_path)
    made.log_learner({"step": 1, "loss": 0.5})
    made.add_trajectory(game(1.0), 0, "A")
    made.add_trajectory(game(-0.5), 0, "B")
    made.log_learner({"step": 2, "loss": 0.5})
    made.log_learner({"step": 3, "reward": 7.0})
    first, *others = lines(tmp_path / "run" / "metrics.jsonl")
    assert "learner/reward" not in first
    assert [line["learner/reward"] for line in others] == [0.25, 7.0]
    again = Tracker("demo", run_dir=tmp_path / "again")
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    again.log_learner({"step": 4, "loss": 0.5})
    assert lines(tmp_path / "again" / "metrics.jsonl")[-1]["learner/reward"] == 0.25


def test_tensorboard_reads_what_was_written(tmp_path):
    made = tracker(tmp_path)
    for step in (1, 2):
        made.log_learner({"step": step, "loss": step / 2})
    made.close()
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("learner/loss")] == [(1, 0.5), (2, 1.0)]


def test_tracker_flushes_on_schedule(tmp_path):
    made = tracker(tmp_path)
    made.add_trajectory(game(), 0, "A")
    assert lines(tmp_path / "run" / "metrics.jsonl") == []
    made.FLUSH_EVERY = 0.0
    made.add_trajectory(game(), 0, "A")
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 1
    assert Tracker.FLUSH_EVERY == 64.0


def test_the_interface_has_what_the_dashboard_shows(tmp_path):
    made = tracker(tmp_path)
    made.add_trajectory(game(), 0, "A")
    made.log_inference("actor-0", [0, 1], {"queued": 1, "running": 2, "tok_s": 300.0})
    made.log_model_pool(
        {("ckpt-0", "fixed-x"): 3}, {"ckpt-0": {"mu": 25.0, "sigma": 8.0}}, {"A": {"1-gram": 0.5}}
    )
    info = made.get_interface_info()
    assert info["gpu_tok_s"] == {0: 300.0, 1: 300.0}
    assert info["TS"] == {"ckpt-0": {"mu": 25.0, "sigma": 8.0}}
    assert info["match_counts"] == {("ckpt-0", "fixed-x"): 3}
    assert info["exploration"] == {"A": {"1-gram": 0.5}}
    assert info["Game Length"] == 3.0
    assert info["Format Success Rate"] == 1.0
    assert info["Invalid Move Rate"] == 0.0
    made.close()
    kept = json.loads((tmp_path / "run" / "interface.json").read_text())
    assert kept["match_counts"] == [["ckpt-0", "fixed-x", 3]]
    assert lines(tmp_path / "run" / "metrics.jsonl")[-1]["exploration/A/1-gram"] == 0.5


def test_checkpoints_are_never_mixed(tmp_path):
    made = tracker(tmp_path)
    for _ in range(30):
        made.add_eval_episode({0: -1.0, 1: 1.0}, 0, "A", "ckpt-1", "random-legal")
    for _ in range(10):
        made.add_eval_episode({0: 1.0, 1: -1.0}, 0, "A", "ckpt-2", "random-legal")
    made.add_eval_episode({0: -1.0, 1: 1.0}, 0, "A", "ckpt-1", "random-legal")  # was under way
    assert made.get_metrics()["evaluation-A/Win Rate"] == 1.0
    first, second = made.get_evaluations()
    assert (first["ckpt_uid"], first["games"], first["win_rate"]) == ("ckpt-1", 31, 0.0)
    assert (second["ckpt_uid"], second["games"], second["win_rate"]) == ("ckpt-2", 10, 1.0)
    assert second["win_rate_low"] == pytest.approx(0.7225, abs=1e-4)
    made.close()
    assert lines(tmp_path / "run" / "metrics.jsonl")[-1]["evaluation-A/Games"] == 10.0


def test_resumed_tracker_drops_later_metrics(tmp_path):
    made = tracker(tmp_path)
    for step in (1, 2, 3):
        made.log_learner({"step": step, "loss": float(step)})
        made.add_eval_episode({0: 1.0, 1: -1.0}, 0, "A", f"ckpt-{step}", "x")
        if step == 2:
            state = json.loads(json.dumps(made.state_dict()))
    made.close()
    with (tmp_path / "run" / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 3, "torn')
    again = tracker(tmp_path, resume_step=2)
    again.load_state_dict(state)
    again.log_learner({"step": 3, "loss": -3.0})
    again.close()
    written = lines(tmp_path / "run" / "metrics.jsonl")
    losses = [(x["step"], x["learner/loss"]) for x in written if "learner/loss" in x]
    assert losses == [(1, 1.0), (2, 2.0), (3, -3.0)]
    assert len(again.get_evaluations()) == 2
    assert len(lines(Path(again.get_eval_dir()) / "games.jsonl")) == 2
    assert again.get_interface_info()["learner"]["loss"] == [1.0, 2.0, -3.0]


def test_a_disk_that_fails_costs_metrics_only(tmp_path):
    class Full:
        def write(self, values, step):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    made = tracker(tmp_path)
    made._writers.append(Full())
    made.log_learner({"step": 1, "loss": 0.5})
    assert made.write_failures == 1
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 1


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ({0: 1, 1: -1}, 1), ({0: 0.1, 1: 0.2}, -1), ({0: 5, 1: 5}, 0), ({0: 0, 1: 1, 2: -1}, -1),
        ({0: 1.0}, 1), ({0: 0.00049}, 0), ({0: 0.0}, -1), ({0: -1.0}, -1),
        ({0: 1, 1: 1, 2: -1}, 1), ({0: -1, 1: 1, 2: 1}, -1), ({0: 0, 1: 0, 2: 0}, 0),
        ({0: 1, 1: 1, 2: -1, 3: -1}, 1), ({0: 0.5, 1: 1, 2: 0.5, 3: -1}, -1),
    ],
)  # fmt: skip
def test_outcome_compares_rewards(rewards, expected):
    assert outcome(rewards, 0) == expected


@pytest.mark.parametrize(
    ("wins", "games", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (260, 400, 0.602, 0.695)],
)
def test_win_rate_intervals_are_wilson(wins, games, low, high):
    assert wilson(wins, games) == pytest.approx((low, high), abs=1e-3)


def test_a_mean_reward_has_its_standard_error():
    evaluation = Evaluation("c", "A", "x")
    for reward in (1.0, 1.0, -1.0, 0.0):
        evaluation.add({0: reward, 1: -reward}, 0, invalid=reward < 0)
    summary = evaluation.summary()
    assert summary["reward"] == 0.25
    assert summary["reward_se"] == pytest.approx(0.4787, abs=1e-4)
    assert summary["invalid_rate"] == 0.25


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_writer_that_is_not_installed_names_its_extra(tmp_path, monkeypatch, name):
    real = importlib.import_module

    def without(module, *rest):
        if module == name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(module, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingExtraError, match=rf"pip install 'prompt2policy\[{name}\]'"):
        WRITERS[name](tmp_path, "project", "run", None)


def test_wandb_gets_the_metrics_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    made = Tracker("demo", wandb_project="UB", run_dir=tmp_path / "run")
    assert made.use_wandb
    made.log_learner({"step": 1, "loss": 0.5})
    made.close()
    assert made.write_failures == 0
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


def test_trackio_gets_the_metrics(tmp_path, monkeypatch, capsys):
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    made = Tracker("demo", trackio_project="UB", run_dir=tmp_path / "run")
    made.log_learner({"step": 1, "loss": 0.5})
    made.close()
    assert made.write_failures == 0
    assert capsys.readouterr().out == ""  # which may be one JSON document


def test_tensorboard_needs_no_deep_learning_library(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from unstable.writers import WRITERS\n"
        "heavy = {'torch', 'tensorflow', 'jax', 'ray'}\n"
        f"WRITERS['tensorboard'](Path({str(tmp_path)!r}), 'p', 'run', None)\n"
        "assert not heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_torn_and_foreign_lines_are_dropped_and_others_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    good = [json.dumps({"step": step, "x": 1}) + "\n" for step in range(4)]
    path.write_text("".join([*good[:2], "foreign\n", *good[2:], '{"step": 4, "to']))
    truncate_lines(path, None)
    assert path.read_text() == "".join(good)
    truncate_lines(path, 1)
    assert path.read_text() == "".join(good[:2])
