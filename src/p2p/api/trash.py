"""The trash: sessions and benchmarks are moved there, restored, or deleted for good."""

from __future__ import annotations

import secrets
import shutil
from typing import Literal

from fastapi import APIRouter

from p2p.api.benchmark_reader import UNENDED
from p2p.api.index import SessionQuery
from p2p.api.problems import WrongState
from p2p.api.schemas import StopResponse, TrashItem
from p2p.api.state import AppState, State
from p2p.benchmark.records import BENCHMARK_ID
from p2p.contracts import utc_now
from p2p.records.iteration_record import SessionRecord
from p2p.records.statuses import CANCELLABLE

router = APIRouter(prefix="/api", tags=["trash"])


@router.get("/trash")
def list_trash(state: State) -> list[TrashItem]:
    """List the trash, the latest first."""
    found, _ = state.index.find(SessionQuery(limit=500), deleted=True)
    items = [
        TrashItem(
            id=row.session_id,
            kind="session",
            title=row.alias or row.prompt,
            deleted_at=row.deleted_at,
        )
        for row in (entry.row for entry in found)
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
    return _mark(state, record, session_id, "deleted")


@router.delete("/benchmarks/{benchmark_id}")
def trash_benchmark(state: State, benchmark_id: str) -> StopResponse:
    """Move it and its cases to the trash; it can be restored."""
    record = _find_benchmark(state, benchmark_id)
    with state.store() as store:
        if any(case.state in UNENDED for case in state.benchmarks.cases(benchmark_id, store)):
            raise WrongState(f"benchmark {benchmark_id} is running: stop it first")
    return _mark(state, record, benchmark_id, "deleted")


@router.post("/sessions/{session_id}/restore")
def restore_session(state: State, session_id: str) -> StopResponse:
    """Take it out of the trash."""
    return _mark(
        state, _check_trashed(state.session(session_id), session_id), session_id, "restored"
    )


@router.post("/benchmarks/{benchmark_id}/restore")
def restore_benchmark(state: State, benchmark_id: str) -> StopResponse:
    """Take it out of the trash."""
    record = _check_trashed(_find_benchmark(state, benchmark_id), benchmark_id)
    return _mark(state, record, benchmark_id, "restored")


@router.delete("/trash/{entity_id}")
def remove_for_good(state: State, entity_id: str) -> StopResponse:
    """Delete an item of the trash from the disk."""
    find = _find_benchmark if BENCHMARK_ID.fullmatch(entity_id) else AppState.session
    record = _check_trashed(find(state, entity_id), entity_id)
    # Renamed first: half a session must never look like a whole one.
    doomed = state.runs_dir / f".removed-{secrets.token_hex(8)}"
    record.path.rename(doomed)
    state.index.refresh_one(entity_id, record.path)
    shutil.rmtree(doomed)
    return StopResponse(id=entity_id, status="removed")


def _find_benchmark(state: AppState, benchmark_id: str) -> SessionRecord:
    return SessionRecord(state.benchmarks.folder(benchmark_id))


def _check_trashed(record: SessionRecord, entity_id: str) -> SessionRecord:
    if record.read_metadata().deleted_at is None:
        raise WrongState(f"{entity_id} is not in the trash")
    return record


def _mark(
    state: AppState, record: SessionRecord, entity_id: str, status: Literal["deleted", "restored"]
) -> StopResponse:
    record.update_metadata(deleted_at=utc_now() if status == "deleted" else None)
    if BENCHMARK_ID.fullmatch(entity_id):
        state.index.refresh()  # its cases go with it
    else:
        state.index.refresh_one(entity_id, record.path)
    return StopResponse(id=entity_id, status=status)
