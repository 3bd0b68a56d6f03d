"""`p2p jobs submit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from p2p.commands.arguments import RunsDirOption, make_request, to_paste, with_flags
from p2p.commands.console import (
    CommandError,
    JsonFlag,
    UsageError,
    flag_names,
    flags_given,
    out,
    print_json,
    refused,
    usage_errors,
)
from p2p.commands.scheduler import FORMATS, open_store
from p2p.session.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from p2p.scheduler.controllers import JobOptions
    from p2p.scheduler.records import JobSpec
    from p2p.scheduler.store import Store

COMMAND = "p2p.command"
ANY_KIND = {
    "cores", "gpus", "node", "priority", "attempts", "time_limit", "title", "watch", "runs_dir",
    "as_json",
}  # fmt: skip
"""Parameters of every job."""
OF_REWARD = {
    "reward", "env_id", "total_timesteps", "total_timesteps_0", "total_timesteps_1", "settings",
    "config", "preset", "videos",
}  # fmt: skip
NAMES = {
    "job_id": "--name",
    "run_id": "--name",
    "folder": "--name",
    "nodes": "--node",
    "max_attempts": "--attempts",
    "time_limit_s": "--time-limit",
    "command": "--",
}
"""Fields of a job that no parameter is named after."""


class WithCommand(TyperCommand):
    """Keeps what stands after `--` apart: it is a command, not arguments of ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click's Command."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


@with_flags(OPTIONS)
def submit(
    context: typer.Context,
    options: dict[str, Any],
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
    cores: Annotated[int, typer.Option(metavar="N", help="Cores to reserve.")] = 1,
    gpus: Annotated[int, typer.Option(metavar="N", help="GPUs to reserve.")] = 0,
    node: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE", help="Allowed node; repeatable.", show_default="any"),
    ] = None,
    priority: Annotated[int, typer.Option(metavar="-100..100", help="Higher goes first.")] = 0,
    attempts: Annotated[
        int, typer.Option(metavar="N", help="Maximum attempts, if it gets lost.")
    ] = 3,
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
    from p2p.scheduler.controllers import JobOptions, command_job
    from p2p.scheduler.service import ensure_scheduler
    from p2p.scheduler.store import StoreError

    command = tuple(context.meta.get(COMMAND, ()))
    text = title or prompt or reward or (selfplay.name if selfplay else " ".join(command))
    job_options = JobOptions(
        cores=cores,
        gpus=gpus,
        priority=priority,
        nodes=tuple(node or ()),
        max_attempts=attempts,
        time_limit_s=None if time_limit is None else time_limit * 60,
        title=" ".join(text.split()),
    )

    def session(folder: Path) -> JobSpec:
        from p2p.scheduler.controllers import session_job

        request = make_request(context, prompt, options)
        return session_job(request, folder, job_options)

    def training(folder: Path) -> JobSpec:
        from p2p.commands.train import new_run
        from p2p.scheduler.controllers import training_job

        chosen, code = new_run(reward, options, config=config, preset=preset)
        flags = ["--no-videos"] if options.get("videos") is False else []
        return training_job(chosen, code, folder, job_options, flags=flags)

    def self_play(folder: Path) -> JobSpec:
        from p2p.scheduler.controllers import selfplay_job
        from unstable.config import ConfigError, load_config

        assert selfplay is not None
        with refused("--selfplay", ConfigError):
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
    kind = _only([kind for kind, (value, _, _) in kinds.items() if value is not None])
    _, allowed, make = kinds[kind]
    extra = {n: flag for n, flag in flags_given(context).items() if n not in allowed | ANY_KIND}
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
    if as_json:
        runs = [{"run_id": run.run_id, "folder": run.folder} for run in job.runs]
        ended = state.state if state else "pending"
        print_json({"job_id": job.job_id, "kind": job.kind, "state": ended, "runs": runs})
    elif not watch:
        watching = escape(to_paste(f"p2p jobs show {job.job_id} --follow", runs_dir))
        out.print(f"[bold]{job.job_id}[/]\nwatch it with: {watching}", soft_wrap=True)
    if watch and state is not None and state.state != "succeeded":
        raise typer.Exit(130 if state.state == "cancelled" else 1)


def _only(kinds: list[str]) -> str:
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
            raise UsageError(f"--node: there is no node {name[:100]}, only {names}")
    allowed = [known[name] for name in options.nodes or known]
    if not any(n.enabled and n.cores >= options.cores and n.gpus >= options.gpus for n in allowed):
        raise UsageError(
            f"--cores {options.cores} --gpus {options.gpus}: no node has as many; see "
            f"`{to_paste('p2p nodes list', store.runs_dir)}`, or add one with `p2p nodes add`"
        )
