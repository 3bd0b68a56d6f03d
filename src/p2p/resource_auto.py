"""How many runs fit on this machine side by side, and with how many cores and threads each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

MEMORY_PER_RUN = 1_500_000_000
"""What a run with 64 environments stays under; benchmarks/ppo_throughput.py prints the reading."""


@dataclass(frozen=True)
class Machine:
    """What this process may use."""

    cores: int
    memory_bytes: int


@dataclass(frozen=True)
class Allocation:
    """How the runs of an iteration share the machine."""

    parallel: int
    cores_per_run: int


def detect_machine() -> Machine:
    """Cores this process may run on (and its cgroup grants), and the memory that is available."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_cores()
    return Machine(
        cores=max(1, min(cores, quota) if quota else cores),
        memory_bytes=psutil.virtual_memory().available,
    )


def _cgroup_cores() -> int | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


def find_best_allocation(
    runs: int, machine: Machine | None = None, *, cores_per_run: int = 0, max_parallel: int = 0
) -> Allocation:
    """The allocation that finishes `runs` equal runs soonest.

    One run gains little from a second thread while its update is on one, so runs side by side
    come first, and what is left over is shared out as threads. A positive argument is an order.
    """
    if runs < 1:
        raise ValueError("at least one run is needed")
    machine = machine or detect_machine()
    by_memory = max(1, machine.memory_bytes // MEMORY_PER_RUN)
    by_cores = max(1, machine.cores // max(1, cores_per_run))
    parallel = min(runs, by_memory, by_cores)
    if max_parallel > 0:
        parallel = min(parallel, max_parallel)
    # The same number of rounds with fewer runs at once leaves more cores to each.
    rounds = -(-runs // parallel)
    parallel = -(-runs // rounds)
    return Allocation(parallel, cores_per_run or max(1, machine.cores // parallel))
