"""What a session is asked to do, and the one place where that becomes a LoopConfig.

The command line, HTTP and the benchmark all fill a `SessionRequest` or its options.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from p2p.config import LoopConfig, TrainConfig, VisualCriterion
from p2p.contracts import Criterion, Record, RunConfigEntry, did_you_mean, field_error
from p2p.session.options import ALIASES, OPTIONS, REPEATABLE
from p2p.settings import get_settings

if TYPE_CHECKING:
    from pathlib import Path

    from p2p.contracts import SessionConfig

CHANGEABLE = (
    "max_iterations", "budget_usd", "max_minutes", "model", "vlm_model", "thinking_effort",
    "pass_threshold", "trainer", "max_parallel", "cores_per_run", "videos",
)  # fmt: skip
"""What may be changed when a session is resumed: nothing trained or written depends on it."""

VARIATIONS: tuple[tuple[str, str, Mapping[str, float]], ...] = (
    ("fast", "three times the learning rate", {"learning_rate": 3.0}),
    ("careful", "a third of the learning rate", {"learning_rate": 1 / 3}),
    ("far", "half the distance of gamma to one", {"gamma": 0.5}),
    ("near", "twice the distance of gamma to one", {"gamma": 2.0}),
)
"""What `configs=3` tries beside the base: a field and what it (or 1 - gamma) is multiplied by."""


STAND_IN = TrainConfig().env_id
"""The environment of a LoopConfig while the session's own is still to be chosen."""


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return {ALIASES.get(name, name): value for name, value in values.items()}


ModelName = Annotated[str, Field(max_length=200)]


class SessionOptions(Record):
    """What may be chosen for every session; None: the default. `ALIASES` are accepted, too."""

    model: ModelName | None = None
    vlm_model: ModelName | None = None
    max_iterations: int | None = None
    total_timesteps: int | None = None
    configs: int | None = None
    seeds: int | tuple[int, ...] | None = None
    candidates: int | None = None
    pass_threshold: float | None = None
    use_zoo_preset: bool | None = None
    hp_tuning: bool | None = None
    thinking_effort: Annotated[str, Field(max_length=20)] | None = None
    use_code_judge: bool | None = None
    review_reward: bool | None = None
    review_judge: bool | None = None
    refined_initial_frame: bool | None = None
    motion_trail: bool | None = None
    visual_criteria: Annotated[tuple[VisualCriterion, ...], Field(max_length=10)] | None = None
    judge_episodes: int | None = None
    confirm_episodes: int | None = None
    budget_usd: float | None = None
    """For each session."""
    max_minutes: float | None = None
    """For each session, over all its processes."""
    videos: bool | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further fields of TrainConfig and LoopConfig."""

    @model_validator(mode="before")
    @classmethod
    def _under_one_name(cls, values: Any) -> Any:
        """Aliases become fields, and so do the settings that are needed before the others."""
        if not isinstance(values, dict):
            return values
        fields = _fields(values)
        if isinstance(settings := fields.get("settings"), dict):
            settings = _fields(settings)
            early = [n for n in ("model", "vlm_model", "env_id") if n in cls.model_fields]
            for name in early:
                if name in settings and fields.get(name) is None:
                    fields[name] = settings[name]
            fields["settings"] = {n: v for n, v in settings.items() if n not in early}
        return fields

    def options(self) -> dict[str, Any]:
        """As `loop_config` takes them."""
        names = set(SessionOptions.model_fields) - {"settings"}
        return self.settings | self.model_dump(include=names, exclude_none=True)

    def check_models(self) -> None:
        """Raise an InferenceError if a model that is named cannot be asked."""
        from p2p.session.agents import check_models

        check_models(self.model or "", self.vlm_model or "")

    def with_models(self) -> Self:
        """With both models by their full names: a node may have other keys and settings.

        Raises an InferenceError if one of them cannot be asked.
        """
        from p2p.inference.providers import choose_model

        vlm = get_settings().vlm_model if self.vlm_model is None else self.vlm_model
        named = self.model_copy(update={"vlm_model": vlm})
        named.check_models()
        return named.model_copy(update={"model": choose_model(self.model or "")})


class SessionRequest(SessionOptions):
    """A session that is to be started."""

    prompt: Annotated[str, Field(min_length=1, max_length=4000)]
    env_id: Annotated[str, Field(max_length=200)] | None = None
    """None: chosen from the prompt."""
    criteria: tuple[Criterion, ...] | None = None
    """None: written by the model."""
    cores_per_run: int | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _on_one_line(cls, prompt: Any) -> Any:
        return " ".join(prompt.split()) if isinstance(prompt, str) else prompt

    def options(self) -> dict[str, Any]:
        """As `loop_config` takes them."""
        cores = {} if self.cores_per_run is None else {"cores_per_run": self.cores_per_run}
        return super().options() | cores

    @property
    def environment(self) -> str | None:
        """Also where a whole TrainConfig names it; None: it is to be chosen."""
        train = self.settings.get("train")
        return self.env_id or (train.get("env_id") if isinstance(train, dict) else None)


def loop_config(env_id: str | None, /, **options: Any) -> LoopConfig:
    """The LoopConfig for an environment and flat options.

    Where the environment is still to be chosen (None), that of TrainConfig stands in for it.

    Options are fields of LoopConfig, fields of TrainConfig (which are then fixed: no revision moves
    them) and the names in ALIASES. None means: not given. `seeds` and `configs` may be numbers. The
    model that judges videos comes from the settings unless it is given.
    Raises ValueError (pydantic.ValidationError is one) that names what is wrong.
    """
    values = {name: value for name, value in _fields(options).items() if value is not None}
    if "train" in values:  # which is then not made of anything
        values["use_zoo_preset"] = False
    known = {**LoopConfig.model_fields, **TrainConfig.model_fields}
    known.pop("env_id")  # which is an argument of its own
    for name in values.keys() - known.keys():
        raise field_error(name, f"no such option{did_you_mean(name, (*known, *ALIASES))}")
    if get_settings().vlm_model:
        values.setdefault("vlm_model", get_settings().vlm_model)
    train = {name: values.pop(name) for name in list(values) if name in TrainConfig.model_fields}
    base = _base(
        env_id or STAND_IN,
        train,
        values.pop("train", None),
        use_zoo_preset=values.get("use_zoo_preset") is True,
    )
    fixed = {*values.pop("fixed", ()), *train}
    if "seeds" in values:
        values["seeds"] = _seeds(values["seeds"])
    if isinstance(values.get("configs"), int):
        values["configs"] = variations(base, values["configs"])
    return LoopConfig.model_validate({**values, "train": base, "fixed": tuple(sorted(fixed))})


def _base(
    env_id: str, fields: Mapping[str, Any], whole: Any, *, use_zoo_preset: bool
) -> TrainConfig:
    """The base of every run: `whole` if it is given, else what suits the environment."""
    if whole is not None:
        if not isinstance(whole, dict | TrainConfig):
            raise field_error("train", 'not an object, such as {"num_envs": 16}')
        base = TrainConfig.model_validate(whole)
        return base.with_updates(**{**fields, "env_id": env_id})
    from p2p.training.hp_presets import EVALUATION, check_preset, config_from_preset, quick_config

    if not use_zoo_preset:
        return quick_config(env_id, **fields)
    check_preset(env_id, "use_zoo_preset")
    return config_from_preset(env_id, **{**EVALUATION, **fields})


MOST_SEEDS = 1000


def _seeds(seeds: Any) -> Any:
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if not 1 <= seeds <= MOST_SEEDS:
            raise field_error("seeds", f"{seeds} is not 1 to {MOST_SEEDS}, nor a list of seeds")
        return tuple(range(1, seeds + 1))
    return seeds


def variations(base: TrainConfig, count: int) -> tuple[RunConfigEntry, ...]:
    """The base and `count - 1` variations of it; raises ValueError for a number we do not have."""
    if not 1 <= count <= 1 + len(VARIATIONS):
        most = 1 + len(VARIATIONS)
        raise field_error("configs", f"{count} is not 1 to {most}, nor a list of configurations")
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
    loop = loop_config(env_id, **(config.options or {}))
    # All else may have been changed since the options were given.
    changes = {"train": loop.train, "configs": loop.configs, "fixed": loop.fixed}
    return config.model_copy(
        update={
            "loop": config.loop.model_copy(update=changes),
            "options": None,
            "env_reason": reason,
        }
    )


def command_line(config: SessionConfig, folder: Path) -> str:
    """The `p2p run` that asks for the same session; `folder` is where it lies.

    Options stand there where they differ from the defaults, which are not those of the settings.
    """
    loop, flags = config.loop, {option.field: option.flag for option in OPTIONS}
    values = loop.model_dump(mode="json")
    train, fixed = values["train"], {name: values["train"][name] for name in loop.fixed}
    words = [flags["env_id"], config.env_id] if config.env_id else []
    options: dict[str, Any] = {
        name: values[name]
        for name, field in LoopConfig.model_fields.items()
        if name not in ("train", "fixed", "configs", "seeds") and values[name] != field.default
    }
    if get_settings().vlm_model:
        options["vlm_model"] = loop.vlm_model
    if loop.seeds != LoopConfig().seeds:
        counted = loop.seeds == tuple(range(1, len(loop.seeds) + 1))
        options["seeds"] = len(loop.seeds) if counted else list(loop.seeds)
    if loop.configs != LoopConfig().configs:
        count = len(loop.configs) if len(loop.configs) <= 1 + len(VARIATIONS) else 1
        counted = variations(loop.train, count) == loop.configs
        options["configs"] = count if counted else values["configs"]
    env_id, zoo = loop.train.env_id, loop.use_zoo_preset
    if _base(env_id, fixed, None, use_zoo_preset=zoo) != loop.train:  # it was given as a whole
        defaults = TrainConfig(env_id=env_id).model_dump(mode="json")
        options["train"] = {n: v for n, v in train.items() if v != defaults[n]}
    for name, value in (options | fixed).items():
        words += _as_flag(flags.get(name), name, value)
    if config.criteria is not None:
        words += ["--criteria", str(folder / "session.json")]
    prompt = config.prompt
    words = [*words, "--", prompt] if prompt.startswith("-") else [prompt, *words]
    return shlex.join(["p2p", "run", *words])


def _as_flag(flag: str | None, name: str, value: Any) -> list[str]:
    if flag is not None and name in REPEATABLE:
        return [word for each in value for word in (flag, each)]
    if flag is None or isinstance(value, list | dict):
        return [f"--set={name}={_as_setting(value)}"]
    if isinstance(value, bool):
        return [flag.split("/")[not value]]
    return [flag, str(value)]


def _as_setting(value: Any) -> str:
    """As `--set` reads it: JSON, or a text that is none."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)


def with_changes(config: SessionConfig, changes: Mapping[str, Any]) -> SessionConfig:
    """A session that is resumed with other limits; raises ValueError for what cannot change."""
    values = {name: value for name, value in _fields(changes).items() if value is not None}
    if not values:
        return config
    if fixed := sorted(values.keys() - set(CHANGEABLE)):
        raise ValueError(
            f"{', '.join(fixed)} cannot be changed in a session that has begun, only "
            f"{', '.join(CHANGEABLE)}"
        )
    loop = LoopConfig.model_validate({**config.loop.model_dump(), **values})
    first = config.first_minutes
    if first is None and loop.max_minutes != config.loop.max_minutes:
        first = config.loop.max_minutes or loop.max_minutes
    return config.model_copy(update={"loop": loop, "first_minutes": first})


def minutes_to_resume(config: SessionConfig, worked_s: float) -> float | None:
    """The time limit to resume a session with, where none is given.

    While there is time left it stays; then as much is added as the session had at first.
    """
    bound, worked = config.loop.max_minutes, worked_s / 60
    if bound is None or worked < bound:
        return bound
    return math.ceil(100 * (worked + (config.first_minutes or bound))) / 100
