"""TextArena's games, each with its own random state: one game, move by move."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any

from unstable.games.rules import team_mates

_THREAD = threading.local()
"""`own`: what this thread draws from instead of the program's random numbers."""


def _wrap_with_own_random(name: str) -> Callable[..., Any]:
    """Wrap a function of `random` so that it uses the thread's own generator, if it has one."""
    shared = getattr(random, name)

    @wraps(shared)
    def draw(*args: Any, **kwargs: Any) -> Any:
        own = getattr(_THREAD, "own", None)
        return (shared if own is None else getattr(own, name))(*args, **kwargs)

    return draw


# Games draw from the module itself, and many games are within a move at the same time.
_PROGRAM = random.seed.__self__  # type: ignore[attr-defined]
for _name, _value in list(vars(random).items()):
    if getattr(_value, "__self__", None) is _PROGRAM:
        setattr(random, _name, _wrap_with_own_random(_name))


class OwnRandom:
    """Within `with`, this thread draws this object's numbers from `random`; after it, as before.

    Only `random` is: no game here draws from NumPy.
    """

    def __init__(self, seed: int) -> None:
        self._own = random.Random(seed)

    def __enter__(self) -> None:
        self._outside = getattr(_THREAD, "own", None)
        _THREAD.own = self._own

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _THREAD.own = self._outside


MAX_MOVES = 2000
"""No game here takes nearly as many; one that does has lost its way."""
LOSS = -1.0
"""What an invalid move is worth to who ends a game by it."""
MAX_MOVE_LENGTH = 80
"""Of a move in `action_seq`, in characters: statistics need no page of nonsense."""


class GameError(RuntimeError):
    """A game failed; the message says which, and at which move."""


@dataclass(frozen=True)
class Turn:
    """The player to move and its observation."""

    seat: int
    observation: str


class GameRunner:
    """A game of TextArena, the same for the same seed and moves whatever else is played meanwhile.

    The first invalid move loses (`error_allowance=0`), also for a player alone: what it had reached
    before does not count.

    Args:
        env_id: TextArena's id.
        num_players: how many seats.
        seed: of the game's dice and cards.
        error_allowance: how many invalid moves in a row a player may take back.
        max_moves: more raise GameError.
        view: makes the observation that players get, from the environment, the seat and
            TextArena's own observation.

    Raises:
        GameError: the game cannot be made here, or raised.
    """

    def __init__(
        self,
        env_id: str,
        num_players: int,
        seed: int,
        *,
        error_allowance: int = 0,
        max_moves: int = MAX_MOVES,
        view: Callable[[Any, int, str], str] | None = None,
    ) -> None:
        self.env_id, self.num_players, self.seed = env_id, num_players, seed
        self.done = False
        self.rewards: dict[int, float] = {}
        """By seat, when the game is over."""
        self.infos: dict[int, dict[str, Any]] = {}
        """By seat, when the game is over: `reason`, `invalid_move`, `turn_count`."""
        self.actions: list[tuple[int, str]] = []
        """Every move so far, with its seat."""
        self.last_move_invalid = False
        """Whether the last move was; with an error allowance the game may go on after it."""
        self._max_moves = max_moves
        self._view = view
        self._turn: Turn | None = None
        self._random = OwnRandom(seed)
        try:
            with self._random:
                self.env = _make(env_id)
                self.env.reset(num_players=num_players, seed=seed)
                self.env.state.error_allowance = error_allowance
                seats = _count_seats(self.env.state)
        # A game is foreign code: whatever it raises is told by which game it was.
        except Exception as error:
            raise GameError(f"{env_id} cannot be played here: {_describe_error(error)}") from error
        if seats not in (None, num_players):
            raise GameError(f"{env_id} is a game for {seats}, not for {num_players}")

    @property
    def turns(self) -> int:
        return len(self.actions)

    def observe(self) -> Turn:
        """Return the player to move and what it sees; the same until the move."""
        if self.done:
            raise GameError(f"{self.env_id} is over")
        if self._turn is None:
            seat, observation = self._call(self.env.get_observation)
            if not isinstance(observation, str):  # the raw variants give a list of messages
                observation = "\n".join(str(message[1]) for message in observation)
            if self._view is not None:
                observation = self._view(self.env, seat, observation)
            self._turn = Turn(int(seat), observation)
        return self._turn

    def step(self, action: str) -> bool:
        """Play the move of the player to move; return whether the game is over."""
        seat = self.observe().seat
        if self.turns >= self._max_moves:
            raise GameError(f"{self.env_id}, seed {self.seed}: no end after {self.turns} moves")
        self.actions.append((seat, action))
        self._turn = None
        state = self.env.state
        # Where a game goes on after an invalid move, it would be marked as invalid for ever.
        state.game_info[seat]["invalid_move"] = False
        taken_back = getattr(state, "error_count", 0)
        done, _ = self._call(lambda: self.env.step(action))
        is_fatal = bool(state.game_info[seat]["invalid_move"])
        self.last_move_invalid = is_fatal or getattr(state, "error_count", 0) > taken_back
        if done:
            self._finish()
        elif is_fatal and self._asks_player(seat):
            self._forfeit(seat)
        return self.done

    def action_seq(self) -> list[str]:
        """Return the first brackets of each move, in lower case."""
        return [_shorten_move(action) for _, action in self.actions]

    def board(self) -> str:
        """Return the board as the game draws it; empty where it draws none."""
        draw = getattr(self.env, "get_board_str", None)
        if draw is None:
            return ""
        try:
            return str(self._call(draw))
        except GameError:  # some draw only for a given player
            return ""

    def _asks_player(self, seat: int) -> bool:
        """Return whether a game still asks a player who should be out.

        Some games forget to end on an invalid move and would ask the same player for ever.
        """
        return self.num_players == 2 or self.env.state.current_player_id == seat

    def _forfeit(self, loser: int) -> None:
        """End the game: the player and its team lose, all others win."""
        losers = {loser, *team_mates(self.env_id, self.env, loser)}
        self.rewards = {seat: LOSS if seat in losers else 1.0 for seat in range(self.num_players)}
        self.infos = {seat: dict(info) for seat, info in self.env.state.game_info.items()}
        for info in self.infos.values():
            info["reason"] = f"Player {loser} made an invalid move."
        self.done = True

    def _finish(self) -> None:
        rewards, infos = self._call(self.env.close)
        if self.num_players == 1 and self.last_move_invalid:
            rewards = {0: LOSS}
        if set(map(int, rewards or ())) != set(range(self.num_players)):
            which = f"rewards of seats {sorted(rewards)}" if rewards else "no rewards"
            where = f"{self.env_id}, seed {self.seed}"
            raise GameError(f"{where}: over with {which} for {self.num_players} players")
        self.rewards = {int(seat): float(reward) for seat, reward in sorted(rewards.items())}
        self.infos = {int(seat): dict(info) for seat, info in infos.items()}
        self.done = True

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            with self._random:
                return function()
        except Exception as error:
            where = f"{self.env_id}, seed {self.seed}, move {self.turns}"
            raise GameError(f"{where}: {_describe_error(error)}") from error


def _make(env_id: str) -> Any:
    import textarena

    return textarena.make(env_id)


def _count_seats(state: Any) -> int | None:
    """Return how many seats a state's type has; None: any. Not every game checks it."""
    import textarena

    kinds = {textarena.SinglePlayerState: 1, textarena.TwoPlayerState: 2}
    return next((seats for kind, seats in kinds.items() if isinstance(state, kind)), None)


def _shorten_move(action: str) -> str:
    start = action.find("[")
    end = action.find("]", start)
    move = action[start : end + 1] if 0 <= start < end else action.strip()
    return move[:MAX_MOVE_LENGTH].lower()


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
