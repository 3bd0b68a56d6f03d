"""The kernels for a GPU, where there is Triton."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from torch import Tensor


@cache
def gpu_kernels() -> ModuleType | None:
    """Those of the learner; None: there is no Triton."""
    try:
        return import_module("unstable.learners.kernels")
    except ModuleNotFoundError:
        return None


def kernels_for(x: Tensor) -> ModuleType | None:
    return gpu_kernels() if x.is_cuda else None
