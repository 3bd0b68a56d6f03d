"""What `p2p train` is to train: from flags and files to a TrainConfig and a reward's source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.commands.console import UsageError, did_you_mean, field_errors, read_text
from p2p.commands.reward_file import check_environment, open_reward

if TYPE_CHECKING:
    from p2p.config import TrainConfig
    from p2p.records.iteration_record import IterationRecord


@dataclass(frozen=True)
class Requested:
    """The arguments that describe a new run; empty where a flag was not given."""

    reward: str | None = None
    env: str | None = None
    steps: int | None = None
    seed: int | None = None
    config: Path | None = None
    preset: bool = False
    settings: tuple[str, ...] = ()

    def given(self) -> list[str]:
        """The names of the arguments that were given."""
        flags = {
            "REWARD": self.reward,
            "--env": self.env,
            "--steps": self.steps,
            "--seed": self.seed,
            "--config": self.config,
            "--preset": self.preset or None,
            "--set": self.settings or None,
        }
        return [name for name, value in flags.items() if value is not None]


def stored_run(record: IterationRecord, requested: Requested) -> tuple[TrainConfig, str]:
    """Configuration and source of the run to resume."""
    if extra := requested.given():
        raise UsageError(
            f"--resume goes on with the run as it was started: leave out {', '.join(extra)}"
        )
    config = read_config(record, "--resume")
    code = record.read_reward_source()
    if not code:
        raise UsageError(f"--resume: {record.path} has no reward_fn.py: it was not made by p2p")
    return config, code


def read_config(record: IterationRecord, what: str) -> TrainConfig:
    """The configuration in a run's directory; UsageError says why it cannot be had."""
    from pydantic import ValidationError

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
    try:
        return TrainConfig.model_validate(stored)
    except ValidationError as error:
        raise UsageError(field_errors(error, f"{what}: {record.config_path}")) from error


def new_run(requested: Requested) -> tuple[TrainConfig, str]:
    """Configuration and source that the arguments describe.

    A later source wins: defaults, the preset, the reward's own environment, the file, flags.
    """
    from pydantic import ValidationError

    from p2p.config import TrainConfig

    if requested.reward is None:
        raise UsageError("name a reward: a Python file, or one that `p2p rewards` lists")
    reward = open_reward(requested.reward)
    where = f"--config {requested.config}" if requested.config else "configuration"
    fields = _read_object(requested.config) if requested.config else {}
    fields |= dict(parse_setting(item) for item in requested.settings)
    flags = {
        "env_id": requested.env or fields.get("env_id") or reward.env_id or TrainConfig().env_id,
        "total_timesteps": requested.steps,
        "seed": requested.seed,
    }
    fields |= {name: value for name, value in flags.items() if value is not None}
    try:
        config = _with_preset(fields) if requested.preset else TrainConfig.model_validate(fields)
    except ValidationError as error:
        raise UsageError(field_errors(error, where)) from error
    check_environment(config.env_id)
    return config, reward.code


def _with_preset(fields: dict[str, Any]) -> TrainConfig:
    from p2p.config import TrainConfig
    from p2p.training.hp_presets import PRESETS, config_from_preset, preset_for

    # Faults of the given values first: fitting a preset to them would stumble over them.
    env_id = TrainConfig.model_validate({**fields, "num_minibatches": 1}).env_id
    if not preset_for(env_id):
        raise UsageError(
            f"--preset: there is none for {env_id}, only for {', '.join(PRESETS)}; leave it out"
        )
    return config_from_preset(**fields)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path, "--config"))
    except json.JSONDecodeError as error:
        raise UsageError(f"--config: {path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f'--config: {path} must hold a JSON object, such as {{"seed": 3}}')
    return found


def parse_setting(item: str) -> tuple[str, Any]:
    """`FIELD=VALUE` of a TrainConfig, as --set takes it."""
    from p2p.config import TrainConfig

    name, sign, value = item.partition("=")
    if not sign or not name:
        raise UsageError(f"--set {item}: write it as FIELD=VALUE, such as learning_rate=1e-4")
    if name not in TrainConfig.model_fields:
        hint = did_you_mean(name, TrainConfig.model_fields)
        raise UsageError(f"--set {item}: there is no field {name!r}{hint}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
