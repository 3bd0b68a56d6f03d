"""What was put away: sessions and benchmarks."""

from __future__ import annotations

import secrets
import shutil
from typing import TYPE_CHECKING

from fastapi import APIRouter

from p2p.api.house import House, TheHouse
from p2p.api.index import Wanted
from p2p.api.problems import WrongState
from p2p.api.schemas import StopResponse, TrashItem
from p2p.benchmark.records import BENCHMARK_ID
from p2p.records.iteration_record import SessionRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

router = APIRouter(prefix="/api", tags=["trash"])


@router.get("/trash")
def list_trash(house: TheHouse) -> list[TrashItem]:
    """What was put away, the latest first."""
    items = [*_sessions(house), *_benchmarks(house)]
    return sorted(items, key=lambda item: item.deleted_at, reverse=True)


def _sessions(house: House) -> Iterator[TrashItem]:
    rows, _ = house.index.find(Wanted(deleted=True, limit=500))
    for row in rows:
        if row.deleted_at is not None:
            yield TrashItem(
                id=row.session_id,
                kind="session",
                title=row.alias or row.prompt,
                deleted_at=row.deleted_at,
            )


def _benchmarks(house: House) -> Iterator[TrashItem]:
    for name in house.benchmarks.names():
        metadata = SessionRecord(house.runs_dir / name).read_metadata()
        if metadata.deleted_at is not None:
            made = house.benchmarks.benchmark(name)
            yield TrashItem(
                id=name,
                kind="benchmark",
                title=metadata.alias or f"{made.suite}: {len(made.cases)} prompts",
                deleted_at=metadata.deleted_at,
            )


@router.delete("/trash/{entity_id}")
def remove_for_good(house: TheHouse, entity_id: str) -> StopResponse:
    """Delete it from the disk; only what is in the trash."""
    if BENCHMARK_ID.fullmatch(entity_id):
        record = SessionRecord(house.benchmarks.folder(entity_id))
    else:
        record = house.session(entity_id)
    if record.read_metadata().deleted_at is None:
        raise WrongState(f"{entity_id} is not in the trash: put it there first")
    # Renamed first: half a session must never look like a whole one.
    doomed = house.runs_dir / f".removed-{secrets.token_hex(8)}"
    record.path.rename(doomed)
    house.index.refresh_one(entity_id, record.path)
    shutil.rmtree(doomed)
    return StopResponse(id=entity_id, status="removed")
