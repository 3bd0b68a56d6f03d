"""`unstable play`: a person against a model."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from unstable.commands.console import (
    CommandError,
    JsonFlag,
    TrustFlag,
    UsageError,
    err,
    out,
    print_json,
    require_selfplay,
)
from unstable.commands.models import ModelFolder, find_model
from unstable.core import AgentSpec, PlaySpec, outcome
from unstable.engines.protocol import EngineError, Sampling
from unstable.games.players import PLAYERS, RandomLegal
from unstable.games.runner import GameError, GameRunner
from unstable.utils.logging import printable

if TYPE_CHECKING:
    from rich.console import Console

    from unstable.actor import VLLMActor
    from unstable.collection.episodes import Reply, SeatPlayer, View
    from unstable.engines.remote import RemoteModel
    from unstable.games.person import Person


REMOTE_TIMEOUT = 300.0
"""Seconds for a remote model to answer, all tries together."""


@dataclass(frozen=True)
class AnswerOptions:
    temperature: float
    max_tokens: int
    template: str | None = None
    extraction: str | None = None


class Opponents:
    """Plays all seats but the person's; alone, the same game after it. Closes `model`."""

    def __init__(
        self,
        spec: PlaySpec,
        players: Mapping[int, SeatPlayer],
        view: View | None = None,
        model: VLLMActor | RemoteModel | None = None,
    ) -> None:
        self._spec, self._players, self._view, self._model = spec, players, view, model
        # The person is asked outside of it: in an event loop, Ctrl-C does not end a read.
        self._runner = asyncio.Runner()

    def open_game(self, *, with_person: bool = True) -> GameRunner:
        short, spec = self._view, self._spec

        def view(env: Any, seat: int, text: str) -> str:
            is_person = with_person and seat == spec.player_id
            return text if short is None or is_person else short(env, seat, text)

        return GameRunner(spec.env_id, spec.num_players, spec.seed, view=view)

    def play_turn(self, game: GameRunner) -> Reply:
        turn = game.observe()
        reply = self._runner.run(self._players[turn.seat].act(game, turn))
        game.step(reply.action)
        return reply

    def play_alone(self) -> GameRunner | None:
        """Play a game for one, the same that the person has; None: it does not know how."""
        if self._spec.num_players > 1 or not self._players:
            return None
        game = self.open_game(with_person=False)
        while not game.done:
            self.play_turn(game)
        return game

    def close(self) -> None:
        if self._model is not None:
            self._runner.run(self._model.close())
        self._runner.close()


def find_opponent(who: str, *, trusted: bool = False) -> ModelFolder | None:
    """The model on disk that a person named; None: a scripted player, or a remote model.

    Raises:
        UsageError: it is nobody.
    """
    if who in PLAYERS:
        return None
    if Path(who).is_dir():
        return find_model(Path(who), trusted=trusted)
    from unstable.engines.remote import RemoteModel

    try:
        RemoteModel(who)
    except EngineError as error:
        known = ", ".join(PLAYERS)
        raise UsageError(f"{who} is neither a folder nor one of {known}; {error}") from error
    return None


def make_opponents(
    who: str | ModelFolder,
    env_id: str,
    num_players: int,
    seat: int,
    seed: int,
    options: AnswerOptions,
) -> Opponents:
    """A scripted player or remote model by name, or a model from disk, in all seats but one.

    In a game for one, in that one: it is played by both, one after the other.

    Raises:
        UsageError: it does not play this game.
        CommandError: the model cannot be loaded.
    """
    from unstable.collection.actors import ActorPool
    from unstable.collection.players import EnginePlayer, RemotePlayer, ScriptedPlayer
    from unstable.engines.remote import RemoteModel
    from unstable.games.rules import compact_view

    others = [other for other in range(num_players) if other != seat] or [seat]

    def spec_of(agent: AgentSpec) -> PlaySpec:
        return PlaySpec(env_id, num_players, seat, [agent] * num_players, seed)

    if isinstance(who, ModelFolder):
        template = options.template or who.template
        extraction = options.extraction or who.extraction
        spec = spec_of(AgentSpec("checkpoint", who.adapter, template, extraction))
        try:
            view = compact_view(env_id) if who.short_boards else None
        except LookupError as error:
            raise UsageError(f"{who.model} plays on short boards: {error}") from error
        actor = _load(who.model, options)
        client = ActorPool([actor]).client()
        engines = {s: EnginePlayer(spec, s, client, who.adapter, actor.tokenizer) for s in others}
        return Opponents(spec, engines, view, actor)
    if who in PLAYERS:
        if not RandomLegal.plays(env_id):
            if num_players > 1:
                raise UsageError(f"{who} does not know the moves of {env_id}")
            others = []
        scripted = {s: ScriptedPlayer(PLAYERS[who](seed + s)) for s in others}
        return Opponents(spec_of(AgentSpec("fixed", who)), scripted)
    template, extraction = options.template or "default", options.extraction or "default"
    spec, model = spec_of(AgentSpec("fixed", who, template, extraction)), RemoteModel(who)
    sampling = Sampling(options.temperature, max_tokens=options.max_tokens)
    remote = {s: RemotePlayer(spec, s, model, sampling, REMOTE_TIMEOUT) for s in others}
    return Opponents(spec, remote, model=model)


def _load(model: str, options: AnswerOptions) -> VLLMActor:
    sampling = {"temperature": options.temperature, "max_tokens": options.max_tokens}
    try:
        from unstable.actor import VLLMActor
        from unstable.utils.logging import quiet_transformers

        quiet_transformers()
        return VLLMActor({"model_name": model, **sampling}, name="opponent")
    except (ImportError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise CommandError(f"{model} cannot be loaded: {reason[0]}") from error


GAME = "TicTacToe-v0"
PROMPT = "your move> "
Temperature = Annotated[float, typer.Option(min=0.0, help="Of the model; 0: its likeliest move.")]


def play(
    who: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RUN",
            help="A run (its newest checkpoint), a checkpoint, a model's folder, random-legal, or"
            " the name of a model behind an OpenAI-compatible endpoint.",
        ),
    ],
    game: Annotated[
        str | None,
        typer.Option(
            help="The game's id; `unstable games` lists them.",
            show_default="what the run trains on, or TicTacToe-v0",
        ),
    ] = None,
    players: Annotated[
        int | None,
        typer.Option(min=1, help="Seats of the game.", show_default="as trained, or the fewest"),
    ] = None,
    seat: Annotated[int, typer.Option(min=0, help="Where you sit; in most games 0 begins.")] = 0,
    temperature: Temperature = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of an answer of the model.")] = 1024,
    template: Annotated[
        str | None,
        typer.Option(help="How the model is asked.", show_default="as it was trained"),
    ] = None,
    extraction: Annotated[
        str | None,
        typer.Option(help="How its move is found.", show_default="as it was trained"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Of the game and the model.", show_default="any"),
    ] = None,
    thoughts: Annotated[
        bool, typer.Option("--thoughts", help="Show all that the model writes.")
    ] = False,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Play a game against a model or a scripted player, in the terminal.

    With more than two players it has all other seats. A game for one it plays after you.
    Type a move; ? lists the legal ones; Ctrl-D leaves.
    You may take an invalid move back, the model may not.
    With --json the game is on standard error, its result on standard output.

    [bold]Examples[/]

      unstable play random-legal --game Nim-v0
      unstable play outputs/2026-11-15/10-00-00/demo --game TicTacToe-v0 --seat 1
      OPENAI_BASE_URL=http://localhost:8000/v1 unstable play some-model --thoughts
    """
    from unstable.games.catalog import fewest_players
    from unstable.games.person import Person

    require_selfplay()
    model = find_opponent(who, trusted=trust)
    game = game or (model and model.env_id) or GAME
    trained = model.players.get(game) if model else None
    try:
        seats = players or trained or fewest_players(game)
        GameRunner(game, seats, seed=0)
    except GameError as error:
        raise UsageError(f"--game {game}: {error}") from error
    if seat >= seats:
        raise UsageError(f"--seat {seat}: {game} has {seats} seats, 0 to {seats - 1}")
    console = err if as_json else out
    options = AnswerOptions(temperature, max_tokens, template, extraction)
    number = secrets.randbelow(2**31) if seed is None else seed
    with err.status("making the player ready"):
        opponents = make_opponents(model or who, game, seats, seat, number, options)
    with contextlib.closing(opponents):
        table = opponents.open_game()
        others = f"against {seats - 1} of {who}" if seats > 2 else f"against {who}"
        title = f"{game}, seed {number}: you are player {seat}, {others if seats > 1 else 'alone'}."
        console.print(Text(title, "bold"))
        console.print("? lists legal moves, Ctrl-D leaves.\n", style="dim")
        person = Person(_reader(console), lambda text: _say(console, text))
        theirs = None
        try:
            _play(table, seat, person, opponents, console if thoughts else None)
            _say(console, _ending(table, seat))
            theirs = opponents.play_alone()
        except EOFError:
            console.print("\nYou have left.")
        except KeyboardInterrupt:
            console.print("\nYou have left.")
            raise
        except (GameError, EngineError) as error:
            raise CommandError(str(error)) from error
    if theirs is not None:
        _say(console, f"{who} in the same game: reward {theirs.rewards[0]:.3g}.")
    if as_json:
        print_json(_result(table, seat, number, theirs))


def _play(
    table: GameRunner, seat: int, person: Person, opponents: Opponents, thoughts: Console | None
) -> None:
    while not table.done:
        if table.observe().seat == seat:
            person.play_turn(table)
            continue
        with err.status("the other is thinking"):
            reply = opponents.play_turn(table)
        if thoughts is not None:
            thoughts.print(Text(printable(reply.text), "dim"))


def _reader(console: Console) -> Callable[[], str]:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - lines can be edited

    if console is out:
        return lambda: input(PROMPT)

    def read() -> str:  # standard output is for the result alone
        console.print(PROMPT, end="")
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line

    return read


def _say(console: Console, text: str) -> None:
    console.print(Text(text))


def _ending(table: GameRunner, seat: int) -> str:
    last_seat, last = table.actions[-1]
    won = _verdict(table, seat)
    reason = str(table.infos.get(seat, {}).get("reason", ""))
    if table.last_move_invalid:
        reason = f"That was an invalid move: {reason}"
    parts = (table.board(), f"Player {last_seat}: {last}", reason, won)
    return "\n".join(printable(part) for part in parts if part)


def _verdict(table: GameRunner, seat: int) -> str:
    result = outcome(table.rewards, seat)
    if table.num_players == 1:
        solved = {1: "solved", 0: "solved in part", -1: "not solved"}[result]
        return f"You have {solved} it: reward {table.rewards[seat]:.3g}."
    winners = [other for other in table.rewards if outcome(table.rewards, other) > 0]
    others = ", ".join(f"player {other}" for other in winners if other != seat)
    if result > 0:
        return f"You have won, with {others}." if others else "You have won."
    return "You have lost." if result < 0 else "A draw."


def _result(table: GameRunner, seat: int, seed: int, theirs: GameRunner | None) -> dict[str, Any]:
    return {
        "game": table.env_id,
        "seed": seed,
        "seat": seat,
        "finished": table.done,
        "moves": [{"seat": s, "move": printable(move)} for s, move in table.actions],
        "rewards": table.rewards,
        **({} if theirs is None else {"their_reward": theirs.rewards[0]}),
        "reason": str(table.infos.get(seat, {}).get("reason", "")),
    }
