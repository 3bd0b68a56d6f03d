"""Legal moves and short boards, read off the state of games: TextArena has no such methods."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any


def game_name(env_id: str) -> str:
    """Return the game of an environment: `TicTacToe` of `TicTacToe-v0-train`."""
    return env_id.split("-v", maxsplit=1)[0]


def legal_moves(env_id: str, env: Any, rng: random.Random) -> list[str]:
    """Return legal moves now; raise LookupError if the moves of this game are not known."""
    try:
        moves = LEGAL_MOVES[game_name(env_id)]
    except KeyError:
        known = ", ".join(LEGAL_MOVES)
        raise LookupError(f"the moves of {env_id} are not known; those of {known} are") from None
    return moves(env, rng)


def _empty_cells(env: Any, _: random.Random) -> list[str]:
    """Return every empty cell, by number."""
    board = env.state.game_state["board"]
    return [
        f"[{row * len(cells) + column}]"
        for row, cells in enumerate(board)
        for column, cell in enumerate(cells)
        if cell == ""
    ]


def _kuhn_poker_moves(env: Any, _: random.Random) -> list[str]:
    return [f"[{move}]" for move in env.state.game_state["current_legal_action_tree"]]


def _nim(env: Any, _: random.Random) -> list[str]:
    piles = env.state.game_state["piles"]
    return [f"[{i} {take}]" for i, pile in enumerate(piles) for take in range(1, pile + 1)]


def _connect_four(env: Any, _: random.Random) -> list[str]:
    top = env.state.game_state["board"][0]
    return [f"[col {column}]" for column, cell in enumerate(top) if cell == "."]


def _liars_dice(env: Any, rng: random.Random) -> list[str]:
    """Return a call, or bids of up to one die more than are on the table."""
    state = env.state.game_state
    bid = state["current_bid"]
    dice = sum(state["remaining_dice"].values())
    low = max(1, bid["quantity"])
    bids = [
        f"[Bid {quantity} {face}]"  # as short as may be
        for quantity in range(low, max(low, dice) + 2)
        for face in range(max(1, bid["face_value"]), 7)
        if (quantity, face) != (bid["quantity"], bid["face_value"])
    ]
    if state["last_bidder_id"] is None:
        return bids
    # As often as not: among all bids a call would be rare, and bids would grow without end.
    return ["[Call]"] if rng.random() < 0.5 else bids


def _poker(env: Any, rng: random.Random) -> list[str]:
    state, seat = env.state.game_state, env.state.current_player_id
    due = state["current_bet"] - state["player_bets"][seat]
    chips = max(1, int(state["player_chips"][seat]))
    amount = rng.randint(1, max(1, min(chips, 100)))
    if due > 0:
        return ["[Fold]", "[Call]", "[Call]", f"[Raise {amount}]"]
    if state["current_bet"] > 0:
        return ["[Check]", "[Check]", f"[Raise {amount}]"]
    return ["[Check]", "[Check]", f"[Bet {amount}]"]


def _pig_dice(_: Any, __: random.Random) -> list[str]:
    return ["[roll]", "[hold]"]


def _prisoners_dilemma(env: Any, _: random.Random) -> list[str]:
    if env.state.game_state["phase"] == "conversation":
        return ["[I will cooperate]", "[Let us both cooperate]", "[No promises]"]
    return ["[Cooperate]", "[Defect]"]


def _negotiation(env: Any, rng: random.Random) -> list[str]:
    """Return a denial, an affordable acceptance, or one random offer of what is there."""
    state, seat = env.state.game_state, env.state.current_player_id
    mine, moves = state["player_resources"][seat], ["[Deny]"]
    offer = state["current_offer"]
    if offer and offer["from_player"] != seat:
        wanted = offer["requested_resources"].items()
        if all(mine.get(name, 0) >= quantity for name, quantity in wanted):
            moves.append("[Accept]")
    give = [name for name, quantity in mine.items() if quantity > 0]
    if give:
        one, other = rng.choice(give), rng.choice(list(mine))
        quantity = rng.randint(1, min(5, mine[one]))
        moves.append(f"[Offer: {quantity} {one} -> {rng.randint(1, 5)} {other}]")
    return moves


def _list_guesses(env: Any, _: random.Random) -> list[str]:
    """Return every number that was not guessed yet."""
    guessed = {guess for guess, _ in env.state.game_state["guess_history"]}
    numbers = range(env.min_number, env.max_number + 1)
    return [f"[{number}]" for number in numbers if number not in guessed]


def _hit_or_stand(_: Any, __: random.Random) -> list[str]:
    return ["[Hit]", "[Stand]"]


def _directions(_: Any, __: random.Random) -> list[str]:
    return ["[up]", "[down]", "[left]", "[right]"]


def _list_lake_moves(env: Any, _: random.Random) -> list[str]:
    """Return all directions but those that lead off the lake."""
    row, column = env.state.game_state["player_pos"]
    last = len(env.state.game_state["grid"]) - 1
    open_ways = {"up": row > 0, "down": row < last, "left": column > 0, "right": column < last}
    return [f"[{way}]" for way, is_open in open_ways.items() if is_open]


LEGAL_MOVES: dict[str, Callable[[Any, random.Random], list[str]]] = {
    "TicTacToe": _empty_cells,
    "SimpleTak": _empty_cells,
    "KuhnPoker": _kuhn_poker_moves,
    "Nim": _nim,
    "ConnectFour": _connect_four,
    "LiarsDice": _liars_dice,
    "Poker": _poker,
    "PigDice": _pig_dice,
    "IteratedPrisonersDilemma": _prisoners_dilemma,
    "SimpleNegotiation": _negotiation,
    "GuessTheNumber": _list_guesses,
    "Blackjack": _hit_or_stand,
    "FrozenLake": _list_lake_moves,
    "ThreePlayerTicTacToe": _empty_cells,
    "Snake": _directions,
    "Surround": _directions,
}
"""By the game's name."""


def team_mates(env_id: str, env: Any, seat: int) -> set[int]:
    """Return the seats that win and lose with this one; none where everybody plays alone."""
    team = TEAMS.get(game_name(env_id))
    return set() if team is None else team(env, seat) - {seat}


def _taboo_team(env: Any, seat: int) -> set[int]:
    first = seat - seat % env.team_size
    return set(range(first, first + env.team_size))


TEAMS: dict[str, Callable[[Any, int], set[int]]] = {"Taboo": _taboo_team}
"""By the game's name. Other team games go on after an invalid move, and give the rewards
themselves: Codenames skips the turn, SecretMafia plays on without the player."""


ME_FIRST, EMPTY = "MOP", "."
"""Marks of the players, from the one who looks on, in the order of their turns."""


def compact_view(env_id: str) -> Callable[[Any, int, str], str]:
    """Return the view for a game; raise LookupError if there is none."""
    try:
        board = BOARDS[game_name(env_id)]
    except KeyError:
        known = ", ".join(BOARDS)
        raise LookupError(
            f"no short board for {env_id}; there are {known}. Of other games a model has to read"
            " the text: --model smollm2, or compact_views = false in the configuration"
        ) from None
    return lambda env, seat, _: board(env, seat)


def _grid_board(symbols: str) -> Callable[[Any, int], str]:
    def board(env: Any, seat: int) -> str:
        marks = dict(zip(symbols[seat:] + symbols[:seat], ME_FIRST, strict=False))
        rows = env.state.game_state["board"]
        return "/".join("".join(marks.get(cell, EMPTY) for cell in row) for row in rows)

    return board


def _tic_tac_toe_board(env: Any, seat: int) -> str:
    """Return a character by cell: its number if empty, `A` to `I` if mine, `a` to `i` if theirs.

    Every character says where it stands, so that a tiny model has nothing to count.
    """
    shown = {"": "012345678", "OX"[seat]: "ABCDEFGHI", "OX"[1 - seat]: "abcdefghi"}
    cells = [cell for row in env.state.game_state["board"] for cell in row]
    return "".join(shown[cell][number] for number, cell in enumerate(cells))


def _nim_board(env: Any, _: int) -> str:
    return " ".join(map(str, env.state.game_state["piles"]))


def _kuhn_poker_board(env: Any, seat: int) -> str:
    """Return round, own card, chips of both, who opened, and the open moves."""
    state = env.state.game_state
    chips = state["player_chips"]
    moves = ",".join(state["current_legal_action_tree"])
    # The open moves alone do not tell the first move from the answer to a check.
    opens = "first" if state["starting_player"] == seat else "second"
    card = "JQK"[state["player_cards"][seat]]
    return f"{state['current_round']} {card} {chips[seat]} {chips[1 - seat]} {opens} {moves}"


def _guessing_board(env: Any, _: int) -> str:
    """Return the numbers that are left by the hints, and the guesses so far."""
    history = env.state.game_state["guess_history"]
    low = max((guess + 1 for guess, hint in history if hint == "higher"), default=env.min_number)
    high = min((guess - 1 for guess, hint in history if hint == "lower"), default=env.max_number)
    return " ".join([f"{low}-{high}", *(str(guess) for guess, _ in history)])


def _blackjack_board(env: Any, _: int) -> str:
    """Return the hand's number, the own cards, and the dealer's open one."""
    state = env.state.game_state
    cards = " ".join(card[:-1] for card in state["player_hand"])
    return f"{state['hand_number']} {cards}/{state['dealer_hand'][0][:-1]}"


def _lake_board(env: Any, _: int) -> str:
    state = env.state.game_state
    rows = [[EMPTY if cell == " " else cell for cell in row] for row in state["grid"]]
    row, column = state["player_pos"]
    rows[row][column] = "P"
    return "/".join(map("".join, rows))


def _liars_dice_board(env: Any, seat: int) -> str:
    """Return the own dice, the bid, and the number of dice by player, in turn order."""
    state = env.state.game_state
    dice, bid = "".join(map(str, sorted(state["dice_rolls"][seat]))), state["current_bid"]
    left = [state["remaining_dice"][player] for player in sorted(state["remaining_dice"])]
    counts = " ".join(map(str, left[seat:] + left[:seat]))
    return f"{dice} {bid['quantity']},{bid['face_value']} {counts}"


BOARDS: dict[str, Callable[[Any, int], str]] = {
    "TicTacToe": _tic_tac_toe_board,
    "SimpleTak": _grid_board("OX"),
    "ConnectFour": _grid_board("XO"),
    "Nim": _nim_board,
    "KuhnPoker": _kuhn_poker_board,
    "GuessTheNumber": _guessing_board,
    "Blackjack": _blackjack_board,
    "FrozenLake": _lake_board,
    "ThreePlayerTicTacToe": _grid_board("ABC"),
    "LiarsDice": _liars_dice_board,
}
"""By the game's name."""
