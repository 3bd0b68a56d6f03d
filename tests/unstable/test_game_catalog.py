"""Which games run here."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from unstable.games.players import game_ids, probe


def test_ids_are_listed_without_their_variants():
    ids = game_ids()
    assert "TicTacToe-v0" in ids
    assert len(ids) > 200
    assert not any(env_id.endswith(("-train", "-raw")) for env_id in ids)


@pytest.mark.parametrize(
    ("env_id", "players"),
    [("TicTacToe-v0", 2), ("Blackjack-v0", 1), ("ThreePlayerTicTacToe-v0", 3)],
)
def test_a_game_that_runs_says_with_how_many(env_id, players):
    entry = probe(env_id)
    assert (entry.num_players, entry.reason) == (players, "")
    assert entry.has_random_legal


def test_a_game_that_does_not_run_says_why():
    entry = probe("NoSuchGame-v0")
    assert entry.num_players is None
    assert "not found in registry" in entry.reason


def test_what_a_game_lacks_is_told_in_words(monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    assert probe("TwentyQuestions-v0").reason == "needs an OPENROUTER_API_KEY"
    assert probe("Klondike-v0").reason == "is broken in this TextArena"
    assert "not installed" in probe("UsedCarNegotiation-v0").reason


def test_the_command_says_which_run_here_and_what_the_others_need() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "unstable.cli", "games", "TicTacToe-v0", "--json"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    games = {entry["env_id"]: entry for entry in json.loads(ended.stdout)}
    assert games["TicTacToe-v0"]["num_players"] == 2
    assert games["ThreePlayerTicTacToe-v0"]["num_players"] == 3
    if sys.version_info < (3, 12):
        assert "3.12" in games["ReverseTicTacToe-v0"]["reason"]
