"""`p2p analyze`: what happened in a session, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from p2p.commands.arguments import RunsDirOption, SessionArgument, open_session
from p2p.commands.console import CommandError, JsonFlag, err, no_answer, out, print_json

if TYPE_CHECKING:
    from p2p.contracts import SessionAnalysis


def analyze(
    session: SessionArgument,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="PROVIDER:MODEL", help="Who thinks about it."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also if there is a report.")] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Look back at a session: what worked, what did not, why, and what to try.

    The report is kept in the session's analysis.json.

    [bold]Examples[/]

      p2p analyze last
      p2p analyze last --again --model anthropic:claude-sonnet-4-5
    """
    from p2p.inference.question import InferenceError
    from p2p.session.thinking import analyze_session

    record = open_session(session, runs_dir)
    try:
        with err.status("looking back"):
            found = analyze_session(record, model=model or "", again=again)
    except InferenceError as error:
        raise no_answer(error) from error
    except ValueError as error:
        raise CommandError(f"{record.session_id}: {error}") from error
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    _show(found)


def _show(found: SessionAnalysis) -> None:
    out.print(escape(found.summary), soft_wrap=True)
    for title, lines in (
        ("worked", found.worked),
        ("did not", found.failed),
        ("why", found.causes),
        ("try", found.suggestions),
    ):
        for i, line in enumerate(lines):
            out.print(f"[bold]{title if i == 0 else '':<8}[/] {escape(line)}", soft_wrap=True)
