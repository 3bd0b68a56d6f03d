"""Looking back at a session: a report, made when it is asked for, told of as it is made."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from fastapi import APIRouter
from sse_starlette import EventSourceResponse

from p2p.api.channels import Message
from p2p.api.house import House, TheHouse
from p2p.api.live import STREAMED, stream
from p2p.api.problems import NoAnswer, WrongState
from p2p.api.schemas import AnalyzeRequest
from p2p.event_log import last_event, read_events
from p2p.inference.question import AskingCancelled, InferenceError
from p2p.session.agents import analyze_session, check_models
from p2p.settings import redact

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from p2p.contracts import Event, SessionAnalysis
    from p2p.records.iteration_record import SessionRecord

router = APIRouter(prefix="/api", tags=["events"])
LOOK_S = 0.3
_under_way: dict[str, asyncio.Task[SessionAnalysis]] = {}
"""By the session's folder: a report goes on, and is kept, also when nobody listens any more."""


@router.post(
    "/sessions/{session_id}/analyze", response_class=EventSourceResponse, responses=STREAMED
)
async def analyze(
    house: TheHouse, session_id: str, wanted: AnalyzeRequest | None = None
) -> EventSourceResponse:
    """Server-sent events: `status` while it is thought about, then `analysis` or `error`.

    Asks a model, which may cost something; a report that is there is given as it is.
    """
    record, given = house.session(session_id), wanted or AnalyzeRequest()
    if record.config.read() is None:
        raise WrongState(f"{session_id} is a training run, not a session")
    try:
        check_models(given.model or "", "")
    except InferenceError as error:
        raise NoAnswer(error) from error
    key = str(record.path)
    if key in _under_way:
        raise WrongState(f"session {session_id} is being analysed")
    last = last_event(record.events_path)
    task = asyncio.create_task(asyncio.to_thread(_analyze, house, record, given))
    _under_way[key] = task
    task.add_done_callback(lambda _: _under_way.pop(key))
    return stream(_told(record, task, last.seq if last else 0))


def _analyze(house: House, record: SessionRecord, given: AnalyzeRequest) -> SessionAnalysis:
    return analyze_session(
        record,
        model=given.model or "",
        again=given.again,
        most_usd=given.budget_usd,
        cancelled=house.closing,
    )


async def _told(
    record: SessionRecord, task: asyncio.Task[SessionAnalysis], seen: int
) -> AsyncIterator[Message]:
    yield _message("status", message="looking back")
    while not task.done():
        await asyncio.wait({task}, timeout=LOOK_S)
        for event in await asyncio.to_thread(read_events, record.events_path, after_seq=seen):
            seen = event.seq
            if event.event.startswith("llm."):
                yield _message("status", message=_said(event))
    try:
        found = task.result()
    except (InferenceError, AskingCancelled, ValueError, OSError) as error:
        yield _message("error", error=redact(str(error)) or "the server has ended")
        return
    yield {"event": "analysis", "data": found.model_dump_json()}


def _said(event: Event) -> str:
    what = {"llm.call": "answered", "llm.wait": "asks to wait", "llm.replay": "answered before"}
    return f"{event.data.get('model', 'the model')} {what.get(event.event, 'failed')}"


def _message(kind: str, **data: str) -> Message:
    return {"event": kind, "data": json.dumps(data)}
