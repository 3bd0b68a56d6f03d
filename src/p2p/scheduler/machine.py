"""What this machine has: cores and GPUs, the Python and its packages."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from p2p.training.cpu_manager import CPUManager, default_pool, lock_folder


def gpu_numbers() -> tuple[int, ...]:
    """Those this process may use: what CUDA_VISIBLE_DEVICES says, else all that are there."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        words = [word.strip() for word in visible.split(",") if word.strip()]
        if not all(word.isdigit() for word in words):
            raise ValueError(
                f"CUDA_VISIBLE_DEVICES={visible} names GPUs otherwise than by number; "
                "runs that ask for a GPU need numbers"
            )
        return tuple(int(word) for word in words)
    names = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return tuple(sorted(int(name) for name in names if name.isdigit()))


def gpu_manager() -> CPUManager:
    """Hands out GPUs as cores are handed out; raises ValueError where there are none."""
    numbers = gpu_numbers()
    if not numbers:
        raise ValueError("the run asks for a GPU, and this machine has none")
    # Slurm shares them out itself, and may number them from 0 in each of its jobs.
    name = f"gpus-{job}" if (job := os.environ.get("SLURM_JOB_ID")) else "gpus"
    return CPUManager(numbers, lock_folder() / name)


def machine(requirements: Iterable[str] = ()) -> dict[str, Any]:
    """What it is and has, and which of these requirements its Python lacks; extras aside."""
    import importlib.metadata  # slow, and every supervisor imports this file

    missing = []
    for requirement in requirements:
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            if "extra ==" not in requirement:
                importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return {
        "name": platform.node(),
        "cores": len(default_pool()),
        "gpus": len(gpu_numbers()),
        "python": platform.python_version(),
        "missing": missing,
        "rsync": shutil.which("rsync") is not None,
    }
