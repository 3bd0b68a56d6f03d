"""Self-play runs over HTTP, read off their folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from p2p.api.app import create_app
from unstable.config import RunConfig
from unstable.run.folder import RunFolder, RunStatus

TOKEN = "the-token-of-this-server"


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "outputs" / "2026-01-01" / "12-00-00" / "tictactoe")
    folder.path.mkdir(parents=True)
    folder.write_config(RunConfig())
    folder.write_status(RunStatus("completed", 2, 2))
    lines = [{"step": n, "learner/loss": 0.5 / n} for n in (1, 2)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder.path / "metrics.jsonl").write_text(text)
    games = folder.path / "eval_data" / "games.jsonl"
    games.parent.mkdir()
    game = {"ckpt_uid": "ckpt-2", "env_id": "TicTacToe-v0", "opponent": "random-legal",
            "player_id": 0, "rewards": {"0": 1.0, "1": -1.0}, "invalid": False}  # fmt: skip
    games.write_text("".join(json.dumps({**game, "seed": seed}) + "\n" for seed in range(3)))
    return tmp_path / "outputs"


@pytest.fixture
def player(tmp_path: Path, outputs: Path) -> Iterator[TestClient]:
    app = create_app(tmp_path / "runs", outputs, token=TOKEN)
    with TestClient(app, base_url="http://localhost") as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield client


def test_a_run_is_listed_and_shown(player: TestClient) -> None:
    (row,) = player.get("/api/selfplay").json()
    assert row["run_id"] == "2026-01-01~12-00-00~tictactoe"
    assert (row["status"], row["step"], row["updates"]) == ("completed", 2, 2)
    shown = player.get(f"/api/selfplay/{row['run_id']}").json()
    assert shown["status"] == "completed"
    assert shown["win_rates"][0]["win_rate"] == 1.0
    assert shown["win_rates"][0]["games"] == 3
    games = player.get(f"/api/selfplay/{row['run_id']}/games", params={"limit": 2}).json()
    assert [game["seed"] for game in games] == [2, 1], "the newest first"


@pytest.mark.parametrize("run_id", ["..", "a~..~..~etc", "~", "/etc", "none", "x" * 5000, "\0"])
def test_a_hostile_or_unknown_run_is_not_found(player: TestClient, run_id: str) -> None:
    given = quote(run_id, safe="").replace(".", "%2e")
    assert player.get(f"/api/selfplay/{given}").status_code == 404
    assert player.get(f"/api/selfplay/{given}/games").status_code == 404


def test_a_link_to_elsewhere_is_neither_listed_nor_opened(
    player: TestClient, outputs: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (outputs / "2026-01-01").rename(elsewhere)
    (outputs / "linked").symlink_to(elsewhere)
    assert player.get("/api/selfplay").json() == []
    assert player.get("/api/selfplay/linked~12-00-00~tictactoe").status_code == 404
