"""`p2p scheduler`: who gives runs to nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from p2p.commands.console import CommandError, JsonFlag, out, print_json
from p2p.commands.scheduler_store import find_job, open_store
from p2p.commands.session_argument import RunsDirOption, runs_folder

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def scheduler() -> None:
    """Run the scheduler yourself. `p2p jobs submit` starts one as long as there is work.

    [bold]Examples[/]

      p2p scheduler run
    """


@app.command()
def run(
    job: Annotated[str | None, typer.Option(metavar="JOB", help="Work on this job only.")] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when nothing is left to do.")
    ] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Give runs to nodes and stay with them, in the foreground.

    It can be ended or killed at any moment: runs go on, and the next one finds
    them again. Keys that runs need are those of its environment or of `.env`.

    [bold]Examples[/]

      p2p scheduler run
      p2p scheduler run --until-idle --runs-dir /data/runs
    """
    from p2p.scheduler.job_scheduler import log_to_stderr, work
    from p2p.scheduler.service import EXIT_BUSY, SchedulerBusy
    from p2p.scheduler.store import StoreError

    folder = runs_folder(runs_dir)
    with open_store(runs_dir) as store:
        job_id = find_job(store, job).job_id if job is not None else None
    log_to_stderr()
    try:
        work(folder, job_id=job_id, until_idle=until_idle)
    except SchedulerBusy as error:
        failure = CommandError(f"{error}: watch it with `p2p jobs list`")
        failure.status = EXIT_BUSY
        raise failure from error
    except StoreError as error:
        raise CommandError(error) from error
    with open_store(runs_dir) as store:
        left = len(store.jobs(unended=True))
    if as_json:
        print_json({"jobs_left": left})
    else:
        out.print(f"ended; {left} jobs are left to do" if left else "ended; nothing is left to do")
