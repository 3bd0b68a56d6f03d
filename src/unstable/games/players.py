"""Scripted players, and the games that run on this machine."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from unstable.games import GameError, GameRunner
from unstable.games.rules import BOARDS, LEGAL_MOVES, game_name, legal_moves
from unstable.utils.plugins import is_own_part, load_part

RANDOM_LEGAL = "random-legal"
FIRST_CHECKPOINT = "first-checkpoint"
"""Who is measured by this name plays against what its run began with."""


class Player(Protocol):
    def act(self, game: GameRunner) -> str:
        """Return the move of the player whose turn it is."""
        ...


class RandomLegal:
    """Plays a legal move at random; the same ones for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def act(self, game: GameRunner) -> str:
        """Return a legal move; raise LookupError if none is known."""
        moves = legal_moves(game.env_id, game.env, self._random)
        if not moves:
            raise LookupError(f"{game.env_id} offers no legal move")
        return self._random.choice(moves)

    @staticmethod
    def plays(env_id: str) -> bool:
        """Return whether it knows the moves of this game."""
        return game_name(env_id) in LEGAL_MOVES


PLAYERS: dict[str, Callable[[int], Player]] = {RANDOM_LEGAL: RandomLegal}
"""Fixed players by name: a function of the seed."""


def find_player(name: str) -> Callable[[int], Player] | None:
    """Return a function from seed to scripted player: of PLAYERS, or `my_module:Player`.

    None: the name is of none.
    """
    if name in PLAYERS:
        return PLAYERS[name]
    if not is_own_part(name):
        return None
    player: Callable[[int], Player] = load_part(name)
    return player


def play(game: GameRunner, players: Sequence[Player]) -> dict[int, float]:
    """Play a game to its end; return the rewards by seat."""
    while not game.done:
        turn = game.observe()
        game.step(players[turn.seat].act(game))
    return game.rewards


PLAYERS_TO_TRY = (2, 1, 3, 4, 5, 6, 8, 10)
VARIANTS = ("-train", "-raw")


@dataclass(frozen=True)
class GameEntry:
    """A game, and whether it starts here."""

    env_id: str
    num_players: int | None
    """With how many it starts; None: it does not start here."""
    reason: str
    """Why it does not."""
    has_random_legal: bool
    """Whether the player `random-legal` knows its moves."""
    has_short_board: bool
    """Whether it has a short board; with known moves the embedded model can learn it."""


def list_game_ids() -> list[str]:
    """Return every id of TextArena, without the variants that differ in observation only."""
    from textarena.envs.registration import ENV_REGISTRY

    return [env_id for env_id in ENV_REGISTRY if not env_id.endswith(VARIANTS)]


def list_learnable_game_ids() -> list[str]:
    """Return the training games whose legal moves are known."""
    from textarena.envs.registration import ENV_REGISTRY

    return [name for name in ENV_REGISTRY if name.endswith("-train") and RandomLegal.plays(name)]


def try_game(env_id: str) -> GameEntry:
    """Start a game and look at it once; some need data, a key or a newer Python."""
    known = (RandomLegal.plays(env_id), game_name(env_id) in BOARDS)
    reason = ""
    for num_players in PLAYERS_TO_TRY:
        # Some announce what they fail to download.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                GameRunner(env_id, num_players, seed=0).observe()
            except GameError as error:
                missing = _explain_missing(error)
                if missing:
                    return GameEntry(env_id, None, missing, *known)
                reason = reason or str(error)
            else:
                return GameEntry(env_id, num_players, "", *known)
    return GameEntry(env_id, None, reason, *known)


def find_fewest_players(env_id: str) -> int:
    """Return two if a game takes two, else the fewest players that it takes.

    Raises:
        GameError: it does not run here.
    """
    entry = try_game(env_id)
    if entry.num_players is None:
        raise GameError(f"{entry.reason}; `unstable games` lists what runs here")
    return entry.num_players


def _explain_missing(error: GameError) -> str:
    """Return what a game needs to run with any number of players; empty if unknown."""
    cause = error.__cause__
    if "API key" in str(cause):
        return "needs an OPENROUTER_API_KEY"
    if isinstance(cause, SyntaxError):
        newer = "f-string" in str(cause)
        return "needs Python 3.12 or newer" if newer else "is broken in this TextArena"
    if isinstance(cause, LookupError) and "nltk" in str(cause).lower():
        return "needs word lists of NLTK, which are downloaded"
    if isinstance(cause, ImportError | OSError):
        return f"needs what is not installed: {str(cause).strip().splitlines()[0]}"
    return ""
