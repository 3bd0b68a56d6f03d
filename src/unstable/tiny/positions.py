"""What the embedded model is warmed up on: positions of random games and their legal moves."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unstable.games.boards import compact_view
from unstable.games.legal import legal_moves
from unstable.games.runner import GameRunner

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Position:
    """What a player sees, and what it may answer."""

    board: str
    moves: tuple[str, ...]
    """Without their brackets: those cost tokens, and the action extraction `bare` puts them on."""


def random_games(env_id: str, games: int, seed: int) -> Iterator[list[Position]]:
    """Games of two random legal players, one after the other, the same for the same seed.

    Raises:
        LookupError: the game has no short board, or its moves are not known.
    """
    view = compact_view(env_id)
    rng = random.Random(f"{env_id} {seed}")
    for _ in range(games):
        game = GameRunner(env_id, 2, rng.getrandbits(32), view=view)
        positions = []
        while not game.done:
            board = game.observe().observation
            moves = legal_moves(env_id, game.env, rng)
            positions.append(Position(board, tuple(move.strip("[]") for move in moves)))
            game.step(rng.choice(moves))
        yield positions
