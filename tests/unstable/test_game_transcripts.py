"""Games in a run's folder that people can step through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from collector_run import Run
from instant_actor import InstantActor, listed_move, nonsense

from unstable import writers
from unstable.collector import TRANSCRIBED
from unstable.games import GameRunner
from unstable.trackers import Tracker
from unstable.writers import Transcripts, read_games


def games(folder: Path, kind: Any) -> list[dict[str, Any]]:
    return list(read_games(folder, kind))


def replayed(game: dict[str, Any]) -> GameRunner:
    """The moves of a transcript, played again; each must be what the game shows then."""
    again = GameRunner(game["env_id"], len(game["players"]), game["seed"])
    for move in game["moves"]:
        assert again.observe() == type(again.observe())(move["seat"], move["observation"])
        again.step(move["action"])
        assert move["board"] == again.board()
        assert move["legal"] is not again.last_move_invalid
    return again


def test_a_transcript_is_the_whole_game_of_all_players(tmp_path):
    run = Run(
        tmp_path, InstantActor(listed_move), mode="random", checkpoints=3, compact_views=False,
        random_opening_moves=3,
    )  # fmt: skip
    run.play(12)
    found = games(tmp_path, "train")
    assert len(found) == 12
    for game in found:
        again = replayed(game)
        assert again.done
        assert {int(seat): reward for seat, reward in game["rewards"].items()} == again.rewards
        assert game["reason"] == again.infos[0]["reason"]
        wrote = [player["kind"] == "checkpoint" for player in game["players"]]
        for move in game["moves"]:
            assert ("boxed" in move["answer"]) == (wrote[move["seat"]] and not move["opening"])
        assert [player["learner"] for player in game["players"]].count(True) == 1
    assert any(move["opening"] for game in found for move in game["moves"])
    seen = {player["uid"] for game in found for player in game["players"]}
    assert seen <= {"ckpt-0", "ckpt-1", "ckpt-2", "fixed-random-legal"}
    assert len(seen) > 1


def test_evaluation_games_are_kept_too_and_an_illegal_move_is_marked(tmp_path):
    run = Run(tmp_path, InstantActor(nonsense))
    run.evaluate(4)
    found = games(tmp_path, "eval")
    assert [game["id"] for game in found] == ["eval-1", "eval-2", "eval-3", "eval-4"]
    for game in found:
        learner = next(player for player in game["players"] if player["learner"])
        assert (learner["uid"], learner["version"]) == ("ckpt-0", 0)
        assert game["moves"][-1]["answer"].startswith("I resign")
        assert not game["moves"][-1]["legal"]
        assert game["ended_by_invalid"] == learner["seat"]
    assert games(tmp_path, "train") == []


def test_of_each_checkpoint_the_first_training_games_are_kept(tmp_path):
    run = Run(tmp_path)
    run.play(TRANSCRIBED + 10)
    run.pool.add_checkpoint("adapters/1", 1)
    run.play(5)
    kept = [int(game["id"].removeprefix("train-")) for game in games(tmp_path, "train")]
    assert kept == [*range(1, TRANSCRIBED + 1), *range(TRANSCRIBED + 11, TRANSCRIBED + 16)]


@pytest.mark.parametrize("bound", [(3, 1 << 20), (1000, 900)])
def test_the_newest_games_stay_within_the_bound(tmp_path, monkeypatch, bound):
    monkeypatch.setitem(writers.LIMITS, "train", bound)
    writer = Transcripts(tmp_path)
    for number in range(20):
        if number == 10:  # another process goes on
            writer = Transcripts(tmp_path, resume_step=11)
        text = "x" * 200
        move = {"seat": 0, "observation": text, "shared": 0}
        writer.add({"id": number, "kind": "train", "step": number, "moves": [move]})
    kept = [game["id"] for game in games(tmp_path, "train")]
    assert kept == list(range(kept[0], 20))
    assert 3 <= len(kept) <= 8
    assert {path.name for path in (tmp_path / "games").iterdir()} == {
        "train.jsonl", "train.1.jsonl",
    }  # fmt: skip


def test_a_resumed_run_drops_the_training_games_that_it_plays_again(tmp_path):
    first = Tracker("run", run_dir=tmp_path, writers=())
    for step in (0, 1, 2):
        first.log_learner({"step": step})
        for kind in ("eval", "train"):
            first.add_transcript({"id": f"{kind}-{step}", "kind": kind, "moves": []})
    with (tmp_path / "games" / "train.jsonl").open("a") as torn:
        torn.write('{"step": 0, "id"')
    again = Tracker("run", run_dir=tmp_path, writers=(), resume_step=1)
    again.load_state_dict(again.state_dict())
    assert [game["id"] for game in games(tmp_path, "train")] == ["train-0"]
    assert [game["id"] for game in games(tmp_path, "eval")] == ["eval-0", "eval-1"]


def test_observations_that_go_on_are_not_written_twice(tmp_path):
    run = Run(tmp_path, InstantActor(listed_move), compact_views=False)
    run.play(1)
    line = json.loads((tmp_path / "games" / "train.jsonl").read_text())
    whole = games(tmp_path, "train")[0]
    written = sum(len(move["observation"]) for move in line["moves"])
    assert written < 0.8 * sum(len(move["observation"]) for move in whole["moves"])
    replayed(whole)


def test_the_latest_game_is_shown_move_by_move(tmp_path):
    run = Run(tmp_path, InstantActor(nonsense))
    run.evaluate(1)
    shown = run.tracker.get_interface_info()["latest_game"]
    assert "eval-1: ckpt-0 against random-legal" in shown
    assert "I resign" in shown
    assert ": illegal" in shown
    assert "rewards 0: -1, 1: 1" in shown
    run = Run(tmp_path / "boards", InstantActor())
    run.play(1)
    game = games(tmp_path / "boards", "train")[0]
    shown = run.tracker.get_interface_info()["latest_game"]
    assert all(move["board"] in shown for move in game["moves"])
