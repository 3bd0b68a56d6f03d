"""Resource limits that the kernel enforces on one process."""

from __future__ import annotations

import math
import resource

_ADDRESS_SPACE_SLACK = 64 << 30
"""Libraries reserve address space that they never touch; page tables are what this bounds."""

OPEN_FILES = 512


def apply(
    *, memory_bytes: int, disk_bytes: int, cpu_seconds: float | None, threads: int | None
) -> None:
    """Set the limits, hard, on this process.

    Args:
        memory_bytes: private memory; an allocation beyond it fails.
        disk_bytes: the size of any one file.
        cpu_seconds: of all threads together.
        threads: None where the limit would count other processes of the user, too.
    """
    wanted = [
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_AS, memory_bytes + _ADDRESS_SPACE_SLACK),
        (resource.RLIMIT_FSIZE, disk_bytes),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ]
    if threads is not None:
        wanted.append((resource.RLIMIT_NPROC, threads))
    for kind, value in wanted:
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))
    if cpu_seconds is not None:
        soft = max(1, math.ceil(cpu_seconds))
        resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 1))
