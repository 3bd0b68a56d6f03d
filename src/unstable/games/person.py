"""A person at the table: sees the game in the terminal and types the moves."""

from __future__ import annotations

import random
from collections.abc import Callable

from unstable.games.players import RandomLegal
from unstable.games.rules import legal_moves
from unstable.games.runner import GameRunner
from unstable.utils.logging import printable

PATIENCE = 1000
"""Invalid moves in a row that a person may take back; models may take back none."""
LISTINGS = 8
"""Where moves are too many to list, they are drawn: so often."""


class Person:
    """Asks for moves until the game takes one.

    Args:
        read: returns a line that the person typed.
        say: shows a text.
    """

    def __init__(self, read: Callable[[], str], say: Callable[[str], None]) -> None:
        self._read, self._say = read, say
        self._seen = ""

    def play_turn(self, game: GameRunner) -> None:
        """Show what is new, and play a move that the person types; an invalid one is not lost.

        Raises:
            EOFError: the person has left.
        """
        self.look(game)
        game.env.state.error_allowance = PATIENCE
        game.step(self._move(game))
        game.env.state.error_allowance = 0

    def look(self, game: GameRunner) -> None:
        """Show what the person has not seen yet."""
        observation = game.observe().observation
        gap = "\n" if self._seen else ""
        news = unseen(self._seen, observation)
        if not news and game.last_move_invalid:  # some games do not say it
            news = "That is no legal move here; ? lists them."
        self._say(gap + printable(news))
        self._seen = observation

    def _move(self, game: GameRunner) -> str:
        while True:
            line = self._read().strip()
            if line == "?":
                self._say(hint(game))
            elif line:
                return as_move(line, game.env_id)


def unseen(before: str, now: str) -> str:
    """What an observation has more than the one before: most games tell the whole story again.

    Where it does not simply go on, the paragraphs that both begin with are left out; a board is one
    paragraph, and so is shown whole or not at all.
    """
    if before and now.startswith(before):
        return now[len(before) :].strip("\n")
    known, paragraphs = before.split("\n\n"), now.split("\n\n")
    same = 0
    while same < len(paragraphs) - 1 and same < len(known) and known[same] == paragraphs[same]:
        same += 1
    return "\n\n".join(paragraphs[same:]).strip("\n")


def as_move(line: str, env_id: str) -> str:
    """What the person meant: games whose moves are in brackets get them."""
    return line if "[" in line or not RandomLegal.plays(env_id) else f"[{line}]"


def hint(game: GameRunner) -> str:
    """The legal moves, or some where they are too many."""
    moves: dict[str, None] = {}
    try:
        for seed in range(LISTINGS):
            moves |= dict.fromkeys(legal_moves(game.env_id, game.env, random.Random(seed)))
    except LookupError as error:
        return str(error)
    return f"legal moves: {' '.join(moves)}"
