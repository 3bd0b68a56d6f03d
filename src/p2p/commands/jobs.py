"""`p2p jobs`: what is queued, running and done."""

from __future__ import annotations

import codecs
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from p2p.commands.arguments import (
    RequestFlags,
    RunsDirOption,
    check_request,
    make_request,
    options_of,
    read_prompt,
    to_paste,
)
from p2p.commands.console import (
    CommandError,
    CommandGroup,
    JsonFlag,
    UsageError,
    answer,
    flag_names,
    flags_given,
    out,
    print_json,
    reject_argument,
    usage_errors,
)
from p2p.commands.live import plain_table, state_text
from p2p.commands.scheduler import FORMATS, find_job, open_store
from unstable.utils.logging import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from p2p.scheduler.controllers import JobOptions, JobRequest
    from p2p.scheduler.records import JobRow, JobSpec, RunRow
    from p2p.scheduler.store import Store


COMMAND = "p2p.command"
ANY_KIND = {"time_limit", "title", "watch", "runs_dir", "as_json"}
"""Parameters of every job, beside those of JobOptions."""
OF_REWARD = {
    "reward", "env_id", "total_timesteps", "settings", "config", "preset", "videos", "trackers",
}  # fmt: skip
NAMES = {
    "job_id": "--name",
    "run_id": "--name",
    "folder": "--name",
    "time_limit_s": "--time-limit",
    "command": "--",
}
"""Fields of a job that no parameter is named after."""


class SubmitCommand(RequestFlags, TyperCommand):
    """Keeps what stands after `--` apart: it is a command, not arguments of ours."""

    def request(self) -> type[JobRequest]:
        """See RequestFlags."""
        from p2p.scheduler.controllers import JobRequest

        return JobRequest

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click's Command."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


def submit(
    context: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(help="What an agent should do, as for `p2p run`; `-` reads it."),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="REWARD", help="Train on a reward, as `p2p train` does.", show_default="none"
        ),
    ] = None,
    selfplay: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Self-play, as `unstable train` does.", show_default="none"
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="MINUTES", help="Maximum run time.", show_default="no limit"),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of a command's job and folder.", show_default="a new one"
        ),
    ] = None,
    title: Annotated[
        str, typer.Option(metavar="TEXT", help="Shown in lists.", show_default="what it does")
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --reward: TrainConfig as JSON.", show_default="none"
        ),
    ] = None,
    preset: Annotated[
        bool, typer.Option("--preset", help="With --reward: the environment's tuned preset.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show progress until it ends.")
    ] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Submit a session, a training, a self-play run or a command.

    Returns at once; a scheduler in the background runs it. In a command
    {python}, {runs_dir} and {folder} become what they are on its node.

    [bold]Examples[/]

      p2p jobs submit "run forward fast" --env HalfCheetah-v5 --cores 2
      p2p jobs submit --reward halfcheetah_run_forward --node gpu1 --watch
      p2p jobs submit --selfplay my_run.toml --gpus 1 --priority 5
      p2p jobs submit --cores 4 -- {python} -c "print(1)"
    """
    from p2p.scheduler.controllers import JobOptions, JobRequest, command_job
    from p2p.scheduler.service import ensure_scheduler
    from p2p.scheduler.store import StoreError

    command, options = tuple(context.meta.get(COMMAND, ())), options_of(context)
    text = title or prompt or reward or (selfplay.name if selfplay else " ".join(command))
    job_options = _job_options(context, text, time_limit)

    def session(folder: Path) -> JobSpec:
        from p2p.scheduler.controllers import session_job

        request = make_request(JobRequest, context, prompt=read_prompt(prompt))
        check_request(context, request)
        return session_job(request, folder, job_options)

    def training(folder: Path) -> JobSpec:
        from p2p.commands.train import check_trackers, new_run
        from p2p.scheduler.controllers import training_job

        chosen, text = new_run(reward, options, config=config, preset=preset)
        flags = ["--no-videos"] if options.get("videos") is False else []
        trackers = check_trackers(options.get("trackers") or ())
        flags += [word for name in trackers for word in ("--log", name)]
        return training_job(chosen, text.code, folder, job_options, flags=flags)

    def self_play(folder: Path) -> JobSpec:
        from p2p.scheduler.controllers import selfplay_job
        from unstable.config import ConfigError, load_config

        assert selfplay is not None
        with reject_argument("--selfplay", ConfigError):
            run_config = load_config(selfplay)
        return selfplay_job(run_config, folder, job_options)

    every = set(flag_names(context))
    kinds: dict[str, tuple[object, set[str], Callable[[Path], JobSpec]]] = {
        "PROMPT": (prompt, every - {"config", "preset", "name"}, session),
        "--reward": (reward, OF_REWARD, training),
        "--selfplay": (selfplay, {"selfplay"}, self_play),
        "-- COMMAND": (
            command or None,
            {"name"},
            lambda _: command_job(command, job_options, name or ""),
        ),
    }
    kind = _require_one([kind for kind, (value, _, _) in kinds.items() if value is not None])
    _, allowed, make = kinds[kind]
    allowed = allowed | ANY_KIND | JobOptions.model_fields.keys()
    extra = {n: flag for n, flag in flags_given(context).items() if n not in allowed}
    if extra:
        raise UsageError(f"{', '.join(extra.values())}: not with {kind}")
    with open_store(runs_dir) as store:
        job = _make_job(make, job_options, store, flag_names(context) | NAMES)
        store.submit(job)
        try:
            ensure_scheduler(store.runs_dir)
        except StoreError as error:
            start = to_paste("p2p scheduler run", runs_dir)
            raise CommandError(f"{error}; the job is kept, start one with: {start}") from error
        if watch:
            from p2p.commands.job_progress import follow

            follow(store, job.job_id)
        state = store.job(job.job_id)
    if as_json or not watch:
        _report(job, state, runs_dir, as_json=as_json)
    if watch and state is not None and state.state != "succeeded":
        raise typer.Exit(130 if state.state == "cancelled" else 1)


def _report(job: JobSpec, row: JobRow | None, runs_dir: Path | None, *, as_json: bool) -> None:
    if as_json:
        runs = [{"run_id": run.run_id, "folder": run.folder} for run in job.runs]
        state = row.state if row else "pending"
        print_json({"job_id": job.job_id, "kind": job.kind, "state": state, "runs": runs})
    else:
        watching = escape(to_paste(f"p2p jobs show {job.job_id} --follow", runs_dir))
        out.print(f"[bold]{job.job_id}[/]\nwatch it with: {watching}", soft_wrap=True)


def _job_options(context: typer.Context, title: str, minutes: float | None) -> JobOptions:
    from p2p.scheduler.controllers import JobOptions

    typed = {n: v for n, v in options_of(context).items() if n in JobOptions.model_fields}
    limit = None if minutes is None else minutes * 60
    with usage_errors(flag_names(context) | NAMES, formats=FORMATS):
        return JobOptions(**typed, time_limit_s=limit, title=" ".join(title.split()))


def _require_one(kinds: list[str]) -> str:
    if len(kinds) == 1:
        return kinds[0]
    problem = f"{' and '.join(kinds)} are given" if kinds else "nothing is given"
    raise UsageError(f"{problem}: say one of a PROMPT, --reward, --selfplay or -- COMMAND")


def _make_job(
    make: Callable[[Path], JobSpec], options: JobOptions, store: Store, names: dict[str, str]
) -> JobSpec:
    """The job, with its folder made; nothing is made where an argument is wrong."""
    from p2p.scheduler.controllers import command_job

    _check_room(options, store)
    try:
        with usage_errors(names, formats=FORMATS):
            command_job(["-"], options)  # raises what any job would, before it has a folder
            return make(store.runs_dir)
    except OSError as error:
        raise CommandError(f"--runs-dir: {store.runs_dir} cannot be written: {error}") from error


def _check_room(options: JobOptions, store: Store) -> None:
    known = {node.node_id: node for node in store.nodes()}
    for name in options.nodes:
        if name not in known:
            names = ", ".join(known) or "none"
            raise UsageError(f"--node: unknown node {name[:100]}; known: {names}")
    allowed = [known[name] for name in options.nodes or known]
    if not any(n.enabled and n.cores >= options.cores and n.gpus >= options.gpus for n in allowed):
        raise UsageError(
            f"--cores {options.cores} --gpus {options.gpus}: no node has as many; see "
            f"`{to_paste('p2p nodes list', store.runs_dir)}`, or add one with `p2p nodes add`"
        )


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
