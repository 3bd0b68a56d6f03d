"""The `unstable` command, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys


def unstable(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "unstable.cli", *arguments],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_games_says_which_run_here_and_what_the_others_need() -> None:
    ended = unstable("games", "TicTacToe-v0", "--json")
    assert ended.returncode == 0
    games = {entry["env_id"]: entry for entry in json.loads(ended.stdout)}
    assert games["TicTacToe-v0"]["num_players"] == 2
    assert games["TicTacToe-v0"]["has_random_legal"]
    assert games["ThreePlayerTicTacToe-v0"]["num_players"] == 3
    if sys.version_info < (3, 12):
        assert "3.12" in games["ReverseTicTacToe-v0"]["reason"]
