"""`p2p run`, `p2p resume` and the program run_session: a prompt in, a judged policy out."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from p2p.commands.arguments import (
    RequestFlags,
    RunsDirOption,
    SessionArgument,
    check_request,
    make_request,
    open_session,
    options_of,
    read_prompt,
    runs_folder,
)
from p2p.commands.console import (
    CommandError,
    CommandGroup,
    JsonFlag,
    UnsafeFlag,
    UsageError,
    display_path,
    err,
    flag_names,
    flags_given,
    out,
    print_json,
    read_text,
    run_app,
    usage_errors,
)
from p2p.commands.steering import read_criteria

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from p2p.contracts import SessionResult
    from p2p.records.iteration_record import SessionRecord
    from p2p.session.request import ResumeHere, RunRequest


class RunCommand(RequestFlags, TyperCommand):
    """A command with the options of a session."""

    def request(self) -> type[RunRequest]:
        """See RequestFlags."""
        from p2p.session.request import RunRequest

        return RunRequest


class ResumeCommand(RequestFlags, TyperCommand):
    """A command with the options that may be different when a session is resumed."""

    default = "as before"

    def request(self) -> type[ResumeHere]:
        """See RequestFlags."""
        from p2p.session.request import ResumeHere

        return ResumeHere


def run(
    context: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(help="What the agent should do; `-`: standard input."),
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

    Derives criteria from the prompt, writes a reward and a judge, trains, judges,
    confirms a pass on unseen episodes, and revises until one holds.

    Without a key, a rule-based author writes both. Keys (environment or `.env`):
    ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY, OPENROUTER_API_KEY.

    Exit status: 0 passed, 1 error, 2 bad arguments, 3 no pass within the
    iterations, 4 paused, 5 rate limited, 6 key refused, 7 no working code,
    8 out of budget, 9 busy, 10 out of time, 11 unverified (no criterion measures
    some words), 130 cancelled.
    """
    if interactive and not sys.stdin.isatty():
        raise UsageError("--interactive: standard input is not a terminal; use --criteria FILE")
    from p2p.session.request import RunRequest

    request = make_request(
        RunRequest, context, prompt=read_prompt(prompt), criteria=read_criteria(criteria)
    )
    check_request(context, request)
    record = _start(context, request, runs_folder(runs_dir))
    parts = (
        f"[bold]{escape(request.prompt)}[/]",
        request.environment or "",
        display_path(record.path),
    )
    err.print("  ".join((parts[0], *(escape(part) for part in parts[1:] if part))), soft_wrap=True)
    _run_session(record, as_json=as_json, interactive=interactive)


def _start(
    context: typer.Context, request: RunRequest, folder: Path, session_id: str | None = None
) -> SessionRecord:
    """Make the session's folder."""
    from p2p.session.start import start_session

    with usage_errors(flag_names(context)):
        try:
            return start_session(request, session_id=session_id, runs_dir=folder)
        except OSError as error:
            raise CommandError(f"--runs-dir: {folder} cannot be written: {error}") from error


def resume(
    context: typer.Context,
    session: SessionArgument,
    runs_dir: RunsDirOption = None,
    _unsafe_local: UnsafeFlag = 0,
    as_json: JsonFlag = False,
) -> None:
    """Resume a session that was stopped, killed or out of budget.

    No finished phase is repeated, and no answer of a model is paid for twice.
    Limits are in total; a session out of time gets as much again as at first.

    [bold]Examples[/]

      p2p resume last
      p2p resume last --budget-usd 10 --iterations 8
      p2p resume last --max-minutes 60
    """
    record = open_session(session, runs_dir)
    theirs = record.path / "session_config.json"
    if not (record.path / "session.json").is_file() and theirs.is_file():
        raise UsageError(
            f"SESSION: {record.path} was written by another program; start a new session with: "
            f"python -m p2p.session.run_session --loop-config {display_path(theirs)}"
        )
    if not (record.path / "session.json").is_file():
        raise UsageError(
            f"SESSION: {record.path} was made by `p2p train`: resume it with "
            f"p2p train --resume {display_path(record.path)}/iter_1"
        )
    changes = _changes(context)
    err.print(escape(display_path(record.path)), soft_wrap=True)
    _run_session(record, as_json=as_json, changes=changes, names=flag_names(context))


def _changes(context: typer.Context) -> ResumeHere:
    from p2p.session.request import ResumeHere

    with usage_errors(flag_names(context)):
        changes = ResumeHere.model_validate(options_of(context))
        changes.check_models()
    return changes


def _run_session(
    record: SessionRecord,
    *,
    as_json: bool,
    interactive: bool = False,
    changes: ResumeHere | None = None,
    names: Mapping[str, str] | None = None,
) -> None:
    """Run the session in this process with the live view, and report its end."""
    from p2p.commands.criteria_editor import edit_criteria
    from p2p.commands.sessions import report
    from p2p.commands.working import work_on
    from p2p.contracts import SessionResult
    from p2p.records.session_view import SessionView
    from p2p.records.statuses import EXIT_CODES, RESUMABLE
    from p2p.session.request import PromptRefused
    from p2p.session.start import open_config
    from p2p.session.stopping import resume_command

    with _busy_or_unreadable(record):
        with usage_errors(names):
            open_config(record, changes, resume=changes is not None)
        try:
            result = work_on(record, changes, review=edit_criteria if interactive else None)
        except KeyboardInterrupt:
            result = SessionView(record).result or SessionResult(status="cancelled")
        except PromptRefused as error:
            raise CommandError(error) from None
    if as_json:
        print_json({"session": str(record.path), **_absolute(record, result)})
    else:
        # On a full disk, its end could not be written down.
        ended = result if record.derive_status() != result.status else None
        report(record, SessionView(record, ended), told=err.is_terminal and out.is_terminal)
    if result.status in RESUMABLE and result.status != "max_iterations" and not result.refused:
        err.print(f"resume with: {resume_command(record)}", soft_wrap=True, markup=False)
    if status := EXIT_CODES.get(result.status, 1):
        raise typer.Exit(status)


@contextmanager
def _busy_or_unreadable(record: SessionRecord) -> Iterator[None]:
    from p2p.records.statuses import EXIT_BUSY
    from p2p.session.stopping import SessionBusy, command_name

    try:
        yield
    except SessionBusy as error:
        hint = f"watch it with `p2p show {command_name(record)} --follow`"
        raise CommandError(f"{error}: {hint}", status=EXIT_BUSY) from error
    except OSError as error:
        raise CommandError(f"{record.path}: {error}") from error


def _absolute(record: SessionRecord, result: SessionResult) -> dict[str, Any]:
    return {
        **result.model_dump(mode="json"),
        "policy": str(record.path / result.policy) if result.policy else None,
        "videos": [str(record.path / video) for video in result.videos],
    }


# --- python -m p2p.session.run_session ------------------------------------------------------------

program = typer.Typer(
    add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False, cls=CommandGroup
)


@program.command(cls=RunCommand, context_settings={"help_option_names": ["-h", "--help"]})
def run_session(
    context: typer.Context,
    session_id: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the session.", show_default="a new one"),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="What the agent should do; `-` reads it.", show_default="none"
        ),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the prompt.", show_default="none"),
    ] = None,
    loop_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Fields of LoopConfig and TrainConfig: a file, the text, or `-`.",
            show_default="none",
        ),
    ] = None,
    runs_dir: RunsDirOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume it; other flags are changes.")
    ] = False,
    no_delivery: Annotated[
        bool, typer.Option("--no-delivery", help="Make policy.zip and video only when opened.")
    ] = False,
    _unsafe_local: UnsafeFlag = 0,
) -> None:
    """Run one session without a live view.

    The last line of standard output is the session's folder; everything else
    goes to standard error. Exit status as of `p2p run`; all but 0, 2 and 11 can
    be resumed.

    [bold]Examples[/]

      python -m p2p.session.run_session --prompt "hop" --env Hopper-v5
      python -m p2p.session.run_session --prompt-file prompt.txt --loop-config loop.json
      python -m p2p.session.run_session --prompt - --loop-config '{"seeds": 2}'
      python -m p2p.session.run_session --session-id session_x --resume
    """
    from p2p.records.iteration_record import SessionRecord
    from p2p.records.statuses import EXIT_CODES
    from p2p.scheduler.scheduled_trainer import make_trainer
    from p2p.session.request import ResumeHere, RunRequest
    from p2p.session.start import run as work
    from p2p.settings import session_path

    folder, changes = runs_folder(runs_dir), {}
    if resume:
        if session_id is None:
            raise UsageError("--resume: name the session with --session-id")
        own = ("session_id", "runs_dir", "resume", "no_delivery", "_unsafe_local")
        allowed = {*ResumeHere.model_fields, *own}
        if extra := [flag for n, flag in flags_given(context).items() if n not in allowed]:
            raise UsageError(f"{', '.join(extra)}: cannot be changed in a session that has begun")
        with usage_errors():
            record = SessionRecord(folder / session_path(session_id))
        changes = _changes(context).options()
    else:
        if prompt == loop_config == "-":
            raise UsageError("only one of --prompt and --loop-config can come from standard input")
        settings = _read_settings(loop_config)
        stored = settings.pop("prompt", None)  # of a session_config.json
        if prompt_file is not None and prompt is not None:
            raise UsageError("--prompt, --prompt-file: give only one of them")
        text = read_text(prompt_file, "--prompt-file") if prompt_file else prompt
        request = make_request(RunRequest, context, settings, prompt=read_prompt(text or stored))
        record = _start(context, request, folder, session_id)
    err.print(f"session: {record.path}", soft_wrap=True, markup=False)
    with _busy_or_unreadable(record), usage_errors():
        result = work(
            record, resume=resume, delivers=not no_delivery, trainer=make_trainer, **changes
        )
    err.print(f"{result.status}: {result.message}", soft_wrap=True, markup=False)
    print(record.path)  # noqa: T201 - the interface: the session's folder, last
    raise typer.Exit(EXIT_CODES.get(result.status, 1))


def _read_settings(source: str | None) -> dict[str, Any]:
    """The JSON object that --loop-config names or is."""
    from p2p.records.upstream import loop_fields

    if source is None:
        return {}
    inline = source.lstrip().startswith("{")
    text = source if inline else read_text(Path(source), "--loop-config")
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--loop-config: not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise UsageError('--loop-config: not a JSON object, such as {"max_iterations": 3}')
    fields, note = loop_fields(settings)
    if note:
        err.print(f"note: --loop-config: {note}", soft_wrap=True, markup=False)
    return fields


def run_program(arguments: Sequence[str] | None = None) -> None:
    """Run the program, and end the process with its status."""
    from p2p.utils.subprocess_utils import kill_descendants

    try:
        run_app(program, "python -m p2p.session.run_session", arguments)
    except SystemExit as end:
        kill_descendants()
        sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)  # threads may wait for a model
