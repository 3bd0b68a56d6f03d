"""What a scheduler leaves for people: the manifest of a job, the output of a run."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from p2p.files import write_json
from p2p.scheduler.backends import BackendError, make_backend
from p2p.scheduler.records import JobRow, RunRow
from p2p.scheduler.store import Store

MANIFEST_PAUSE_S = 2.0
MANIFEST_SHARE = 20
"""After a manifest was written, so many times its length passes before the next of that job."""
OUTPUT_TIMEOUT_S = 60.0


def manifest_path(store: Store, job_id: str) -> Path:
    return store.folder / "jobs" / job_id / "manifest.json"


def manifest(store: Store, job: JobRow) -> dict[str, Any]:
    """Return how a job stands, for people and other programs; nothing here reads the file."""
    return {
        **asdict(job),
        "status": job.state,
        "created_at": format_time(job.created_at),
        "runs": [
            {
                **run._asdict(),
                "started_at": format_time(run.started_at),
                "ended_at": format_time(run.ended_at),
            }
            for run in store.runs(job.job_id)
        ],
    }


def format_time(moment: float | None) -> str | None:
    """Format a Unix time as ISO 8601 in UTC."""
    return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat()


class Exporter:
    """Writes the manifests of jobs that changed, not more often than they are worth."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._not_before: dict[str, float] = {}

    def export(self, job_id: str | None = None, *, everything: bool = False) -> None:
        """Write what changed, of all jobs or of one; `everything`: also what is written often."""
        stale = self.store.connection.execute(
            "SELECT job_id FROM jobs WHERE stale = 1 AND (? IS NULL OR job_id = ?)",
            (job_id, job_id),
        ).fetchall()
        for (name,) in stale:
            began = time.monotonic()
            if not everything and began < self._not_before.get(name, 0.0):
                continue
            # Before it is read: what changes from here on makes it stale again.
            self.store.connection.execute("UPDATE jobs SET stale = 0 WHERE job_id = ?", (name,))
            if (job := self.store.job(name)) is not None:
                write_json(manifest_path(self.store, name), manifest(self.store, job))
            now = time.monotonic()
            self._not_before[name] = now + max(MANIFEST_PAUSE_S, MANIFEST_SHARE * (now - began))


def saved_log_path(store: Store, launch_id: str) -> Path:
    """The file with the output of a launch on another machine, after its end."""
    return store.folder / "logs" / f"{launch_id}.txt"


def read_output(store: Store, run: RunRow, attempt: int, offset: int = 0) -> bytes:
    """The output of an attempt at a run, from this byte on; empty before it starts.

    Raises BackendError if its node has to be asked and cannot be.
    """
    saved = saved_log_path(store, f"{run.run_id}.{attempt}")
    if saved.exists():
        return saved.read_bytes()[offset:]
    node = store.node(run.node_id or "local")
    if node is None:
        return b""
    launch = store.launch(run, attempt)

    async def ask() -> bytes:
        backend = make_backend(node, store.folder)
        try:
            return await asyncio.wait_for(backend.logs(launch, offset), OUTPUT_TIMEOUT_S)
        finally:
            await backend.close()

    try:
        return asyncio.run(ask())
    except TimeoutError:
        raise BackendError(
            f"node {node.node_id} gave no answer within {OUTPUT_TIMEOUT_S:.0f} s; try it with: "
            f"p2p nodes check {node.node_id}"
        ) from None
