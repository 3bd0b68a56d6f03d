"""One training run from the command line: `python -m p2p.executor --reward-fn reward.py`.

The last line of standard output is the iteration directory; everything else goes to standard
error. Exit status: 0 trained, 1 the run failed, 2 bad arguments or files, 130 cancelled.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from p2p.config import TrainConfig
from p2p.contracts import ScalarsReady, WorkerMessage, describe_errors
from p2p.records.iteration_record import IterationRecord
from p2p.records.upstream import train_fields
from p2p.sandbox import choose_unsafe_local
from p2p.session.session_id import new_session_id
from p2p.settings import get_settings
from p2p.training.runner import RunOptions, TrainingCancelled, TrainingFailed, run_training
from p2p.utils.subprocess_utils import interrupt_on_sigterm
from unstable.utils.logging import print_plainly

EXAMPLE = """examples:
  python -m p2p.executor --reward-fn reward.py
  python -m p2p.executor --reward-fn reward.py --config config.json --env-id Ant-v5
  python -m p2p.executor --reward-fn reward.py --runs-dir runs/session_x --iteration-id iter_1

Called again on a directory whose run was killed, it resumes from the last saved state; on one
whose run is complete, it does nothing.
"""


_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    arguments = argparse.ArgumentParser(
        prog="python -m p2p.executor",
        description="Train one policy on one reward file.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = arguments.add_argument
    add("--reward-fn", type=Path, required=True, help="Python file with the reward")
    add("--config", type=Path, help="JSON file with TrainConfig fields")
    add("--runs-dir", type=Path, help="folder of the sessions (default: runs/)")
    add("--env-id", help="environment; overrides env_id of the config file")
    add("--iteration-id", help="name of the iteration directory (default: iter_1)")
    add(
        "--until",
        type=int,
        metavar="STEP",
        help="train no further than to this step (default: to the end)",
    )
    add("--pause", action="store_true", help="with --until: keep the state, to be resumed later")
    add(
        "--keep-state",
        action="store_true",
        help="keep the state of the completed run, so that it can be trained longer",
    )
    add("--no-videos", action="store_true", help="do not draw the median evaluation episode")
    add("--no-export", action="store_true", help="do not write policy.zip")
    add("--log", action="append", default=[], metavar="NAME", help="also send metrics to wandb "
        "or trackio; repeatable")  # fmt: skip
    add("--no-progress", action="store_true", help="do not print progress")
    add(
        "--unsafe-local",
        action="count",
        default=0,
        help="train without a sandbox where the kernel has none (given twice: also where it has "
        "one): the reward can then read your files and use the network",
    )
    return arguments


def read_inputs(arguments: argparse.Namespace) -> tuple[TrainConfig, str]:
    """The configuration and the reward's source; raises ValueError that names a flag."""
    if arguments.until is not None and arguments.until < 1:
        raise ValueError(f"--until: {arguments.until} is not a step; give 1 or more")
    if arguments.pause and arguments.until is None:
        raise ValueError("--pause: at which step? give --until STEP, too")
    fields = {}
    if arguments.config is not None:
        text = _read(arguments.config, "--config")
        try:
            ours, note = train_fields(_OBJECT.validate_json(text))
            fields = TrainConfig.model_validate(ours).model_dump()
        except ValidationError as error:
            raise ValueError(f"{arguments.config}: {describe_errors(error)}") from error
        if note:
            print_plainly(f"note: {arguments.config}: {note}")
    flags = {"env_id": arguments.env_id, "iteration_id": arguments.iteration_id}
    fields |= {name: value for name, value in flags.items() if value is not None}
    try:
        config = TrainConfig.model_validate(fields)
    except ValidationError as error:
        names = {"env_id": "--env-id", "iteration_id": "--iteration-id"}
        raise ValueError(describe_errors(error, names)) from error
    return config, _read(arguments.reward_fn, "--reward-fn")


def _read(path: Path, flag: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"{flag}: {path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{flag}: {path} cannot be read: {error}") from error


def iteration_directory(runs_dir: Path | None, iteration_id: str) -> Path:
    """Where the run goes: straight into a session's or iteration's folder, else a new session."""
    base = runs_dir if runs_dir is not None else get_settings().runs_dir
    name = iteration_id or "iter_1"
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"--iteration-id: {name!r} is not a plain directory name")
    inside = base.name.startswith(("session_", "iter_"))
    return (base if inside else base / new_session_id()) / name


def _print_progress(message: WorkerMessage) -> None:
    if isinstance(message, ScalarsReady):
        values = message.scalars.values
        value = values.get("episodic_return")
        print_plainly(
            f"step {message.scalars.global_step:>10,}  "
            f"return {'-' if value is None else f'{value:.1f}':>9}  "
            f"{values.get('sps', 0):>8,.0f} steps/s"
        )


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        config, reward_code = read_inputs(arguments)
        folder = iteration_directory(arguments.runs_dir, config.iteration_id)
        choose_unsafe_local(arguments.unsafe_local)
    except ValueError as error:
        print_plainly(f"error: {error}")
        return 2
    interrupt_on_sigterm()
    try:
        run_training(
            config,
            reward_code,
            IterationRecord(folder),
            options=RunOptions(
                videos=not arguments.no_videos,
                trackers=tuple(arguments.log),
                export=not arguments.no_export,
                lock_patience_s=math.inf,
                until=arguments.until,
                pause=arguments.pause,
                keep_state=arguments.keep_state,
            ),
            on_message=(lambda _: None) if arguments.no_progress else _print_progress,
        )
    except TrainingFailed as failure:
        print_plainly(f"error: {failure}")
        if failure.detail:
            print_plainly(failure.detail)
        return 1
    except (KeyboardInterrupt, TrainingCancelled):
        print_plainly("cancelled")
        return 130
    print(folder)  # noqa: T201 - the interface: the iteration directory, last
    return 0


if __name__ == "__main__":
    sys.exit(main())
