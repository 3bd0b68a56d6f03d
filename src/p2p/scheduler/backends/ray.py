"""Runs on a Ray cluster that is already there: a detached actor for each, found by its name.

Folders travel through Ray's object store, to the node and back. Everything that touches Ray is in
a process of its own; see `ray_bridge`. What is known of a launch after its actor is gone lies with
the scheduler's files.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p2p.scheduler.backends import BackendError
from p2p.scheduler.backends.line_process import LineError, LineProcess, LineSilence
from p2p.scheduler.backends.owner import owner
from p2p.scheduler.backends.ray_actors import Cluster
from p2p.scheduler.backends.ray_notes import Notes
from p2p.scheduler.launching import launch_environment
from p2p.scheduler.records import Launch, LaunchReport, NodeConfig

ASK_S = 120.0
"""Connecting to a cluster takes a while; what takes longer than this hangs."""
CHECK_S = 15.0
"""For whoever waits at a terminal."""
COLLECT_S = 3600.0


class RayBackend:
    """A cluster by its address: `host:6379` from a machine of it, `ray://host:10001` from any."""

    def __init__(self, node: NodeConfig, scheduler_dir: Path) -> None:
        assert node.address is not None
        self.node = node
        self._notes = (scheduler_dir / "ray" / node.node_id).absolute()
        cluster = Cluster(
            address=node.address,
            namespace=f"p2p-{owner(scheduler_dir)}",
            notes=str(self._notes),
            base_dir=node.base_dir,
            python=node.python,
            silence_s=node.lease_s,
        )
        module = "p2p.scheduler.backends.ray_bridge"
        self._bridge = LineProcess(
            [sys.executable, "-m", module, json.dumps(asdict(cluster))], _bridge_environment()
        )

    async def submit(self, launch: Launch, secrets: Mapping[str, str]) -> None:
        """Put it into Ray's queue, unless it was there or cancelled before."""
        given = {name: secrets[name] for name in launch.spec.secrets if name in secrets}
        await self._ask("submit", launch=launch.model_dump(mode="json"), secrets=given)

    async def status(self, launch: Launch) -> LaunchReport:
        """How it stands; renews its lease."""
        return LaunchReport(**await self._ask("status", launch_id=launch.launch_id))

    async def cancel(self, launch: Launch) -> None:
        """End it with all its processes; one that was never started never will be."""
        await self._ask("cancel", launch_id=launch.launch_id)

    async def logs(self, launch: Launch, offset: int = 0) -> bytes:
        """What it wrote to standard output and error, from this byte on."""
        notes = Notes(self._notes, launch.launch_id)
        if notes.end() is not None:
            return await asyncio.to_thread(notes.read_log, offset)
        parts: list[bytes] = []
        while True:
            text = await self._ask("logs", launch_id=launch.launch_id, offset=offset)
            part = base64.b64decode(text)
            if not part:
                return b"".join(parts)
            parts.append(part)
            offset += len(part)

    async def collect(self, launch: Launch) -> None:
        """Bring what is new; after its end, its actor and its files there are removed."""
        await self._ask("collect", COLLECT_S, launch=launch.model_dump(mode="json"))

    async def release(self, launch: Launch) -> None:
        """Nothing to do: `collect` leaves nothing in the cluster."""

    async def check(self) -> str:
        """What the cluster has at this moment; raises BackendError if it cannot be used."""
        await self._ask("ready")  # importing Ray is slow, and says nothing about the cluster
        try:
            has = await self._bridge.ask("check", CHECK_S)
        except LineSilence:
            raise BackendError(
                f"node {self.node.node_id}: something listens at {self.node.address}, but no Ray "
                f"cluster answered within {CHECK_S:g} s; see `ray status` there, and the port: "
                "6379 from a machine of the cluster, ray://HOST:10001 from any other"
            ) from None
        except (LineError, OSError) as error:
            raise BackendError(f"node {self.node.node_id}: {error}") from error
        line = f"{has['nodes']} nodes, {has['cores']} cores, {has['gpus']} GPUs"
        if has["cores"] < self.node.cores or has["gpus"] < self.node.gpus:
            # No error: some clusters grow when there is work.
            line += f" now, and is said to have {self.node.cores} cores, {self.node.gpus} GPUs"
        return f"Ray {has['version']} at {self.node.address}: {line}"

    async def close(self) -> None:
        """End the bridge; runs go on."""
        await self._bridge.close()

    async def _ask(self, method: str, patience_s: float = ASK_S, **arguments: Any) -> Any:
        try:
            return await self._bridge.ask(method, patience_s, **arguments)
        except (LineError, OSError) as error:
            raise BackendError(f"node {self.node.node_id}: {error}") from error


def _bridge_environment() -> dict[str, str]:
    """What Ray needs, and no key of anybody."""
    given = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    given.pop("RAY_ADDRESS", None)  # the node's own counts
    usual = launch_environment()
    paths = (str(Path(__file__).resolve().parents[3]), usual.get("PYTHONPATH"))
    return {**usual, **given, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
