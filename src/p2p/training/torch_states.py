"""Torch's weights, optimisers and random generators as arrays, for saved states."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from p2p.training.checkpoints import Arrays, part

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def to_array(tensor: torch.Tensor) -> NDArray[Any]:
    return np.array(tensor.detach().cpu().numpy())


def to_tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def save_weights(module: torch.nn.Module) -> Arrays:
    return {name: to_array(value) for name, value in module.state_dict().items()}


def load_weights(module: torch.nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    module.load_state_dict({name: to_tensor(array) for name, array in arrays.items()})


def save_adam(optimizer: torch.optim.Optimizer) -> Arrays:
    """The moments of every parameter; none before the first step."""
    states = optimizer.state_dict()["state"].items()
    return {f"{i}/{name}": to_array(state[name]) for i, state in states for name in MOMENTS}


def load_adam(optimizer: torch.optim.Optimizer, arrays: Mapping[str, NDArray[Any]]) -> None:
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for key, array in arrays.items():
        index, _, name = key.partition("/")
        moments.setdefault(int(index), {})[name] = to_tensor(array)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})


def save_generators() -> Arrays:
    """The process's generators: torch's on the CPU and on every GPU, NumPy's and Python's."""
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    _, words, gauss = random.getstate()
    arrays = {
        "torch": torch.get_rng_state().numpy().copy(),
        "numpy_key": numpy_state["state"]["key"],
        "numpy_pos": np.asarray(numpy_state["state"]["pos"], np.int64),
        "numpy_gauss": np.array([numpy_state["has_gauss"], numpy_state["gauss"]]),
        "python": np.array(words, np.int64),
        "python_gauss": np.array([] if gauss is None else [gauss]),
    }
    states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return arrays | {f"cuda/{i}": to_array(state) for i, state in enumerate(states)}


def load_generators(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Continue those generators that were saved; states of earlier versions have fewer."""
    if "torch" in arrays:
        torch.set_rng_state(to_tensor(arrays["torch"]))
    for index, state in part("cuda", arrays).items():
        if int(index) < torch.cuda.device_count():
            torch.cuda.set_rng_state(to_tensor(state), int(index))
    if "numpy_key" in arrays:
        numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
        key, position = arrays["numpy_key"].copy(), int(arrays["numpy_pos"])
        numpy_state["state"] = {"key": key, "pos": position}
        if "numpy_gauss" in arrays:
            has_gauss, gauss = arrays["numpy_gauss"].tolist()
            numpy_state |= {"has_gauss": int(has_gauss), "gauss": gauss}
        np.random.set_state(numpy_state)  # noqa: NPY002
    if "python" in arrays:
        gauss = next(iter(arrays["python_gauss"].tolist()), None)
        random.setstate((3, tuple(arrays["python"].tolist()), gauss))
