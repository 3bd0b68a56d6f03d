"""`p2p sessions`, `p2p show` and `p2p analyze`: what there is, its state, and why."""

from __future__ import annotations

import secrets
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from p2p.commands.arguments import (
    RunsDirOption,
    SessionArgument,
    open_session,
    runs_folder,
)
from p2p.commands.console import (
    EXIT_INTERRUPTED,
    CommandError,
    JsonFlag,
    answer,
    display_path,
    err,
    out,
    print_json,
)
from p2p.commands.live import plain_table, state_text

if TYPE_CHECKING:
    from p2p.contracts import SessionAnalysis
    from p2p.records.iteration_record import SessionRecord
    from p2p.records.session_view import IterationView, SessionView


LISTED = {
    "session_id", "status", "unchecked_words", "iterations", "env_id", "prompt", "alias",
    "seconds", "created_at",
}  # fmt: skip
"""Fields of `p2p sessions --json`, beside the score."""
PROMPT_ROOM = 20
"""Cells: with less for the prompt, the table of sessions does without environments."""
REVIEW_LINES = 40
"""Of a reviewer's diff; the whole of it is in reward.json."""


def sessions(
    runs_dir: RunsDirOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="Maximum number to list.")
    ] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List the sessions, newest first.

    [bold]Examples[/]

      p2p sessions
      p2p sessions --runs-dir /data/runs --limit 100 --json
    """
    from p2p.contracts import utc_now
    from p2p.records.find import is_in_trash, session_names, short_name
    from p2p.records.formatting import format_duration, format_score, short_env_name
    from p2p.records.iteration_record import SessionRecord
    from p2p.records.session_view import SessionView
    from p2p.records.summaries import SessionRow

    folder = runs_folder(runs_dir)
    every = (SessionRecord(folder / name) for name in reversed(session_names(folder)))
    records = islice((record for record in every if not is_in_trash(record)), limit)
    rows = [SessionRow.model_validate(SessionView(record)) for record in records]
    if as_json:
        listed = [row.model_dump(mode="json", include=LISTED) for row in rows]
        print_json(
            [{**each, "score": row.best_score} for each, row in zip(listed, rows, strict=True)]
        )
        return
    if not rows:
        out.print(
            f'no sessions in {display_path(folder)} yet: p2p run "run forward fast"', soft_wrap=True
        )
        return
    count = Counter(short_name(row.session_id) for row in rows)
    names = [
        short if count[short := short_name(row.session_id)] == 1 else row.session_id for row in rows
    ]
    titles = ["session", "status", "score", "iter", "age", "took", "environment"]
    cells = [
        [
            name,
            state_text(row.status),
            "" if row.best_score is None else format_score(row.best_score),
            str(row.iterations),
            format_duration((utc_now() - row.created_at).total_seconds()),
            format_duration(row.seconds) if row.seconds else "",
            short_env_name(row.env_id),
        ]
        for name, row in zip(names, rows, strict=True)
    ]
    columns = zip(titles, *cells, strict=True)
    widths = (max(Text.from_markup(cell).cell_len for cell in column) for column in columns)
    if out.width - sum(width + 2 for width in widths) < PROMPT_ROOM:
        titles.pop()
    table = plain_table(*titles, wide="prompt", first_width=max(map(len, names)))
    for row_cells, row in zip(cells, rows, strict=True):
        table.add_row(*row_cells[: len(titles)], escape(row.alias or row.prompt))
    out.print(table)
    if any(row.status == "unverified" for row in rows):
        out.print("unverified: `p2p show` names the words that no criterion measures", style="dim")


def show(
    session: SessionArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show progress until it ends.")
    ] = False,
    criteria: Annotated[
        bool, typer.Option("--criteria", help="Print its criteria, as a file to edit.")
    ] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a session: criteria, scores, changes and results.

    [bold]Examples[/]

      p2p show last
      p2p show session_20260101_120000_0123abcd --follow
      p2p show last --criteria > criteria.toml
    """
    from p2p.agents.intent_elicitor import render_criteria
    from p2p.records.session_view import SessionView

    record = open_session(session, runs_dir)
    if follow:
        _follow(record)
    now = SessionView(record)
    if criteria:
        if now.intent is None:
            raise CommandError(f"{record.session_id} has no criteria yet")
        typer.echo(render_criteria(now.intent.criteria), nl=False)
        return
    if as_json:
        print_json(_as_json(now))
        return
    report(record, now)


def _follow(record: SessionRecord) -> None:
    import time

    from p2p.commands.session_progress import POLL_S, SessionProgress

    with SessionProgress(err, record):
        try:
            while record.derive_status() in ("running", "pending", "queued"):
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            from p2p.session.stopping import command_name

            hint = f"the session continues; `p2p stop {command_name(record)}` ends it"
            err.print(escape(hint), style="dim", soft_wrap=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _as_json(now: SessionView) -> dict[str, Any]:
    from pydantic_core import to_jsonable_python

    own = ("session_id", "status", "unchecked_words", "error", "phase", "intent", "result")
    of_iteration = ("candidates", "choice", "judgment", "confirmation", "revision")
    value = {name: getattr(now, name) for name in own} | {
        "path": now.record.path,
        "iterations": [
            {
                "iteration": each.number,
                "runs": [run.run_id for run in each.runs],
                **{name: getattr(each, name) for name in of_iteration},
            }
            for each in now.iterations.values()
        ],
    }
    return dict(to_jsonable_python(value))


def report(record: SessionRecord, now: SessionView, *, told: bool = False) -> None:
    """A session for people: the end of `p2p run`, and `p2p show`.

    `told`: the verdicts on its iterations stand above already.
    """
    from p2p.benchmark.measuring import ground_truth
    from p2p.commands.session_progress import criteria_table, intent_lines
    from p2p.records.formatting import count
    from p2p.session.stopping import command_name
    from p2p.session.verdict import HINT

    if now.prompt:
        out.print(f"[bold]{escape(now.prompt)}[/]  {escape(now.env_id)}".rstrip(), soft_wrap=True)
    # "cancelled by user" says its status itself.
    reason = now.error.removeprefix(now.status).strip()
    if now.status == "max_iterations" and not reason:
        reason = f"(no pass within {count(len(now.iterations), 'iteration')})"
    # A terminal would break prose within words; a command must not get a line break of ours.
    whole = not out.is_terminal
    out.print(f"{state_text(now.status)} {escape(reason)}".rstrip(), soft_wrap=True)
    if (truth := ground_truth(record.path)) is not None:
        colour = "green" if truth.passed else "red"
        out.print(f"[{colour}]ground truth {escape(truth.text)}[/]", soft_wrap=whole)
    best = now.best
    if now.intent is not None:
        out.print(criteria_table(now))
        accept = f": p2p steer {command_name(record)} --score 1"
        hint = f": {HINT}{accept}" if now.status == "unverified" else ""
        for line in intent_lines(now.intent, hint):
            out.print(line, soft_wrap=whole or bool(hint))
    for iteration in () if told else now.iterations.values():
        out.print(_format_iteration(now, iteration, best), soft_wrap=whole)
    for title, text in _result_lines(record, now):
        out.print(f"[bold]{title:<7}[/] {escape(text)}", soft_wrap=True)


def _format_iteration(
    now: SessionView, iteration: IterationView, best: IterationView | None
) -> str:
    from p2p.session.verdict import iteration_line

    judged = iteration.judgment
    verdict = escape(iteration_line(now, iteration)) or "not judged yet"
    several = len(now.iterations) > 1
    is_best = several and judged and best is not None and iteration.number == best.number
    star = " [green](best)[/]" if is_best else ""
    tags = ", ".join(judged.failure_tags).replace("_", " ") if judged else ""
    tags = f"\n[dim]tags: {escape(tags)}[/]" if tags else ""
    revision = iteration.revision
    notes = [*_review_lines(iteration), *candidate_lines(iteration)]
    notes += [f"↻ {revision.changes}", *revision.notes] if revision else []
    change = "".join(f"\n[dim]{escape(line)}[/]" for line in notes)
    return f"iteration {iteration.number}{star}: {verdict}{tags}{change}"


def candidate_lines(iteration: IterationView) -> list[str]:
    """The rewards that it chose from, the chosen one marked, and why."""
    from p2p.records.formatting import format_score

    lines = []
    for row in iteration.candidates:
        scores = [("-" if score is None else format_score(score)) for score in row.scores.values()]
        state = f"{' → '.join(scores)} ({row.steps:,} steps)" if scores else "not trained"
        text = row.explanation.splitlines()[0] if row.explanation else ""
        problems = "; ".join(problem.splitlines()[0] for problem in row.problems)
        note = f" [{problems}]" if problems else ""
        lines.append(f"{'*' if row.won else '·'} {row.name} {state}: {text}{note}".rstrip(": "))
    reason = iteration.search.reason if iteration.search else ""
    return [*lines, *([f"chosen: {reason}"] if reason else [])]


def _review_lines(iteration: IterationView) -> list[str]:
    """Return what a reviewer changed in the reward, as lines of a diff."""
    lines: list[str] = []
    for step in iteration.reward.steps if iteration.reward else ():
        if step.kind == "review" and step.diff:
            lines += ["the reviewer changed the reward:", *step.diff.splitlines()[:REVIEW_LINES]]
    return lines


def _result_lines(record: SessionRecord, now: SessionView) -> list[tuple[str, str]]:
    from p2p.session.publishing import spent_text
    from p2p.session.stopping import command_name, resume_command

    folder = display_path(record.path)
    lines = [("session", folder)]
    result = now.result
    if result is None:
        return lines
    if result.policy is not None:
        lines.append(("policy", f"{folder}/{result.policy}"))
    if result.videos:  # the others, of a bad and a good episode, lie beside it
        video = next((name for name in result.videos if "median" in name), result.videos[0])
        lines.append(("video", f"{folder}/{video}"))
    if (record.path / "report.md").is_file():
        lines.append(("report", f"{folder}/report.md"))
    if result.best_iteration is not None and result.run_id is not None:
        lines.append(("watch", f"p2p play {command_name(record)}"))
        lines.append(("share", f"p2p export {command_name(record)} --to FOLDER"))
    if now.status == "max_iterations" and now.config is not None:
        lines.append(("more", resume_command(record)))
    if result.tokens or result.unanswered:
        lines.append(("models", spent_text(result)))
    return lines


def analyze(
    session: SessionArgument,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="Model to ask.", show_default="the session's"
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also if there is a report.")] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Analyze a session: what worked, what did not, what to try.

    The report is kept in the session's analysis.json.

    [bold]Examples[/]

      p2p analyze last
      p2p analyze last --again --model anthropic:claude-sonnet-5-5
    """
    from p2p.session.agents import analyze_session

    record = open_session(session, runs_dir)
    try:
        with err.status("analyzing"):
            analysis = analyze_session(record, model=model or "", again=again)
    except ValueError as error:
        raise CommandError(f"{record.session_id}: {error}") from error
    if as_json:
        print_json(analysis.model_dump(mode="json"))
        return
    _print_analysis(analysis)


def _print_analysis(analysis: SessionAnalysis) -> None:
    out.print(escape(analysis.summary), soft_wrap=not out.is_terminal)
    table = plain_table("", show_header=False)
    table.add_column(ratio=1)
    for title, lines in (
        ("worked", analysis.worked),
        ("did not", analysis.failed),
        ("why", analysis.causes),
        ("try", analysis.suggestions),
    ):
        for i, line in enumerate(lines):
            table.add_row(f"[bold]{'' if i else title}[/]", escape(line))
    out.print(table)


def delete(
    session: SessionArgument, runs_dir: RunsDirOption = None, as_json: JsonFlag = False
) -> None:
    """Move a session to the trash.

    Its files stay until `p2p trash --empty`; `p2p trash --restore` brings it back.

    [bold]Examples[/]

      p2p delete last
      p2p delete session_20260101_120000_0123abcd --runs-dir /data/runs
    """
    from p2p.contracts import utc_now
    from p2p.records.statuses import CANCELLABLE

    record = open_session(session, runs_dir)
    if record.derive_status() in CANCELLABLE:
        raise CommandError(f"{record.session_id} is running: `p2p stop` ends it")
    record.update_metadata(deleted_at=utc_now())
    value = {"session_id": record.session_id, "status": "deleted"}
    restore = f"restore with: p2p trash --restore {record.session_id}"
    answer(value, f"moved {record.session_id} to the trash; {restore}", as_json=as_json)


def rename(
    session: SessionArgument,
    title: Annotated[str, typer.Argument(help="What lists show; empty: its prompt.")],
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Give a session a title, in place of its prompt.

    [bold]Examples[/]

      p2p rename last "walker, first try"
      p2p rename last ""
    """
    record = open_session(session, runs_dir)
    alias = record.update_metadata(alias=" ".join(title.split())).alias
    value = {"session_id": record.session_id, "alias": alias}
    answer(value, f"{record.session_id}: {escape(alias) or 'no title'}", as_json=as_json)


def trash(
    restore: Annotated[
        str | None,
        typer.Option(metavar="SESSION", help="Restore a session.", show_default="none"),
    ] = None,
    empty: Annotated[bool, typer.Option("--empty", help="Delete all of it for good.")] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the trash, restore a session or empty it.

    [bold]Examples[/]

      p2p trash
      p2p trash --restore session_20260101_120000_0123abcd
      p2p trash --empty
    """
    from p2p.records.find import is_in_trash

    if restore is not None:
        record = open_session(restore, runs_dir)
        if not is_in_trash(record):
            raise CommandError(f"{record.session_id} is not in the trash")
        record.update_metadata(deleted_at=None)
        value = {"session_id": record.session_id, "status": "restored"}
        answer(value, f"restored {record.session_id}", as_json=as_json)
        return
    deleted = _list_deleted(runs_dir)
    if as_json:
        print_json([record.session_id for record in deleted])
    elif not deleted:
        out.print("the trash is empty")
    else:
        table = plain_table("session", wide="prompt")
        for record in deleted:
            config = record.config.read()
            table.add_row(record.session_id, escape(config.prompt if config else ""))
        out.print(table)
    for record in deleted if empty else ():
        # Renamed first: half a session must never look like a whole one.
        doomed = record.path.with_name(f".removed-{secrets.token_hex(8)}")
        record.path.rename(doomed)
        shutil.rmtree(doomed)
    if empty and deleted and not as_json:
        out.print("deleted for good")


def _list_deleted(runs_dir: Path | None) -> list[SessionRecord]:
    from p2p.records.find import is_in_trash, session_names
    from p2p.records.iteration_record import SessionRecord

    folder = runs_folder(runs_dir)
    records = [SessionRecord(folder / name) for name in session_names(folder)]
    return [record for record in records if is_in_trash(record)]
