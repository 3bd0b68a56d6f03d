"""Checkpoints of a run: kept, evaluated, and told of while it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_run import learned_steps, new_run

from unstable.console import TrainingBar
from unstable.evaluation import Evaluation
from unstable.models import find_model
from unstable.run.progress import find_best_checkpoints, select_settled_evaluations
from unstable.run.start import start


def kept(run: Path) -> list[int]:
    folders = (run / "checkpoints").iterdir()
    return sorted(int(folder.name.removeprefix("iteration-")) for folder in folders)


def test_a_run_keeps_few_checkpoints_and_continues_from_them(tmp_path: Path, model: str) -> None:
    config, folder = new_run(
        tmp_path / "run", model, keep_checkpoints=2, updates=7, games_per_update=2, eval_games=2,
        eval_every=3, pool={"sample_mode": {"mirror": 0.5, "ts-dist": 0.5}, "max_active_lora": 2},
    )  # fmt: skip
    result = start(config, folder, model, lambda _: None)
    left = kept(folder.path)
    assert {4, 6, 7} <= set(left)  # spread, newest
    assert len(left) < 7
    assert result.checkpoint == str(folder.path / "checkpoints" / "iteration-7")

    longer = config.model_copy(update={"updates": 10})
    result = start(longer, folder, model, lambda _: None)
    assert learned_steps(folder.path) == [*range(1, 11)]
    assert result.counts["failed"] == 0
    assert {8, 9, 10} <= set(kept(folder.path))
    assert len(kept(folder.path)) < 9


def test_best_checkpoint_has_highest_lower_bound() -> None:
    rows = [
        {"ckpt_uid": uid, "env_id": env, "opponent": "x", "players": 2, "win_rate_low": low}
        for uid, env, low in (
            ("ckpt-1", "A", 0.2), ("ckpt-2", "A", 0.5), ("ckpt-3", "A", 0.4), ("ckpt-1", "B", 0.1),
            ("ckpt-4", "B", 0.1),
        )
    ]  # fmt: skip
    assert find_best_checkpoints(rows) == ["ckpt-2", "ckpt-4"]
    assert find_best_checkpoints([]) == []
    alone = [
        {"ckpt_uid": uid, "env_id": "C", "opponent": "", "players": 1, "win_rate_low": 0.0,
         "reward": reward, "reward_se": error}
        for uid, reward, error in (("ckpt-1", 0.4, 0.01), ("ckpt-2", 0.5, 0.2), ("ckpt-3", 0.3, 0))
    ]  # fmt: skip
    assert find_best_checkpoints(alone) == ["ckpt-1"]


def test_whole_models_are_trained_played_and_continued(tmp_path: Path, model: str) -> None:
    config, folder = new_run(
        tmp_path / "run", model, updates=2,
        learner={"options": {"full_parameters": True}},
        pool={"sample_mode": {"mirror": 0.5, "lagged": 0.5}},
    )  # fmt: skip
    result = start(config, folder, model, lambda _: None)
    assert result.counts["failed"] == result.counts["eval_failed"] == 0
    log = (folder.path / "logs" / "run.log").read_text()
    assert all(words in log for words in ("update 1: loss", "completed after update 2"))
    assert result.checkpoint is not None
    found = find_model(Path(result.checkpoint))
    assert (found.model, found.adapter) == (result.checkpoint, None)
    weights = [Path(at, "model.safetensors").read_bytes() for at in (model, result.checkpoint)]
    assert weights[0] != weights[1]

    longer = config.model_copy(update={"updates": 3})
    result = start(longer, folder, model, lambda _: None)
    assert result.counts["failed"] == 0
    assert learned_steps(folder.path) == [1, 2, 3]
    state = folder.states()[-1]
    assert not json.loads((state / "buffer.json").read_text())["store"]["steps"]  # all was learned
    played = (folder.path / "games" / "train.jsonl").read_text().splitlines()
    versions = {p["version"] for line in played for p in json.loads(line)["players"]}
    assert {1, 2} <= versions


def row(uid: str, games: int, env_id: str = "A") -> dict[str, Any]:
    made = Evaluation(uid, env_id, "random-legal")
    for _ in range(games):
        made.add({0: 1.0, 1: -1.0}, 0)
    return made.summary()


def shown(*rows: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["ckpt_uid"], one["env_id"]) for one in select_settled_evaluations(rows, 10)]


def test_settled_evaluations_are_complete_or_superseded() -> None:
    assert shown(row("ckpt--1", 3)) == []
    assert shown(row("ckpt--1", 10), row("ckpt-1", 2)) == [("ckpt--1", "A")]
    assert shown(row("ckpt--1", 4), row("ckpt-1", 2), row("ckpt-2", 10)) == [
        ("ckpt--1", "A"), ("ckpt-1", "A"), ("ckpt-2", "A"),
    ]  # fmt: skip
    other = [row("ckpt-1", 2), row("ckpt-1", 10, "B")]
    assert shown(*other) == [("ckpt-1", "B")]


def test_training_bar_prints_each_evaluation_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = TrainingBar()
    view.show_evaluations((row("ckpt-1", 10, "B"),))
    view.show_evaluations((row("ckpt-1", 10, "A"), row("ckpt-1", 10, "B")))
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in said] == ["B", "A"]
