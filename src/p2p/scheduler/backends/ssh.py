"""Runs on a machine reached over SSH. They go on without the link, as long as their lease lasts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from p2p.scheduler import copying
from p2p.scheduler.backends import BackendError
from p2p.scheduler.launching import GRACE_S
from p2p.scheduler.node_agent import pieces_as_fields, pieces_from_fields
from p2p.scheduler.records import Launch, LaunchReport, NodeConfig
from p2p.scheduler.ssh_link import SSHLink

LEASE_MARGIN_S = 60.0
"""More than clocks that should run alike differ by."""


class SSHBackend:
    """A node with an agent on it for as long as somebody is connected; see `node_agent`."""

    def __init__(self, node: NodeConfig, scheduler_dir: Path) -> None:  # noqa: ARG002
        self.node = node
        self.link = SSHLink(node)
        self._heard: dict[str, float] = {}

    async def submit(self, launch: Launch, secrets: Mapping[str, str]) -> None:
        """Start it, unless it was started or cancelled before. Sends its folder there first."""
        where = _where(launch)
        folder = launch.runs_dir / launch.spec.folder
        stamps = await asyncio.to_thread(copying.scan, folder)
        asked, _ = await self.link.request("wanted", {**where, "stamps": stamps})
        await self._send(launch, [copying.Want(**want) for want in asked["wants"]])
        start = {
            "launch": launch.model_dump(mode="json"),
            "secrets": {name: secrets[name] for name in launch.spec.secrets if name in secrets},
            "lease_s": self.node.lease_s,
        }
        await self.link.request("start", start)

    async def _send(self, launch: Launch, wants: Sequence[copying.Want]) -> None:
        """Bring files of its folder there."""
        folder = launch.runs_dir / launch.spec.folder
        while wants:
            answer = await asyncio.to_thread(copying.pieces, folder, wants)
            fields, data = pieces_as_fields(answer)
            asked = {"wants": [asdict(want) for want in wants]}
            left, _ = await self.link.request("put", {**_where(launch), **asked, **fields}, data)
            wants = [copying.Want(**want) for want in left["wants"]]

    async def status(self, launch: Launch) -> LaunchReport:
        """How it stands; renews its lease. Lost once the node must have ended it by itself."""
        try:
            fields, _ = await self.link.request("report", _where(launch))
        except BackendError as error:
            silence = self._silence(launch)
            if silence < self._longest_silence:
                raise
            return LaunchReport(
                state="lost",
                message=f"no word for {silence:.0f} s, longer than its lease lasts: {error}",
            )
        self._heard[launch.launch_id] = time.monotonic()
        return LaunchReport.model_validate(fields["report"])

    async def cancel(self, launch: Launch) -> None:
        """End it with all its processes; one that was never started never will be."""
        try:
            await self.link.request("cancel", _where(launch))
        except BackendError:
            if self._silence(launch) < self._longest_silence:
                raise

    @property
    def _longest_silence(self) -> float:
        """After so long without a word of ours, nothing can run there any more."""
        return self.node.lease_s + GRACE_S + LEASE_MARGIN_S

    def _silence(self, launch: Launch) -> float:
        now = time.monotonic()
        return now - self._heard.setdefault(launch.launch_id, now)

    async def logs(self, launch: Launch, offset: int = 0) -> bytes:
        """What it wrote to standard output and error, from this byte on."""
        parts: list[bytes] = []
        while True:
            _, part = await self.link.request("log", {**_where(launch), "offset": offset})
            parts.append(part)
            offset += len(part)
            if len(part) < copying.PIECES_BYTES:
                return b"".join(parts)

    async def collect(self, launch: Launch) -> None:
        """Bring what is new in its folder to the scheduler's runs folder, and orders there."""
        where = _where(launch)
        folder = launch.runs_dir / launch.spec.folder
        try:
            there = (await self.link.request("scan", where))[0]["stamps"]
            stamps = {path: copying.Stamp(*stamp) for path, stamp in there.items()}
            await self._send(launch, await asyncio.to_thread(copying.new_orders, folder, stamps))
            wants = await asyncio.to_thread(copying.wanted, folder, stamps)
            while wants:
                asked = [asdict(want) for want in wants]
                fields, data = await self.link.request("pieces", {**where, "wants": asked})
                answer = pieces_from_fields(fields, data)
                await asyncio.to_thread(copying.put, folder, answer)
                wants = await asyncio.to_thread(copying.still_wanted, folder, wants, answer)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise BackendError(
                f"node {self.node.node_id}: its answer makes no sense ({error}); is it ours?"
            ) from error
        except OSError as error:
            raise BackendError(
                f"node {self.node.node_id}: what came cannot be written here: {error}"
            ) from error

    async def release(self, launch: Launch) -> None:
        """Remove its folder and its output there."""
        await self.link.request("release", _where(launch))

    async def check(self) -> str:
        """What the node is, in a line; raises BackendError if it cannot be used."""
        has, _ = await self.link.request("machine")
        if has["lacks"]:
            raise BackendError(
                f"node {self.node.node_id}: its Python lacks {', '.join(has['lacks'])}; install "
                "them there, or set `python` of the node to one that has them"
            )
        line = f"{has['cores']} cores, {has['gpus']} GPUs, Python {has['python']}"
        if has["cores"] < self.node.cores or has["gpus"] < self.node.gpus:
            raise BackendError(
                f"node {self.node.node_id} is said to have {self.node.cores} cores and "
                f"{self.node.gpus} GPUs; it has {line}. Add it again with those"
            )
        return f"{has['name']}: {line}"

    async def close(self) -> None:
        """Let go of the connection; runs go on."""
        await self.link.close()


def _where(launch: Launch) -> dict[str, str]:
    return {"launch_id": launch.launch_id, "folder": launch.spec.folder}
