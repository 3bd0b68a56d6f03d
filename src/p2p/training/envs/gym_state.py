"""Saving and loading single Gymnasium MuJoCo environments as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from gymnasium.wrappers import TimeLimit
from mujoco.batch import DATA_FIELDS

from p2p.training.envs.batched_env import generator_from_array, generator_to_array
from p2p.training.envs.mujoco_engines import FULL_STATE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from p2p.training.envs.batched_env import F64, Array


def save_rows(envs: Sequence[Any]) -> dict[str, Array]:
    """Physics, generators and time limits of environments of one kind, (N, ...) each."""
    bases = [env.unwrapped for env in envs]
    model, rows = bases[0].model, [base.data for base in bases]
    states: F64 = np.zeros((len(envs), mujoco.mj_stateSize(model, FULL_STATE)))
    for data, state in zip(rows, states, strict=True):
        mujoco.mj_getState(model, data, state, FULL_STATE)
    return {
        "state": states,
        "elapsed": np.array([_time_limit(env)._elapsed_steps for env in envs]),  # noqa: SLF001
        "rng": np.stack([generator_to_array(base.np_random) for base in bases]),
        # Environments compare with fields of the step before, which a state does not determine.
        **{f"data.{name}": np.stack([getattr(d, name) for d in rows]) for name in _arrays(rows[0])},
    }


def load_rows(envs: Sequence[Any], saved: Mapping[str, Array]) -> None:
    """Bring environments to where save_rows() found others of their kind."""
    for i, env in enumerate(envs):
        base = env.unwrapped
        env.reset()
        mujoco.mj_resetData(base.model, base.data)
        for name in _arrays(base.data):
            getattr(base.data, name)[...] = saved[f"data.{name}"][i]
        mujoco.mj_setState(base.model, base.data, saved["state"][i], FULL_STATE)
        base.np_random = generator_from_array(saved["rng"][i])
        _time_limit(env)._elapsed_steps = int(saved["elapsed"][i])  # noqa: SLF001


def _time_limit(env: Any) -> Any:
    while not isinstance(env, TimeLimit):
        env = env.env
    return env


def _arrays(data: mujoco.MjData) -> list[str]:
    return [name for name in sorted(DATA_FIELDS) if isinstance(getattr(data, name), np.ndarray)]
