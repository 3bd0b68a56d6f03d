"""`p2p jobs`: what is queued, running and done."""

from __future__ import annotations

import codecs
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from p2p.commands.arguments import RunsDirOption, to_paste
from p2p.commands.console import (
    CommandError,
    CommandGroup,
    JsonFlag,
    UsageError,
    answer,
    out,
    print_json,
)
from p2p.commands.job_submit import SubmitCommand, submit
from p2p.commands.live import plain_table, state_text
from p2p.commands.scheduler import find_job, open_store
from unstable.utils.logging import printable

if TYPE_CHECKING:
    from p2p.scheduler.records import JobRow, RunRow
    from p2p.scheduler.store import Store

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode="rich")
app.command(cls=SubmitCommand)(submit)

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Its name or the start of it, or `last`.")
]
RunsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN]...", help="Only these runs of it.")
]
SHOWN = 50


@app.callback()
def jobs() -> None:
    """Jobs on this machine and others: submit, show, cancel, retry.

    [bold]Examples[/]

      p2p jobs submit "run forward fast" --env HalfCheetah-v5
      p2p jobs show last --follow
    """


@app.command("list")
def list_jobs(
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="Maximum number to list.")
    ] = 20,
    unended: Annotated[
        bool, typer.Option("--open", help="Only jobs with unfinished runs.")
    ] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the jobs, newest first.

    [bold]Examples[/]

      p2p jobs list
      p2p jobs list --open --json
    """
    from p2p.scheduler.job_files import format_time
    from p2p.scheduler.service import is_running

    with open_store(runs_dir, make=False) as store:
        listed = store.jobs(limit, unended=unended)
        idle = not is_running(store.runs_dir)
    if as_json:
        print_json([_as_json(job) for job in listed])
        return
    if not listed:
        hint = to_paste('p2p jobs submit "run forward fast"', runs_dir)
        out.print(f"no jobs yet: {escape(hint)}", soft_wrap=True)
        return
    width = max(len(job.job_id) for job in listed)
    table = plain_table("job", "state", "runs", "since", wide="what", first_width=width)
    for job in listed:
        left = sum(job.counts.get(state, 0) for state in ("pending", "starting", "running"))
        since = (format_time(job.created_at) or "")[:16].replace("T", " ")
        runs = f"{job.total - left}/{job.total}"
        table.add_row(job.job_id, state_text(job.state), runs, since, escape(job.title))
    out.print(table)
    if idle and any(job.state in ("pending", "running") for job in listed):
        hint = to_paste("p2p scheduler run", runs_dir)
        text = f"[yellow]no scheduler is running:[/] start one with: {escape(hint)}"
        out.print(text, soft_wrap=True)


def _as_json(job: JobRow) -> dict[str, Any]:
    from p2p.scheduler.job_files import format_time

    fields = {**asdict(job), "state": job.state, "total": job.total}
    return {**fields, "nodes": list(job.nodes), "created_at": format_time(job.created_at)}


@app.command()
def show(
    job: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show progress until it ends.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help=f"All runs, not the first {SHOWN} only.")
    ] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a job, its runs, where they are and how they ended.

    [bold]Examples[/]

      p2p jobs show last
      p2p jobs show last --follow
    """
    from p2p.commands.job_progress import counts_text, runs_table
    from p2p.commands.job_progress import follow as watch
    from p2p.scheduler.job_files import manifest

    with open_store(runs_dir, make=False) as store:
        chosen = find_job(store, job)
        if follow:
            watch(store, chosen.job_id)
            chosen = find_job(store, chosen.job_id)
        if as_json:
            print_json(manifest(store, chosen))
            return
        runs = store.runs(chosen.job_id)
    out.print(f"[bold]{chosen.job_id}[/]  {state_text(chosen.state)}  {escape(chosen.title)}")
    out.print(counts_text(chosen))
    shown = runs if everything else runs[:SHOWN]
    out.print(runs_table(shown, chosen.kind))
    if len(shown) < len(runs):
        out.print(f"and {len(runs) - len(shown)} more: --all")
    failed = next((run for run in runs if run.state == "failed"), None)
    if failed is not None:
        logs = f"p2p jobs logs {chosen.job_id} {failed.run_id}"
        hint = to_paste(logs, runs_dir)
        out.print(f"see why with: {escape(hint)}", soft_wrap=True)


@app.command()
def logs(
    job: JobArgument,
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Which (default: the only one).")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print output as it comes.")
    ] = False,
    attempt: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Which attempt.", show_default="the last"),
    ] = None,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print what a run wrote to standard output and standard error.

    [bold]Examples[/]

      p2p jobs logs last --follow
      p2p jobs logs last case7 --attempt 1
    """
    from p2p.scheduler.job_files import read_output
    from p2p.scheduler.records import ENDED

    with open_store(runs_dir, make=False) as store:
        chosen = _select_run(store, find_job(store, job), run)
        offset, text = 0, ""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            now = store.run(chosen.run_id) or chosen
            data = read_output(store, now, attempt or now.attempt, offset)
            offset += len(data)
            decoded = decoder.decode(data)
            if as_json:
                text += decoded
            else:
                sys.stdout.write(printable(decoded))
                sys.stdout.flush()
            if not follow or now.state in ENDED or attempt is not None:
                break
            time.sleep(0.5)
    if as_json:
        print_json({"run_id": chosen.run_id, "log": text})


def _select_run(store: Store, job: JobRow, name: str | None) -> RunRow:
    runs = {run.run_id: run for run in store.runs(job.job_id)}
    if name is None and len(runs) == 1:
        return next(iter(runs.values()))
    if name is None:
        some = ", ".join(list(runs)[:5]) + (" ..." if len(runs) > 5 else "")
        raise UsageError(f"RUN: {job.job_id} has {len(runs)} runs, say which: {some}")
    run = runs.get(name) or runs.get(f"{job.job_id}_{name}")  # case7, of a benchmark
    if run is None:
        from p2p.contracts import did_you_mean

        hint = did_you_mean(name[:100], runs)
        raise UsageError(f"RUN: {job.job_id} has no run {name[:100]}{hint}")
    return run


@app.command()
def cancel(
    job: JobArgument,
    runs: RunsArgument = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until they have ended.")] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Cancel a job, or some of its runs. What they have done stays.

    A cancel is never lost, also where a node cannot be reached now.

    [bold]Examples[/]

      p2p jobs cancel last
      p2p jobs cancel last case7 case8 --wait
    """
    _change(job, runs, "cancel", runs_dir, wait=wait, as_json=as_json)


@app.command()
def retry(
    job: JobArgument,
    runs: RunsArgument = None,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Retry what failed, was cancelled or skipped; each run resumes from what it left.

    [bold]Examples[/]

      p2p jobs retry last
      p2p jobs retry last case7
    """
    _change(job, runs, "retry", runs_dir, as_json=as_json)


def _change(
    job: str,
    runs: list[str] | None,
    what: str,
    runs_dir: Any,
    *,
    as_json: bool,
    wait: bool = False,
) -> None:
    from p2p.commands.job_progress import follow
    from p2p.scheduler.service import ensure_scheduler

    with open_store(runs_dir, make=False) as store:
        chosen = find_job(store, job)
        run_ids = [_select_run(store, chosen, name).run_id for name in runs] if runs else None
        change = store.cancel if what == "cancel" else store.retry
        count = change(chosen.job_id, run_ids)
        if count == 0:
            nothing = (
                "has ended" if what == "cancel" else "has nothing that failed or was cancelled"
            )
            raise CommandError(f"{chosen.job_id} {nothing}: it is {chosen.state}")
        ensure_scheduler(store.runs_dir)
        if wait:
            follow(store, chosen.job_id)
        after = find_job(store, chosen.job_id)
    value = {"job_id": chosen.job_id, "runs": count, "state": after.state}
    done = {"cancel": "cancelled", "retry": "queued again"}[what]
    answer(
        value, f"{chosen.job_id}: {count} run{'' if count == 1 else 's'} {done}", as_json=as_json
    )
