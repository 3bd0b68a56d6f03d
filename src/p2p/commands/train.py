"""`p2p train`: a reward in, a policy out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from p2p.commands.console import (
    CommandError,
    JsonFlag,
    UnsafeFlag,
    UsageError,
    did_you_mean,
    err,
    out,
    print_json,
    shown,
)
from p2p.commands.train_inputs import Requested, new_run, stored_run

if TYPE_CHECKING:
    from p2p.config import TrainConfig
    from p2p.contracts import TrainSummary
    from p2p.records.iteration_record import IterationRecord
    from p2p.training.runner import RunOptions


def train(
    reward: Annotated[
        str | None, typer.Argument(help="Reward file, or a name that `p2p rewards` lists.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option("--env", "-e", metavar="ID", help="Environment; `p2p envs` lists them."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", "-n", metavar="N", help="Environment steps in all.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of everything random.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON file with TrainConfig fields.")
    ] = None,
    preset: Annotated[
        bool, typer.Option("--preset", help="Start from the environment's tuned preset.")
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set a TrainConfig field; repeatable."),
    ] = None,
    runs_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where sessions lie (default: runs).")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with a run that was stopped: its directory."),
    ] = None,
    videos: Annotated[bool, typer.Option(help="Render evaluation episodes.")] = True,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also send metrics to wandb or trackio; repeatable."),
    ] = None,
    unsafe_local: UnsafeFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a policy on a reward: a Python file, or the name of a built-in one.

    Without --env, the reward's own ENV_ID counts. Ctrl-C stops a run and says how
    to go on with it; a run that crashed or was killed goes on in the same way.

    [bold]Examples[/]

      p2p train halfcheetah_run_forward
      p2p train reward.py --env Ant-v5 --steps 2000000 --preset
      p2p train reward.py --config config.json --set learning_rate=1e-4
      p2p train --resume runs/session_20260101_120000_0123abcd/iter_1
    """
    from p2p.records.iteration_record import IterationRecord
    from p2p.session.session_id import new_session_id
    from p2p.settings import get_settings
    from p2p.training.runner import RunOptions

    options = RunOptions(
        videos=videos, unsafe_local=unsafe_local, trackers=_check_trackers(log or [])
    )
    requested = Requested(reward, env, steps, seed, config, preset, tuple(setting or ()))
    if resume is not None:
        record = IterationRecord(resume)
        chosen, code = stored_run(record, requested)
    else:
        chosen, code = new_run(requested)
        base = runs_dir or get_settings().runs_dir
        record = IterationRecord(base / new_session_id() / "iter_1")
    summary = _follow(chosen, code, record, options)
    if as_json:
        print_json(_as_json(record.path, summary))
    else:
        _report(record.path, summary)


def _check_trackers(names: list[str]) -> tuple[str, ...]:
    from p2p.training.metrics import LOCAL, TRACKERS

    remote = list(TRACKERS)
    for name in names:
        if name not in (*LOCAL, *remote):
            raise UsageError(
                f"--log {name}: metrics can go to {' or '.join(remote)}{did_you_mean(name, remote)}"
            )
    return tuple(names)


def _follow(
    config: TrainConfig, code: str, record: IterationRecord, options: RunOptions
) -> TrainSummary:
    """Train with the live view; Ctrl-C leaves a run that can go on."""
    from p2p.commands.progress import TrainingView
    from p2p.training.runner import TrainingCancelled, TrainingFailed, run_training

    err.print(
        f"[bold]{escape(config.env_id)}[/]  seed {config.seed}  {escape(shown(record.path))}",
        soft_wrap=True,
    )
    try:
        with TrainingView(err, config.total_timesteps) as view:
            return run_training(config, code, record, options=options, on_message=view)
    except TrainingFailed as failure:
        raise CommandError(failure, failure.detail) from failure
    except OSError as error:
        raise CommandError(f"{record.path} cannot be written: {error}") from error
    except (KeyboardInterrupt, TrainingCancelled) as stop:
        err.print(f"stopped; go on with: p2p train --resume {shown(record.path)}", soft_wrap=True)
        raise typer.Exit(130) from stop


def _as_json(folder: Path, summary: TrainSummary) -> dict[str, object]:
    return {
        "iteration_dir": str(folder.absolute()),
        "policy": str(folder.absolute() / _policy(summary)),
        "videos": [str(path.absolute()) for path in _videos(folder, summary)],
        "summary": summary.model_dump(mode="json"),
    }


def _policy(summary: TrainSummary) -> str:
    return f"checkpoints/step_{summary.selected_step}/policy.zip"


def _videos(folder: Path, summary: TrainSummary) -> list[Path]:
    return sorted((folder / "videos").glob(f"eval_{summary.selected_step}_*.mp4"))


def _report(folder: Path, summary: TrainSummary) -> None:
    run = shown(folder)
    for warning in summary.warnings:
        out.print(f"[yellow]![/] {escape(warning)}")
    rate = summary.total_timesteps / max(summary.training_time_s, 1e-9)
    out.print(
        f"trained {summary.total_timesteps:,} steps in {summary.training_time_s:.1f} s "
        f"({rate:,.0f} steps/s with start-up, evaluation and videos)"
    )
    for point in summary.checkpoints:
        if point.step == summary.selected_step:
            out.print(f"return  {point.mean_return:,.1f} ± {point.std_return:,.1f}")
    lines = [("run", run), ("policy", f"{run}/{_policy(summary)}")]
    lines += [("video", shown(path)) for path in _videos(folder, summary)]
    lines += [
        ("curves", f"tensorboard --logdir {run}/metrics"),
        ("watch", f"p2p play {run}"),
        ("share", f"p2p export {run} --to FOLDER"),
    ]
    for title, text in lines:
        out.print(f"[bold]{title:<7}[/] {escape(text)}", soft_wrap=True)
