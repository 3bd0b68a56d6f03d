"""Who sits opposite a person: a scripted player, a model from disk, or one behind an endpoint."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable.commands.console import CommandError, UsageError
from unstable.commands.model_argument import ModelFolder, find_model
from unstable.core import AgentSpec, PlaySpec
from unstable.engines.protocol import EngineError, Sampling
from unstable.games.players import PLAYERS, RandomLegal
from unstable.games.runner import GameRunner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unstable.actor import VLLMActor
    from unstable.collection.episodes import Reply, SeatPlayer, View


PATIENCE = 300.0
"""Seconds for a model far away to answer, all tries together."""


@dataclass(frozen=True)
class Asking:
    """How a model is asked for its moves; None: as fits the model."""

    temperature: float
    max_tokens: int
    template: str | None = None
    extraction: str | None = None


class Rival:
    """Plays all seats but the person's.

    Args:
        spec: the game.
        players: by seat.
        view: what they see; None: TextArena's text.
        actor: to be closed with it.
    """

    def __init__(
        self,
        spec: PlaySpec,
        players: Mapping[int, SeatPlayer],
        view: View | None = None,
        actor: Any = None,
    ) -> None:
        self._spec, self._players, self._view, self._actor = spec, players, view, actor
        # The person is asked outside of it: in an event loop, Ctrl-C does not end a read.
        self._runner = asyncio.Runner()

    def open_game(self) -> GameRunner:
        """The game, not yet begun."""
        short, spec = self._view, self._spec

        def view(env: Any, seat: int, text: str) -> str:
            return text if short is None or seat == spec.player_id else short(env, seat, text)

        return GameRunner(spec.env_id, spec.num_players, spec.seed, view=view)

    def play_turn(self, game: GameRunner) -> Reply:
        """Make a move; what was answered."""
        turn = game.observe()
        reply = self._runner.run(self._players[turn.seat].act(game, turn))
        game.step(reply.action)
        return reply

    def close(self) -> None:
        """Free the model."""
        if self._actor is not None:
            self._runner.run(self._actor.close())
        self._runner.close()


def find_rival(who: str) -> ModelFolder | None:
    """The model on disk that a person named; None: a scripted player, or a model far away.

    Raises:
        UsageError: it is nobody.
    """
    if Path(who).is_dir() and who not in PLAYERS:
        return find_model(Path(who))
    if who not in PLAYERS:
        from unstable.engines.remote import RemoteModel

        try:
            RemoteModel(who)
        except EngineError as error:
            known = ", ".join(PLAYERS)
            raise UsageError(f"{who} is neither a folder nor one of {known}; {error}") from error
    return None


def make_rival(
    who: str | ModelFolder, env_id: str, num_players: int, seat: int, seed: int, asking: Asking
) -> Rival:
    """Make a player by name, or a model ready to play, for all seats but one.

    Raises:
        UsageError: it does not play this game.
        CommandError: the model cannot be loaded.
    """
    if isinstance(who, ModelFolder):
        return _model_rival(who, env_id, num_players, seat, seed, asking)
    if who not in PLAYERS:
        return _remote_rival(who, env_id, num_players, seat, seed, asking)
    from unstable.collection.opponents import ScriptedPlayer

    if not RandomLegal.plays(env_id):
        raise UsageError(f"{who} does not know the moves of {env_id}")
    spec = _spec(env_id, num_players, seat, seed, AgentSpec("fixed", who))
    make = PLAYERS[who]
    return Rival(spec, {s: ScriptedPlayer(make(seed + s)) for s in _others(spec)})


def _model_rival(
    found: ModelFolder, env_id: str, num_players: int, seat: int, seed: int, asking: Asking
) -> Rival:
    from unstable.collection.opponents import EnginePlayer
    from unstable.collection.rotation import ActorRotation
    from unstable.games.boards import compact_view

    template = asking.template or found.template
    extraction = asking.extraction or found.extraction
    spec = _spec(
        env_id, num_players, seat, seed,
        AgentSpec("checkpoint", found.adapter, template, extraction),
    )  # fmt: skip
    try:
        view = compact_view(env_id) if found.short_boards else None
    except LookupError as error:
        raise UsageError(f"{found.model} plays on short boards: {error}") from error
    actor = _actor(found.model, asking)
    line = ActorRotation([actor]).line()
    players = {
        s: EnginePlayer(spec, s, line, found.adapter, actor.tokenizer) for s in _others(spec)
    }
    return Rival(spec, players, view, actor)


def _remote_rival(
    name: str, env_id: str, num_players: int, seat: int, seed: int, asking: Asking
) -> Rival:
    from unstable.collection.opponents import RemotePlayer
    from unstable.engines.remote import RemoteModel

    agent = AgentSpec("fixed", name, asking.template or "default", asking.extraction or "default")
    spec = _spec(env_id, num_players, seat, seed, agent)
    model = RemoteModel(name)
    sampling = Sampling(asking.temperature, max_tokens=asking.max_tokens)
    players = {s: RemotePlayer(spec, s, model, sampling, PATIENCE) for s in _others(spec)}
    return Rival(spec, players, actor=model)


def _actor(model: str, asking: Asking) -> VLLMActor:
    config = {
        "model_name": model,
        "temperature": asking.temperature,
        "max_tokens": asking.max_tokens,
    }
    try:
        from transformers.utils.logging import disable_progress_bar

        from unstable.actor import VLLMActor

        # Of loading: it would stay in the middle of the game.
        disable_progress_bar()  # type: ignore[no-untyped-call]
        return VLLMActor(config, name="rival")
    except (ImportError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise CommandError(f"{model} cannot be loaded: {reason[0]}") from error


def _spec(env_id: str, num_players: int, seat: int, seed: int, agent: AgentSpec) -> PlaySpec:
    return PlaySpec(env_id, num_players, seat, [agent] * num_players, seed)


def _others(spec: PlaySpec) -> list[int]:
    return [seat for seat in range(spec.num_players) if seat != spec.player_id]
