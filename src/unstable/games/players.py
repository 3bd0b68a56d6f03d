"""Players that need no model: fixed opponents for evaluation, and data to warm up on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from unstable.games.rules import LEGAL_MOVES, game_name, legal_moves
from unstable.games.runner import GameRunner
from unstable.utils.plugins import is_own_part, load_part

RANDOM_LEGAL = "random-legal"
FIRST_CHECKPOINT = "first-checkpoint"
"""Who is measured by this name plays against what its run began with."""


class Player(Protocol):
    def act(self, game: GameRunner) -> str:
        """The move of the player whose turn it is."""
        ...


class RandomLegal:
    """Plays a legal move at random; the same ones for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def act(self, game: GameRunner) -> str:
        """A legal move. Raises LookupError: the game's moves are not known, or it offers none."""
        moves = legal_moves(game.env_id, game.env, self._random)
        if not moves:
            raise LookupError(f"{game.env_id} offers no legal move")
        return self._random.choice(moves)

    @staticmethod
    def plays(env_id: str) -> bool:
        """Whether it knows the moves of this game."""
        return game_name(env_id) in LEGAL_MOVES


PLAYERS: dict[str, Callable[[int], Player]] = {RANDOM_LEGAL: RandomLegal}
"""Fixed players by name: a function of the seed."""


def player_named(name: str) -> Callable[[int], Player] | None:
    """A function from the seed to a scripted player: one of PLAYERS, or `my_module:Player`.

    None: the name is of none.
    """
    if name in PLAYERS:
        return PLAYERS[name]
    if not is_own_part(name):
        return None
    player: Callable[[int], Player] = load_part(name)
    return player


def play(game: GameRunner, players: Sequence[Player]) -> dict[int, float]:
    """Play a game to its end; the rewards by seat."""
    while not game.done:
        turn = game.observe()
        game.step(players[turn.seat].act(game))
    return game.rewards
