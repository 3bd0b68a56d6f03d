"""`p2p benchmark`: run a suite of prompts, and report how well judge and policy did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from p2p.commands.benchmark_inputs import (
    models,
    node_names,
    numbers,
    open_benchmark,
    planned,
    suite_cases,
)
from p2p.commands.benchmark_view import watch
from p2p.commands.console import (
    CommandError,
    JsonFlag,
    UnsafeFlag,
    UsageError,
    err,
    out,
    print_json,
    shown,
)
from p2p.commands.session_argument import RunsDirOption, runs_folder

if TYPE_CHECKING:
    from p2p.benchmark.records import Benchmark

benchmark_app = typer.Typer(invoke_without_command=True)
EXIT_INCOMPLETE = 3
ListOption = Annotated[str | None, typer.Option(metavar="LIST", help="Only these, with commas.")]


@benchmark_app.callback()
def benchmark(
    context: typer.Context,
    csv: Annotated[
        str, typer.Option(metavar="FILE", help="A CSV file, or a suite of ours.")
    ] = "mujoco_prompts",
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="Who thinks: PROVIDER:MODEL, or builtin."
        ),
    ] = None,
    vlm_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Who looks at the videos.")
    ] = None,
    mode: Annotated[
        Literal["staged", "flat"],
        typer.Option(metavar="MODE", help="flat, or staged: with gates between stages."),
    ] = "flat",
    num_stages: Annotated[int, typer.Option(metavar="N", help="Stages, if staged.")] = 5,
    gate_threshold: Annotated[
        float,
        typer.Option(metavar="0..1", help="Mean score of a stage that opens the next one."),
    ] = 0.5,
    filter_envs: ListOption = None,
    filter_categories: ListOption = None,
    filter_difficulties: ListOption = None,
    total_timesteps: Annotated[
        int | None, typer.Option(metavar="N", help="Environment steps of each training run.")
    ] = None,
    max_iterations: Annotated[
        int | None, typer.Option(metavar="N", help="Iterations of each session.")
    ] = None,
    pass_threshold: Annotated[
        float | None, typer.Option(metavar="0..1", help="The score that passes.")
    ] = None,
    budget_usd: Annotated[
        float | None, typer.Option(metavar="USD", help="Spend at most so much on each prompt.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(metavar="MINUTES", help="Work at most so long on each prompt.")
    ] = None,
    num_configs: Annotated[
        int | None, typer.Option(metavar="N", help="Hyperparameter settings side by side.")
    ] = None,
    num_envs: Annotated[
        int | None, typer.Option(metavar="N", help="Environments of a training run.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The training seed.")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="LIST", help="Several seeds, such as 1,5,7.")
    ] = None,
    side_info: Annotated[
        bool | None, typer.Option("--side-info", help="Rewards see the simulator's state.")
    ] = None,
    hp_tuning: Annotated[
        bool | None, typer.Option(help="Revisions may change hyperparameters.")
    ] = None,
    use_code_judge: Annotated[
        bool | None, typer.Option("--use-code-judge/--no-code-judge", help="Judge by code.")
    ] = None,
    videos: Annotated[bool, typer.Option(help="Render evaluation episodes.")] = True,
    max_parallel: Annotated[
        int, typer.Option(metavar="N", help="Prompts at once; 0: as many as fit.")
    ] = 0,
    cores_per_run: Annotated[
        int, typer.Option(metavar="N", help="Cores of each prompt; its runs share them.")
    ] = 1,
    nodes: Annotated[
        str | None, typer.Option(metavar="LIST", help="Run there only; see `p2p nodes list`.")
    ] = None,
    backend: Annotated[
        Literal["local", "ssh", "ray", "slurm"] | None,
        typer.Option(metavar="KIND", help="Only nodes of a kind: local, ssh, ray, slurm."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with one, also to watch it again.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Start it and return; it goes on by itself.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, show the plan, start nothing.")
    ] = False,
    runs_dir: RunsDirOption = None,
    unsafe_local: UnsafeFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a suite of prompts and report it.

    A suite is a CSV file with env_id, instruction, category, difficulty and,
    if you like, truth and threshold: a measurement on the simulator that no
    agent is shown. Every row is checked before anything starts.

    The scheduler does the work, so the benchmark goes on when this command is
    gone. Ctrl-C asks whether to cancel it; --resume ID comes back to it.

    Exit status: 0 every prompt has a verdict, 1 error, 2 bad arguments or
    files, 3 some have none, 130 interrupted.

    [bold]Examples[/]

      p2p benchmark --model builtin --filter-difficulties easy
      p2p benchmark --csv my.csv --mode staged --num-stages 4 --max-parallel 2
      p2p benchmark --resume bm_20260101_120000_0123abcd
      p2p benchmark report last
    """
    if context.invoked_subcommand is not None:
        _nothing_before(context)
        return
    folder = runs_folder(runs_dir)
    if resume is not None:
        made = open_benchmark(resume, folder, "--resume")
        _resume(made, folder)
    else:
        if seed is not None and seeds is not None:
            raise UsageError("--seed, --seeds: give one of them")
        options: dict[str, Any] = {
            "total_timesteps": total_timesteps,
            "max_iterations": max_iterations,
            "pass_threshold": pass_threshold,
            "budget_usd": budget_usd,
            "max_minutes": max_minutes,
            "configs": num_configs,
            "num_envs": num_envs,
            "seeds": [seed] if seed is not None else numbers(seeds),
            "side_info": side_info,
            "hp_tuning": hp_tuning,
            "use_code_judge": use_code_judge,
            "videos": videos,
            "unsafe_local": unsafe_local or None,
            **models(model, vlm_model),
        }
        cases = suite_cases(csv, filter_envs, filter_categories, filter_difficulties)
        made = planned(
            cases,
            Path(csv).name,
            options,
            mode=mode,
            num_stages=num_stages,
            gate_threshold=gate_threshold,
            cores_per_run=cores_per_run,
            max_parallel=max_parallel,
            nodes=node_names(folder, nodes, backend, cores_per_run),
        )
        if dry_run:
            _show_plan(made, as_json=as_json)
            return
        _start(made, folder, report=detach)
    name = made.benchmark_id
    err.print(f"{escape(shown(folder / name))}", soft_wrap=True)
    if detach:
        if as_json:
            print_json({"benchmark_id": name, "folder": str(folder / name)})
        err.print(f"it goes on by itself; watch it with: {_again(name, runs_dir)}", soft_wrap=True)
        return
    watch(made, folder, _again(name, runs_dir))
    incomplete = _report(made, folder / name, as_json=as_json)
    if incomplete:
        again = f"try those without a verdict again with: {_again(name, runs_dir)}"
        err.print(again, soft_wrap=True)
        raise typer.Exit(EXIT_INCOMPLETE)


@benchmark_app.command()
def report(
    name: Annotated[
        str, typer.Argument(metavar="BENCHMARK", help="Its name, the start of it, or `last`.")
    ],
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure what is not measured yet, and write the report anew.

    It may be asked for at any time; prompts that have not finished are named.

    [bold]Examples[/]

      p2p benchmark report last
      p2p benchmark report bm_20260101_120000_0123abcd --json
    """
    folder = runs_folder(runs_dir)
    made = open_benchmark(name, folder)
    _report(made, folder / made.benchmark_id, as_json=as_json)


def _nothing_before(context: typer.Context) -> None:
    """Flags of a run do nothing for another command: say so rather than drop them."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            command = context.invoked_subcommand
            raise UsageError(f"{name.replace('_', '-')}: write flags behind `{command}`")


def _again(name: str, runs_dir: Path | None) -> str:
    where = f" --runs-dir {runs_dir}" if runs_dir else ""
    return f"p2p benchmark --resume {name}{where}"


def _show_plan(made: Benchmark, *, as_json: bool) -> None:
    if as_json:
        print_json(made.model_dump(mode="json"))
        return
    for number, stage in enumerate(made.stages):
        out.print(f"[bold]stage {number + 1}[/]" if made.mode == "staged" else "[bold]all[/]")
        for case in map(made.case, stage):
            line = f"{case.number:>4}  {case.env_id:<26} {case.difficulty:<7} {case.instruction}"
            out.print(escape(line), soft_wrap=True)


def _start(made: Benchmark, folder: Path, *, report: bool) -> None:
    from p2p.benchmark.running import start
    from p2p.scheduler.store import StoreError

    try:
        with err.status(f"making {len(made.cases)} sessions"):
            start(made, folder, report=report)
    except StoreError as error:
        raise CommandError(error) from error


def _resume(made: Benchmark, folder: Path) -> None:
    from p2p.benchmark.running import resume
    from p2p.scheduler.store import StoreError

    try:
        resume(made, folder)
    except StoreError as error:
        raise CommandError(error) from error


def _report(made: Benchmark, folder: Path, *, as_json: bool) -> bool:
    """Make, write and print the report; says whether some prompt has no verdict."""
    from p2p.benchmark.publishing import publish
    from p2p.benchmark.report import make_report
    from p2p.benchmark.report_text import agreement, rate

    with err.status("measuring") as status:
        found = make_report(
            made,
            folder,
            lambda case: status.update(escape(f"measuring {case.env_id}: {case.instruction}")),
        )
        files = publish(found, folder)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        group = found.overall
        out.print(f"finished  {group.finished} of {group.cases}, {group.errors} with an error")
        out.print(
            f"passed    {rate(group.judged)} by the judge, {rate(group.true)} by the truth",
            soft_wrap=True,
        )
        for line in agreement(found):
            out.print(escape(line), soft_wrap=True)
        for path in files:
            out.print(f"[bold]report[/]  {escape(shown(path))}", soft_wrap=True)
    return any(case.outcome not in ("passed", "not_passed") for case in found.cases)
