"""PPO hyperparameters that are known to work, for each environment.

The values are those that RL Baselines3 Zoo publishes for PPO (hyperparams/ppo.yml). The zoo tuned
with one environment; here the same number of steps per update is collected from several side by
side, with the same minibatch size, so that an update sees as much data as it was tuned for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from p2p.config import TUNABLE_BOUNDS, TrainConfig, engine_of
from p2p.contracts import field_error
from p2p.sandbox import gpu
from p2p.training.engines.facts import engine_preset
from p2p.training.engines.table import is_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUM_ENVS = 8
_SHORTEST_ROLLOUT = 16
_FASTEST_RATE = TUNABLE_BOUNDS["learning_rate"][1]


def _tuned(
    *, batch: int, minibatch: int, num_envs: int = _NUM_ENVS, **fields: Any
) -> dict[str, Any]:
    return {
        "num_envs": num_envs,
        "num_steps": batch // num_envs,
        "num_minibatches": batch // minibatch,
        "clip_vloss": False,
        "normalize_obs": True,
        "normalize_reward": True,
        **fields,
    }


_WIDE: Mapping[str, Any] = {
    "net_arch": (256, 256),
    "activation": "relu",
    "ortho_init": False,
    "log_std_init": -2.0,
}
"""The network that the zoo gives to some of the environments; the others have SB3's own."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "HalfCheetah": _tuned(
        batch=512, minibatch=64, update_epochs=20, learning_rate=2.0633e-05, gamma=0.98,
        gae_lambda=0.92, clip_coef=0.1, ent_coef=0.000401762, vf_coef=0.58096, max_grad_norm=0.8,
        **_WIDE,
    ),
    "Ant": _tuned(
        # The defaults of Stable-Baselines3: the zoo keeps its tuned values only as a comment.
        batch=2048, minibatch=64, update_epochs=10, learning_rate=3e-4, gamma=0.99, gae_lambda=0.95,
        clip_coef=0.2, ent_coef=0.0, vf_coef=0.5, max_grad_norm=0.5,
    ),
    "Hopper": _tuned(
        batch=512, minibatch=32, update_epochs=5, learning_rate=9.80828e-05, gamma=0.999,
        gae_lambda=0.99, clip_coef=0.2, ent_coef=0.00229519, vf_coef=0.835671, max_grad_norm=0.7,
        **_WIDE,
    ),
    "Walker2d": _tuned(
        batch=512, minibatch=32, update_epochs=20, learning_rate=5.05041e-05, gamma=0.99,
        gae_lambda=0.95, clip_coef=0.1, ent_coef=0.000585045, vf_coef=0.871923, max_grad_norm=1.0,
    ),
    "Humanoid": _tuned(
        batch=512, minibatch=256, update_epochs=5, learning_rate=3.56987e-05, gamma=0.95,
        gae_lambda=0.9, clip_coef=0.3, ent_coef=0.00238306, vf_coef=0.431892, max_grad_norm=2.0,
        total_timesteps=10_000_000, **_WIDE,
    ),
    "HumanoidStandup": _tuned(
        batch=512, minibatch=32, update_epochs=20, learning_rate=2.55673e-05, gamma=0.99,
        gae_lambda=0.9, clip_coef=0.3, ent_coef=3.62109e-06, vf_coef=0.430793, max_grad_norm=0.7,
        total_timesteps=10_000_000, **_WIDE,
    ),
    "Swimmer": _tuned(
        num_envs=4, batch=4096, minibatch=256, update_epochs=10, learning_rate=6e-4, gamma=0.9999,
        gae_lambda=0.98, clip_coef=0.2, ent_coef=0.0, vf_coef=0.5, max_grad_norm=0.5,
    ),
    "Reacher": _tuned(
        batch=512, minibatch=32, update_epochs=5, learning_rate=0.000104019, gamma=0.9,
        gae_lambda=1.0, clip_coef=0.3, ent_coef=7.52585e-08, vf_coef=0.950368, max_grad_norm=0.9,
    ),
    "InvertedPendulum": _tuned(
        # The zoo asks for minibatches of 64, but an update has 32 steps: one minibatch.
        num_envs=2, batch=32, minibatch=32, update_epochs=5, learning_rate=0.000222425, gamma=0.999,
        gae_lambda=0.9, clip_coef=0.4, ent_coef=1.37976e-07, vf_coef=0.19816, max_grad_norm=0.3,
    ),
    "InvertedDoublePendulum": _tuned(
        # As above: 512 asked for, 128 there.
        batch=128, minibatch=128, update_epochs=10, learning_rate=0.000155454, gamma=0.98,
        gae_lambda=0.8, clip_coef=0.4, ent_coef=1.05057e-06, vf_coef=0.695929, max_grad_norm=0.5,
    ),
}  # fmt: skip
"""By the name of the environment without its version; the zoo has none for Pusher."""


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


def _on_gpu(base: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """What an engine's settings become where there is a GPU, unless the CPU is asked for."""
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


def _spread(base: TrainConfig, num_envs: int) -> dict[str, Any]:
    """The rollout of `base` from another number of environments.

    The steps per update stay as they are, unless too few would be left for each environment.
    """
    num_steps = max(round(base.batch_size / num_envs), min(_SHORTEST_ROLLOUT, base.num_steps))
    return {"num_envs": num_envs, "num_steps": num_steps}


def _minibatches(base: TrainConfig, num_envs: int, num_steps: int) -> dict[str, Any]:
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
        raise field_error(name, f"there is none for {env_id}, only for {known}; leave it out")


def _check_given(env_id: str, overrides: Mapping[str, Any]) -> None:
    """Faults of the given values first: fitting a preset to them would stumble over them."""
    TrainConfig.model_validate({**overrides, "env_id": env_id, "num_minibatches": 1})


def config_from_preset(env_id: str, **overrides: Any) -> TrainConfig:
    """The preset as a TrainConfig; what is given counts, and what depends on it is fitted to it.

    With another `num_envs` the rollout is shortened, and with another size of update the
    minibatches (and, for larger updates, the learning rate) follow, unless they are given too.
    """
    if overrides.get("algorithm", "ppo") == "sac":
        return TrainConfig.model_validate({"env_id": env_id, **_sac(1_000_000), **overrides})
    _check_given(env_id, overrides)
    if is_engine(engine_of(env_id)):
        own = preset_for(env_id)
        return _engine_config({"env_id": env_id, **own, **_on_gpu(own, overrides), **overrides})
    base = TrainConfig.model_validate({"env_id": env_id, **preset_for(env_id)})
    fitted: dict[str, Any] = {}
    if overrides.get("num_envs", base.num_envs) != base.num_envs:
        fitted |= _spread(base, int(overrides["num_envs"]))
    shape = {"num_envs": base.num_envs, "num_steps": base.num_steps, **fitted, **overrides}
    if shape["num_envs"] * shape["num_steps"] != base.batch_size:
        fitted |= _minibatches(base, shape["num_envs"], shape["num_steps"])
    return base.with_updates(**{**fitted, **overrides})


# --- quick learning -----------------------------------------------------------------------------


_QUICK_MINIBATCHES, _SMALLEST_MINIBATCH = 16, 128


EVALUATION: Mapping[str, Any] = {
    "num_eval_envs": 8, "num_eval_rounds": 1, "judgment_select": "best",
}  # fmt: skip
"""Of the runs of a session: a curve to see where it goes, whose best point counts, since the last
may be a stumble."""


def _quick(steps: int, **others: Any) -> dict[str, Any]:
    return {
        "algorithm": "ppo",
        "total_timesteps": steps,
        "num_envs": 16,
        "num_steps": 128,
        "update_epochs": 10,
        "learning_rate": 6e-4,
        "gamma": 0.98,
        "gae_lambda": 0.95,
        "log_std_init": -1.0,
        **EVALUATION,
        **others,
    }


def _sac(steps: int) -> dict[str, Any]:
    """Updates cost most of its time, so its steps are fewer than PPO's."""
    return {
        "algorithm": "sac",
        "total_timesteps": steps,
        "num_envs": 16,
        "num_steps": 128,
        "net_arch": (128, 128),
        "learning_rate": 5e-4,
        "gamma": 0.99,
        **EVALUATION,
    }


_CAREFUL: Mapping[str, Any] = {"gamma": 0.99, "num_steps": 256, "learning_rate": 3e-4}
"""For many joints: with smaller updates at a higher rate, each moves the policy far too much (a KL
divergence of 0.1 to 0.5 on Ant, against 0.02), and it forgets how to stay up."""

_BOLD: Mapping[str, Any] = {"gamma": 0.99, "learning_rate": 3e-4, "log_std_init": 0.0}
"""For what falls at the first wrong move: with a third of the noise and twice the rate, a Hopper
settles within 100,000 steps on two hops and a fall."""

QUICK: Mapping[str, Mapping[str, Any]] = {
    "HalfCheetah": _quick(300_000),
    "Ant": _quick(600_000, **_CAREFUL),
    "Hopper": _quick(400_000, **_BOLD),
    "Walker2d": _quick(600_000, **_BOLD),
    "Humanoid": _sac(300_000),  # PPO does not learn to stand in a million steps
    "HumanoidStandup": _sac(150_000),
    "Swimmer": _quick(400_000, gamma=0.9999, gae_lambda=0.98, log_std_init=0.0),
    "Reacher": _quick(200_000, gamma=0.95),
    "Pusher": _quick(800_000, gamma=0.95),
    "InvertedPendulum": _quick(60_000, **_BOLD),
    "InvertedDoublePendulum": _quick(250_000, **_BOLD),
}
"""Measured with the rewards of the built-in author: enough steps to see a motion, on one core in
a minute or a few. By the name of the environment without its version."""
_QUICK_PPO: Mapping[str, Mapping[str, Any]] = {
    "Humanoid": _quick(1_000_000, **_CAREFUL),
    "HumanoidStandup": _quick(500_000, **_CAREFUL),
}
"""Where QUICK has SAC, and PPO is asked for."""
_QUICK_OTHERS: Mapping[str, Mapping[str, Any]] = {
    "ppo": _quick(500_000, gamma=0.99),
    "sac": _sac(300_000),
}
"""By algorithm: for environments and algorithms that are not in QUICK."""


def quick_config(env_id: str, **overrides: Any) -> TrainConfig:
    """Settings that learn a first recognisable motion in little time, for iterating on rewards.

    They depend on environment and algorithm, and on an engine also on `device` and whether there is
    a GPU here. For long runs, see `config_from_preset`.
    """
    if is_engine(engine_of(env_id)):
        _check_given(env_id, overrides)
        own = preset_for(env_id)
        steps = {"total_timesteps": ENGINE_STEPS}
        quick = {**own, **steps, **_on_gpu(own, overrides), **EVALUATION}
        return _engine_config({"env_id": env_id, **quick, **overrides})
    name = env_id.rpartition("-v")[0] or env_id
    row = QUICK.get(name, _QUICK_OTHERS["ppo"])
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
