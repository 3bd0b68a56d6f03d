"""What a run wrote, wherever it is or was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from p2p.scheduler.backends import BackendError, make_backend
from p2p.scheduler.records import Launch

if TYPE_CHECKING:
    from p2p.scheduler.rows import RunRow
    from p2p.scheduler.store import Store

PATIENCE_S = 60.0


def saved_log(store: Store, launch_id: str) -> Path:
    """Where the output of a launch on another machine lies after its end."""
    return store.folder / "logs" / f"{launch_id}.txt"


def read_output(store: Store, run: RunRow, attempt: int, offset: int = 0) -> bytes:
    """What an attempt at a run wrote, from this byte on; nothing if it has not started.

    Raises BackendError if its node has to be asked and cannot be.
    """
    launch_id = f"{run.run_id}.{attempt}"
    saved = saved_log(store, launch_id)
    if saved.exists():
        return saved.read_bytes()[offset:]
    node = store.node(run.node_id or "local")
    if node is None:
        return b""
    launch = Launch(launch_id=launch_id, spec=store.spec(run.run_id), runs_dir=store.runs_dir)

    async def ask() -> bytes:
        backend = make_backend(node, store.folder)
        try:
            return await asyncio.wait_for(backend.logs(launch, offset), PATIENCE_S)
        finally:
            await backend.close()

    try:
        return asyncio.run(ask())
    except TimeoutError:
        raise BackendError(
            f"node {node.node_id} gave no answer within {PATIENCE_S:.0f} s; try it with: "
            f"p2p nodes check {node.node_id}"
        ) from None
