"""The trash: sessions and benchmarks are moved there, restored, or deleted for good."""

from __future__ import annotations

import secrets
import shutil

from fastapi import APIRouter

from p2p.api.benchmarks import UNENDED
from p2p.api.index import SessionQuery
from p2p.api.problems import WrongState
from p2p.api.schemas import StopResponse, TrashItem
from p2p.api.state import State
from p2p.benchmark.records import BENCHMARK_ID
from p2p.contracts import utc_now
from p2p.records.iteration_record import SessionRecord
from p2p.records.statuses import CANCELLABLE

router = APIRouter(prefix="/api", tags=["trash"])


@router.get("/trash")
def list_trash(state: State) -> list[TrashItem]:
    """What is in the trash, the latest first."""
    rows, _ = state.index.find(SessionQuery(limit=500), deleted=True)
    items = [
        TrashItem(
            id=row.session_id,
            kind="session",
            title=row.alias or row.prompt,
            deleted_at=row.deleted_at,
        )
        for row in rows
        if row.deleted_at is not None
    ]
    for name in state.benchmarks.names():
        metadata = SessionRecord(state.runs_dir / name).read_metadata()
        if metadata.deleted_at is not None:
            benchmark = state.benchmarks.benchmark(name)
            title = metadata.alias or f"{benchmark.suite}: {len(benchmark.cases)} prompts"
            items.append(
                TrashItem(id=name, kind="benchmark", title=title, deleted_at=metadata.deleted_at)
            )
    return sorted(items, key=lambda item: item.deleted_at, reverse=True)


@router.delete("/sessions/{session_id}")
def trash_session(state: State, session_id: str) -> StopResponse:
    """Move it to the trash; it can be restored."""
    record = state.session(session_id)
    if record.derive_status() in CANCELLABLE:
        raise WrongState(f"session {session_id} is running: stop it first")
    record.update_metadata(deleted_at=utc_now())
    state.index.refresh_one(session_id, record.path)
    return StopResponse(id=session_id, status="deleted")


@router.delete("/benchmarks/{benchmark_id}")
def trash_benchmark(state: State, benchmark_id: str) -> StopResponse:
    """Move it and its cases to the trash; it can be restored."""
    record = SessionRecord(state.benchmarks.folder(benchmark_id))
    with state.store() as store:
        if any(case.state in UNENDED for case in state.benchmarks.cases(benchmark_id, store)):
            raise WrongState(f"benchmark {benchmark_id} is running: stop it first")
    record.update_metadata(deleted_at=utc_now())
    state.index.refresh()
    return StopResponse(id=benchmark_id, status="deleted")


@router.post("/sessions/{session_id}/restore")
def restore_session(state: State, session_id: str) -> StopResponse:
    """Take it out of the trash."""
    record = state.session(session_id)
    _check_trashed(record, session_id)
    record.update_metadata(deleted_at=None)
    state.index.refresh_one(session_id, record.path)
    return StopResponse(id=session_id, status="restored")


@router.post("/benchmarks/{benchmark_id}/restore")
def restore_benchmark(state: State, benchmark_id: str) -> StopResponse:
    """Take it out of the trash."""
    record = SessionRecord(state.benchmarks.folder(benchmark_id))
    _check_trashed(record, benchmark_id)
    record.update_metadata(deleted_at=None)
    state.index.refresh()
    return StopResponse(id=benchmark_id, status="restored")


@router.delete("/trash/{entity_id}")
def remove_for_good(state: State, entity_id: str) -> StopResponse:
    """Delete it from the disk; only what is in the trash."""
    if BENCHMARK_ID.fullmatch(entity_id):
        record = SessionRecord(state.benchmarks.folder(entity_id))
    else:
        record = state.session(entity_id)
    _check_trashed(record, entity_id)
    # Renamed first: half a session must never look like a whole one.
    doomed = state.runs_dir / f".removed-{secrets.token_hex(8)}"
    record.path.rename(doomed)
    state.index.refresh_one(entity_id, record.path)
    shutil.rmtree(doomed)
    return StopResponse(id=entity_id, status="removed")


def _check_trashed(record: SessionRecord, entity_id: str) -> None:
    if record.read_metadata().deleted_at is None:
        raise WrongState(f"{entity_id} is not in the trash")
