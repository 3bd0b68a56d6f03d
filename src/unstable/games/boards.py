"""What matters of an observation in a few characters, for models too small for a page of rules.

As `view` of a GameRunner these replace TextArena's text. Everything the player may know is in it,
and nothing else: `O` and `X` become `me` and `other`, so that both seats learn from each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unstable.games.legal import game_name

ME, OTHER, EMPTY = "M", "O", "."


def compact_view(env_id: str) -> Callable[[Any, int, str], str]:
    """The view for a game.

    Raises:
        LookupError: there is none for this game.
    """
    try:
        board = BOARDS[game_name(env_id)]
    except KeyError:
        known = ", ".join(BOARDS)
        raise LookupError(f"no short board for {env_id}; there are {known}") from None
    return lambda env, seat, _: board(env, seat)


def _grid(symbols: tuple[str, str]) -> Callable[[Any, int], str]:
    def board(env: Any, seat: int) -> str:
        marks = {symbols[seat]: ME, symbols[1 - seat]: OTHER}
        rows = env.state.game_state["board"]
        return "/".join("".join(marks.get(cell, EMPTY) for cell in row) for row in rows)

    return board


def _tic_tac_toe(env: Any, seat: int) -> str:
    """Cell by cell: its number if it is empty, `A` to `I` if it is mine, `a` to `i` if theirs.

    Every character says where it stands, so that a tiny model has nothing to count.
    """
    shown = {"": "012345678", "OX"[seat]: "ABCDEFGHI", "OX"[1 - seat]: "abcdefghi"}
    cells = [cell for row in env.state.game_state["board"] for cell in row]
    return "".join(shown[cell][number] for number, cell in enumerate(cells))


def _nim(env: Any, _: int) -> str:
    return " ".join(map(str, env.state.game_state["piles"]))


def _kuhn_poker(env: Any, seat: int) -> str:
    """Round, own card, chips of both, who opened, and the moves that are open."""
    state = env.state.game_state
    chips = state["player_chips"]
    moves = ",".join(state["current_legal_action_tree"])
    # The open moves alone do not tell the first move from the answer to a check.
    opens = "first" if state["starting_player"] == seat else "second"
    card = "JQK"[state["player_cards"][seat]]
    return f"{state['current_round']} {card} {chips[seat]} {chips[1 - seat]} {opens} {moves}"


BOARDS: dict[str, Callable[[Any, int], str]] = {
    "TicTacToe": _tic_tac_toe,
    "SimpleTak": _grid(("O", "X")),
    "ConnectFour": _grid(("X", "O")),
    "Nim": _nim,
    "KuhnPoker": _kuhn_poker,
}
"""By the game's name."""
