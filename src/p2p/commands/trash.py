"""`p2p delete`, `rename` and `trash`: put sessions in order."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from p2p.commands.arguments import RunsDirOption, SessionArgument, open_session, runs_folder
from p2p.commands.console import CommandError, JsonFlag, answer, out, print_json
from p2p.commands.live import plain_table

if TYPE_CHECKING:
    from p2p.records.iteration_record import SessionRecord


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
