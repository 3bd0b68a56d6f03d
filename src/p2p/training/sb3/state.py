"""The learner of the reference backend as plain arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecNormalize

Arrays = dict[str, NDArray[Any]]
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_learner(model: PPO, normalize: VecNormalize) -> Arrays:
    """Weights, Adam's moments, normalisation statistics and random states."""
    arrays = {f"weight/{name}": _array(value) for name, value in model.policy.state_dict().items()}
    for index, moments in model.policy.optimizer.state_dict()["state"].items():
        arrays |= {f"adam/{index}/{name}": _array(moments[name]) for name in MOMENTS}
    for name, statistics in _statistics(normalize).items():
        arrays[f"{name}/mean"] = np.asarray(statistics.mean, np.float64)
        arrays[f"{name}/var"] = np.asarray(statistics.var, np.float64)
        arrays[f"{name}/count"] = np.asarray(statistics.count, np.float64)
    arrays["random/torch"] = torch.get_rng_state().numpy().copy()
    # Stable-Baselines3 shuffles with numpy's global generator.
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    arrays["random/numpy_key"] = state["state"]["key"]
    arrays["random/numpy_pos"] = np.asarray(state["state"]["pos"], np.int64)
    return arrays


def load_learner(arrays: Mapping[str, NDArray[Any]], model: PPO, normalize: VecNormalize) -> None:
    """Continue where `save_learner` was called."""
    names = model.policy.state_dict().keys()
    model.policy.load_state_dict(
        {name: torch.from_numpy(arrays[f"weight/{name}"].copy()) for name in names}
    )
    optimizer = model.policy.optimizer.state_dict()
    optimizer["state"] = {
        index: {name: torch.from_numpy(arrays[f"adam/{index}/{name}"].copy()) for name in MOMENTS}
        for index in optimizer["param_groups"][0]["params"]
        if f"adam/{index}/step" in arrays  # Adam has no moments before its first step
    }
    model.policy.optimizer.load_state_dict(optimizer)
    for name, statistics in _statistics(normalize).items():
        statistics.mean = arrays[f"{name}/mean"].copy()
        statistics.var = arrays[f"{name}/var"].copy()
        statistics.count = float(arrays[f"{name}/count"])
    torch.set_rng_state(torch.from_numpy(arrays["random/torch"].copy()))
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    state["state"] = {
        "key": arrays["random/numpy_key"].copy(),
        "pos": int(arrays["random/numpy_pos"]),
    }
    np.random.set_state(state)  # noqa: NPY002


def _statistics(normalize: VecNormalize) -> dict[str, Any]:
    found: dict[str, Any] = {"returns": normalize.ret_rms}
    if normalize.norm_obs:
        found["observations"] = normalize.obs_rms
    return found


def _array(value: torch.Tensor) -> NDArray[Any]:
    return value.detach().cpu().numpy().copy()
