"""Games of TextArena: reproducible, isolated, ended; and which run here."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading

import pytest

from unstable.core import outcome
from unstable.games import GameError, GameRunner
from unstable.games.players import RandomLegal, find_fewest_players, list_game_ids, play, try_game
from unstable.games.rules import BOARDS, LEGAL_MOVES, compact_view
from unstable.reward_transformations import WinDrawLossFormatter

GAMES = [f"{name}-v0-train" for name in LEGAL_MOVES]
WITH_DICE = ["KuhnPoker-v0-train", "LiarsDice-v0-train", "PigDice-v0-train", "Poker-v0-small-train"]


def start(env_id: str, seed: int) -> tuple[GameRunner, list[RandomLegal]]:
    seats = find_fewest_players(env_id)
    players = [RandomLegal(seed * seats + seat) for seat in range(seats)]
    return GameRunner(env_id, seats, seed), players


def invalid_seats(game: GameRunner) -> list[int]:
    return [seat for seat, info in game.infos.items() if info.get("invalid_move")]


def move(game: GameRunner, players: list[RandomLegal]) -> str:
    turn = game.observe()
    game.step(players[turn.seat].act(game))
    return turn.observation


def record(env_id: str, seed: int) -> list[str]:
    game, players = start(env_id, seed)
    seen = []
    while not game.done:
        seen.append(move(game, players))
    return [*seen, str(game.rewards)]


@pytest.mark.parametrize(
    ("game", "moves"),
    [
        ("2048", ["xyz"]), ("GuessTheNumber", ["xyz"]), ("Sokoban", ["xyz"]), ("Countdown", ["x"]),
        ("FrozenLake", ["xyz"]), ("TowerOfHanoi", ["xyz"]), ("Mastermind", ["[1 2 3 4]"] * 2),
    ],
)  # fmt: skip
def test_single_player_loses_by_invalid_move(game, moves):
    runner = GameRunner(f"{game}-v0-train", 1, seed=0)
    for action in moves:
        runner.step(action)
    assert runner.done
    assert runner.last_move_invalid
    assert outcome(runner.rewards, 0) == -1
    assert WinDrawLossFormatter()(runner.rewards) == {0: -1.0}


@pytest.mark.parametrize("env_id", GAMES)
def test_random_legal_players_never_make_an_invalid_move(env_id):
    games = 15 if "Poker-v0" in env_id or "PigDice" in env_id else 40
    outcomes = set()
    for seed in range(games):
        game, players = start(env_id, seed)
        rewards = play(game, players)
        assert invalid_seats(game) == [], (seed, game.infos)
        assert set(rewards) == set(range(game.num_players))
        assert game.turns == len(game.action_seq()) > 0
        outcomes.add(rewards[0])
    assert game.num_players == 1 or len(outcomes) > 1  # not always the same seat wins


@pytest.mark.parametrize("env_id", WITH_DICE)
def test_a_game_is_the_same_for_the_same_seed(env_id):
    assert record(env_id, 5) == record(env_id, 5)
    assert record(env_id, 5) != record(env_id, 6)


@pytest.mark.parametrize("env_id", WITH_DICE)
def test_a_game_is_the_same_when_others_are_played_meanwhile(env_id):
    alone = [record(env_id, seed) for seed in range(4)]
    together = [start(env_id, seed) for seed in range(4)]
    seen: list[list[str]] = [[] for _ in together]
    order = random.Random(1)
    while any(not game.done for game, _ in together):
        index = order.randrange(4)
        game, players = together[index]
        random.random()  # what others draw from the global state must not matter either
        if not game.done:
            seen[index].append(move(game, players))
            if game.done:
                seen[index].append(str(game.rewards))
    assert seen == alone


def test_games_in_threads_do_not_disturb_each_other():
    expected = [record("PigDice-v0-train", seed) for seed in range(4)]
    found: dict[int, list[str]] = {}

    def one(seed: int) -> None:
        found[seed] = record("PigDice-v0-train", seed)

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(4)] == expected


def test_the_global_random_state_is_left_alone():
    random.seed(7)
    expected = [random.random() for _ in range(5)]
    random.seed(7)
    found = []
    game, players = start("PigDice-v0-train", 1)
    for _ in range(5):
        found.append(random.random())
        move(game, players)
    assert found == expected


def test_the_first_invalid_move_loses():
    game, _ = start("TicTacToe-v0-train", 0)
    game.step("[4]")
    assert game.step("[4]")
    assert game.rewards == {0: 1.0, 1: -1.0}
    assert invalid_seats(game) == [1]
    assert game.turns == 2


def test_invalid_move_ends_games_that_forget_to():
    game = GameRunner("Poker-v0-small-train", 2, 0)
    seat = game.observe().seat
    assert game.step("[Check]")  # facing the big blind: TextArena would ask again for ever
    assert game.rewards == {seat: -1.0, 1 - seat: 1.0}
    assert invalid_seats(game) == [seat]


def test_three_player_game_goes_on_after_invalid_move():
    game = GameRunner("LiarsDice-v0-train", 3, 0)
    out = game.observe().seat
    assert not game.step("nonsense")
    players = [RandomLegal(seat) for seat in range(3)]
    rewards = play(game, players)
    assert rewards[out] == -1.0
    assert sorted(rewards.values()) == [-1.0, 0.0, 1.0]
    assert invalid_seats(game) == [out]


def test_a_move_of_nonsense_never_hangs_a_game():
    for env_id in GAMES:
        game = GameRunner(env_id, find_fewest_players(env_id), 0, max_moves=200)
        while not game.done:
            game.observe()
            game.step("\\boxed{ \x00 [")
        assert set(game.rewards) == set(range(game.num_players))


def test_a_game_without_end_is_an_error():
    game = GameRunner("PigDice-v0-train", 2, 0, max_moves=10)
    with pytest.raises(GameError, match="no end after 10 moves"):
        play(game, [RandomLegal(0), RandomLegal(1)])


@pytest.mark.parametrize(("env_id", "players"), [("NoSuchGame-v0", 2), ("TicTacToe-v0", 3)])
def test_a_game_that_cannot_be_played_says_which(env_id, players):
    with pytest.raises(GameError, match=env_id):
        GameRunner(env_id, players, 0)


def test_a_game_that_raises_says_where():
    game, _ = start("TicTacToe-v0-train", 0)

    def broken(action: str) -> None:
        raise ZeroDivisionError("in the game")

    game.env.env.step = broken
    with pytest.raises(GameError, match="move 1: ZeroDivisionError: in the game"):
        game.step("[4]")


# --- short boards -------------------------------------------------------------------------


def test_a_short_board_is_the_same_from_both_seats():
    view = compact_view("TicTacToe-v0-train")
    game = GameRunner("TicTacToe-v0-train", 2, 0, view=view)
    assert game.observe().observation == "012345678"
    game.step("[4]")
    assert game.observe().observation == "0123e5678"
    game.step("[0]")
    assert game.observe().observation == "a123E5678"


@pytest.mark.parametrize("name", BOARDS)
def test_games_can_be_played_on_short_boards(name):
    env_id = f"{name}-v0-train"
    seats = find_fewest_players(env_id)
    game = GameRunner(env_id, seats, 1, view=compact_view(env_id))
    players = [RandomLegal(seat) for seat in range(seats)]
    while not game.done:
        turn = game.observe()
        assert 0 < len(turn.observation) < 60
        game.step(players[turn.seat].act(game))


def test_a_short_board_shows_a_player_only_its_own_card():
    env_id = "KuhnPoker-v0-train"
    cards = set()
    for seed in range(10):
        game = GameRunner(env_id, 2, seed, view=compact_view(env_id))
        turn = game.observe()
        state = game.env.state.game_state
        assert turn.observation.split()[1] == "JQK"[state["player_cards"][turn.seat]]
        cards.add(turn.observation.split()[1])
    assert cards == {"J", "Q", "K"}
    with pytest.raises(LookupError, match="Poker"):
        compact_view("Poker-v0")


def test_ids_are_listed_without_their_variants():
    ids = list_game_ids()
    assert "TicTacToe-v0" in ids
    assert len(ids) > 200
    assert not any(env_id.endswith(("-train", "-raw")) for env_id in ids)


@pytest.mark.parametrize(
    ("env_id", "players"),
    [("TicTacToe-v0", 2), ("Blackjack-v0", 1), ("ThreePlayerTicTacToe-v0", 3)],
)
def test_a_game_that_runs_says_with_how_many(env_id, players):
    entry = try_game(env_id)
    assert (entry.num_players, entry.reason) == (players, "")
    assert entry.has_random_legal


def test_a_game_that_does_not_run_says_why():
    entry = try_game("NoSuchGame-v0")
    assert entry.num_players is None
    assert "not found in registry" in entry.reason


def test_probe_explains_missing_requirements(monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    assert try_game("TwentyQuestions-v0").reason == "needs an OPENROUTER_API_KEY"
    assert try_game("Klondike-v0").reason == "is broken in this TextArena"
    assert "not installed" in try_game("UsedCarNegotiation-v0").reason


def test_games_command_lists_games_and_requirements() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "unstable.cli", "games", "TicTacToe-v0", "--json"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    games = {entry["env_id"]: entry for entry in json.loads(ended.stdout)}
    assert games["TicTacToe-v0"]["num_players"] == 2
    assert games["ThreePlayerTicTacToe-v0"]["num_players"] == 3
    if sys.version_info < (3, 12):
        assert "3.12" in games["ReverseTicTacToe-v0"]["reason"]
