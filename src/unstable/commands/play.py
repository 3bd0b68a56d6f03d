"""`unstable play`: a person against a model; and `unstable games`: which games run here."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from unstable.commands import (
    CommandError,
    JsonFlag,
    TrustFlag,
    UsageError,
    err,
    out,
    print_json,
)
from unstable.config import require_selfplay
from unstable.core import AgentSpec, PlaySpec, outcome
from unstable.engines import EngineError, Sampling
from unstable.games import GameError, GameRunner
from unstable.games.players import PLAYERS, RandomLegal
from unstable.games.rules import legal_moves
from unstable.models import ModelFolder, find_model
from unstable.utils.logging import printable

if TYPE_CHECKING:
    from rich.console import Console

    from unstable.actor import VLLMActor
    from unstable.engines.remote import RemoteModel
    from unstable.episodes import Reply, SeatPlayer, View


PATIENCE = 1000
"""Invalid moves in a row that a person may retry; models have none."""
LISTINGS = 8
"""Draws of random moves, where there are too many to list."""


class Person:
    """Asks for moves until the game takes one.

    Args:
        read: returns a line that the person typed.
        say: shows a text.
    """

    def __init__(self, read: Callable[[], str], say: Callable[[str], None]) -> None:
        self._read, self._print = read, say
        self._seen = ""

    def play_turn(self, game: GameRunner) -> None:
        """Show the new text and play the move that is typed; an invalid one may be retried.

        Raises:
            EOFError: the person has left.
        """
        self.look(game)
        game.env.state.error_allowance = PATIENCE
        game.step(self._move(game))
        game.env.state.error_allowance = 0

    def look(self, game: GameRunner) -> None:
        """Show the text that was not shown yet."""
        observation = game.observe().observation
        gap = "\n" if self._seen else ""
        news = find_new_text(self._seen, observation)
        if not news and game.last_move_invalid:  # some games do not say it
            news = "illegal move; ? lists the legal ones"
        self._print(gap + printable(news))
        self._seen = observation

    def _move(self, game: GameRunner) -> str:
        while True:
            line = self._read().strip()
            if line == "?":
                self._print(describe_moves(game))
            elif line:
                return format_move(line, game.env_id)


def find_new_text(before: str, now: str) -> str:
    """Return the new part of an observation: most games repeat everything at each turn.

    Where it does not simply go on, the paragraphs that both begin with are left out; a board is one
    paragraph, and so is shown whole or not at all.
    """
    if before and now.startswith(before):
        return now[len(before) :].strip("\n")
    known, paragraphs = before.split("\n\n"), now.split("\n\n")
    same = 0
    while same < len(paragraphs) - 1 and same < len(known) and known[same] == paragraphs[same]:
        same += 1
    return "\n\n".join(paragraphs[same:]).strip("\n")


def format_move(line: str, env_id: str) -> str:
    """Put a typed move in brackets, where the game wants them."""
    return line if "[" in line or not RandomLegal.plays(env_id) else f"[{line}]"


def describe_moves(game: GameRunner) -> str:
    """Return the legal moves, or some where there are too many."""
    moves: dict[str, None] = {}
    try:
        for seed in range(LISTINGS):
            moves |= dict.fromkeys(legal_moves(game.env_id, game.env, random.Random(seed)))
    except LookupError as error:
        return str(error)
    return f"legal moves: {' '.join(moves)}"


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
        """Play the person's single-player game with the model; None: it cannot play it."""
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
    """Return the model on disk by its path; None: a scripted player or a remote model.

    Raises:
        UsageError: it is unknown.
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
    """Make a scripted player, remote model or model from disk for all seats but one.

    In a game for one, in that one: it is played by both, one after the other.

    Raises:
        UsageError: it does not play this game.
        CommandError: the model cannot be loaded.
    """
    from unstable.actor import ActorPool
    from unstable.engines.remote import RemoteModel
    from unstable.episodes import EnginePlayer, RemotePlayer, ScriptedPlayer
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
Temperature = Annotated[
    float, typer.Option(min=0.0, help="Sampling temperature; 0: the likeliest move.")
]


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
    seat: Annotated[int, typer.Option(min=0, help="Your seat; in most games 0 moves first.")] = 0,
    temperature: Temperature = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per answer.")] = 1024,
    template: Annotated[
        str | None,
        typer.Option(help="Prompt template.", show_default="as it was trained"),
    ] = None,
    extraction: Annotated[
        str | None,
        typer.Option(help="Action extraction.", show_default="as it was trained"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the game and the model.", show_default="any"),
    ] = None,
    thoughts: Annotated[
        bool, typer.Option("--thoughts", help="Show all that the model writes.")
    ] = False,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Play a game against a model or a scripted player, in the terminal.

    The opponent has all other seats, and plays single-player games after you.
    Type a move; ? lists the legal ones; Ctrl-D quits.
    You may retry an invalid move, the model may not.
    With --json the game is on standard error, its result on standard output.

    [bold]Examples[/]

      unstable play random-legal --game Nim-v0
      unstable play outputs/2026-11-15/10-00-00/demo --game TicTacToe-v0 --seat 1
      OPENAI_BASE_URL=http://localhost:8000/v1 unstable play some-model --thoughts
    """
    from unstable.games.players import find_fewest_players

    require_selfplay()
    model = find_opponent(who, trusted=trust)
    game = game or (model and model.env_id) or GAME
    trained = model.players.get(game) if model else None
    try:
        seats = players or trained or find_fewest_players(game)
        GameRunner(game, seats, seed=0)
    except GameError as error:
        raise UsageError(f"--game {game}: {error}") from error
    if seat >= seats:
        raise UsageError(f"--seat {seat}: {game} has {seats} seats, 0 to {seats - 1}")
    console = err if as_json else out
    options = AnswerOptions(temperature, max_tokens, template, extraction)
    number = secrets.randbelow(2**31) if seed is None else seed
    with err.status("loading the opponent"):
        opponents = make_opponents(model or who, game, seats, seat, number, options)
    with contextlib.closing(opponents):
        table = opponents.open_game()
        others = f"against {seats - 1} of {who}" if seats > 2 else f"against {who}"
        title = f"{game}, seed {number}: you are player {seat}, {others if seats > 1 else 'alone'}."
        console.print(Text(title, "bold"))
        console.print("? lists legal moves, Ctrl-D quits.\n", style="dim")
        person = Person(_make_reader(console), lambda text: _print(console, text))
        theirs = None
        try:
            _play(table, seat, person, opponents, console if thoughts else None)
            _print(console, _describe_ending(table, seat))
            theirs = opponents.play_alone()
        except EOFError:
            console.print("\nYou left.")
        except KeyboardInterrupt:
            console.print("\nYou left.")
            raise
        except (GameError, EngineError) as error:
            raise CommandError(str(error)) from error
    if theirs is not None:
        _print(console, f"{who} in the same game: reward {theirs.rewards[0]:.3g}.")
    if as_json:
        print_json(_make_result(table, seat, number, theirs))


def _play(
    table: GameRunner, seat: int, person: Person, opponents: Opponents, thoughts: Console | None
) -> None:
    while not table.done:
        if table.observe().seat == seat:
            person.play_turn(table)
            continue
        with err.status("the opponent is thinking"):
            reply = opponents.play_turn(table)
        if thoughts is not None:
            thoughts.print(Text(printable(reply.text), "dim"))


def _make_reader(console: Console) -> Callable[[], str]:
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


def _print(console: Console, text: str) -> None:
    console.print(Text(text))


def _describe_ending(table: GameRunner, seat: int) -> str:
    last_seat, last = table.actions[-1]
    won = _describe_outcome(table, seat)
    reason = str(table.infos.get(seat, {}).get("reason", ""))
    if table.last_move_invalid:
        reason = f"That was an invalid move: {reason}"
    parts = (table.board(), f"Player {last_seat}: {last}", reason, won)
    return "\n".join(printable(part) for part in parts if part)


def _describe_outcome(table: GameRunner, seat: int) -> str:
    result = outcome(table.rewards, seat)
    if table.num_players == 1:
        solved = {1: "solved", 0: "solved in part", -1: "not solved"}[result]
        return f"You have {solved} it: reward {table.rewards[seat]:.3g}."
    winners = [other for other in table.rewards if outcome(table.rewards, other) > 0]
    others = ", ".join(f"player {other}" for other in winners if other != seat)
    if result > 0:
        return f"You have won, with {others}." if others else "You have won."
    return "You have lost." if result < 0 else "A draw."


def _make_result(
    table: GameRunner, seat: int, seed: int, theirs: GameRunner | None
) -> dict[str, Any]:
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


def games(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Only games with this in their id.")
    ] = "",
    as_json: JsonFlag = False,
) -> None:
    """List the games of TextArena that run here, by starting each once.

    For the others, it lists what they need.

    [bold]Examples[/]

      unstable games
      unstable games TicTac --json
    """
    from dataclasses import asdict

    from unstable.games.players import list_game_ids, try_game

    require_selfplay()
    wanted = [env_id for env_id in list_game_ids() if name.lower() in env_id.lower()]
    if not wanted:
        raise UsageError(f"no game has {name!r} in its id; `unstable games` lists them all")
    entries = []
    with err.status("starting games") as status:
        for number, env_id in enumerate(wanted):
            status.update(f"{env_id} ({number + 1} of {len(wanted)})")
            entries.append(try_game(env_id))
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    table = Table("game", "players", "random-legal", "embedded model", "what it needs", box=None)
    for entry in entries:
        players = "-" if entry.num_players is None else str(entry.num_players)
        table.add_row(
            entry.env_id, players, "yes" if entry.has_random_legal else "",
            "yes" if entry.has_random_legal and entry.has_short_board else "", entry.reason,
            style=None if entry.num_players else "dim",
        )  # fmt: skip
    out.print(table)
    here = sum(entry.num_players is not None for entry in entries)
    out.print(f"{here} of {len(entries)} run here.")
