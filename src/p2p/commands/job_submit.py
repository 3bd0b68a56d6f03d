"""`p2p jobs submit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from p2p.commands.console import CommandError, JsonFlag, UnsafeFlag, out, print_json
from p2p.commands.job_inputs import Asked, make_job
from p2p.commands.scheduler_store import open_store
from p2p.commands.session_argument import RunsDirOption
from p2p.commands.session_inputs import read_seeds
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

if TYPE_CHECKING:
    from p2p.scheduler.records import JobSpec

COMMAND = "p2p.command"


class WithCommand(TyperCommand):
    """Keeps what stands after `--` apart: it is a command, not arguments of ours."""

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
        str | None, typer.Option(metavar="REWARD", help="Train on a reward, as `p2p train` does.")
    ] = None,
    selfplay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Self-play, as `unstable train` does.")
    ] = None,
    cores: Annotated[int, typer.Option(metavar="N", help="Cores of its own.")] = 1,
    gpus: Annotated[int, typer.Option(metavar="N", help="GPUs of its own.")] = 0,
    node: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE", help="Where it may run (default: anywhere); repeatable."),
    ] = None,
    priority: Annotated[int, typer.Option(metavar="-100..100", help="Higher ones go first.")] = 0,
    attempts: Annotated[
        int, typer.Option(metavar="N", help="Begin at most so often, if it gets lost.")
    ] = 3,
    time_limit: Annotated[
        float | None, typer.Option(metavar="MINUTES", help="End it after so long.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a command's job and folder.")
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="For people.")] = "",
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
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --reward: TrainConfig as JSON.")
    ] = None,
    preset: Annotated[
        bool, typer.Option("--preset", help="With --reward: the environment's tuned preset.")
    ] = False,
    setting: SettingOption = None,
    videos: VideosOption = True,
    unsafe_local: UnsafeFlag = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Stay and watch until it ends.")
    ] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Give the scheduler a session, a training, a self-play run or a command.

    It comes back at once; a scheduler in the background goes on. In a command
    {python}, {runs_dir} and {folder} become what they are on its node.

    [bold]Examples[/]

      p2p jobs submit "run forward fast" --env HalfCheetah-v5 --cores 2
      p2p jobs submit --reward halfcheetah_run_forward --node gpu1 --watch
      p2p jobs submit --selfplay my_run.toml --gpus 1 --priority 5
      p2p jobs submit --cores 4 -- {python} -c "print(1)"
    """
    from p2p.scheduler.controllers import JobOptions

    options = {
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
        "unsafe_local": unsafe_local or None,
    }
    flags = {
        "--env": env,
        "--model": model,
        "--vlm": vlm,
        "--iterations": iterations,
        "--timesteps": timesteps,
        "--configs": configs,
        "--seeds": seeds,
        "--threshold": threshold,
        "--budget-usd": budget_usd,
        "--max-minutes": max_minutes,
        "--set": setting,
        "--no-videos": not videos,
        "--unsafe-local": unsafe_local,
        "--config": config,
        "--preset": preset,
    }
    command = tuple(context.meta.get(COMMAND, ()))
    asked = Asked(
        prompt, reward, selfplay, command, name, env, tuple(setting or ()), options, flags
    )
    told = title or prompt or reward or (selfplay.name if selfplay else " ".join(command))
    chosen = JobOptions(
        cores=cores,
        gpus=gpus,
        priority=priority,
        nodes=tuple(node or ()),
        max_attempts=attempts,
        time_limit_s=None if time_limit is None else time_limit * 60,
        title=" ".join(told.split()),
    )
    with open_store(runs_dir) as store:
        job = make_job(asked, chosen, store)
        store.submit(job)
        _start_scheduler(store.runs_dir)
        if watch:
            from p2p.commands.job_progress import follow

            follow(store, job.job_id)
        state = store.job(job.job_id)
    if as_json:
        print_json(_as_json(job, state.state if state else "pending"))
    elif not watch:
        out.print(f"[bold]{job.job_id}[/]", soft_wrap=True)
        out.print(f"watch it with: p2p jobs show {job.job_id} --follow", soft_wrap=True)
    if watch and state is not None and state.state != "succeeded":
        raise typer.Exit(130 if state.state == "cancelled" else 1)


def _start_scheduler(runs_dir: Path) -> None:
    from p2p.scheduler.service import ensure_scheduler
    from p2p.scheduler.store import StoreError

    try:
        ensure_scheduler(runs_dir)
    except StoreError as error:
        raise CommandError(
            f"{error}; the job is kept, start one with: p2p scheduler run"
        ) from error


def _as_json(job: JobSpec, state: str) -> dict[str, object]:
    return {
        "job_id": job.job_id,
        "kind": job.kind,
        "state": state,
        "runs": [{"run_id": run.run_id, "folder": run.folder} for run in job.runs],
    }
