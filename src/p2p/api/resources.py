"""How busy this machine is: now, and over the last minutes."""

from __future__ import annotations

import subprocess
import time
from collections import deque

import psutil

from p2p.api.schemas import GpuInfo, ResourceSample

GPU_QUERY = "--query-gpu=name,utilization.gpu,memory.used,memory.total"
KEPT = 600
GPUS_EVERY_S = 5.0
"""To ask for the GPUs is a process of its own: less often than the rest."""


class ResourceHistory:
    """Samples of the last minutes; whoever keeps it calls `sample` every second or so."""

    def __init__(self) -> None:
        self.core_percent: list[float] = []
        """How busy each core was between the last two samples."""
        self._samples: deque[ResourceSample] = deque(maxlen=KEPT)
        self._gpus: tuple[float, ...] = ()
        self._gpus_at = float("-inf")

    def sample(self) -> None:
        now = time.time()
        if now - self._gpus_at >= GPUS_EVERY_S:
            self._gpus, self._gpus_at = tuple(gpu.busy for gpu in list_gpus()), now
        is_first = not self.core_percent
        self.core_percent = psutil.cpu_percent(percpu=True)
        if is_first:  # there is nothing yet that it could be a share of
            return
        memory = psutil.virtual_memory()
        self._samples.append(
            ResourceSample(
                time=now,
                cpu=sum(self.core_percent) / max(len(self.core_percent), 1) / 100,
                memory=1 - memory.available / memory.total,
                gpus=self._gpus,
            )
        )

    def samples(self) -> list[ResourceSample]:
        return list(self._samples)


def list_gpus() -> tuple[GpuInfo, ...]:
    """The GPUs that nvidia-smi lists; none where it is not installed."""
    command = ["nvidia-smi", GPU_QUERY, "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    gpus = []
    for line in output.stdout.splitlines():
        name, *numbers = (part.strip() for part in line.split(","))
        if len(numbers) == 3 and all(number.isdecimal() for number in numbers):
            busy, used, total = map(int, numbers)
            gpus.append(
                GpuInfo(name=name, busy=busy / 100, memory_used_mb=used, memory_total_mb=total)
            )
    return tuple(gpus)
