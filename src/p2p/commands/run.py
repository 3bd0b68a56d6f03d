"""`p2p run` and `p2p resume`: a sentence in, a judged policy out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from p2p.commands.console import (
    CommandError,
    JsonFlag,
    UnsafeFlag,
    UsageError,
    err,
    field_errors,
    print_json,
    shown,
)
from p2p.commands.reward_file import check_environment
from p2p.commands.session_argument import (
    RunsDirOption,
    SessionArgument,
    open_session,
    runs_folder,
)
from p2p.commands.session_inputs import (
    check_models_named,
    in_flags,
    make_loop,
    read_prompt,
    read_seeds,
    read_settings,
)
from p2p.commands.session_options import (
    BudgetOption,
    ConfigsOption,
    EnvOption,
    IterationsOption,
    MinutesOption,
    ModelOption,
    SeedsOption,
    SettingOption,
    ThresholdOption,
    TimestepsOption,
    VideosOption,
    VlmOption,
)
from p2p.commands.steering import read_criteria

if TYPE_CHECKING:
    from p2p.config import LoopConfig
    from p2p.contracts import SessionResult
    from p2p.records.iteration_record import SessionRecord


def run(
    prompt: Annotated[
        str | None,
        typer.Argument(help="What the agent should do; `-` reads it from standard input."),
    ] = None,
    env: EnvOption = None,
    model: ModelOption = None,
    vlm: VlmOption = None,
    iterations: IterationsOption = None,
    timesteps: TimestepsOption = None,
    configs: ConfigsOption = None,
    seeds: SeedsOption = None,
    threshold: ThresholdOption = None,
    budget_usd: BudgetOption = None,
    max_minutes: MinutesOption = None,
    criteria: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge by these criteria; none are asked.")
    ] = None,
    setting: SettingOption = None,
    runs_dir: RunsDirOption = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Edit the criteria before training.")
    ] = False,
    videos: VideosOption = True,
    trainer: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="local, or scheduled: over the nodes of `p2p nodes`."),
    ] = None,
    unsafe_local: UnsafeFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a policy that does what a sentence says.

    Reads measurable criteria off the sentence, writes a reward and a judge,
    trains, judges, confirms on fresh starts, and revises until it passes.

    Without a key for a model it works by a built-in grammar of motion. Keys
    come from the environment or `.env`: ANTHROPIC_API_KEY, OPENAI_API_KEY,
    GEMINI_API_KEY, OPENROUTER_API_KEY.

    Exit status: 0 passed, 1 error, 2 bad arguments, 3 no pass within the
    iterations, 4 paused, 5 rate limited, 6 key refused, 7 no reward could be
    made to run, 8 budget used up, 9 the session is busy, 10 time used up,
    130 cancelled.

    [bold]Examples[/]

      p2p run "run forward fast"
      p2p run "spin in place" --env Ant-v5 --seeds 3 --iterations 8
      p2p run "hop like a rabbit" --model anthropic:claude-sonnet-4-5 --budget-usd 5
      p2p run "walk backward" --env Walker2d-v5 --max-minutes 30
      p2p run - --vlm google:gemini-2.5-flash --json < prompt.txt
    """
    text = read_prompt(prompt)
    flags: dict[str, Any] = {
        "model": model,
        "vlm_model": vlm,
        "max_iterations": iterations,
        "total_timesteps": timesteps,
        "configs": configs,
        "seeds": read_seeds(seeds),
        "pass_threshold": threshold,
        "budget_usd": budget_usd,
        "max_minutes": max_minutes,
        "videos": videos,
        "trainer": trainer,
        "unsafe_local": unsafe_local or None,
    }
    options = read_settings(setting or [])
    named = options.pop("env_id", None)
    options |= {name: value for name, value in flags.items() if value is not None}
    own = read_criteria(criteria)
    if interactive and not sys.stdin.isatty():
        raise UsageError("--interactive: standard input is no terminal; use --criteria FILE")
    check_models_named(model, vlm)
    env_id = env or named
    if env_id is not None:
        check_environment(env_id)
    to_choose = options if env_id is None else None
    record = _create(text, make_loop(env_id, options), own, runs_folder(runs_dir), to_choose)
    parts = (f"[bold]{escape(text)}[/]", escape(env_id or ""), escape(shown(record.path)))
    err.print("  ".join(filter(None, parts)), soft_wrap=True)
    _work(record, as_json=as_json, interactive=interactive)


def resume(
    session: SessionArgument,
    iterations: Annotated[
        int | None, typer.Option("--iterations", "-n", metavar="N", help="Another limit.")
    ] = None,
    budget_usd: Annotated[
        float | None, typer.Option(metavar="USD", help="Another budget, in all.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(metavar="MINUTES", help="Another time limit, in all.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="PROVIDER:MODEL", help="Another model.")
    ] = None,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Go on with a session that was stopped, paused, killed or ran out of money or time.

    What is done is not done again, and no answer of a model is paid for twice.

    [bold]Examples[/]

      p2p resume last
      p2p resume last --budget-usd 10 --iterations 8
      p2p resume last --max-minutes 60
    """
    record = open_session(session, runs_dir)
    if not (record.path / "session.json").is_file():
        raise UsageError(
            f"SESSION: {record.path} was made by `p2p train`: go on with "
            f"p2p train --resume {shown(record.path)}/iter_1"
        )
    if model is not None:
        check_models_named(model, None)
    err.print(f"{escape(shown(record.path))}", soft_wrap=True)
    changes = {
        "max_iterations": iterations,
        "budget_usd": budget_usd,
        "max_minutes": max_minutes,
        "model": model,
    }
    _work(record, as_json=as_json, resumed=True, changes=changes)


def _create(
    prompt: str,
    loop: LoopConfig,
    criteria: Any,
    folder: Path,
    to_choose: dict[str, Any] | None,
) -> SessionRecord:
    from pydantic import ValidationError

    from p2p.session.run_session import create_session

    try:
        return create_session(prompt, loop, runs_dir=folder, criteria=criteria, options=to_choose)
    except ValidationError as error:
        raise UsageError(field_errors(error, "session")) from error
    except ValueError as error:
        raise UsageError(error) from error
    except OSError as error:
        raise CommandError(f"--runs-dir: {folder} cannot be written: {error}") from error


def _work(
    record: SessionRecord,
    *,
    as_json: bool,
    interactive: bool = False,
    resumed: bool = False,
    changes: dict[str, Any] | None = None,
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
    from p2p.session.run_session import run as run_session

    try:
        _change(record, changes or {})
        with SessionProgress(err, record) as view:
            review = view.held(edit_criteria) if interactive else accept
            result = run_session(record, resume=resumed, review_intent=review, trainer=make_trainer)
    except SessionBusy as error:
        failure = CommandError(f"{error}: watch it with `p2p show {record.session_id} --follow`")
        failure.status = EXIT_BUSY
        raise failure from error
    except OSError as error:
        raise CommandError(f"{record.path}: {error}") from error
    if as_json:
        print_json({"session": str(record.path), **_absolute(record, result)})
    else:
        # On a full disk, its end could not be written down.
        ended = result if record.derive_status() != result.status else None
        report(record, SessionView(record, ended))
    if result.status in RESUMABLE and result.status != "max_iterations":
        err.print(f"go on with: p2p resume {record.session_id}{_more(record)}", soft_wrap=True)
    status = EXIT_CODES.get(result.status, 1)
    if status:
        raise typer.Exit(status)


def _more(record: SessionRecord) -> str:
    """What a session needs to go on that has used up its time."""
    from p2p.session.clock import worked_s
    from p2p.session.session_config import minutes_to_go_on

    config = record.config.read()
    minutes = minutes_to_go_on(config, worked_s(record)) if config else None
    if config is None or minutes == config.loop.max_minutes:
        return ""
    return f" --max-minutes {minutes:g}"


def _change(record: SessionRecord, changes: dict[str, Any]) -> None:
    """Let a session go on under other conditions; what cannot be is the person's mistake."""
    from pydantic import ValidationError

    from p2p.session.run_session import open_config

    try:
        open_config(record, changes)
    except ValidationError as error:
        raise UsageError(in_flags(field_errors(error, "options"))) from error
    except ValueError as error:
        raise UsageError(error) from error


def _absolute(record: SessionRecord, result: SessionResult) -> dict[str, Any]:
    found = result.model_dump(mode="json")
    found["policy"] = str(record.path / result.policy) if result.policy else None
    found["videos"] = [str(record.path / video) for video in result.videos]
    return found
