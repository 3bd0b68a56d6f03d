"""`unstable games`: which games run here."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from unstable.commands.console import JsonFlag, UsageError, err, out, print_json, require_selfplay


def games(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Only games with this in their id.")
    ] = "",
    as_json: JsonFlag = False,
) -> None:
    """Say which games of TextArena run here, by starting each once.

    Of the others, it says what they need.

    [bold]Examples[/]

      unstable games
      unstable games TicTac --json
    """
    from dataclasses import asdict

    from unstable.games.catalog import game_ids, probe

    require_selfplay()
    wanted = [env_id for env_id in game_ids() if name.lower() in env_id.lower()]
    if not wanted:
        raise UsageError(f"no game has {name!r} in its id; `unstable games` lists them all")
    entries = []
    with err.status("starting games") as status:
        for number, env_id in enumerate(wanted):
            status.update(f"{env_id} ({number + 1} of {len(wanted)})")
            entries.append(probe(env_id))
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    table = Table("game", "players", "random-legal", "what it needs", box=None)
    for entry in entries:
        players = "-" if entry.num_players is None else str(entry.num_players)
        table.add_row(
            entry.env_id, players, "yes" if entry.has_random_legal else "", entry.reason,
            style=None if entry.num_players else "dim",
        )  # fmt: skip
    out.print(table)
    here = sum(entry.num_players is not None for entry in entries)
    out.print(f"{here} of {len(entries)} run here.")
