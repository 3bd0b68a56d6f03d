"""manifest.json of a job: how it stands, for people and other programs. Nobody here reads it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from p2p.files import write_json

if TYPE_CHECKING:
    from pathlib import Path

    from p2p.scheduler.rows import JobRow
    from p2p.scheduler.store import Store

PAUSE_S = 2.0
SHARE = 20
"""After an export, so many times its length passes before the next one of that job."""


def manifest_path(store: Store, job_id: str) -> Path:
    """Where it lies."""
    return store.folder / "jobs" / job_id / "manifest.json"


def manifest(store: Store, job: JobRow) -> dict[str, Any]:
    """What it says."""
    return {
        "job_id": job.job_id,
        "kind": job.kind,
        "title": job.title,
        "status": job.state,
        "priority": job.priority,
        "max_parallel": job.max_parallel,
        "nodes": list(job.nodes),
        "created_at": when(job.created_at),
        "counts": dict(job.counts),
        "runs": [
            {**run._asdict(), "started_at": when(run.started_at), "ended_at": when(run.ended_at)}
            for run in store.runs(job.job_id)
        ],
    }


def when(moment: float | None) -> str | None:
    """A time as it stands in JSON."""
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
            job = self.store.job(name)
            if job is None:
                continue
            write_json(manifest_path(self.store, name), manifest(self.store, job))
            now = time.monotonic()
            self._not_before[name] = now + max(PAUSE_S, SHARE * (now - began))
