"""Games for one, three and more: played, won by several, trained on, and played by a person."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_run import new_run

from unstable.cli import main
from unstable.config import ConfigError, RunConfig, load_config, recipe
from unstable.core import Trajectory, outcome
from unstable.evaluation import Evaluation
from unstable.games import GameError, GameRunner
from unstable.games.players import RandomLegal, play
from unstable.models import find_model
from unstable.run.parts import replace_games
from unstable.run.start import start
from unstable.tiny import WarmUp, make_tiny
from unstable.trackers import Tracker
from unstable.utils.templates import format_prompt

THREE = "ThreePlayerTicTacToe-v0-train"


@pytest.mark.parametrize(
    ("env_id", "seats"),
    [
        ("GuessTheNumber-v0-train", 1), ("FrozenLake-v0-train", 1), ("Blackjack-v0-train", 1),
        (THREE, 3), ("LiarsDice-v0-small-train", 3), ("LiarsDice-v0-small-train", 5),
        ("Poker-v0-small-train", 4), ("Snake-v0-train", 3), ("Surround-v0-train", 4),
    ],
)  # fmt: skip
def test_random_players_end_games_of_any_size(env_id: str, seats: int) -> None:
    for seed in range(5):
        game = GameRunner(env_id, seats, seed)
        rewards = play(game, [RandomLegal(seed * seats + seat) for seat in range(seats)])
        assert set(rewards) == set(range(seats))
        assert not any(info.get("invalid_move") for info in game.infos.values())
        if seats > 1:
            results = {outcome(rewards, seat) for seat in rewards}
            assert results in ({1, -1}, {0})


def test_shared_win_counts_as_win(tmp_path: Path) -> None:
    game = GameRunner(THREE, 3, seed=0)
    for action in ("[0]", "[1]", "no move"):
        game.step(action)
    assert game.rewards == {0: 1.0, 1: 1.0, 2: -1.0}
    evaluation = Evaluation("ckpt-1", THREE, "random-legal")
    tracker = Tracker("run", run_dir=tmp_path)
    for seat in range(3):
        evaluation.add(game.rewards, seat)
        tracker.add_trajectory(Trajectory(final_rewards=game.rewards), seat, THREE)
    summary = evaluation.summary()
    rates = (2 / 3, 0.0, 1 / 3)
    assert tuple(summary[f"{name}_rate"] for name in ("win", "draw", "loss")) == rates
    metrics = tracker.get_metrics()
    prefix = f"collection-{THREE}"
    kinds = ("Win", "Draw", "Loss")
    assert tuple(metrics[f"{prefix}/{kind} Rate"] for kind in kinds) == pytest.approx(rates)


@pytest.mark.parametrize("seats", [4, 6])
def test_a_forfeit_loses_for_the_whole_team(seats: int) -> None:
    game = GameRunner("Taboo-v0-raw", seats, seed=0)
    for action in ("it is a thing", "a guess without brackets"):
        game.step(action)
    team = seats // 2
    assert game.rewards == {seat: -1.0 if seat < team else 1.0 for seat in range(seats)}


def test_an_invalid_move_counts_each_time_where_the_game_goes_on() -> None:
    game = GameRunner("Taboo-v0-raw", 4, seed=0)
    for number in range(3):  # the fourth ends the last round
        seat = game.observe().seat
        game.step(str(game.env.state.game_state["taboo_words"][0]))
        assert (seat, game.last_move_invalid, game.done) == (number % 2 * 2, True, False)


@pytest.mark.parametrize(
    ("env_id", "seats", "said"),
    [
        ("QuantumTicTacToe-v0", 3, "for 2, not for 3"),
        ("SpiteAndMalice-v0", 1, "for 2, not for 1"),
        ("Sudoku-v0", 2, "cannot be played here"),
    ],
)
def test_game_refuses_other_numbers_of_players(env_id: str, seats: int, said: str) -> None:
    with pytest.raises(GameError, match=said):
        GameRunner(env_id, seats, seed=0)


def test_missing_rewards_fail_the_game(monkeypatch: pytest.MonkeyPatch) -> None:
    game = GameRunner(THREE, 3, seed=0)
    game.env.state.set_winners = lambda **_: (
        setattr(game.env.state, "rewards", {0: 1, 1: -1}),
        setattr(game.env.state, "done", True),
    )
    with pytest.raises(GameError, match=r"rewards of seats \[0, 1\] for 3 players"):
        game.step("no move")


@pytest.mark.parametrize(
    ("seats", "told"),
    [(1, "a single-player game"), (2, "a two-player zero-sum game"), (4, "a 4-player game")],
)
@pytest.mark.parametrize("key", ["default", "qwen3-zs", "gemma3-zs", "llama-instruct-zs"])
def test_prompt_names_the_number_of_players(key: str, seats: int, told: str) -> None:
    prompt = format_prompt(key, "the board", num_players=seats)
    assert told in prompt
    assert "\\boxed{}" in prompt


def test_game_option_finds_number_of_players() -> None:
    config = load_config(recipe(None))
    games = ("FrozenLake-v0-train", THREE, "LiarsDice-v0-train")

    def seats(changed: RunConfig) -> list[int]:
        return [n for _, n, _ in changed.games.train]

    assert seats(replace_games(config, games)) == [1, 3, 2]
    assert seats(replace_games(config, games[2:], players=4)) == [4]
    assert seats(replace_games(replace_games(config, games[2:], players=4), games[2:])) == [4]
    with pytest.raises(ConfigError, match="NoGame-v0"):
        replace_games(config, ("NoGame-v0",))


def test_the_embedded_model_is_made_for_one_three_and_more(tmp_path: Path) -> None:
    games = ["FrozenLake-v0-train", THREE, ("LiarsDice-v0-train", 4)]
    folder = make_tiny(tmp_path / "tiny", games, warm_up=WarmUp(games=3, steps=2))
    assert f"| {THREE} |" in (folder / "README.md").read_text()
    with pytest.raises(GameError, match="cannot be played"):
        make_tiny(tmp_path / "other", [(THREE, 2)])


@pytest.mark.parametrize(
    ("env_id", "seats"), [("FrozenLake-v0-train", 1), (THREE, 3), ("LiarsDice-v0-train", 4)]
)
def test_a_run_learns_from_games_of_any_size(
    env_id: str, seats: int, model: str, tmp_path: Path
) -> None:
    games = {"train": [[env_id, seats, "bare"]], "opponent": ["random-legal", "first-checkpoint"]}
    config, folder = new_run(
        tmp_path / "run", model, games=games, updates=2, pool={"max_active_lora": 2}
    )
    result = start(config, folder, model, lambda _: None)
    assert (result.step, result.counts["failed"], result.counts["eval_failed"]) == (2, 0, 0)
    assert {row["players"] for row in result.evaluations} == {seats}
    named = find_model(folder.path)
    assert (named.env_id, named.players) == (env_id, {env_id: seats})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--game", "Mastermind-v0-train"], "no short board for Mastermind-v0-train"),
        (["--game", THREE, "--players", "2"], "exactly three players"),
        (["--model", "smollm2", "--game", "ThreePlayerGOPS-v0-train"], "--opponent"),
    ],
)  # fmt: skip
def test_untrainable_games_are_refused_in_one_line(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["train", *options, "--output-dir", str(tmp_path)])
    assert left.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def played(*arguments: str, typed: str) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "unstable.cli", "play", *arguments, "--json"],
        input=typed, capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    result: dict[str, Any] = json.loads(ended.stdout)
    return {**result, "said": ended.stderr}


def test_single_player_game_is_repeated_by_model() -> None:
    typed = "".join(f"{number}\n" for number in range(1, 21))
    result = played("random-legal", "--game", "GuessTheNumber-v0", "--seed", "4", typed=typed)
    assert result["finished"]
    assert {move["seat"] for move in result["moves"]} == {0}
    assert 0.0 <= result["their_reward"] <= 1.0
    assert "random-legal in the same game: reward" in result["said"]


def test_a_person_sits_with_several_others() -> None:
    typed = "Call\nBid 9 6\n" * 40
    result = played(
        "random-legal", "--game", "LiarsDice-v0-small", "--players", "4", "--seat", "2",
        "--seed", "3", typed=typed,
    )  # fmt: skip
    assert "against 3 of random-legal" in result["said"]
    assert {move["seat"] for move in result["moves"]} == {0, 1, 2, 3}
    assert result["finished"]
    assert set(result["rewards"]) == {"0", "1", "2", "3"}
