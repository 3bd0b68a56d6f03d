"""From a suite and options to stages, session folders and one job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from p2p.benchmark.records import (
    FILE,
    Benchmark,
    Mode,
    case_id,
    case_record,
    gate_folder,
    gate_id,
    new_benchmark_id,
    report_id,
)
from p2p.benchmark.suite import DIFFICULTIES, Case, Difficulty
from p2p.contracts import Record, Score, field_error, utc_now
from p2p.files import save_model
from p2p.inference import prices
from p2p.records.statuses import EXIT_CODES
from p2p.scheduler.controllers import JobOptions, session_run
from p2p.scheduler.records import BackendName, Id, JobSpec, RunSpec
from p2p.session.request import SessionOptions, loop_config
from p2p.session.start import create_session
from p2p.validation import Flag
from p2p.version import __version__

WHERE_RESULTS_ARE = "local"
"""The node of a gate: it looks at all cases of a stage, which only the scheduler's machine has."""
REPORT_FOLDER = "report"
"""Of the run that reports, inside the benchmark's."""


def _split_list(value: Any) -> Any:
    return [p.strip() for p in value.split(",") if p.strip()] if isinstance(value, str) else value


Names = Annotated[
    tuple[Annotated[str, Field(max_length=200)], ...],
    BeforeValidator(_split_list, json_schema_input_type=list[str]),
    Field(max_length=100),
]
Filter = Flag("", "Only these, comma-separated.", "LIST", "all", one_text=True)


class BenchmarkRequest(SessionOptions):
    """A suite that is to be run: the options of its sessions, which of its prompts, and where."""

    mode: Annotated[Mode, Flag("--mode", "flat, or staged: with gates between stages.", "MODE")] = (
        "flat"
    )
    num_stages: Annotated[
        int, Field(ge=1, le=1000), Flag("--num-stages", "Stages, if staged.", "N")
    ] = 5
    gate_threshold: Annotated[
        Score,
        Flag("--gate-threshold", "Mean score of a stage that opens the next one.", "0..1"),
    ] = 0.5
    filter_envs: Annotated[Names, replace(Filter, name="--filter-envs")] = ()
    filter_categories: Annotated[Names, replace(Filter, name="--filter-categories")] = ()
    filter_difficulties: Annotated[
        tuple[Difficulty, ...],
        BeforeValidator(_split_list, json_schema_input_type=list[Difficulty]),
        replace(Filter, name="--filter-difficulties"),
    ] = ()
    num_envs: Annotated[
        int | None, Flag("--num-envs", "Environments of a training run.", "N", "by environment")
    ] = None
    side_info: Annotated[
        bool | None, Flag("--side-info/--no-side-info", "Rewards see quantities.", default="on")
    ] = None
    max_parallel: Annotated[
        int,
        Field(ge=0, le=100_000),
        Flag("--max-parallel", "Prompts in parallel; 0: as many as fit.", "N"),
    ] = 0
    cores_per_run: Annotated[
        int,
        Field(ge=1, le=4096),
        Flag("--cores-per-run", "Cores of each prompt; its runs share them.", "N"),
    ] = 1
    nodes: Annotated[
        tuple[Id, ...],
        BeforeValidator(_split_list, json_schema_input_type=list[Id]),
        Field(max_length=100),
        Flag("--nodes", "Only these of `p2p nodes list`.", "LIST", "all", one_text=True),
    ] = ()
    backend: Annotated[
        BackendName | None,
        Flag("--backend", "Only nodes of a kind: local, ssh, ray, slurm.", "KIND", "any"),
    ] = None

    def options(self) -> dict[str, Any]:
        """The options of each session that are set."""
        own = {"num_envs": self.num_envs, "side_info": self.side_info}
        options = {"videos": True, **super().options(), **own}
        del options["cores_per_run"]  # of a prompt
        return {name: value for name, value in options.items() if value is not None}


def plan(
    cases: Sequence[Case], suite: str, request: BenchmarkRequest, nodes: Sequence[str] = ()
) -> Benchmark:
    """A new benchmark; nothing is written yet.

    Raises ValueError for options that no session can have, before the first one is made.
    """
    settings = request.options()
    for env_id in dict.fromkeys(case.env_id for case in cases):
        loop_config(env_id, **settings)
    staged = request.mode == "staged"
    stages = split_into_stages(cases, request.num_stages) if staged else (tuple(cases),)
    return Benchmark(
        benchmark_id=new_benchmark_id(),
        suite=suite,
        cases=tuple(cases),
        mode=request.mode,
        stages=tuple(tuple(case.number for case in stage) for stage in stages),
        gate_threshold=request.gate_threshold,
        options=settings,
        cores_per_run=request.cores_per_run,
        max_parallel=request.max_parallel,
        nodes=tuple(nodes),
        created_at=utc_now(),
        version=__version__,
    )


class Workload(Record):
    """The estimate for a benchmark.

    Of two numbers, the first is if all prompts pass in their first iteration, the second if all
    use up their iterations.
    """

    prompts: int
    environments: int
    max_iterations: int
    steps: tuple[int, int]
    parallel: int
    """Prompts at a time."""
    minutes: tuple[float, float]
    """Rough."""
    models: tuple[str, ...]
    cost_usd: tuple[float, float] | None
    """Rough; None: the prices are unknown."""
    budget_usd: float | None
    """The most that a prompt may cost; None: no limit."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The estimate in words, a line each, below 80 characters."""
        least, most = (f"{steps / 1e6:.3g}" for steps in self.steps)
        short, long = (duration(minutes) for minutes in self.minutes)
        plural = "" if self.parallel == 1 else "s"
        where = f"{self.prompts} prompts on {self.environments} environments"
        return (
            f"{where}, up to {self.max_iterations} iterations each",
            f"training  {least} to {most} million steps",
            f"time      roughly {short} to {long}, {self.parallel} prompt{plural} at a time",
            f"models    {', '.join(self.models)}: {self._cost()}",
        )

    def _cost(self) -> str:
        if self.cost_usd is not None and not any(self.cost_usd):
            return "no cost"
        limit = "" if self.budget_usd is None else f"; at most ${self.budget_usd:g} a prompt"
        if self.cost_usd is None:
            return f"unknown price{limit}"
        least, most = self.cost_usd
        return f"roughly ${least:.2f} to ${most:.2f}{limit or '; no limit (--budget-usd)'}"


SECONDS_PER_ITERATION = 60.0
SECONDS_PER_MILLION_STEPS = {"ppo": 500.0, "sac": 4600.0}
"""On one core: between the extremes of benchmarks/results/mujoco_prompts.md; of Humanoid in
benchmarks/results/algorithms.md."""
TOKENS_PER_ITERATION = 80_000, 15_000
"""In and out, for some eight questions and answers: an assumption."""


def workload(benchmark: Benchmark, parallel: int) -> Workload:
    """Estimate a benchmark that runs so many prompts at a time."""
    loops = [loop_config(case.env_id, **benchmark.options) for case in benchmark.cases]
    first = loops[0]
    runs = len(first.configs) * len(first.seeds)
    trained = [loop.train for loop in loops]
    steps = sum(train.total_timesteps for train in trained) * runs
    seconds = SECONDS_PER_ITERATION * len(loops) + runs * sum(
        SECONDS_PER_MILLION_STEPS[train.algorithm] * train.total_timesteps / 1e6
        for train in trained
    )
    minutes = seconds / 60 / max(1, parallel)
    models = tuple(dict.fromkeys(name for name in (first.model, first.vlm_model) if name))
    estimates = [prices.estimate(name, TOKENS_PER_ITERATION[0]) for name in models]
    known = [each.total(TOKENS_PER_ITERATION[1]) for each in estimates if each is not None]
    cost = sum(known) * len(loops)
    times = first.max_iterations
    return Workload(
        prompts=len(loops),
        environments=len({case.env_id for case in benchmark.cases}),
        max_iterations=times,
        steps=(steps, steps * times),
        parallel=parallel,
        minutes=(minutes, minutes * times),
        models=models,
        cost_usd=(cost, cost * times) if len(known) == len(models) else None,
        budget_usd=first.budget_usd,
    )


def duration(minutes: float) -> str:
    """`2 h 40 min`."""
    hours, rest = divmod(round(minutes), 60)
    return f"{hours} h {rest:02} min" if hours else f"{max(1, rest)} min"


def split_into_stages(cases: Sequence[Case], num_stages: int) -> tuple[tuple[Case, ...], ...]:
    """Split the cases into at most `num_stages` stages whose sizes differ by at most one.

    Difficulties are spread evenly over the stages, and environments take turns inside each
    difficulty. Raises ValueError for less than one stage.
    """
    if num_stages < 1:
        raise field_error("num_stages", f"{num_stages} is too few: at least one is needed")
    ordered = _interleave_cases(cases)
    stages = min(num_stages, len(ordered))
    bounds = [len(ordered) * number // stages for number in range(stages + 1)]
    return tuple(tuple(ordered[a:b]) for a, b in pairwise(bounds))


def _interleave_cases(cases: Sequence[Case]) -> list[Case]:
    placed: list[tuple[float, int, Case]] = []
    for rank, difficulty in enumerate(DIFFICULTIES):
        mine = [case for case in cases if case.difficulty == difficulty]
        # Each difficulty begins with another environment, else a stage has one in all three.
        group = _alternate_environments(mine, first=rank / len(DIFFICULTIES))
        placed += [((i + 0.5) / len(group), rank, case) for i, case in enumerate(group)]
    return [case for *_, case in sorted(placed, key=lambda item: item[:2])]


def _alternate_environments(cases: Sequence[Case], first: float) -> list[Case]:
    by_env: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_env[case.env_id].append(case)
    groups = list(by_env.values())
    begin = int(first * len(groups))
    turns = zip_longest(*groups[begin:], *groups[:begin])
    return [case for turn in turns for case in turn if case is not None]


def prepare(benchmark: Benchmark, runs_dir: Path) -> Path:
    """Write the benchmark and the folders of its cases; returns its folder.

    Done again, as after a crash, it makes what is missing and touches nothing else.
    """
    folder = runs_dir.absolute() / benchmark.benchmark_id
    if not (folder / FILE).exists():
        save_model(folder / FILE, benchmark)
    for case in benchmark.cases:
        if case_record(folder, case.number).config.path.exists():
            continue
        create_session(
            case.instruction,
            loop_config(case.env_id, **benchmark.options),
            session_id=case_id(benchmark.benchmark_id, case.number),
            runs_dir=runs_dir,
        )
    for stage in range(len(benchmark.stages) - 1):
        (folder / gate_folder(stage)).mkdir(exist_ok=True)
    return folder


def job_of(benchmark: Benchmark, runs_dir: Path, *, report: bool = False) -> JobSpec:
    """The job: a run for each case, and between stages one that decides whether to go on.

    Its folders have to be there: see `prepare`. `report`: its last run measures and reports, for
    whom nobody waits who would.
    """
    name = benchmark.benchmark_id
    runs: list[RunSpec] = []
    opened_by: tuple[str, ...] = ()
    for stage, numbers in enumerate(benchmark.stages):
        runs += [
            session_run(
                case_record(runs_dir / name, number),
                runs_dir,
                JobOptions(cores=benchmark.cores_per_run),
                case_id(name, number),
                # Its core is for the next prompt; see `deliver_cases`.
                flags=("--no-delivery",),
                requires=opened_by,
                retry_codes=(EXIT_CODES["rate_limited"],),
            )
            for number in numbers
        ]
        if stage + 1 < len(benchmark.stages):
            runs.append(_make_gate_run(benchmark, stage))
            opened_by = (gate_id(name, stage),)
    if report:
        runs.append(make_report_run(name, report_id(name), after=tuple(run.run_id for run in runs)))
    return JobSpec(
        job_id=name,
        kind="benchmark",
        title=f"{benchmark.suite}: {len(benchmark.cases)} prompts"[:200],
        max_parallel=benchmark.max_parallel,
        nodes=benchmark.nodes,
        runs=tuple(runs),
        created_at=benchmark.created_at,
    )


def _make_gate_run(benchmark: Benchmark, stage: int) -> RunSpec:
    name = benchmark.benchmark_id
    return RunSpec(
        run_id=gate_id(name, stage),
        folder=f"{name}/{gate_folder(stage)}",
        command=(
            *("{python}", "-m", "p2p.benchmark.gate", "--runs-dir", "{runs_dir}"),
            *("--benchmark-id", name, "--stage", str(stage)),
        ),
        nodes=(WHERE_RESULTS_ARE,),
        after=tuple(case_id(name, number) for number in benchmark.stages[stage]),
    )


def make_report_run(benchmark_id: str, run_id: str, after: tuple[str, ...] = ()) -> RunSpec:
    """The run that measures what is not measured yet and writes the report."""
    return RunSpec(
        run_id=run_id,
        folder=f"{benchmark_id}/{REPORT_FOLDER}",
        command=(
            *("{python}", "-m", "p2p.cli", "benchmark", "report", benchmark_id),
            *("--runs-dir", "{runs_dir}"),
        ),
        nodes=(WHERE_RESULTS_ARE,),
        after=after,
    )
