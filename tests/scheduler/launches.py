"""Launches of small Python programs, and how to wait for what becomes of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from p2p.scheduler import launching
from p2p.scheduler.processes import marked
from p2p.scheduler.records import Launch, LaunchReport, RunSpec

T = TypeVar("T")
OVER = ("exited", "cancelled", "lost")


def until(look: Callable[[], T | None], *, patience: float = 60.0) -> T:
    """Look until there is something to see."""
    deadline = time.monotonic() + patience
    while not (seen := look()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return seen


def python_launch(
    runs_dir: Path, code: str, *arguments: str, launch_id: str = "run.1", **fields: Any
) -> Launch:
    """A program in its own folder; `{python}` and the like are filled in."""
    spec = RunSpec(
        run_id=launch_id.rpartition(".")[0],
        folder=fields.pop("folder", f"jobs/{launch_id.rpartition('.')[0]}"),
        command=("{python}", "-c", code, *arguments),
        **fields,
    )
    return Launch(launch_id=launch_id, spec=spec, runs_dir=runs_dir)


class Machine:
    """A base folder and a runs folder, and the launches there."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "base"
        self.runs_dir = folder / "runs"
        self.launches: list[Launch] = []

    def start(
        self, code: str, *arguments: str, secrets: Mapping[str, str] | None = None, **fields: Any
    ) -> Launch:
        fields["secrets"] = fields.pop("secrets_named", ())
        options = {name: fields.pop(name) for name in ("lease_s", "grace_s") if name in fields}
        launch = python_launch(self.runs_dir, code, *arguments, **fields)
        self.launches.append(launch)
        launching.start(self.base, launch, self.runs_dir, secrets or {}, sys.executable, **options)
        return launch

    def folder(self, launch: Launch) -> Path:
        return self.runs_dir / launch.spec.folder

    def control(self, launch: Launch) -> Path:
        return self.base / "launches" / launch.launch_id

    def report(self, launch: Launch) -> LaunchReport:
        return launching.report(self.base, launch.launch_id)

    def end(self, launch: Launch, *, patience: float = 60.0) -> LaunchReport:
        def over() -> LaunchReport | None:
            seen = self.report(launch)
            return seen if seen.state in OVER else None

        return until(over, patience=patience)

    def file(self, launch: Launch, name: str) -> str:
        """What stands in a file of the run, as soon as there is something."""
        path = self.folder(launch) / name
        return until(lambda: path.read_text() if path.exists() else "")

    def log(self, launch: Launch) -> str:
        return launching.read_log(self.base, launch.launch_id).decode()


def alive(pids: Sequence[int]) -> list[int]:
    """Those that still run."""
    found = []
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        if stat.rpartition(")")[2].split()[0] not in "ZX":
            found.append(pid)
    return found


def attendant_pid(control: Path) -> int:
    import json

    return int(json.loads((control / "claim").read_text())["pid"])


def marked_by(launch: Launch, base: Path) -> list[int]:
    from p2p.scheduler.control import Control

    return [pid for pid in marked(Control(base, launch.launch_id).marks) if pid != os.getpid()]
