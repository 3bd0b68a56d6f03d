"""`p2p benchmark`: run a suite of prompts, and report how well judge and policy did."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from p2p.commands.arguments import (
    RequestFlags,
    RunsDirOption,
    make_request,
    runs_folder,
    to_paste,
)
from p2p.commands.console import (
    CommandGroup,
    JsonFlag,
    UsageError,
    display_path,
    err,
    flag_names,
    flags_given,
    out,
    print_json,
    reject_argument,
    usage_errors,
)
from p2p.commands.live import plain_table

if TYPE_CHECKING:
    from p2p.benchmark.planning import BenchmarkRequest, Workload
    from p2p.benchmark.records import Benchmark
    from p2p.benchmark.suite import Case

EXIT_INCOMPLETE = 3


class BenchmarkGroup(RequestFlags, CommandGroup):
    """`p2p benchmark`: a command, and a group of those that look at what it made."""

    def request(self) -> type[BenchmarkRequest]:
        """See RequestFlags."""
        from p2p.benchmark.planning import BenchmarkRequest

        return BenchmarkRequest


benchmark_app = typer.Typer(cls=BenchmarkGroup, invoke_without_command=True)


@benchmark_app.callback()
def benchmark(
    context: typer.Context,
    csv: Annotated[
        str, typer.Option(metavar="FILE", help="A CSV file, or the name of a built-in suite.")
    ] = "mujoco_prompts",
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The training seed.", show_default="1")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Resume a benchmark, or watch it again.", show_default="none"
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Start it in the background and return.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, show the plan, start nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start without asking.")] = False,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a suite of prompts and report it.

    A suite is a CSV file with env_id, instruction, category, difficulty and,
    optionally, truth and threshold: a measurement on the simulator that no
    agent is shown. Every row is checked before anything starts; then the
    plan, with its time and cost, is shown and confirmed.

    The scheduler does the work, so the benchmark continues when this command
    ends. Ctrl-C asks whether to cancel it; --resume ID comes back to it.

    Exit status: 0 every prompt has a verdict, 1 error, 2 bad arguments or
    files, 3 some have none, 130 interrupted.

    [bold]Examples[/]

      p2p benchmark --model builtin --filter-difficulties easy
      p2p benchmark --dry-run
      p2p benchmark --csv my.csv --mode staged --num-stages 4 --yes
      p2p benchmark --resume bm_20260101_120000_0123abcd
      p2p benchmark report last
    """
    from p2p.benchmark.planning import BenchmarkRequest, plan, workload
    from p2p.benchmark.running import fitting_nodes, parallel_prompts, start
    from p2p.benchmark.running import resume as resume_benchmark
    from p2p.inference.question import InferenceError

    typed = flags_given(context)
    if context.invoked_subcommand is not None:
        for flag in typed.values():  # of a run, which do nothing for another command
            raise UsageError(f"{flag}: write flags after `{context.invoked_subcommand}`")
        return
    folder = runs_folder(runs_dir)
    if resume is not None:
        planned = open_benchmark(resume, folder, "--resume")
        resume_benchmark(planned, folder)
    else:
        if seed is not None and "seeds" in typed:
            raise UsageError("--seed, --seeds: give only one of them")
        given: dict[str, Any] = {} if seed is None else {"seeds": (seed,)}
        request = make_request(BenchmarkRequest, context, **given)
        with usage_errors(flag_names(context)):
            cases = _cases(csv, request)
            nodes = fitting_nodes(folder, request.nodes, request.backend, request.cores_per_run)
            planned = plan(cases, Path(csv).name, request.with_models(), nodes)
        with reject_argument("P2P_PRICES", InferenceError):
            needed = workload(planned, parallel_prompts(planned, folder))
        if dry_run:
            _show_plan(planned, needed, as_json=as_json)
            return
        if not yes:
            _ask(needed)
        with err.status(f"creating {len(planned.cases)} sessions"):
            start(planned, folder, report=detach)
    name = planned.benchmark_id
    again = to_paste(f"p2p benchmark --resume {name}", folder)
    err.print(f"{escape(display_path(folder / name))}", soft_wrap=True)
    if detach:
        if as_json:
            print_json({"benchmark_id": name, "folder": str(folder / name)})
        err.print(f"running in the background; watch it with: {again}", soft_wrap=True)
        return
    from p2p.commands.job_progress import watch

    watch(planned, folder, again)
    if _report(planned, folder / name, as_json=as_json):
        err.print(f"retry prompts without a verdict with: {again}", soft_wrap=True)
        raise typer.Exit(EXIT_INCOMPLETE)


@benchmark_app.command()
def report(
    name: Annotated[
        str, typer.Argument(metavar="BENCHMARK", help="Its name, the start of it, or `last`.")
    ],
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure what is not measured yet, and write the report again.

    It can be run at any time; prompts that have not finished are listed.

    [bold]Examples[/]

      p2p benchmark report last
      p2p benchmark report bm_20260101_120000_0123abcd --json
    """
    folder = runs_folder(runs_dir)
    benchmark = open_benchmark(name, folder)
    _report(benchmark, folder / benchmark.benchmark_id, as_json=as_json)


def open_benchmark(text: str, folder: Path, what: str = "BENCHMARK") -> Benchmark:
    """The benchmark meant; UsageError if there is none, or more than one."""
    from p2p.benchmark.records import FILE, read_benchmark
    from p2p.records.find import NotFound, find_name

    names = sorted(path.parent.name for path in folder.glob(f"bm_*/{FILE}"))
    with reject_argument(what, NotFound):
        name = find_name(text, names, "benchmark", folder)
    benchmark = read_benchmark(folder / name)
    if benchmark is None:
        raise UsageError(f"{what}: {folder / name / FILE} cannot be read")
    return benchmark


def _cases(csv: str, request: BenchmarkRequest) -> tuple[Case, ...]:
    """The prompts of --csv that the filters let through."""
    from p2p.benchmark.suite import SuiteError, filter_cases, load_suite

    try:
        cases = load_suite(csv)
    except SuiteError as error:
        lines = str(error).splitlines()
        if len(lines) == 1:
            raise UsageError(f"--csv: {error}") from error
        summary = f"--csv: {len(lines)} mistakes; nothing was started"
        raise UsageError(summary, str(error)) from error
    return filter_cases(
        cases,
        envs=request.filter_envs,
        categories=request.filter_categories,
        difficulties=request.filter_difficulties,
    )


def _ask(needed: Workload) -> None:
    """Show what it will take, and go on only if the user wants it."""
    for line in needed.lines:
        err.print(escape(line), soft_wrap=True)
    if not sys.stdin.isatty():
        raise UsageError("--yes: needed without a terminal; nothing was started")
    typer.confirm("Start?", abort=True, err=True)


def _show_plan(benchmark: Benchmark, needed: Workload, *, as_json: bool) -> None:
    if as_json:
        print_json({**benchmark.model_dump(mode="json"), "workload": needed.model_dump()})
        return
    staged = benchmark.mode == "staged"
    table = plain_table("stage" if staged else "case", "environment", "difficulty")
    table.add_column("prompt", ratio=1)  # wrapped: a plan is read before it is paid for
    for number, stage in enumerate(benchmark.stages, 1):
        for case in map(benchmark.case, stage):
            first = f"{number}" if staged else f"{case.number}"
            table.add_row(first, escape(case.env_id), case.difficulty, escape(case.instruction))
    out.print(table)
    for line in needed.lines:
        out.print(escape(line), soft_wrap=True)


def _report(benchmark: Benchmark, folder: Path, *, as_json: bool) -> bool:
    """Make, write and print the report; returns whether some prompt has no verdict."""
    from p2p.benchmark.records import JUDGED
    from p2p.benchmark.report import agreement, make_report, publish, rate
    from p2p.benchmark.running import deliver_cases

    with err.status("exporting and drawing") as status:
        deliver_cases(benchmark, folder)
        report = make_report(
            benchmark,
            folder,
            lambda case: status.update(escape(f"measuring {case.env_id}: {case.instruction}")),
        )
        files = publish(report, folder)
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        group = report.overall
        table = plain_table("", "", show_header=False)
        for title, value in (
            ("finished", f"{group.finished} of {group.cases}, {group.errors} with an error"),
            ("passed by the judge", rate(group.judged)),
            ("unverified", f"{group.unverified}"),
            ("ground-truth pass rate", rate(group.true)),
            ("false passes, false fails", f"{group.false_passes}, {group.false_fails}"),
        ):
            table.add_row(title, escape(value))
        out.print(table)
        for line in agreement(report):
            out.print(escape(line))
        for path in files:
            out.print(f"[bold]report[/]  {escape(display_path(path))}", soft_wrap=True)
    return any(case.outcome not in JUDGED for case in report.cases)
