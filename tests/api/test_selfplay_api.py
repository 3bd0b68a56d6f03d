"""Self-play runs over HTTP, read off their folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from small_runs import signed_in

from p2p.scheduler.store import Store, transaction
from unstable.config import RunConfig
from unstable.evaluation import wilson
from unstable.run import RunFolder, SelfPlayStatus

RUN = "2026-01-01~12-00-00~tictactoe"


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "outputs" / "2026-01-01" / "12-00-00" / "tictactoe")
    folder.path.mkdir(parents=True)
    folder.write_config(RunConfig())
    folder.write_status(SelfPlayStatus("completed", 2, 2))
    lines = [{"step": n, "learner/loss": 0.5 / n} for n in (1, 2)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder.path / "metrics.jsonl").write_text(text)
    games = folder.path / "eval_data" / "games.jsonl"
    games.parent.mkdir()
    game = {"env_id": "TicTacToe-v0", "opponent": "random-legal", "player_id": 0, "invalid": False}
    won, lost = {"0": 1.0, "1": -1.0}, {"0": -1.0, "1": 1.0}
    played = [("ckpt--1", lost), ("ckpt--1", won), *[("ckpt-2", won)] * 3]
    games.write_text(
        "".join(json.dumps({**game, "ckpt_uid": u, "rewards": r}) + "\n" for u, r in played)
    )
    return tmp_path / "outputs"


@pytest.fixture
def player(tmp_path: Path, outputs: Path) -> Iterator[TestClient]:
    with signed_in(tmp_path / "runs", outputs) as client:
        yield client


def test_selfplay_run_is_listed_and_shown(player: TestClient) -> None:
    (row,) = player.get("/api/selfplay").json()
    assert row["run_id"] == "2026-01-01~12-00-00~tictactoe"
    assert (row["status"], row["step"], row["updates"]) == ("completed", 2, 2)
    shown = player.get(f"/api/selfplay/{row['run_id']}").json()
    assert shown["status"] == "completed"
    (rate,) = shown["win_rates"]
    assert (rate["win_rate"], rate["games"]) == (1.0, 3)
    before, after = rate["history"]
    assert (before["update"], before["games"], before["win_rate"]) == (0, 2, 0.5)
    assert [after["low"], after["high"]] == list(wilson(3, 3))


@pytest.mark.parametrize("run_id", ["..", "a~..~..~etc", "~", "/etc", "none", "x" * 5000, "\0"])
def test_hostile_selfplay_id_is_not_found(player: TestClient, run_id: str) -> None:
    given = quote(run_id, safe="").replace(".", "%2e")
    assert player.get(f"/api/selfplay/{given}").status_code == 404
    assert player.get(f"/api/selfplay/{given}/games").status_code == 404
    assert player.get(f"/api/selfplay/{given}/games/eval-1").status_code == 404


def test_linked_selfplay_run_is_not_opened(
    player: TestClient, outputs: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (outputs / "2026-01-01").rename(elsewhere)
    (outputs / "linked").symlink_to(elsewhere)
    assert player.get("/api/selfplay").json() == []
    assert player.get("/api/selfplay/linked~12-00-00~tictactoe").status_code == 404


def a_game(number: int, kind: str = "eval") -> dict[str, Any]:
    """As the run's tracker writes it: of an observation only what is new."""
    players = [
        {"seat": 0, "uid": "ckpt-2", "kind": "checkpoint", "version": 2, "learner": True},
        {"seat": 1, "uid": "random-legal", "kind": "fixed", "version": -1, "learner": False},
    ]
    moves = [
        {"seat": 0, "observation": "the board", "shared": 0, "answer": "I take [4]",
         "action": "[4]", "legal": True, "board": "X", "opening": False},
        {"seat": 1, "observation": "your turn", "shared": 0, "answer": "[0]",
         "action": "[0]", "legal": True, "board": "XO", "opening": False},
        {"seat": 0, "observation": " again", "shared": 9, "answer": "[0]",
         "action": "[0]", "legal": False, "board": "XO", "opening": False},
    ]  # fmt: skip
    return {
        "time": 1.5, "step": 2, "id": f"{kind}-{number}", "kind": kind, "env_id": "TicTacToe-v0",
        "seed": number, "group": "", "players": players, "moves": moves,
        "rewards": {"0": -1.0, "1": None}, "reason": "illegal", "ended_by_invalid": 0,
    }  # fmt: skip


def write_games(outputs: Path, name: str, games: list[dict[str, Any]]) -> Path:
    path = outputs.joinpath(*RUN.split("~"), "games", name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(game) + "\n" for game in games))
    return path


def ids(player: TestClient, **query: str | int) -> list[str]:
    return [game["id"] for game in player.get(f"/api/selfplay/{RUN}/games", params=query).json()]


def test_games_are_listed_newest_first_by_page(player: TestClient, outputs: Path) -> None:
    write_games(outputs, "eval.1.jsonl", [a_game(n) for n in (1, 2, 3)])
    write_games(outputs, "eval.jsonl", [a_game(n) for n in (4, 5)])
    write_games(outputs, "train.jsonl", [a_game(9, "train")])
    assert ids(player) == ["eval-5", "eval-4", "eval-3", "eval-2", "eval-1"]
    assert ids(player, limit=2) == ["eval-5", "eval-4"]
    assert ids(player, limit=2, older_than="eval-4") == ["eval-3", "eval-2"]
    assert ids(player, older_than="eval-1") == []
    assert ids(player, kind="train") == ["train-9"]
    (row,) = player.get(f"/api/selfplay/{RUN}/games?kind=train").json()
    assert (row["turns"], row["illegal"], row["rewards"]) == (3, 1, {"0": -1.0, "1": None})
    assert "moves" not in row


def test_game_shows_moves_with_whole_observations(player: TestClient, outputs: Path) -> None:
    write_games(outputs, "eval.jsonl", [a_game(1), a_game(2)])
    game = player.get(f"/api/selfplay/{RUN}/games/eval-1").json()
    assert [move["observation"] for move in game["moves"]] == [
        "the board", "your turn", "the board again",
    ]  # fmt: skip
    assert [move["legal"] for move in game["moves"]] == [True, True, False]
    assert game["players"][0]["learner"] is True
    for missing in ("eval-3", "train-1", "other-1", "eval", '"', "..%2f..%2fconfig"):
        assert player.get(f"/api/selfplay/{RUN}/games/{missing}").status_code == 404


def test_lines_that_are_no_games_are_skipped(player: TestClient, outputs: Path) -> None:
    path = write_games(outputs, "eval.jsonl", [a_game(1)])
    odd = [{"id": "eval-2"}, {**a_game(3), "moves": [1]}, {**a_game(4), "players": "x"}, []]
    text = "".join(json.dumps(line) + "\n" for line in odd)
    path.write_text(path.read_text() + text + json.dumps(a_game(5)) + '\n{"id": "eval-6", "mo')
    assert ids(player) == ["eval-5", "eval-1"]
    assert player.get(f"/api/selfplay/{RUN}/games/eval-3").status_code == 404


def test_linked_games_file_is_not_read(player: TestClient, outputs: Path, tmp_path: Path) -> None:
    path = write_games(outputs, "eval.jsonl", [a_game(1)])
    path.rename(tmp_path / "elsewhere.jsonl")
    path.symlink_to(tmp_path / "elsewhere.jsonl")
    assert ids(player) == []
    assert player.get(f"/api/selfplay/{RUN}/games/eval-1").status_code == 404


def test_selfplay_job_is_started_listed_and_stopped(
    player: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2p.api.selfplay.ensure_scheduler", lambda _: None)
    options = player.get("/api/selfplay/options").json()
    assert "Nim-v0-train" in options["games"]
    games, opponents = ["Nim-v0-train", "TicTacToe-v0-train"], ["random-legal", "first-checkpoint"]
    body = {"games": games, "opponents": opponents, "updates": 3, "seed": 7}
    answer = player.post("/api/selfplay", json=body)
    assert answer.status_code == 201, answer.text
    name = answer.json()["run_id"]
    config = RunFolder(tmp_path / "runs" / name).config()
    assert [game for game, _, _ in config.games.train] == games
    assert (list(config.games.opponents), config.updates) == (opponents, 3)
    row = next(row for row in player.get("/api/selfplay").json() if row["run_id"] == name)
    assert (row["status"], row["updates"], row["job_id"]) == ("queued", 3, name)
    assert row["name"] == "nim-tictactoe"
    shown = player.get(f"/api/selfplay/{name}").json()
    assert (shown["run_name"], shown["status"], shown["updates"]) == (row["name"], "queued", 3)
    # A process that prepares the model has not written anything.
    for run_state, status in (("running", "starting"), ("pending", "queued")):
        with closing(Store(tmp_path / "runs")) as store, transaction(store.connection) as database:
            database.execute("UPDATE runs SET state = ? WHERE run_id = ?", (run_state, name))
        assert player.get(f"/api/selfplay/{name}").json()["status"] == status
    assert player.post(f"/api/selfplay/{name}/stop").json()["runs"] == 1
    assert player.post(f"/api/selfplay/{name}/stop").status_code == 409
    foreign = player.post(f"/api/selfplay/{RUN}/stop")
    assert (foreign.status_code, "not a job" in foreign.json()["detail"]) == (409, True)


def test_start_selfplay_names_the_bad_field(player: TestClient, tmp_path: Path) -> None:
    refused = player.post("/api/selfplay", json={"games": ["Nothing-v0"]})
    assert refused.status_code == 422
    assert "'Nothing-v0' is unknown; see GET /api/selfplay/options" in refused.json()["detail"]
    named = player.post("/api/selfplay", json={"opponents": ["openai:gpt"]})
    assert (named.status_code, "opponents" in named.json()["detail"]) == (422, True)
    assert player.post("/api/selfplay", json={"nodes": ["none"]}).status_code == 422
    assert not list((tmp_path / "runs").glob("selfplay_*"))


@pytest.mark.parametrize("game", ["Wordle-v0", "../etc", "x" * 50])
def test_start_selfplay_refuses_unknown_game(player: TestClient, game: str) -> None:
    answer = player.post("/api/selfplay", json={"games": [game], "model": "tiny"})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("games: ")
