"""What a session is asked to do, and the one place where that becomes a LoopConfig.

The command line, HTTP and the benchmark all fill a `SessionRequest` or its options.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from p2p.config import LoopConfig, TrainConfig, VisualCriterion
from p2p.contracts import Criterion, Record, RunConfigEntry, did_you_mean, field_error
from p2p.settings import get_settings
from p2p.validation import Flag, flags_of

if TYPE_CHECKING:
    from pathlib import Path

    from p2p.contracts import SessionConfig

VARIATIONS: tuple[tuple[str, str, Mapping[str, float]], ...] = (
    ("fast", "three times the learning rate", {"learning_rate": 3.0}),
    ("careful", "a third of the learning rate", {"learning_rate": 1 / 3}),
    ("far", "half the distance of gamma to one", {"gamma": 0.5}),
    ("near", "twice the distance of gamma to one", {"gamma": 2.0}),
)
"""What `configs=3` tries beside the base: a field and what it (or 1 - gamma) is multiplied by."""


STAND_IN = TrainConfig().env_id
"""The environment of a LoopConfig while the session's own is still to be chosen."""


TRAINING, MODELS, JUDGING, SWITCHES = "Training", "Models and budget", "Judging", "On or off"
"""Panels of the help."""


class PromptRefused(Exception):
    """Nothing can be done with the prompt as it is; the message says what can."""


ModelName = Annotated[str, Field(max_length=200)]


def _split_seeds(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise ValueError(f"{value!r}: write a number, or a list such as 1,5,7") from None
    return numbers if "," in value else numbers[0]


class ResumeOptions(Record):
    """What may be different when a session is resumed: nothing trained or written depends on it.

    None: as before, or the default. `ALIASES` are accepted, too. A session that has used up its
    time gets as much again as at first, unless a limit is given.
    """

    model: Annotated[
        ModelName | None,
        Flag("--model", "Language model.", "MODEL", "first provider with a key, else builtin",
             MODELS, short="-m"),
    ] = None  # fmt: skip
    vlm_model: Annotated[
        ModelName | None,
        Flag("--vlm", "Model that judges the videos.", "MODEL", "none", MODELS,
             older=("--vlm-model",)),
    ] = None  # fmt: skip
    thinking_effort: Annotated[
        str | None,
        Field(max_length=20),
        Flag("--thinking", "off, minimal, low, medium, high, xhigh or max.", "EFFORT",
             panel=MODELS, older=("--thinking-effort",)),
    ] = None  # fmt: skip
    max_iterations: Annotated[
        int | None,
        Field(ge=1),
        Flag("--iterations", "Maximum iterations.", "N", panel=TRAINING, short="-n",
             older=("--max-iterations",)),
    ] = None  # fmt: skip
    max_minutes: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False),
        Flag("--max-minutes", "Time limit.", "MINUTES", "no limit", TRAINING),
    ] = None
    """For each session, over all its processes."""
    budget_usd: Annotated[
        float | None,
        Field(ge=0, allow_inf_nan=False),
        Flag("--budget-usd", "Maximum spent on models.", "USD", "no limit", MODELS),
    ] = None
    """For each session."""
    pass_threshold: Annotated[
        float | None,
        Field(gt=0, le=1, allow_inf_nan=False),
        Flag("--threshold", "Mean score a hard criterion needs.", "0..1", panel=JUDGING,
             older=("--pass-threshold",)),
    ] = None  # fmt: skip
    cores_per_run: Annotated[
        int | None,
        Flag("--cores-per-run", "Cores of each run (0 = automatic).", "N", panel=TRAINING),
    ] = None
    videos: Annotated[
        bool | None,
        Flag("--videos/--no-videos", "Draw the videos.", panel=SWITCHES),
    ] = None

    trackers: Annotated[
        tuple[Literal["wandb", "trackio", "tensorboard"], ...] | None,
        Flag("--log", "Also send metrics to wandb or trackio.", "NAME", "none", TRAINING),
    ] = None
    """One run for each training, grouped by session."""

    @model_validator(mode="before")
    @classmethod
    def _rename_aliases(cls, values: Any) -> Any:
        return rename_aliases(values) if isinstance(values, dict) else values

    def options(self) -> dict[str, Any]:
        """The options that are given, as `loop_config` and `with_changes` take them."""
        return self.model_dump(exclude_none=True)

    def check_models(self) -> None:
        """Raise an InferenceError if a model that is named cannot be asked."""
        from p2p.session.agents import check_models

        check_models(self.model or "", self.vlm_model or "")


class CoreOptions(Record):
    """How this process shares the machine; the cores of a job are held for it."""

    wait_for_cores: Annotated[
        bool | None,
        Flag("--wait/--no-wait", "Wait for cores.", panel=SWITCHES),
    ] = None


class ResumeHere(ResumeOptions, CoreOptions):
    """What may be different when this process resumes a session."""


class SessionOptions(ResumeOptions):
    """What may be chosen for every session; None: the default."""

    total_timesteps: Annotated[
        int | None,
        Flag("--steps", "Maximum environment steps per run.", "N", "by environment", TRAINING,
             older=("--timesteps", "--total-timesteps")),
    ] = None  # fmt: skip
    configs: Annotated[
        int | None,
        Flag("--configs", "Hyperparameter settings side by side.", "N", panel=TRAINING,
             older=("--num-configs",)),
    ] = None  # fmt: skip
    seeds: Annotated[
        int | tuple[int, ...] | None,
        BeforeValidator(_split_seeds, json_schema_input_type=int | tuple[int, ...] | None),
        Flag("--seeds", "Number of seeds, or a list: 1,5,7.", "N|LIST", panel=TRAINING,
             one_text=True),
    ] = None  # fmt: skip
    candidates: Annotated[
        int | None,
        Flag(
            "--candidates", "Candidate rewards per iteration (0 = automatic).", "N", panel=TRAINING
        ),
    ] = None
    train_full: Annotated[
        bool | None,
        Flag("--full/--no-full", "Train to the end after a pass, too.", panel=SWITCHES),
    ] = None
    use_zoo_preset: Annotated[
        bool | None,
        Flag("--zoo-preset/--no-zoo-preset", "RL Zoo's preset: longer runs.", panel=SWITCHES,
             older=("--use-zoo-preset",)),
    ] = None  # fmt: skip
    hp_tuning: Annotated[
        bool | None,
        Flag("--hp-tuning/--no-hp-tuning", "Tune settings, too.", panel=SWITCHES),
    ] = None
    use_code_judge: Annotated[
        bool | None,
        Flag("--code-judge/--no-code-judge", "Off: only the VLM judges.", panel=SWITCHES,
             older=("--use-code-judge",)),
    ] = None  # fmt: skip
    review_reward: Annotated[
        bool | None,
        Flag("--review-reward/--no-review-reward", "Review each reward.", panel=SWITCHES),
    ] = None
    review_judge: Annotated[
        bool | None,
        Flag("--review-judge/--no-review-judge", "Review each judge.", panel=SWITCHES),
    ] = None
    refined_initial_frame: Annotated[
        bool | None,
        Flag("--initial-frame/--no-initial-frame", "VLM: name parts in a first frame.",
             panel=SWITCHES, older=("--refined-initial-frame",)),
    ] = None  # fmt: skip
    motion_trail: Annotated[
        bool | None,
        Flag("--motion-trail/--no-motion-trail", "VLM: add one image of all poses.", panel=SWITCHES,
             older=("--motion-trail-dual",)),
    ] = None  # fmt: skip
    visual_criteria: Annotated[
        tuple[VisualCriterion, ...] | None,
        Field(max_length=10),
        Flag(
            "--visual-criteria",
            "Criterion scored by the vision model; or @FILE.",
            "TEXT",
            "none",
            JUDGING,
        ),
    ] = None
    judge_episodes: Annotated[
        int | None, Flag("--judge-episodes", "Episodes a run is judged on.", "N", panel=JUDGING)
    ] = None
    confirm_episodes: Annotated[
        int | None,
        Flag("--confirm-episodes", "Unseen episodes for a pass.", "N", panel=JUDGING),
    ] = None
    settings: Annotated[
        dict[str, Any],
        Flag("--set", "A field of TrainConfig or LoopConfig.", "FIELD=VALUE", "none", TRAINING),
    ] = Field(default_factory=dict)
    """Further fields of TrainConfig and LoopConfig."""

    @model_validator(mode="before")
    @classmethod
    def _lift_settings(cls, values: Any) -> Any:
        """Settings that are needed before the others become fields."""
        if not isinstance(values, dict) or not isinstance(values.get("settings"), dict):
            return values
        values, settings = rename_aliases(values), rename_aliases(values["settings"])
        early = [n for n in ("model", "vlm_model", "env_id") if n in cls.model_fields]
        lifted = {n: settings[n] for n in early if n in settings and values.get(n) is None}
        kept = {n: v for n, v in settings.items() if n not in early}
        return {**values, **lifted, "settings": kept}

    def options(self) -> dict[str, Any]:
        """The options that are given, as `loop_config` takes them."""
        names = SessionOptions.model_fields.keys() - {"settings"}
        return self.settings | self.model_dump(mode="json", include=names, exclude_none=True)

    def with_models(self) -> Self:
        """Resolve both models to full names, because a node may have other keys and settings.

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
    env_id: Annotated[
        str | None,
        Field(max_length=200),
        Flag("--env", "Environment; `p2p envs` lists them.", "ID", "chosen from the prompt",
             TRAINING, short="-e"),
    ] = None  # fmt: skip
    """None: chosen from the prompt."""
    criteria: tuple[Criterion, ...] | None = None
    """None: written by the model."""

    @field_validator("prompt", mode="before")
    @classmethod
    def _join_lines(cls, prompt: Any) -> Any:
        return " ".join(prompt.split()) if isinstance(prompt, str) else prompt

    @property
    def environment(self) -> str | None:
        """Also where a whole TrainConfig names it; None: it is to be chosen."""
        train = self.settings.get("train")
        return self.env_id or (train.get("env_id") if isinstance(train, dict) else None)


class TrainerOptions(CoreOptions):
    """How this process trains; a job trains on the cores that it has."""

    trainer: Annotated[
        str | None,
        Flag("--trainer", "local, or scheduled: on `p2p nodes`.", "NAME", panel=TRAINING),
    ] = None
    engine: Annotated[
        str | None,
        Flag("--engine", "Simulator; `p2p engines list`.", "NAME", "by environment", TRAINING),
    ] = None


class RunRequest(SessionRequest, TrainerOptions):
    """A session that this process works on."""

    def options(self) -> dict[str, Any]:
        """The options that are given, as `loop_config` takes them."""
        own = self.model_dump(include=set(TrainerOptions.model_fields), exclude_none=True)
        return super().options() | own


FLAGS = flags_of(RunRequest)
ALIASES = {
    name.split("/")[0].removeprefix("--").replace("-", "_"): field
    for field, flag in FLAGS.items()
    for name in (flag.name, *flag.older)
    if field not in ("env_id", "settings")
}
"""Other names of fields, as flags have them: `steps` is `total_timesteps`."""


def with_settings(model: type[SessionOptions], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those that are no field of the model (nor an alias) as its settings."""
    known = {*model.model_fields, *ALIASES}
    settings = {name: value for name, value in values.items() if name not in known}
    return {n: v for n, v in values.items() if n in known} | {"settings": settings}


def rename_aliases(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values under the names of fields."""
    return {ALIASES.get(name, name): value for name, value in values.items()}


def loop_config(env_id: str | None, /, **options: Any) -> LoopConfig:
    """The LoopConfig for an environment and flat options.

    Where the environment is still to be chosen (None), that of TrainConfig stands in for it.

    Options are fields of LoopConfig, fields of TrainConfig (which are then fixed: no revision moves
    them) and the names in ALIASES. None means: not given. `seeds` and `configs` may be numbers. The
    model that judges videos comes from the settings unless it is given.
    Raises ValueError (pydantic.ValidationError is one) that names what is wrong.
    """
    values = {name: value for name, value in rename_aliases(options).items() if value is not None}
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
        params = {field: _vary_field(base, field, factor) for field, factor in factors.items()}
        entries.append(RunConfigEntry(config_id=name, label=label, params=params))
    return tuple(entries)


def _vary_field(base: TrainConfig, field: str, factor: float) -> float:
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
    loop, flags = config.loop, {field: flag.name for field, flag in FLAGS.items()}
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
    if flag is not None and name == "visual_criteria":
        return [word for each in value for word in (flag, each)]
    if flag is None or isinstance(value, list | dict):
        return [f"--set={name}={_as_setting(value)}"]
    if isinstance(value, bool):
        return [flag.split("/")[not value]]
    return [flag, str(value)]


def _as_setting(value: Any) -> str:
    """Write a value as `--set` reads it: JSON, or a text that is not JSON."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)


def with_changes(config: SessionConfig, changes: ResumeOptions) -> SessionConfig:
    """A session that is resumed with other limits; raises ValueError where they do not fit."""
    values = changes.options()
    if not values:
        return config
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
