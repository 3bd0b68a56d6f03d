"""Settings that are known to work for each environment, from `presets.toml`."""

from __future__ import annotations

import math
import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from p2p.config import TUNABLE_BOUNDS, TrainConfig, engine_of
from p2p.contracts import field_error
from p2p.sandbox import gpu
from p2p.training.engines.facts import engine_preset
from p2p.training.engines.table import is_engine
from p2p.training.env_spec import get_env_spec
from p2p.training.model_files.store import is_model

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHORTEST_ROLLOUT = 16
_FASTEST_RATE = TUNABLE_BOUNDS["learning_rate"][1]
_TABLES: Mapping[str, Any] = tomllib.loads(
    files("p2p.training").joinpath("presets.toml").read_text("utf-8")
)


def _read_table(name: str) -> dict[str, dict[str, Any]]:
    """Each row of a table, with the fields of the styles that it is like."""
    rows = {}
    for key, row in _TABLES[name].items():
        fields: dict[str, Any] = {}
        for style in row.get("like", ()):
            fields |= _TABLES["style"][style]
        fields |= {field: value for field, value in row.items() if field != "like"}
        rows[key] = {f: tuple(v) if isinstance(v, list) else v for f, v in fields.items()}
    return rows


PRESETS = _read_table("preset")
"""What RL Baselines3 Zoo publishes for PPO."""
QUICK = _read_table("quick")
"""What learns a first recognisable motion in little time."""
EVALUATION: Mapping[str, Any] = _read_table("style")["evaluation"]
"""Of the runs of a session."""
MORPHOLOGIES = _read_table("morphology")
"""What learns a first motion on a model file, by what kind of robot it is; see `morphology_row`."""
_QUICK_PPO, _QUICK_OTHERS = _read_table("quick_ppo"), _read_table("quick_other")
_QUICK_MINIBATCHES, _SMALLEST_MINIBATCH = 16, 128


def preset_for(env_id: str) -> dict[str, Any]:
    """Fields of TrainConfig for this environment; none where nothing is tuned.

    Those of an engine are its own; the engine may have to start to tell them.
    """
    if is_engine(engine := engine_of(env_id)):
        return {"num_envs": ENGINE_ENVS, **engine_preset(engine, env_id)}
    return dict(PRESETS.get(env_id.rpartition("-v")[0] or env_id, {}))


ENGINE_ENVS, ENGINE_STEPS = 64, 300_000
"""Of a run on an engine without a GPU: what a core steps in minutes."""
GPU_ENVS, GPU_STEPS, GPU_ROLLOUT = 16_384, 60_000_000, 12
"""The same with a GPU, where more environments cost little time until it is full. Rollouts are
short, or there would be few updates in so many steps."""
GPU_UPDATES = math.ceil(GPU_STEPS / (GPU_ENVS * GPU_ROLLOUT))
"""No more than these where fewer environments are asked for, or it would take hours."""


def _gpu_settings(base: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an engine's settings become where there is a GPU, unless the CPU is asked for."""
    if fields.get("device", "auto") == "cpu" or not gpu.present():
        return {}
    num_envs = int(fields.get("num_envs", GPU_ENVS))
    num_steps = int(base.get("num_steps", GPU_ROLLOUT))
    if num_envs >= GPU_ENVS:
        num_steps = min(num_steps, GPU_ROLLOUT)
    batch = num_envs * int(fields.get("num_steps", num_steps))
    steps = min(GPU_STEPS, GPU_UPDATES * batch)
    return {
        "num_envs": GPU_ENVS,
        "num_steps": num_steps,
        "total_timesteps": steps,
        "checkpoint_interval": max(1, int(fields.get("total_timesteps", steps)) // 6),
        "num_evals": 3,  # each takes as long as five million steps
        "num_eval_envs": EVALUATION["num_eval_envs"],  # not one for each that trains
    }


def _engine_config(fields: dict[str, Any]) -> TrainConfig:
    """The engine's own settings; minibatches follow the number of environments."""
    known = TrainConfig.model_fields
    for name in ("num_steps", "num_minibatches"):  # not every id has settings of its own
        fields.setdefault(name, known[name].default)
    batch = int(fields["num_envs"]) * int(fields["num_steps"])
    fields["num_minibatches"] = _largest_divisor(batch, int(fields["num_minibatches"]))
    return TrainConfig.model_validate(fields)


def _largest_divisor(number: int, limit: int) -> int:
    return next(d for d in range(max(1, min(limit, number)), 0, -1) if number % d == 0)


def _fit_rollout(base: TrainConfig, num_envs: int) -> dict[str, Any]:
    """The rollout of `base` from another number of environments.

    The steps per update stay as they are, unless too few would be left for each environment.
    """
    num_steps = max(round(base.batch_size / num_envs), min(_SHORTEST_ROLLOUT, base.num_steps))
    return {"num_envs": num_envs, "num_steps": num_steps}


def _fit_minibatches(base: TrainConfig, num_envs: int, num_steps: int) -> dict[str, Any]:
    """Fit an update of another size.

    The minibatch keeps its size; where the update has grown it grows with the square root of that,
    and the learning rate with the square root of the minibatch.
    """
    batch = num_envs * num_steps
    growth = max(1.0, batch / base.batch_size)
    size = base.minibatch_size * growth**0.5
    rate = min(base.learning_rate * growth**0.25, max(_FASTEST_RATE, base.learning_rate))
    count = _largest_divisor(batch, max(1, round(batch / size)))
    return {"num_minibatches": count, "learning_rate": rate}


def check_preset(env_id: str, name: str) -> None:
    """Raise the error of a field `name` where nothing is tuned for the environment."""
    if not preset_for(env_id):
        known = ", ".join(PRESETS)
        raise field_error(name, f"no preset for {env_id}; there are presets for {known}")


def _check_given(env_id: str, overrides: Mapping[str, Any]) -> None:
    """Faults of the given values first: fitting a preset to them would stumble over them."""
    TrainConfig.model_validate({**overrides, "env_id": env_id, "num_minibatches": 1})


def config_from_preset(env_id: str, **overrides: Any) -> TrainConfig:
    """The preset as a TrainConfig; what is given counts, and what depends on it is fitted to it.

    With another `num_envs` the rollout is shortened, and with another size of update the
    minibatches (and, for larger updates, the learning rate) follow, unless they are given too.
    """
    if overrides.get("algorithm", "ppo") == "sac":
        return TrainConfig.model_validate(
            {"env_id": env_id, **_QUICK_OTHERS["sac"], "total_timesteps": 1_000_000, **overrides}
        )
    _check_given(env_id, overrides)
    if is_engine(engine_of(env_id)):
        own = preset_for(env_id)
        return _engine_config(
            {"env_id": env_id, **own, **_gpu_settings(own, overrides), **overrides}
        )
    base = TrainConfig.model_validate({"env_id": env_id, **preset_for(env_id)})
    fitted: dict[str, Any] = {}
    if overrides.get("num_envs", base.num_envs) != base.num_envs:
        fitted |= _fit_rollout(base, int(overrides["num_envs"]))
    shape = {"num_envs": base.num_envs, "num_steps": base.num_steps, **fitted, **overrides}
    if shape["num_envs"] * shape["num_steps"] != base.batch_size:
        fitted |= _fit_minibatches(base, shape["num_envs"], shape["num_steps"])
    return base.with_updates(**{**fitted, **overrides})


def morphology_row(env_id: str) -> dict[str, Any] | None:
    """Return the settings for a model file's robot, or None for other environments.

    By how its base moves (not at all, in a plane, freely, or without weight, as what swims) and by
    the number of its actuators.
    """
    if not is_model(env_id):
        return None
    spec = get_env_spec(env_id)
    moves = any(joint.type == "free" for joint in spec.joints) or spec.z_height_qpos_idx is not None
    if spec.feet:
        base = "free" if spec.uses_quaternion_orientation else "plane"
    else:
        base = "loose" if moves or spec.fluid[0] else "fixed"
    rows = {name: row for name, row in MORPHOLOGIES.items() if name.startswith(base)}
    return next(
        {k: v for k, v in row.items() if k != "up_to"}
        for row in rows.values()
        if len(spec.actions) <= row.get("up_to", math.inf)
    )


def quick_config(env_id: str, **overrides: Any) -> TrainConfig:
    """Settings that learn a first recognisable motion in little time, for iterating on rewards.

    They depend on environment and algorithm, and on an engine also on `device` and whether there is
    a GPU here. For long runs, see `config_from_preset`.
    """
    if is_engine(engine_of(env_id)):
        _check_given(env_id, overrides)
        own = preset_for(env_id)
        steps = {"total_timesteps": ENGINE_STEPS}
        quick = {**own, **steps, **_gpu_settings(own, overrides), **EVALUATION}
        return _engine_config({"env_id": env_id, **quick, **overrides})
    name = env_id.rpartition("-v")[0] or env_id
    row = QUICK.get(name) or morphology_row(env_id) or _QUICK_OTHERS["ppo"]
    algorithm = overrides.get("algorithm", row["algorithm"])
    if algorithm == "ppo":
        row = _QUICK_PPO.get(name, row)
    elif algorithm != row["algorithm"]:
        row = _QUICK_OTHERS.get(str(algorithm), row)
    values = {"env_id": env_id, **row, **overrides}
    if algorithm == "ppo" and "num_minibatches" not in overrides:
        batch = int(values["num_envs"]) * int(values["num_steps"])
        most = min(_QUICK_MINIBATCHES, batch // _SMALLEST_MINIBATCH)
        values["num_minibatches"] = _largest_divisor(batch, most)
    return TrainConfig.model_validate(values)


def run_config(env_id: str, fields: Mapping[str, Any], *, preset: bool = False) -> TrainConfig:
    """The configuration of a training run; a preset gives way to what `fields` say.

    None: not given. An environment of an engine always begins from its preset.
    """
    fields = {name: value for name, value in fields.items() if value is not None}
    if not (preset or is_engine(engine_of(env_id))):
        return TrainConfig.model_validate({**fields, "env_id": env_id})
    chosen = config_from_preset(env_id, **{k: v for k, v in fields.items() if k != "env_id"})
    check_preset(chosen.env_id, "preset")
    return chosen
