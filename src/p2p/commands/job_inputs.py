"""What `p2p jobs submit` is to run: from arguments to a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.commands.console import CommandError, UsageError, field_errors
from p2p.commands.reward_file import check_environment
from p2p.commands.scheduler_store import wrong_fields
from p2p.commands.session_inputs import (
    check_models_named,
    make_loop,
    read_prompt,
    read_settings,
)
from p2p.commands.train_inputs import Requested, new_run

if TYPE_CHECKING:
    from p2p.scheduler.controllers import JobOptions
    from p2p.scheduler.records import JobSpec
    from p2p.scheduler.store import Store

JOB_FLAGS = {
    "job_id": "--name",
    "run_id": "--name",
    "folder": "--name",
    "nodes": "--node",
    "cores": "--cores",
    "gpus": "--gpus",
    "priority": "--priority",
    "max_attempts": "--attempts",
    "time_limit_s": "--time-limit",
    "command": "--",
    "title": "--title",
}


@dataclass(frozen=True)
class Asked:
    """The arguments that say what to run."""

    prompt: str | None
    reward: str | None
    selfplay: Path | None
    command: tuple[str, ...]
    name: str | None
    env: str | None
    settings: tuple[str, ...]
    options: dict[str, Any]
    """Flags of a session, by the names of its fields."""
    flags: dict[str, Any]
    """What was given of them, by flag."""

    def kind(self) -> str:
        """The one thing that is asked for; UsageError if it is none, or more than one."""
        given = {
            "PROMPT": self.prompt,
            "--reward": self.reward,
            "--selfplay": self.selfplay,
            "-- COMMAND": self.command or None,
        }
        found = [name for name, value in given.items() if value is not None]
        if len(found) == 1:
            return found[0]
        told = f"{' and '.join(found)} are given" if found else "nothing is given"
        raise UsageError(f"{told}: say one of a PROMPT, --reward, --selfplay or -- COMMAND")

    def must_not_have(self, kind: str, *allowed: str) -> None:
        """UsageError for flags that mean nothing to this kind of job."""
        extra = [flag for flag, value in self.flags.items() if value and flag not in allowed]
        if extra:
            raise UsageError(f"{', '.join(extra)}: not with {kind}")


def make_job(asked: Asked, options: JobOptions, store: Store) -> JobSpec:
    """The job, with its folder made; nothing is made where an argument is wrong."""
    from pydantic import ValidationError

    makers = {
        "PROMPT": _session,
        "--reward": _training,
        "--selfplay": _selfplay,
        "-- COMMAND": _command,
    }
    kind = asked.kind()
    _check_room(options, store)
    try:
        _check_options(options)
        return makers[kind](asked, options, store.runs_dir)
    except ValidationError as error:
        raise wrong_fields(error, JOB_FLAGS) from error
    except OSError as error:
        raise CommandError(f"--runs-dir: {store.runs_dir} cannot be written: {error}") from error


def _check_options(options: JobOptions) -> None:
    """Raise what a job with these would, before there is a folder for it."""
    from p2p.scheduler.controllers import command_job

    command_job(["-"], options)


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
            "`p2p nodes list`, or add one with `p2p nodes add`"
        )


def _session(asked: Asked, options: JobOptions, runs_dir: Path) -> JobSpec:
    from p2p.scheduler.controllers import session_job

    asked.must_not_have("a PROMPT", *(f for f in asked.flags if f not in ("--config", "--preset")))
    _no_name(asked)
    text = read_prompt(asked.prompt)
    given = read_settings(list(asked.settings))
    named = given.pop("env_id", None)
    given |= {name: value for name, value in asked.options.items() if value is not None}
    check_models_named(given.get("model"), given.get("vlm_model"))
    env_id = asked.env or named
    if env_id is not None:
        check_environment(env_id)
    loop = make_loop(env_id, given)
    try:
        return session_job(
            text, loop, runs_dir, options, to_choose=given if env_id is None else None
        )
    except ValueError as error:
        from pydantic import ValidationError

        if isinstance(error, ValidationError):
            raise UsageError(field_errors(error, "session")) from error
        raise UsageError(error) from error


def _training(asked: Asked, options: JobOptions, runs_dir: Path) -> JobSpec:
    from p2p.scheduler.controllers import training_job

    allowed = ("--env", "--timesteps", "--set", "--config", "--preset", "--no-videos")
    asked.must_not_have("--reward", *allowed, "--unsafe-local")
    _no_name(asked)
    requested = Requested(
        asked.reward,
        asked.env,
        asked.options.get("total_timesteps"),
        None,
        asked.flags.get("--config"),
        bool(asked.flags.get("--preset")),
        asked.settings,
    )
    config, code = new_run(requested)
    flags = [flag for flag in ("--no-videos", "--unsafe-local") if asked.flags.get(flag)]
    return training_job(config, code, runs_dir, options, flags=flags)


def _selfplay(asked: Asked, options: JobOptions, runs_dir: Path) -> JobSpec:
    from p2p.scheduler.controllers import selfplay_job
    from unstable.config import ConfigError, load_config

    asked.must_not_have("--selfplay")
    _no_name(asked)
    assert asked.selfplay is not None
    try:
        config = load_config(asked.selfplay)
    except ConfigError as error:
        raise UsageError(f"--selfplay: {error}") from error
    return selfplay_job(config, runs_dir, options)


def _command(asked: Asked, options: JobOptions, _runs_dir: Path) -> JobSpec:
    from p2p.scheduler.controllers import command_job

    asked.must_not_have("a command")
    return command_job(asked.command, options, asked.name or "")


def _no_name(asked: Asked) -> None:
    if asked.name is not None:
        raise UsageError("--name: only for a command; a session has a name of its own")
