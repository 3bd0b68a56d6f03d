"""`p2p train`: a reward in, a policy out."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from p2p.commands.arguments import RunsDirOption, check_environment, parse_settings
from p2p.commands.console import (
    CommandError,
    JsonFlag,
    UnsafeFlag,
    UsageError,
    display_path,
    err,
    flags_given,
    out,
    print_json,
    read_text,
    reject_argument,
    usage_errors,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from p2p.config import TrainConfig
    from p2p.contracts import TrainSummary
    from p2p.records.iteration_record import IterationRecord
    from p2p.rewards.source import RewardText
    from p2p.training.runner import RunOptions

REWARD = typer.Argument(help="Reward file, or a name that `p2p rewards` lists.")
EnvOption = Annotated[
    str | None,
    typer.Option(
        "--env",
        "-e",
        metavar="ID",
        help="Environment; `p2p envs` lists them.",
        show_default="the reward's ENV_ID, else HalfCheetah-v5",
    ),
]
WITH_RESUME = ("resume", "videos", "log", "_unsafe_local", "as_json", "runs_dir")


def train(
    context: typer.Context,
    reward: Annotated[str | None, REWARD] = None,
    env: EnvOption = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Simulator, one of `p2p engines list`.",
            show_default="that of the environment",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            "-n",
            metavar="N",
            help="Environment steps in total.",
            show_default="1,000,000, or the preset's",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seed of everything random.", show_default="1"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TrainConfig fields as JSON.", show_default="none"),
    ] = None,
    preset: Annotated[
        bool, typer.Option("--preset", help="Start from the environment's tuned preset.")
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Set a TrainConfig field; repeatable.",
            show_default="none",
        ),
    ] = None,
    runs_dir: RunsDirOption = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Resume a run that was stopped: its folder.", show_default="none"
        ),
    ] = None,
    videos: Annotated[bool, typer.Option(help="Render evaluation episodes.")] = True,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Also send metrics to wandb or trackio; repeatable.",
            show_default="none",
        ),
    ] = None,
    _unsafe_local: UnsafeFlag = 0,
    as_json: JsonFlag = False,
) -> None:
    """Train a policy on a reward: a Python file, or a built-in one.

    Without --env, the reward's own ENV_ID counts. Ctrl-C stops a run and says how
    to resume it; a run that crashed or was killed resumes in the same way.

    [bold]Examples[/]

      p2p train halfcheetah_run_forward
      p2p train reward.py --env Ant-v5 --steps 2000000 --preset
      p2p train reward.py --config config.json --set learning_rate=1e-4
      p2p train --resume runs/session_20260101_120000_0123abcd/iter_1
    """
    from p2p.records.iteration_record import IterationRecord
    from p2p.session.session_id import new_session_id
    from p2p.settings import get_settings
    from p2p.training.reward_check import require_trainable
    from p2p.training.runner import RunOptions

    run_options = RunOptions(videos=videos, trackers=check_trackers(log or []))
    if resume is not None:
        extra = [flag for name, flag in flags_given(context).items() if name not in WITH_RESUME]
        if extra:
            raise UsageError(
                f"--resume continues the run as it was started: leave out {', '.join(extra)}"
            )
        record = IterationRecord(resume)
        chosen, code = _stored_run(record)
    else:
        options = {
            "env_id": env, "engine": engine, "total_timesteps": steps, "seed": seed,
            "settings": setting,
        }  # fmt: skip
        chosen, text = new_run(reward, options, config=config, preset=preset)
        with err.status("checking the reward"):
            require_trainable(text.code, chosen, text.name)
        code = text.code
        base = runs_dir or get_settings().runs_dir
        record = IterationRecord(base / new_session_id() / "iter_1")
    summary = _follow(chosen, code, record, run_options)
    if as_json:
        print_json(_as_json(record.path, summary))
    else:
        _report(record.path, summary)


def open_reward(name: str) -> RewardText:
    """Find and read a reward, a file or a built-in one; raises UsageError with near matches."""
    from p2p.rewards import UnknownRewardError
    from p2p.rewards.source import read_reward

    if name.endswith(".py") or "/" in name:
        read_text(Path(name), "reward")  # says what is wrong with the file
    with reject_argument("reward", UnknownRewardError, ValueError, OSError):
        return read_reward(name)


def _stored_run(record: IterationRecord) -> tuple[TrainConfig, str]:
    config = read_config(record, "--resume")
    code = record.read_reward_source()
    if not code:
        raise UsageError(f"--resume: {record.path} has no reward_fn.py: it was not made by p2p")
    return config, code


def read_config(record: IterationRecord, what: str) -> TrainConfig:
    """The configuration in a run's directory; UsageError says why it cannot be read."""
    from p2p.config import TrainConfig

    if not record.path.is_dir():
        raise UsageError(f"{what}: {record.path} does not exist")
    if not record.config_path.exists():
        runs = sorted(path.parent for path in record.path.glob("*/config.json"))
        hint = f"; did you mean {runs[-1]}?" if runs else ""
        raise UsageError(f"{what}: {record.path} is not a run, it has no config.json{hint}")
    stored = record.read_config()
    if stored is None:
        raise UsageError(
            f"{what}: {record.config_path} is damaged, no JSON object: restore it, or train anew"
        )
    with usage_errors(where=f"{what}: {record.config_path}"):
        return TrainConfig.model_validate(stored)


def new_run(
    reward: str | None,
    options: Mapping[str, Any],
    *,
    config: Path | None,
    preset: bool,
) -> tuple[TrainConfig, RewardText]:
    """Configuration and reward that the arguments describe.

    A later source wins: defaults, the preset, the reward's own environment, the file, flags.
    """
    from p2p.config import TrainConfig
    from p2p.records.upstream import train_fields
    from p2p.training.hp_presets import run_config

    if reward is None:
        raise UsageError("name a reward: a Python file, or one that `p2p rewards` lists")
    file = open_reward(reward)
    fields, note = train_fields(_read_object(config) if config else {})
    if note:
        err.print(f"note: {config}: {note}", soft_wrap=True, markup=False)
    fields |= parse_settings(options.get("settings") or [], TrainConfig.model_fields)
    fields |= {
        name: value
        for name in ("env_id", "total_timesteps", "seed", "engine")
        if (value := options.get(name)) is not None
    }
    fields.setdefault("env_id", file.env_id or TrainConfig().env_id)
    env_id = check_environment(fields.pop("env_id"))
    with usage_errors({"preset": "--preset"}, where=f"--config {config}" if config else ""):
        return run_config(env_id, fields, preset=preset), file


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path, "--config"))
    except json.JSONDecodeError as error:
        raise UsageError(f"--config: {path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f'--config: {path} must hold a JSON object, such as {{"seed": 3}}')
    return value


def check_trackers(names: Sequence[str]) -> tuple[str, ...]:
    from p2p.contracts import did_you_mean
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
    """Train with the live view; Ctrl-C leaves a run that can be resumed."""
    from p2p.commands.working import train_in
    from p2p.training.runner import TrainingCancelled

    err.print(
        f"[bold]{escape(config.env_id)}[/]  seed {config.seed}  "
        f"{escape(display_path(record.path))}",
        soft_wrap=True,
    )
    try:
        return train_in(record, config, code, options)
    except OSError as error:
        raise CommandError(f"{record.path} cannot be written: {error}") from error
    except (KeyboardInterrupt, TrainingCancelled) as stop:
        err.print(
            f"stopped; resume with: p2p train --resume {display_path(record.path)}", soft_wrap=True
        )
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
    run = display_path(folder)
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
    lines += [("video", display_path(path)) for path in _videos(folder, summary)]
    lines += [
        ("curves", f"tensorboard --logdir {shlex.quote(f'{run}/metrics')}"),
        ("watch", f"p2p play {shlex.quote(run)}"),
        ("share", f"p2p export {shlex.quote(run)} --to FOLDER"),
    ]
    for title, text in lines:
        out.print(f"[bold]{title:<7}[/] {escape(text)}", soft_wrap=True)
