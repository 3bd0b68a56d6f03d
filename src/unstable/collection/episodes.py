"""One game from its first move to its last, and what of it is kept for learning."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from unstable.core import AgentSpec, EpisodeResult, Move, PlaySpec, Trajectory, derived_seed
from unstable.engines.protocol import Completion
from unstable.games.players import RandomLegal
from unstable.games.runner import GameError, GameRunner, Turn
from unstable.utils.threads import in_thread

View = Callable[[Any, int, str], str]


@dataclass(frozen=True)
class Reply:
    text: str
    """All that it wrote."""
    action: str
    """What the game gets."""
    feedback: dict[str, bool] = field(default_factory=dict)
    """`correct_answer_format`."""
    completion: Completion | None = None
    """The tokens, where an engine of ours sampled them."""
    prompt: str = ""
    """What it was asked, chat markup included."""


class SeatPlayer(Protocol):
    async def act(self, game: GameRunner, turn: Turn) -> Reply:
        """The answer of the player whose turn it is.

        Raises:
            EngineError: whoever was asked cannot answer.
            GameError: this player cannot play this game.
        """
        ...


async def play_episode(
    spec: PlaySpec,
    players: Sequence[SeatPlayer],
    *,
    view: View | None = None,
    error_allowance: int = 0,
    random_opening_moves: int = 0,
    transcribe: bool = False,
    recorded: dict[int, Trajectory] | None = None,
) -> EpisodeResult:
    """Play a game; seats that the learner plays are recorded turn by turn.

    Args:
        spec: which game.
        players: by seat.
        view: makes what players see of a game, as for GameRunner.
        error_allowance: how many invalid moves in a row a player may take back.
        random_opening_moves: up to so many first moves are random legal ones, of nobody's doing
            and not recorded.
        transcribe: keep every move, for people to look at.
        recorded: gets those seats' turns while the game is played, also if it fails.

    Raises:
        GameError: the game cannot be played, or raised.
        EngineError: a player could not answer.
    """
    moves: list[Move] | None = [] if transcribe else None
    # Games are foreign code, and may take their time: others are played meanwhile.
    game = await in_thread(_opened, spec, view, error_allowance, random_opening_moves, moves)
    recorded = {} if recorded is None else recorded
    recorded |= {seat: _trajectory(spec, seat) for seat in learner_seats(spec)}
    while not game.done:
        turn = game.observe()
        reply = await players[turn.seat].act(game, turn)
        await in_thread(game.step, reply.action)
        if moves is not None:
            moves.append(_move(game, turn, reply))
        if turn.seat in recorded:
            version = spec.agent_specs[turn.seat].version
            _record(recorded[turn.seat], game, turn, reply, version)
    return _result(spec, game, recorded, moves or [])


def learner_seats(spec: PlaySpec) -> list[int]:
    """The learner's seat, and those where the very same policy sits."""
    learner = spec.agent_specs[spec.player_id]
    return [
        seat
        for seat, agent in enumerate(spec.agent_specs)
        if seat == spec.player_id or (learner.kind == "checkpoint" and _same(agent, learner))
    ]


def sampling_seed(spec: PlaySpec, *parts: int) -> int:
    """A seed for a player's draws: by seat and turn, whatever other games do."""
    seed = spec.seed if spec.sampling_seed is None else spec.sampling_seed
    return derived_seed(seed, *parts)


def _same(one: AgentSpec, other: AgentSpec) -> bool:
    return (one.kind, one.model, one.version) == (other.kind, other.model, other.version)


def _opened(
    spec: PlaySpec,
    view: View | None,
    error_allowance: int,
    opening_moves: int,
    transcript: list[Move] | None,
) -> GameRunner:
    """The game after its opening; of one that would end it, fewer moves are played."""
    rng = random.Random(derived_seed(spec.seed, "opening"))
    moves = rng.randint(0, opening_moves) if opening_moves else 0
    while True:
        game = GameRunner(
            spec.env_id, spec.num_players, spec.seed, error_allowance=error_allowance, view=view
        )
        player = RandomLegal(derived_seed(spec.seed, "opening moves"))
        for _ in range(moves):
            if not game.done:
                turn, action = game.observe(), _legal(player, game)
                game.step(action)
                if transcript is not None:
                    transcript.append(_move(game, turn, Reply(action, action), opening=True))
        if not game.done:
            return game
        moves -= 1
        if transcript is not None:
            transcript.clear()


def _legal(player: RandomLegal, game: GameRunner) -> str:
    try:
        return player.act(game)
    except LookupError as error:
        raise GameError(f"no random opening: {error}") from error


def _move(game: GameRunner, turn: Turn, reply: Reply, *, opening: bool = False) -> Move:
    return Move(
        turn.seat, turn.observation, reply.text, reply.action, not game.last_move_invalid,
        game.board(), opening,
    )  # fmt: skip


def _trajectory(spec: PlaySpec, seat: int) -> Trajectory:
    learner = spec.agent_specs[spec.player_id]
    others = [agent for other, agent in enumerate(spec.agent_specs) if other != spec.player_id]
    opponent = ""
    if others:
        opponent = "mirror" if _same(others[0], learner) else others[0].kind
    # Seats are told apart: what a game is worth from one says little about another.
    return Trajectory(opponent=opponent, group=f"{spec.group}/{seat}" if spec.group else "")


def _record(seen: Trajectory, game: GameRunner, turn: Turn, reply: Reply, version: int) -> None:
    seen.pid.append(turn.seat)
    seen.obs.append(reply.prompt)
    seen.actions.append(reply.text)
    seen.extracted_actions.append(reply.action)
    seen.format_feedbacks.append({**reply.feedback, "invalid_move": game.last_move_invalid})
    seen.versions.append(version)
    info: dict[str, Any] = {"turn": game.turns - 1}
    if reply.completion is not None:
        info["finish_reason"] = reply.completion.finish_reason
        seen.prompt_ids.append(list(reply.completion.prompt_ids))
        seen.completion_ids.append(list(reply.completion.token_ids))
        seen.logprobs.append(list(reply.completion.logprobs))
        seen.temperatures.append(reply.completion.sampling.temperature)
    seen.infos.append(info)


def _result(
    spec: PlaySpec, game: GameRunner, recorded: dict[int, Trajectory], moves: list[Move]
) -> EpisodeResult:
    last_seat = game.actions[-1][0]
    ended_by = last_seat if game.last_move_invalid else None
    for seen in recorded.values():
        seen.final_rewards = dict(game.rewards)
        seen.num_turns = game.turns
        seen.ended_by_invalid = ended_by
    return EpisodeResult(
        traj=recorded[spec.player_id],
        end_by_opponent_invalid=ended_by not in (None, spec.player_id),
        action_seq=game.action_seq(),
        final_rewards=dict(game.rewards),
        others=[seen for seat, seen in recorded.items() if seat != spec.player_id],
        num_turns=game.turns,
        reason=str(game.infos.get(spec.player_id, {}).get("reason", "")),
        moves=moves,
    )
