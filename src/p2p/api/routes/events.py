"""What happened in a session: its events, what was said to models, and live as it goes on."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sse_starlette import EventSourceResponse

from p2p.api.house import TheHouse
from p2p.api.live import STREAMED, session_stream, sessions_stream, stream
from p2p.api.problems import NotFound
from p2p.api.schemas import EventDetail, EventSummary, SessionAnalysisResponse
from p2p.contracts import SessionAnalysis
from p2p.event_log import read_event, read_events
from p2p.files import read_model, read_object

router = APIRouter(prefix="/api", tags=["events"])
_EXCHANGE = re.compile(r"\d{4,}_[a-z_]+\.json")


@router.get("/sessions/{session_id}/events")
def list_events(
    house: TheHouse,
    session_id: str,
    after: Annotated[int, Query(ge=0, description="the last number seen")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> list[EventSummary]:
    """Events after a number, long texts shortened."""
    return read_events(house.session(session_id).events_path, after_seq=after, limit=limit)


@router.get("/sessions/{session_id}/events/{seq}")
def show_event(house: TheHouse, session_id: str, seq: int) -> EventDetail:
    """One event in full."""
    found = read_event(house.session(session_id).events_path, seq)
    if found is None:
        raise NotFound(f"session {session_id} has no event {seq}")
    return found


@router.get("/sessions/{session_id}/exchanges/{name}")
def show_exchange(house: TheHouse, session_id: str, name: str) -> dict[str, Any]:
    """What was said to a model and what it answered; `file` of an `llm.call` event names it."""
    record = house.session(session_id)
    found = read_object(record.llm_dir / name) if _EXCHANGE.fullmatch(name) else None
    if found is None:
        raise NotFound(f"session {session_id} has no exchange {name!r}")
    return found


@router.get("/sessions/{session_id}/analysis")
def show_analysis(house: TheHouse, session_id: str) -> SessionAnalysisResponse:
    """The analysis that was asked for last."""
    found = read_model(house.session(session_id).analysis_path, SessionAnalysis)
    if found is None:
        raise NotFound(f"session {session_id} was not analysed yet")
    return found


@router.get("/sessions/{session_id}/live", response_class=EventSourceResponse, responses=STREAMED)
def live_session(
    house: TheHouse,
    request: Request,
    session_id: str,
    after: Annotated[int, Query(ge=0, description="the last event's number seen")] = 0,
) -> EventSourceResponse:
    """Server-sent events: `session`, `iterations`, `event` and `metrics`, each when it changes."""
    record = house.session(session_id)
    given = request.headers.get("last-event-id", "")
    seen = max(after, int(given) if given.isdecimal() else 0)
    return stream(session_stream(house, session_id, record, seen))


@router.get("/live", response_class=EventSourceResponse, responses=STREAMED)
def live_sessions(house: TheHouse) -> EventSourceResponse:
    """Server-sent events: `sessions`, with those that have changed, as they do."""
    return stream(sessions_stream(house))
