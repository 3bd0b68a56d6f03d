"""Launches of small Python programs, and how to wait for what becomes of them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from processes import is_there, wait_until

from p2p.scheduler.backends import Backend, BackendError
from p2p.scheduler.launch import LaunchFolder, RunStatus, launch_file
from p2p.scheduler.records import Launch, RunSpec

OVER = ("exited", "cancelled", "lost")


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
        self.launch(launch, secrets or {}, **options)
        return launch

    def launch(
        self,
        launch: Launch,
        secrets: Mapping[str, str] | None = None,
        python: str = sys.executable,
        **options: Any,
    ) -> None:
        file = launch_file(launch.spec, self.runs_dir, python, **options)
        self.at(launch).start(file, secrets or {}, python)

    def at(self, launch: Launch) -> LaunchFolder:
        return LaunchFolder(self.base, launch.launch_id)

    def folder(self, launch: Launch) -> Path:
        return self.runs_dir / launch.spec.folder

    def control(self, launch: Launch) -> Path:
        return self.at(launch).path

    def status(self, launch: Launch) -> RunStatus:
        return self.at(launch).status()

    def end(self, launch: Launch, *, seconds: float = 60.0) -> RunStatus:
        def over() -> RunStatus | None:
            seen = self.status(launch)
            return seen if seen.state in OVER else None

        return wait_until(over, seconds)

    def file(self, launch: Launch, name: str) -> str:
        """What stands in a file of the run, as soon as there is something."""
        path = self.folder(launch) / name
        return wait_until(lambda: path.read_text() if path.exists() else "")

    def log(self, launch: Launch) -> str:
        return self.at(launch).read_log().decode()


def alive(pids: Sequence[int]) -> list[int]:
    """Those that still run."""
    return [pid for pid in pids if is_there(pid)]


def supervisor_pid(control: Path) -> int:
    return int(json.loads((control / "claim").read_text())["pid"])


async def reach(backend: Backend, launch: Launch, *states: str, seconds: float = 90.0) -> RunStatus:
    """Its status, once it is in one of these states; of a node out of reach it is asked again."""
    deadline = time.monotonic() + seconds
    while True:
        seen: RunStatus | BackendError
        try:
            seen = await backend.status(launch)
            if seen.state in states:
                return seen
        except BackendError as error:
            seen = error
        assert time.monotonic() < deadline, f"{launch.launch_id} is not {states}, still {seen}"
        await asyncio.sleep(0.05)
