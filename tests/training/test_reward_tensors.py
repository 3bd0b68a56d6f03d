"""Rewards on tensors: NumPy's interface as a reward's module finds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from p2p.training.reward_tensors import DeviceNumpy, tensor_numpy

VALUES = np.array([-2.0, -0.3, 0.0, 0.7, 5.0], np.float32)
ON_DEVICE: Any = DeviceNumpy("cpu")


class Calls(TorchFunctionMode):
    """What torch is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds: list[Any] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in {"clamp", "clip"}:
            self.bounds += [*args[1:], *(kwargs or {}).values()]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((-0.3, 0.3), {}), ((0, 1), {}), ((None, 0.5), {}), ((0.5, None), {}),
        ((), {"min": -1.0, "max": 0.2}), ((np.float64(-1.5), np.float64(1.5)), {}),
        ((VALUES - 1, 0.6), {}), ((VALUES[2], VALUES + 1), {}),
    ],
)  # fmt: skip
def test_clip_on_tensors_gives_what_numpy_gives(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    expected = np.clip(VALUES, *args, **kwargs)
    found = ON_DEVICE.clip(tensor_numpy.asarray(VALUES), *args, **kwargs)
    np.testing.assert_allclose(found.tensor.numpy(), expected, rtol=1e-6)
    assert found.tensor.dtype == torch.float32


def test_bounds_that_are_numbers_stay_numbers() -> None:
    """As tensors on the CPU, a GPU's clamp refuses them, and the reward falls back to copies."""
    with Calls() as calls:
        ON_DEVICE.clip(tensor_numpy.asarray(VALUES), -0.3, 2 * 0.3)
    assert calls.bounds == [-0.3, 0.6]
