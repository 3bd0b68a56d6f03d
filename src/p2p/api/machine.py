"""How busy this machine is, read off the kernel."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from functools import lru_cache
from pathlib import Path

from p2p.api.schemas import CoreInfo, GpuInfo
from p2p.training.cpu_manager import CPUManager

SAME_READING_S = 0.5
GPU_QUERY = ("name", "utilization.gpu", "memory.used", "memory.total")


class _Busyness:
    """The share of time that each core was busy between two readings."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at, self._before = time.monotonic(), _ticks()
        self._shares: dict[int, float] = dict.fromkeys(self._before, 0.0)

    def shares(self) -> dict[int, float]:
        with self._lock:
            if time.monotonic() - self._at >= SAME_READING_S:
                now = _ticks()
                self._shares = {
                    core: (busy - self._before.get(core, (0, 0))[0])
                    / max(1, total - self._before.get(core, (0, 0))[1])
                    for core, (busy, total) in now.items()
                }
                self._at, self._before = time.monotonic(), now
            return self._shares


def _ticks() -> dict[int, tuple[int, int]]:
    """Busy and total ticks of each core since the machine started."""
    found = {}
    for line in Path("/proc/stat").read_text("ascii").splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu":
            counts = [int(number) for number in numbers[:8]]
            idle = counts[3] + counts[4]
            found[int(name[3:])] = (sum(counts) - idle, sum(counts))
    return found


@lru_cache(maxsize=1)
def _busyness() -> _Busyness:
    return _Busyness()


def cores() -> tuple[CoreInfo, ...]:
    """Each core that we may use, how busy it is, and whether a run of ours holds it."""
    manager = CPUManager()
    free, shares = set(manager.free_cores()), _busyness().shares()
    return tuple(
        CoreInfo(core=core, busy=min(1.0, max(0.0, shares.get(core, 0.0))), held=core not in free)
        for core in manager.pool
    )


def load() -> tuple[float, float, float]:
    """Processes that want to run: means over 1, 5 and 15 minutes."""
    return os.getloadavg()


def memory() -> tuple[int, int]:
    """Megabytes in use, and in all."""
    found = {}
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        name, value = line.split(":")
        found[name] = int(value.split()[0]) >> 10
    return found["MemTotal"] - found["MemAvailable"], found["MemTotal"]


def gpus() -> tuple[GpuInfo, ...]:
    """The graphics cards that NVIDIA's own tool sees; none where it is not installed."""
    command = ["nvidia-smi", f"--query-gpu={','.join(GPU_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found = []
    for line in said.splitlines():
        name, busy, used, total = (part.strip() for part in line.split(","))
        if busy.isdecimal() and used.isdecimal() and total.isdecimal():
            found.append(
                GpuInfo(
                    name=name,
                    busy=int(busy) / 100,
                    memory_used_mb=int(used),
                    memory_total_mb=int(total),
                )
            )
    return tuple(found)
