"""Small games solved exactly: the best response to a policy, and what it gains.

A policy sees one position at a time (`rules.compact_view`), so what is shown decides all it does,
and a best response has only to know what of the game is public. Trees are made by playing the
game itself, every deal and every move of it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

from unstable.games import GameRunner, OwnRandom
from unstable.games.rules import compact_view, game_name, legal_moves

Policy = Mapping[str, Mapping[str, float]]
"""By position, how likely each legal move is; what is missing to 1 is invalid moves."""


@dataclass(frozen=True, eq=False)
class Decision:
    seat: int
    position: str
    """What the player is shown."""
    moves: tuple[str, ...]
    after: tuple[Decision | Deal | float, ...]
    """What follows each move; a number is the reward of seat 0, its negative that of seat 1."""


@dataclass(frozen=True, eq=False)
class Deal:
    """Chance: the deals are equally likely. All else that led here is known to both."""

    deals: tuple[tuple[tuple[int, ...], Decision], ...]
    """Each with the cards by seat."""


@cache
def make_game_tree(env_id: str) -> Deal:
    """Return the tree of a game; made once; raise LookupError if the game cannot be solved."""
    if not is_solvable(env_id):
        raise LookupError(f"{env_id} cannot be solved; {', '.join(SOLVABLE)} can")
    return SOLVABLE[game_name(env_id)](env_id)


def is_solvable(env_id: str) -> bool:
    return game_name(env_id) in SOLVABLE


def list_positions(root: Deal) -> dict[str, tuple[str, ...]]:
    """Return every position that can come up, and its legal moves."""
    return {decision.position: decision.moves for decision in _decisions(root, set())}


def exploitability(root: Deal, policy: Policy) -> float:
    """Return what a best response earns against the policy, the mean over both seats.

    Raises:
        KeyError: the policy lacks a position.
    """
    return (best_response_value(root, policy, 0) + best_response_value(root, policy, 1)) / 2


def best_response_value(root: Deal, policy: Policy, seat: int) -> float:
    """Return the expected reward of the best response that plays `seat`."""
    return _Response(policy, seat).to_deal(root)


class _Response:
    def __init__(self, policy: Policy, seat: int) -> None:
        self._policy, self._seat = policy, seat
        self._known: dict[Deal, float] = {}

    def to_deal(self, deal: Deal) -> float:
        if deal not in self._known:
            held: dict[int, list[tuple[float, Decision | Deal | float]]] = {}
            for cards, decision in deal.deals:
                held.setdefault(cards[self._seat], []).append((1 / len(deal.deals), decision))
            self._known[deal] = sum(map(self._worth, held.values()))
        return self._known[deal]

    def _worth(self, nodes: list[tuple[float, Decision | Deal | float]]) -> float:
        """Return the value of nodes that the responder cannot tell apart, with their chances."""
        total = 0.0
        open_nodes: list[tuple[float, Decision]] = []
        for chance, node in nodes:
            if isinstance(node, Decision):
                open_nodes.append((chance, node))
            elif isinstance(node, Deal):
                total += chance * self.to_deal(node)
            else:
                total += chance * (node if self._seat == 0 else -node)
        if not open_nodes:
            return total
        first = open_nodes[0][1]
        branches = range(len(first.moves))
        if first.seat == self._seat:
            return total + max(
                self._worth([(chance, node.after[i]) for chance, node in open_nodes])
                for i in branches
            )
        for i in branches:
            followed: list[tuple[float, Decision | Deal | float]] = [
                (chance * self._policy[node.position].get(node.moves[i], 0.0), node.after[i])
                for chance, node in open_nodes
            ]
            total += self._worth(followed)
        # An invalid move loses the whole game.
        for chance, node in open_nodes:
            total += chance * (1.0 - sum(self._policy[node.position].values()))
        return total


def _decisions(node: Decision | Deal | float, seen: set[Any]) -> Iterator[Decision]:
    if isinstance(node, float) or node in seen:
        return
    seen.add(node)
    if isinstance(node, Decision):
        yield node
    following = node.after if isinstance(node, Decision) else [one for _, one in node.deals]
    for child in following:
        yield from _decisions(child, seen)


def _kuhn_poker(env_id: str) -> Deal:
    """Build rounds of three cards; between rounds only the chips carry over."""
    view, rng = compact_view(env_id), random.Random(0)
    known: dict[tuple[int, int], Deal] = {}

    def deal(env: Any) -> Deal:
        state = env.state.game_state
        key = (state["current_round"], state["player_chips"][0])
        if key not in known:
            deals = []
            for cards in permutations(range(3), 2):
                dealt = copy.deepcopy(env)
                dealt.state.game_state["player_cards"] = dict(enumerate(cards))
                deals.append((cards, decision(dealt)))
            known[key] = Deal(tuple(deals))
        return known[key]

    def decision(env: Any) -> Decision:
        seat = env.state.current_player_id
        moves = tuple(legal_moves(env_id, env, rng))
        return Decision(seat, view(env, seat, ""), moves, tuple(after(env, move) for move in moves))

    def after(env: Any, move: str) -> Decision | Deal | float:
        env = copy.deepcopy(env)
        round_before = env.state.game_state["current_round"]
        done, _ = env.step(move)
        if done:
            rewards, _ = env.close()
            return float(rewards[0])
        return decision(env) if env.state.game_state["current_round"] == round_before else deal(env)

    game = GameRunner(env_id, 2, seed=0)
    with OwnRandom(0):
        return deal(game.env)


SOLVABLE = {"KuhnPoker": _kuhn_poker}
"""By the game's name."""
