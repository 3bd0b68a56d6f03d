"""`p2p run` and `p2p resume`: a prompt in, a judged policy out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from p2p.commands.arguments import (
    RunsDirOption,
    SessionArgument,
    make_request,
    open_session,
    runs_folder,
    with_flags,
)
from p2p.commands.console import (
    CommandError,
    JsonFlag,
    UnsafeFlag,
    UsageError,
    err,
    flag_names,
    print_json,
    shown,
    usage_errors,
)
from p2p.commands.steering import read_criteria
from p2p.session.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from p2p.contracts import SessionResult
    from p2p.records.iteration_record import SessionRecord

AS_BEFORE = "as before"


@with_flags(OPTIONS)
def run(
    context: typer.Context,
    options: dict[str, Any],
    prompt: Annotated[
        str | None,
        typer.Argument(help="What the agent should do; `-` reads it from standard input."),
    ] = None,
    criteria: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your own success criteria.",
            show_default="derived from the prompt",
            rich_help_panel="Judging",
        ),
    ] = None,
    runs_dir: RunsDirOption = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Edit the criteria before training.")
    ] = False,
    trainer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="local, or scheduled: on `p2p nodes`.",
            show_default="local",
            rich_help_panel="Training",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Simulator; `p2p engines list`.",
            show_default="by environment",
            rich_help_panel="Training",
        ),
    ] = None,
    _unsafe_local: UnsafeFlag = 0,
    as_json: JsonFlag = False,
) -> None:
    """Train a policy that does what a prompt says.

    [bold]Examples[/]

      p2p run "run forward fast"
      p2p run "spin in place" --env Ant-v5 --seeds 3 --iterations 8
      p2p run "hop" --model anthropic:claude-sonnet-5-5 --budget-usd 5
      p2p run "walk backward" --env Walker2d-v5 --max-minutes 30
      p2p run - --vlm google:gemini-3.8-flash --json < prompt.txt

    Derives measurable criteria from the prompt, writes a reward and a judge,
    trains, judges, confirms on held-out seeds, and revises until it passes.

    Without a key for a model it works by a built-in grammar of motion. Keys
    come from the environment or `.env`: ANTHROPIC_API_KEY, OPENAI_API_KEY,
    GEMINI_API_KEY, OPENROUTER_API_KEY.

    Exit status: 0 passed, 1 error, 2 bad arguments, 3 no pass within the
    iterations, 4 paused, 5 rate limited, 6 key refused, 7 no reward could be
    made to run, 8 budget used up, 9 the session is busy, 10 time used up,
    11 unverified (no criterion measures some words), 130 cancelled.
    """
    if interactive and not sys.stdin.isatty():
        raise UsageError("--interactive: standard input is no terminal; use --criteria FILE")
    request = make_request(
        context,
        prompt,
        options,
        criteria=read_criteria(criteria),
        trainer=trainer,
        engine=engine,
    )
    folder = runs_folder(runs_dir)
    with usage_errors(flag_names(context)):
        from p2p.session.run_session import start_session

        try:
            record = start_session(request, runs_dir=folder)
        except OSError as error:
            raise CommandError(f"--runs-dir: {folder} cannot be written: {error}") from error
    parts = (f"[bold]{escape(request.prompt)}[/]", request.environment or "", shown(record.path))
    err.print("  ".join((parts[0], *(escape(part) for part in parts[1:] if part))), soft_wrap=True)
    _work(record, as_json=as_json, interactive=interactive)


def resume(
    context: typer.Context,
    session: SessionArgument,
    max_iterations: Annotated[
        int | None,
        typer.Option(
            "--iterations", "-n", metavar="N", help="A new limit.", show_default=AS_BEFORE
        ),
    ] = None,
    budget_usd: Annotated[
        float | None,
        typer.Option(metavar="USD", help="A new budget, in total.", show_default=AS_BEFORE),
    ] = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(metavar="MINUTES", help="A new time limit, in total.", show_default=AS_BEFORE),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="Another model.", show_default=AS_BEFORE
        ),
    ] = None,
    runs_dir: RunsDirOption = None,
    _unsafe_local: UnsafeFlag = 0,
    as_json: JsonFlag = False,
) -> None:
    """Resume a session that was stopped, killed or out of budget.

    No finished phase is repeated, and no answer of a model is paid for twice.

    [bold]Examples[/]

      p2p resume last
      p2p resume last --budget-usd 10 --iterations 8
      p2p resume last --max-minutes 60
    """
    from p2p.session.agents import check_models

    record = open_session(session, runs_dir)
    theirs = record.path / "session_config.json"
    if not (record.path / "session.json").is_file() and theirs.is_file():
        raise UsageError(
            f"SESSION: {record.path} is of another program; begin anew with: python -m "
            f"p2p.session.run_session --loop-config {shown(theirs)}"
        )
    if not (record.path / "session.json").is_file():
        raise UsageError(
            f"SESSION: {record.path} was made by `p2p train`: resume it with "
            f"p2p train --resume {shown(record.path)}/iter_1"
        )
    changes = {
        "max_iterations": max_iterations,
        "budget_usd": budget_usd,
        "max_minutes": max_minutes,
        "model": model,
    }
    with usage_errors():
        if model is not None:
            check_models(model, "")
    err.print(escape(shown(record.path)), soft_wrap=True)
    _work(record, as_json=as_json, resumed=True, changes=changes, names=flag_names(context))


def _work(
    record: SessionRecord,
    *,
    as_json: bool,
    interactive: bool = False,
    resumed: bool = False,
    changes: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
) -> None:
    """Run the session in this process, with the live view, and report how it ended."""
    from p2p.commands.criteria_editor import edit_criteria
    from p2p.commands.session_progress import SessionProgress
    from p2p.commands.sessions import report
    from p2p.records.session_view import SessionView
    from p2p.records.statuses import EXIT_BUSY, EXIT_CODES, RESUMABLE
    from p2p.scheduler.scheduled_trainer import make_trainer
    from p2p.session.context import accept
    from p2p.session.endings import SessionBusy
    from p2p.session.run_session import open_config
    from p2p.session.run_session import run as run_session
    from p2p.session.stopping import command_name, resume_command

    try:
        with usage_errors(names):
            open_config(record, changes)
        with SessionProgress(err, record) as view:
            review = view.paused(edit_criteria) if interactive else accept
            result = run_session(record, resume=resumed, review_intent=review, trainer=make_trainer)
    except SessionBusy as error:
        hint = f"watch it with `p2p show {command_name(record)} --follow`"
        raise CommandError(f"{error}: {hint}", status=EXIT_BUSY) from error
    except OSError as error:
        raise CommandError(f"{record.path}: {error}") from error
    if as_json:
        print_json({"session": str(record.path), **_absolute(record, result)})
    else:
        # On a full disk, its end could not be written down.
        ended = result if record.derive_status() != result.status else None
        report(record, SessionView(record, ended))
    now = SessionView(record)
    # The built-in author would refuse the same prompt again.
    refused = result.status == "error" and now.loop.model == "builtin" and now.intent is None
    if result.status in RESUMABLE and result.status != "max_iterations" and not refused:
        err.print(f"resume with: {resume_command(record)}", soft_wrap=True)
    status = EXIT_CODES.get(result.status, 1)
    if status:
        raise typer.Exit(status)


def _absolute(record: SessionRecord, result: SessionResult) -> dict[str, Any]:
    return {
        **result.model_dump(mode="json"),
        "policy": str(record.path / result.policy) if result.policy else None,
        "videos": [str(record.path / video) for video in result.videos],
    }
