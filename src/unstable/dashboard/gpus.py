"""The GPUs of this machine, where there are any."""

from __future__ import annotations

import shutil
import subprocess

from unstable.dashboard.view import Gpu

FIELDS = "index,name,utilization.gpu,memory.used,memory.total,power.draw"
SECONDS = 5.0


def local_gpus() -> tuple[Gpu, ...]:
    """What `nvidia-smi` says; nothing where it is not installed or does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    command = [tool, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(said)


def parse_gpus(table: str) -> tuple[Gpu, ...]:
    """One GPU per line of comma-separated FIELDS; lines of another form are left out."""
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(FIELDS.split(",")) or not cells[0].isdigit():
            continue
        busy, used, total, watts = map(_number, cells[2:])
        found.append(
            Gpu(
                index=int(cells[0]),
                name=cells[1],
                busy=None if busy is None else busy / 100,
                used_gib=(used or 0.0) / 1024,
                total_gib=(total or 0.0) / 1024,
                watts=watts,
            )
        )
    return tuple(found)


def _number(cell: str) -> float | None:
    """Cards without a sensor say `[N/A]`."""
    try:
        return float(cell)
    except ValueError:
        return None
