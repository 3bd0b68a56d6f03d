"""What the commands share: where output goes, and how errors are said."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, nothing else.")
]


class CommandError(Exception):
    """A command ends without its result; the message says what happened and what to do.

    `detail` is what lies behind the message, such as a traceback.
    """

    status = 1

    def __init__(self, message: object, detail: str = "", status: int | None = None) -> None:
        super().__init__(str(message))
        self.detail = detail
        self.status = self.status if status is None else status


class UsageError(CommandError):
    """A mistake in the arguments or files; the message names it and says what to do."""

    status = 2


def complain(error: CommandError) -> None:
    if error.detail:
        err.print(error.detail.rstrip(), style="dim", markup=False, soft_wrap=True)
    err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str, allow_nan=False) + "\n")
