"""Jobs for what the product does: a session, a training, a self-play run, any command.

Each puts a folder below the runs folder with all that the run needs, and says how to start it. A
start in a folder that a killed run has left goes on from there, so an attempt that was lost on one
node continues on another.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from p2p.contracts import Record, utc_now
from p2p.records.statuses import EXIT_CODES, STATUS
from p2p.scheduler.records import Id, JobSpec, RunSpec
from p2p.session.request import SessionRequest
from p2p.session.start import start_session
from p2p.training.cpu_manager import TRACKER_VARIABLES
from p2p.training.model_files.store import copy_into
from p2p.validation import Flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2p.config import LoopConfig, TrainConfig
    from p2p.records.iteration_record import SessionRecord
    from p2p.scheduler.records import JobKind
    from unstable.config import RunConfig

SESSION_DONE = tuple(
    code
    for status, code in EXIT_CODES.items()
    if STATUS[status].outcome in ("passed", "unverified", "not_passed")
)
"""A pass, or none within what it was given: either way there is a result."""


class JobOptions(Record):
    """How a job is to be run; the defaults are those of the records."""

    cores: Annotated[int, Field(ge=1, le=4096), Flag("--cores", "Cores to reserve.", "N")] = 1
    gpus: Annotated[int, Field(ge=0, le=64), Flag("--gpus", "GPUs to reserve.", "N")] = 0
    nodes: Annotated[
        tuple[Id, ...],
        Field(max_length=100),
        Flag("--node", "Allowed node; repeatable.", "NODE", "any"),
    ] = ()
    """Where it may run; empty: anywhere."""
    priority: Annotated[
        int, Field(ge=-100, le=100), Flag("--priority", "Higher goes first.", "-100..100")
    ] = 0
    max_attempts: Annotated[
        int, Field(ge=1, le=100), Flag("--attempts", "Maximum attempts, if it gets lost.", "N")
    ] = 3
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    title: str = ""
    """Shown in lists."""

    def run_fields(self) -> dict[str, Any]:
        """The options that stand in each run."""
        names = ("cores", "gpus", "max_attempts", "time_limit_s")
        return {name: getattr(self, name) for name in names}


class JobRequest(SessionRequest, JobOptions):
    """A session that is to be a job."""

    def job_options(self, **changes: Any) -> JobOptions:
        """Return how the job is to be run, by default under the prompt as its title."""
        values = {name: getattr(self, name) for name in JobOptions.model_fields}
        title = self.title or self.prompt[:200]
        return JobOptions.model_validate({**values, "title": title, **changes})


def new_job_id(kind: JobKind) -> str:
    """A name that is free: `session_20260101_120000_0123abcd`, say."""
    return f"{kind}_{utc_now():%Y%m%d_%H%M%S}_{secrets.token_hex(4)}"


def one_run_job(kind: JobKind, run: RunSpec, options: JobOptions) -> JobSpec:
    """A job of a single run, named alike."""
    return JobSpec(
        job_id=run.run_id,
        kind=kind,
        title=options.title[:200],
        runs=(run,),
        priority=options.priority,
        nodes=options.nodes,
        created_at=utc_now(),
    )


def session_run(
    session: SessionRecord,
    runs_dir: Path,
    options: JobOptions,
    run_id: str = "",
    *,
    flags: Sequence[str] = (),
    **fields: Any,
) -> RunSpec:
    """The run of a session that `create_session` has made somewhere below the runs folder."""
    folder = session.path.absolute().relative_to(runs_dir.absolute())
    above = "/".join(("{runs_dir}", *folder.parent.parts))
    config = session.config.read()
    if config is None:
        raise ValueError(f"{session.path} is not a session: it has no session.json")
    return RunSpec(
        run_id=run_id or session.session_id,
        folder=folder.as_posix(),
        command=(
            "{python}", "-m", "p2p.session.run_session", "--resume",
            "--session-id", folder.name, "--runs-dir", above, *flags,
        ),
        secrets=(*model_variables(config.loop), *tracker_variables(config.loop.trackers)),
        done_codes=SESSION_DONE,
        **options.run_fields(),
        **fields,
    )  # fmt: skip


def model_variables(loop: LoopConfig) -> tuple[str, ...]:
    """Names of the variables that the models of a session need."""
    from p2p.inference.providers import choose_model, environment_variables, split_model

    models = [choose_model(loop.model), *([loop.vlm_model] if loop.vlm_model else [])]
    names = [name for model in models for name in environment_variables(split_model(model)[0])]
    return tuple(dict.fromkeys(names))


def tracker_variables(names: Sequence[str]) -> tuple[str, ...]:
    """Names of the variables that these metrics writers may need."""
    return TRACKER_VARIABLES if {"wandb", "trackio"} & {*names} else ()


def session_job(request: SessionRequest, runs_dir: Path, options: JobOptions) -> JobSpec:
    """Make a session, and a job that runs it; raises what `start_session` and `with_models` do."""
    session = start_session(request.with_models(), runs_dir=runs_dir)
    return one_run_job("session", session_run(session, runs_dir, options), options)


def training_job(
    config: TrainConfig,
    reward_code: str,
    runs_dir: Path,
    options: JobOptions,
    *,
    flags: Sequence[str] = (),
) -> JobSpec:
    """Make the folder of a training run, and a job that trains it; `flags` are the executor's."""
    from p2p.records.iteration_record import IterationRecord
    from p2p.session.session_id import new_session_id

    name = new_session_id()
    record = IterationRecord(runs_dir / name / "iter_1")
    record.save_reward_source(reward_code)
    record.save_config(config.with_updates(iteration_id="iter_1"))
    copy_into(record.path, config.env_id)
    record.set_status("queued")
    run = executor_run(name, f"{name}/iter_1", options, flags)
    return one_run_job("training", run, options)


def executor_run(
    run_id: str, folder: str, options: JobOptions, flags: Sequence[str] = ()
) -> RunSpec:
    """The run of a training whose folder has its reward and its configuration."""
    above, _, name = folder.rpartition("/")
    return RunSpec(
        run_id=run_id,
        folder=folder,
        command=(
            "{python}", "-m", "p2p.executor", "--no-progress",
            "--reward-fn", "{folder}/reward_fn.py", "--config", "{folder}/config.json",
            "--runs-dir", f"{{runs_dir}}/{above}", "--iteration-id", name, *flags,
        ),
        secrets=tracker_variables(flags),
        **options.run_fields(),
    )  # fmt: skip


def selfplay_job(config: RunConfig, runs_dir: Path, options: JobOptions) -> JobSpec:
    """Make the folder of a self-play run, and a job that runs it."""
    from unstable.run import RunFolder, list_own_parts

    name = new_job_id("selfplay")
    folder = runs_dir / name
    folder.mkdir(parents=True)
    RunFolder(folder).write_config(_resolve_model_path(config))
    run = RunSpec(
        run_id=name,
        folder=name,
        command=(
            "{python}",
            "-m",
            "unstable.cli",
            "resume",
            "{folder}",
            "--json",
            *(["--trust"] if list_own_parts(config) else []),  # named by who submits it
        ),
        secrets=_selfplay_variables(config),
        **options.run_fields(),
    )
    return one_run_job("selfplay", run, options)


def _resolve_model_path(config: RunConfig) -> RunConfig:
    """Make the model's folder absolute, for a process in another working directory."""
    model = Path(config.model)
    if not model.is_dir():
        return config
    return config.model_copy(update={"model": str(model.absolute())})


def _selfplay_variables(config: RunConfig) -> tuple[str, ...]:
    """Names of the variables that its opponents behind endpoints and its metrics need."""
    from unstable.games.players import FIRST_CHECKPOINT, RANDOM_LEGAL

    opponents = {*config.games.opponents, *config.pool.fixed} - {RANDOM_LEGAL, FIRST_CHECKPOINT}
    endpoint = ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL")
    return (
        *(endpoint if opponents else ()),
        *(TRACKER_VARIABLES if config.wandb_project or config.trackio_project else ()),
    )


def command_job(command: Sequence[str], options: JobOptions, job_id: str = "") -> JobSpec:
    """A job that runs a command in a folder of its own."""
    name = job_id or new_job_id("command")
    run = RunSpec(run_id=name, folder=name, command=tuple(command), **options.run_fields())
    return one_run_job("command", run, options)
