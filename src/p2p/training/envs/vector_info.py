"""Batched info in the form that Gymnasium's vector environments report it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from p2p.training.envs.batched_env import F64, Array, Bools


def masked(info: Mapping[str, Array], rows: Bools) -> dict[str, Any]:
    """Info that only these rows have: zero elsewhere, with a ``_key`` mask beside every key."""
    out: dict[str, Any] = {}
    for key, values in info.items():
        held = np.array(values)
        held[~rows] = 0
        out[key], out[f"_{key}"] = held, rows.copy()
    return out


def same_step_info(
    info: Mapping[str, Array], reset_info: Mapping[str, Array], next_obs: F64, ended: Bools
) -> dict[str, Any]:
    """Info of a step in which ended rows were reset, as SyncVectorEnv reports it.

    Ended rows show what their reset reported; the end of their episode is in ``final_obs`` and
    ``final_info``.
    """
    if not ended.any():
        return masked(info, ~ended)
    out = {} if ended.all() else masked(info, ~ended)
    for key, values in reset_info.items():
        if key in out:
            out[key][ended] = values[ended]
            out[f"_{key}"] |= ended
        else:
            out.update(masked({key: values}, ended))
    final_obs = np.full(len(ended), None, dtype=object)
    for i in np.flatnonzero(ended):
        final_obs[i] = next_obs[i].copy()
    out["final_obs"], out["_final_obs"] = final_obs, ended.copy()
    out["final_info"], out["_final_info"] = masked(info, ended), ended.copy()
    return out
