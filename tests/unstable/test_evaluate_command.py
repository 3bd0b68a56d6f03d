"""`unstable eval` gives the numbers of a run's own evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_run import new_run

from unstable.cli import main
from unstable.run.start import start
from unstable.tiny import WarmUp, make_tiny

SETTINGS: dict[str, Any] = {
    "updates": 2,
    "seed": 5,
    "eval_games": 12,
    "sampling": {"temperature": 0.6, "top_p": 1.0, "max_tokens": 4},
    "games": {
        "evaluate": [["TicTacToe-v0-train", 2, "bare"], ["Nim-v0-train", 2, "bare"]],
        "opponent": ["random-legal", "first-checkpoint"],
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Warm enough to win some games: where all are lost, numbers are easily the same."""
    games = [env_id for env_id, *_ in SETTINGS["games"]["evaluate"]]
    plan = WarmUp(games=60, steps=80)
    model = str(make_tiny(tmp_path_factory.mktemp("models") / "warm", games, warm_up=plan))
    config, folder = new_run(tmp_path_factory.mktemp("runs") / "run", model, **SETTINGS)
    result = start(config, folder, model, lambda _: None)
    return folder.path, [dict(row) for row in result.evaluations]


def rows(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments), "--json"])
    assert left.value.code == 0
    measured: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert all(row.pop("failed") == 0 and not row.pop("error") for row in measured)
    return measured


def test_a_run_is_measured_as_it_measured_itself(
    trained: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, own = trained
    newest = [row for row in own if row["ckpt_uid"] == "ckpt-2"]
    assert len(newest) == 4
    assert any(row["win_rate"] > 0 for row in newest)
    assert rows(capsys, "eval", run) == newest
    assert rows(capsys, "evaluate", run / "checkpoints" / "iteration-2") == newest


def test_what_is_named_takes_the_place_of_the_runs(
    trained: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, own = trained
    (row,) = rows(
        capsys, "eval", run, "--game", "Nim-v0-train", "--opponent", "random-legal", "--games", 20
    )
    assert (row["env_id"], row["games"]) == ("Nim-v0-train", 20)
    newest = [one for one in own if one["ckpt_uid"] == "ckpt-2"]
    other = ("--temperature", 1, "--top-p", 1, "--seed", 6, "--max-tokens", 6)
    assert rows(capsys, "eval", run, *other) != newest
