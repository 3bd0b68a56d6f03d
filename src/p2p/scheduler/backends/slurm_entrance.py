"""How launches get into Slurm's queue, and under which name they are found there."""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets as random_numbers
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p import files
from p2p.scheduler import halves, launching
from p2p.scheduler.backends.slurm_queue import Place, call
from p2p.scheduler.backends.slurm_submit import Order
from p2p.scheduler.backends.together import Together
from p2p.scheduler.control import Control
from p2p.scheduler.node_bootstrap import unpack
from p2p.scheduler.package_wheel import build_wheel
from p2p.scheduler.records import NodeConfig, RunSpec

TOGETHER_S = 0.05
"""What is handed in within this time may share an array."""
LARGEST_ARRAY = 1000
"""Slurm's own default is 1001."""
GRACE_S = 20.0
"""Less than Slurm's KillWait, 30 s by default, after which it kills the attendant, too."""
OWN_TO_A_MACHINE = {
    "XDG_RUNTIME_DIR", "TMPDIR", "CUDA_VISIBLE_DEVICES", "P2P_LAUNCH_ID", "P2P_CORE_LOCKS",
    "PYTHONPATH",
}  # fmt: skip
_NOTE = "slurm.json"
"""In the control folder: the name of the job, its index in an array, its number once it has one."""


def read_note(control: Control) -> dict[str, Any] | None:
    """What was noted when the launch was handed in; None if it was not."""
    try:
        note: dict[str, Any] = json.loads((control.path / _NOTE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return note


def place_of(note: Mapping[str, Any]) -> Place:
    """Where in the queue to look for it."""
    return Place(note["name"], note["index"])


def forget_job(base: Path, note: Mapping[str, Any]) -> None:
    """Remove submitit's files of a job that is over; its script goes with the last of an array."""
    folder = base / "slurm" / str(note["name"])
    for path in folder.glob(f"{note['job_id']}_*"):
        path.unlink(missing_ok=True)
    if not any(folder.glob("*.pkl")):
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Kind:
    """What launches in one array have in common."""

    cores: int
    gpus: int
    minutes: int | None
    secrets: tuple[tuple[str, str], ...]


class Entrance:
    """Hands launches in, those of a kind that come together as one array.

    Args:
        base: the folder of ours that all nodes see.
        node: the cluster.
    """

    def __init__(self, base: Path, node: NodeConfig) -> None:
        self.base = base
        self.python = node.python or sys.executable
        self._partition = node.partition
        self._together = Together(self.hand_in_all, wait_s=TOGETHER_S, most=LARGEST_ARRAY)

    async def hand_in(self, control: Control, spec: RunSpec, secrets: Mapping[str, str]) -> None:
        """Give a prepared launch to Slurm; raises SlurmError."""
        given = tuple((name, secrets[name]) for name in spec.secrets if name in secrets)
        kind = Kind(spec.cores, spec.gpus, _minutes(spec.time_limit_s), given)
        await self._together.add(kind, control)

    async def hand_in_all(self, kind: Kind, controls: Sequence[Control]) -> None:
        """Give launches of one kind to Slurm, as one job."""
        group = list({control.launch_id: control for control in controls}.values())
        environment = _environment()
        if kind.secrets:
            first, second = halves.cut(dict(kind.secrets))
            environment[halves.VARIABLE] = first
            for control in group:
                halves.lay_down(control.path, first, second)
        # Noted before the job is there, so that it is found by its name after a crash.
        notes = _notes(f"p2p-{self.base.name}", group)
        for control, note in zip(group, notes, strict=True):
            files.write_json(control.path / _NOTE, note)
        name = notes[0]["name"]
        order = Order(
            base=str(self.base),
            launch_ids=tuple(control.launch_id for control in group),
            folder=str(self.base / "slurm" / name),
            name=name,
            python=self.python,
            python_path=await asyncio.to_thread(self._package),
            cores=kind.cores,
            gpus=kind.gpus,
            minutes=kind.minutes,
            partition=self._partition,
            variables=tuple(environment),
        )
        cluster = {k: v for k, v in os.environ.items() if k.startswith(("SLURM_", "SBATCH_"))}
        numbers = json.loads(
            await call(
                sys.executable, "-m", "p2p.scheduler.backends.slurm_submit",
                given=order.to_json(),
                variables={**environment, **cluster, "PYTHONPATH": order.python_path},
            )
        )  # fmt: skip
        for control, note, number in zip(group, notes, numbers, strict=True):
            files.write_json(control.path / _NOTE, {**note, "job_id": number})

    def _package(self) -> str:
        """The folder of our package for the nodes, as it is here."""
        wheel = build_wheel()
        folder = self.base / "packages" / wheel.digest
        if not folder.is_dir():
            unpack(self.base, wheel.digest, wheel.data)
        return str(folder)


def _environment() -> dict[str, str]:
    """What the jobs have of ours: nothing that is a secret, or means nothing elsewhere."""
    usual = launching.launch_environment()
    return {name: value for name, value in usual.items() if name not in OWN_TO_A_MACHINE}


def _notes(prefix: str, group: Sequence[Control]) -> list[dict[str, Any]]:
    if len(group) == 1:
        return [{"name": f"{prefix}-{group[0].launch_id}", "index": None}]
    name = f"{prefix}-array-{random_numbers.token_hex(6)}"
    return [{"name": name, "index": index} for index in range(len(group))]


def _minutes(time_limit_s: float | None) -> int | None:
    """What Slurm is asked for: enough for the attendant to keep the limit itself."""
    return None if time_limit_s is None else math.ceil((time_limit_s + GRACE_S) / 60) + 1
