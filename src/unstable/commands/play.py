"""`unstable play`: a person against a model."""

from __future__ import annotations

import contextlib
import secrets
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from unstable.commands.console import CommandError, JsonFlag, UsageError, err, out, print_json
from unstable.engines.protocol import EngineError
from unstable.evaluation import outcome
from unstable.games.runner import GameError
from unstable.utils.plain_text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from unstable.commands.rival import Rival
    from unstable.games.person import Person
    from unstable.games.runner import GameRunner

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
    seat: Annotated[int, typer.Option(min=0, help="Where you sit; in most games 0 begins.")] = 0,
    temperature: Temperature = 0.7,
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
    as_json: JsonFlag = False,
) -> None:
    """Play a game against a model or a scripted player, in the terminal.

    Type a move; ? lists the legal ones; Ctrl-D leaves.
    You may take an invalid move back, the model may not.
    With --json the game is on standard error, its result on standard output.

    [bold]Examples[/]

      unstable play random-legal --game Nim-v0
      unstable play outputs/2026-11-15/10-00-00/demo --game TicTacToe-v0 --seat 1
      OPENAI_BASE_URL=http://localhost:8000/v1 unstable play some-model --thoughts
    """
    from unstable.commands.rival import Asking, find_rival, make_rival
    from unstable.games.catalog import probe
    from unstable.games.person import Person

    model = find_rival(who)
    game = game or (model and model.env_id) or GAME
    entry = probe(game)
    if entry.num_players is None:
        raise UsageError(f"--game {game}: {entry.reason}; `unstable games` lists what runs here")
    if entry.num_players < 2 or seat >= entry.num_players:
        raise UsageError(f"--seat {seat}: {game} has {entry.num_players} seats, one is for you")
    console = err if as_json else out
    asking = Asking(temperature, max_tokens, template, extraction)
    number = secrets.randbelow(2**31) if seed is None else seed
    with err.status("making the player ready"):
        rival = make_rival(model or who, game, entry.num_players, seat, number, asking)
    with contextlib.closing(rival):
        table = rival.open_game()
        said = f"{game}, seed {number}: you are player {seat}, against {who}."
        console.print(Text(said, "bold"))
        console.print("? lists legal moves, Ctrl-D leaves.\n", style="dim")
        person = Person(_reader(console), lambda text: _say(console, text))
        try:
            _play(table, seat, person, rival, console if thoughts else None)
        except EOFError:
            console.print("\nYou have left.")
        except KeyboardInterrupt:
            console.print("\nYou have left.")
            raise
        except (GameError, EngineError) as error:
            raise CommandError(str(error)) from error
    if table.done:
        _say(console, _ending(table, seat))
    if as_json:
        print_json(_result(table, seat, number))


def _play(
    table: GameRunner, seat: int, person: Person, rival: Rival, thoughts: Console | None
) -> None:
    while not table.done:
        if table.observe().seat == seat:
            person.play_turn(table)
            continue
        with err.status("the other is thinking"):
            reply = rival.play_turn(table)
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
    won = {1: "You have won.", 0: "A draw.", -1: "You have lost."}[outcome(table.rewards, seat)]
    reason = str(table.infos.get(seat, {}).get("reason", ""))
    if table.last_move_invalid:
        reason = f"That was an invalid move: {reason}"
    parts = (table.board(), f"Player {last_seat}: {last}", reason, won)
    return "\n".join(printable(part) for part in parts if part)


def _result(table: GameRunner, seat: int, seed: int) -> dict[str, Any]:
    return {
        "game": table.env_id,
        "seed": seed,
        "seat": seat,
        "finished": table.done,
        "moves": [{"seat": s, "move": printable(move)} for s, move in table.actions],
        "rewards": table.rewards,
        "reason": str(table.infos.get(seat, {}).get("reason", "")),
    }
