"""`p2p scheduler`, and what all commands about jobs and nodes share: the store."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from p2p.commands.arguments import RunsDirOption, runs_folder, to_paste
from p2p.commands.console import (
    CommandError,
    CommandGroup,
    JsonFlag,
    UsageError,
    answer,
    reject_argument,
)

if TYPE_CHECKING:
    from pathlib import Path

    from p2p.scheduler.records import JobRow
    from p2p.scheduler.store import Store

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode="rich")

PLAIN_NAME = "letters, digits, `_`, `-` and single dots inside, at most 128 of them"
PLAIN_PATH = "an absolute path of letters, digits and `._-/`, without `..`"
FORMATS = {
    **dict.fromkeys(("node_id", "job_id", "run_id", "nodes", "partition", "folder"), PLAIN_NAME),
    "host": "a host's name or address: letters, digits, `.`, `:` and `-`",
    "user": "small letters, digits, `_` and `-`, at most 32 of them",
    "address": "such as ray-head:6379 or auto",
    **dict.fromkeys(("base_dir", "python", "key_file", "known_hosts"), PLAIN_PATH),
}
"""What may stand in a field that reaches another machine."""


def open_store(runs_dir: Path | None, *, make: bool = True) -> closing[Store]:
    from p2p.scheduler.store import Store

    return closing(Store(runs_folder(runs_dir), make=make))


def find_job(store: Store, text: str) -> JobRow:
    """Find a job by its name, a prefix of it, or `last`."""
    from p2p.records.find import NotFound, find_name

    if text == "last" and not store.jobs(1):
        raise UsageError(
            f'JOB: there are no jobs in {store.runs_dir} yet: p2p jobs submit "run forward fast"'
        )
    job = store.jobs(1)[0] if text == "last" else store.job(text)
    if job is None:
        near = store.jobs(6, prefix=text) or store.jobs(200)
        names = [job.job_id for job in reversed(near)]
        with reject_argument("JOB", NotFound):
            job = store.job(find_name(text[:100], names, "job", store.runs_dir))
    assert job is not None
    return job


@app.callback()
def scheduler() -> None:
    """Run the scheduler yourself, in the foreground.

    `p2p jobs submit` starts one as long as there is work.

    [bold]Examples[/]

      p2p scheduler run
    """


@app.command()
def run(
    job: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Work on this job only.", show_default="all"),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Exit when nothing is left to do.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Run the jobs of a folder that was not made here: commands."),
    ] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Start runs on nodes and supervise them, in the foreground.

    It can be stopped or killed at any moment: runs continue, and the next
    scheduler finds them. Keys that runs need come from its environment or
    `.env`.

    [bold]Examples[/]

      p2p scheduler run
      p2p scheduler run --until-idle --runs-dir /data/runs
    """
    from p2p.scheduler.job_scheduler import log_to_stderr, run_scheduler
    from p2p.scheduler.service import EXIT_BUSY, SchedulerBusy

    folder = runs_folder(runs_dir)
    with open_store(runs_dir) as store:
        job_id = find_job(store, job).job_id if job is not None else None
        if trust:
            store.mark_trusted()
    log_to_stderr()
    try:
        run_scheduler(folder, job_id=job_id, until_idle=until_idle)
    except SchedulerBusy as error:
        hint = f"watch it with `{to_paste('p2p jobs list', folder)}`"
        raise CommandError(f"{error}: {hint}", status=EXIT_BUSY) from error
    with open_store(runs_dir) as store:
        left = len(store.jobs(unended=True))
    todo = f"{left} jobs are left to do" if left else "nothing is left to do"
    answer({"jobs_left": left}, f"ended; {todo}", as_json=as_json)
