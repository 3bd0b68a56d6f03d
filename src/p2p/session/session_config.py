"""session.json: what was asked for; and the one place where options become a LoopConfig."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import RunConfigEntry
from p2p.settings import get_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from p2p.records.loop_files import SessionConfig

ALIASES: Mapping[str, str] = {
    "iterations": "max_iterations",
    "timesteps": "total_timesteps",
    "threshold": "pass_threshold",
    "vlm": "vlm_model",
}
"""How people name some of the options."""

CHANGEABLE = (
    "max_iterations", "budget_usd", "max_minutes", "model", "vlm_model", "thinking_effort",
    "pass_threshold", "trainer", "max_parallel", "cores_per_run", "videos",
)  # fmt: skip
"""What may be changed when a session goes on: nothing that was trained or written depends on it."""

VARIATIONS: tuple[tuple[str, str, Mapping[str, float]], ...] = (
    ("fast", "three times the learning rate", {"learning_rate": 3.0}),
    ("careful", "a third of the learning rate", {"learning_rate": 1 / 3}),
    ("far", "half the distance of gamma to one", {"gamma": 0.5}),
    ("near", "twice the distance of gamma to one", {"gamma": 2.0}),
)
"""What `configs=3` tries beside the base: a field and what it (or 1 - gamma) is multiplied by."""


STAND_IN = TrainConfig().env_id


def loop_config(env_id: str | None, **options: Any) -> LoopConfig:
    """The LoopConfig for an environment and flat options, as a command line and an API have them.

    Where the environment is still to be chosen (None), that of TrainConfig stands in for it.

    Options are fields of LoopConfig, fields of TrainConfig (which are then fixed: no revision moves
    them) and the names in ALIASES. None means: not given. `seeds` and `configs` may be numbers. Who
    looks at the frames comes from the settings unless it is given.
    Raises ValueError (pydantic.ValidationError is one) that names what is wrong.
    """
    given = {ALIASES.get(name, name): value for name, value in options.items() if value is not None}
    unknown = [n for n in given if n not in LoopConfig.model_fields | TrainConfig.model_fields]
    if unknown:
        raise ValueError(_no_such_option(unknown[0]))
    if get_settings().vlm_model:
        given.setdefault("vlm_model", get_settings().vlm_model)
    train = {name: given.pop(name) for name in list(given) if name in TrainConfig.model_fields}
    loop = {name: value for name, value in given.items() if name != "train"}
    base = _base(env_id or STAND_IN, train, given.get("train"))
    fixed = {*loop.pop("fixed", ()), *train} - {"env_id"}
    if "seeds" in loop:
        loop["seeds"] = _seeds(loop["seeds"])
    if isinstance(loop.get("configs"), int):
        loop["configs"] = variations(base, loop["configs"])
    return LoopConfig.model_validate({**loop, "train": base, "fixed": tuple(sorted(fixed))})


def in_a_line(error: ValueError) -> str:
    """What is wrong with the options; pydantic's own text has several lines."""
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, item['loc']))}: {item['msg']}".removeprefix(": ")
        for item in error.errors()
    )


def _no_such_option(name: str) -> str:
    known = [*LoopConfig.model_fields, *TrainConfig.model_fields, *ALIASES]
    close = difflib.get_close_matches(name, known, n=1)
    return f"there is no option {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")


def _base(env_id: str, fields: Mapping[str, Any], whole: Any) -> TrainConfig:
    """The base of every run: `whole` if it is given, else what suits the environment."""
    if whole is not None:
        base = TrainConfig.model_validate(whole)
        return base.with_updates(**{**fields, "env_id": env_id})
    from p2p.training import hp_presets

    make = getattr(hp_presets, "quick_config", hp_presets.config_from_preset)
    made: TrainConfig = make(env_id, **fields)
    return made


def _seeds(seeds: Any) -> Any:
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if seeds < 1:
            raise ValueError(f"seeds={seeds}: at least one is needed")
        return tuple(range(1, seeds + 1))
    return seeds


def variations(base: TrainConfig, count: int) -> tuple[RunConfigEntry, ...]:
    """The base and `count - 1` variations of it; raises ValueError for a number we do not have."""
    if not 1 <= count <= 1 + len(VARIATIONS):
        raise ValueError(
            f"configs={count}: 1 to {1 + len(VARIATIONS)}, or a list of configurations"
        )
    entries = [RunConfigEntry(config_id="base")]
    for name, label, factors in VARIATIONS[: count - 1]:
        params = {field: _varied(base, field, factor) for field, factor in factors.items()}
        entries.append(RunConfigEntry(config_id=name, label=label, params=params))
    return tuple(entries)


def _varied(base: TrainConfig, field: str, factor: float) -> float:
    value: float = getattr(base, field)
    varied = 1 - (1 - value) * factor if field == "gamma" else value * factor
    changed, _ = base.apply_updates({field: float(f"{varied:.6g}")})
    kept: float = getattr(changed, field)
    return kept


def with_environment(config: SessionConfig, env_id: str, reason: str) -> SessionConfig:
    """The session on what was chosen for it; raises ValueError where its options do not fit."""
    found = loop_config(env_id, **(config.options or {}))
    # All else may have been changed since the options were given.
    of_it = {"train": found.train, "configs": found.configs, "fixed": found.fixed}
    return config.model_copy(
        update={
            "loop": config.loop.model_copy(update=of_it),
            "options": None,
            "env_reason": reason,
        }
    )


def with_changes(config: SessionConfig, changes: Mapping[str, Any]) -> SessionConfig:
    """A session that goes on under other conditions; raises ValueError for what cannot change."""
    given = {ALIASES.get(name, name): value for name, value in changes.items() if value is not None}
    if not given:
        return config
    if fixed := sorted(given.keys() - set(CHANGEABLE)):
        raise ValueError(
            f"{', '.join(fixed)} cannot be changed in a session that has begun, only "
            f"{', '.join(CHANGEABLE)}"
        )
    loop = LoopConfig.model_validate({**config.loop.model_dump(), **given})
    first = config.first_minutes
    if first is None and loop.max_minutes != config.loop.max_minutes:
        first = config.loop.max_minutes or loop.max_minutes
    return config.model_copy(update={"loop": loop, "first_minutes": first})


def minutes_to_go_on(config: SessionConfig, worked_s: float) -> float | None:
    """The bound on its time for a session to go on with, where nobody names another.

    While there is time left it stays; then it is given as much again as it was given at first.
    """
    bound, worked = config.loop.max_minutes, worked_s / 60
    if bound is None or worked < bound:
        return bound
    return math.ceil(100 * (worked + (config.first_minutes or bound))) / 100
