"""Sessions: listed, shown, watched, renamed, steered, stopped."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from sse_starlette import EventSourceResponse

from p2p.api.index import SessionQuery, Sort
from p2p.api.live import STREAMED, session_stamps, stream
from p2p.api.problems import BadRequest, NotFound, WrongState
from p2p.api.schemas import (
    EventDetail,
    EventSummary,
    LoopIterationSummary,
    SessionAnalysisResponse,
    SessionDetail,
    SessionRow,
    SteerRequest,
    StopResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from p2p.api.state import AppState, State
from p2p.api.views import loop_iterations, session_detail
from p2p.config import TUNABLE
from p2p.contracts import (
    Criterion,
    Intent,
    SessionAnalysis,
    SteeringOrder,
    describe_errors,
    utc_now,
)
from p2p.event_log import read_event, read_events
from p2p.files import read_model, read_object
from p2p.scheduler.service import ensure_scheduler
from p2p.session.steering import give_feedback
from p2p.session.stopping import cancel
from p2p.settings import session_path

router = APIRouter(prefix="/api", tags=["sessions"])
WATCHED = SessionQuery(limit=200)
"""What the stream of all sessions looks at: the newest."""
_EXCHANGE = re.compile(r"\d{4,}_[a-z_]+\.json")


@router.get("/sessions", response_model=list[SessionRow])
def list_sessions(
    state: State,
    q: Annotated[str, Query(max_length=200, description="words of the prompt, name or id")] = "",
    status: Annotated[str, Query(max_length=40)] = "",
    env_id: Annotated[str, Query(max_length=200)] = "",
    tag: Annotated[str, Query(max_length=50)] = "",
    starred: bool | None = None,
    cases: Annotated[
        bool | None, Query(description="sessions of benchmarks: only them, or none of them")
    ] = None,
    sort: Sort = "created_at",
    order: Literal["asc", "desc"] = "desc",
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """A page of the sessions; `X-Total-Count` says how many there are."""
    query = SessionQuery(
        text=q, status=status, env_id=env_id, tag=tag, starred=starred, cases=cases, sort=sort,
        descending=order == "desc", offset=offset, limit=limit,
    )  # fmt: skip
    rows, total = state.index.find_json(query)
    # The index holds them as they are sent.
    text = f"[{','.join(rows)}]"
    return Response(text, media_type="application/json", headers={"X-Total-Count": str(total)})


@router.get("/sessions/{session_id}")
def show_session(state: State, session_id: str) -> SessionDetail:
    """One session, in full."""
    detail = session_detail(session_id, state.session(session_id))
    if detail is None:
        raise NotFound(f"there is no session {session_id!r}")
    return detail


@router.get("/sessions/{session_id}/loop-iterations")
def list_loop_iterations(state: State, session_id: str) -> list[LoopIterationSummary]:
    """The iterations of a session, with their scores, rewards and runs."""
    return loop_iterations(session_id, state.session(session_id))


@router.patch("/sessions/{session_id}")
def update_session(
    state: State, session_id: str, body: UpdateMetadataRequest
) -> UpdateMetadataResponse:
    """Change its name, star or tags."""
    record = state.session(session_id)
    metadata = record.update_metadata(**body.model_dump(exclude_none=True))
    state.index.refresh_one(session_id, record.path)
    return UpdateMetadataResponse(
        id=session_id, alias=metadata.alias, starred=metadata.starred, tags=metadata.tags
    )


@router.post("/sessions/{session_id}/stop")
def stop_session(state: State, session_id: str) -> StopResponse:
    """Cancel it; finished work stays, and it can be resumed."""
    record = state.session(session_id)
    queued = _cancel_run(state, session_id)
    if cancel(record) is None and not queued:
        raise WrongState(f"session {session_id} is not running: it is {record.derive_status()}")
    state.index.refresh_one(session_id, record.path)
    return StopResponse(id=session_id, status="cancelled")


def _cancel_run(state: AppState, session_id: str) -> bool:
    """Cancel its job first: the scheduler would start it, or start it again."""
    with state.store() as store:
        run = store.run_in(session_path(session_id).as_posix())
        if run is None or not store.cancel(run.job_id, [run.run_id]):
            return False
    ensure_scheduler(state.runs_dir)
    return True


@router.post("/sessions/{session_id}/steer", status_code=201)
def steer_session(state: State, session_id: str, body: SteerRequest) -> SteeringOrder:
    """Give feedback: the session takes it up when the current iteration ends."""
    record = state.session(session_id)
    if record.config.read() is None:
        raise WrongState(f"{session_id} is a training run: it has no next iteration")
    if not any(value not in (None, "", {}) for value in body.model_dump().values()):
        raise BadRequest("nothing to change: set pause, remark, score, criteria, reward_code, ...")
    for name in body.hp_changes:
        if name not in TUNABLE:
            raise BadRequest(f"hp_changes.{name}: only {', '.join(TUNABLE)} can be changed")
    if body.criteria is not None:
        _check_criteria(body.criteria)
    order = SteeringOrder(**body.model_dump(), given_at=utc_now())
    give_feedback(record.path, order)
    return order


def _check_criteria(criteria: tuple[Criterion, ...]) -> None:
    """Hold them to what a session's own criteria are held to."""
    try:
        Intent(prompt="", env_id="", criteria=criteria, author="user")
    except ValidationError as error:
        raise BadRequest(f"criteria: {describe_errors(error)}") from None


@router.get("/sessions/{session_id}/events", tags=["events"])
def list_events(
    state: State,
    session_id: str,
    after: Annotated[int, Query(ge=0, description="the last number seen")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> list[EventSummary]:
    """Events after a number, long texts shortened."""
    return read_events(state.session(session_id).events_path, after_seq=after, limit=limit)


@router.get("/sessions/{session_id}/events/{seq}", tags=["events"])
def show_event(state: State, session_id: str, seq: int) -> EventDetail:
    """One event in full."""
    event = read_event(state.session(session_id).events_path, seq)
    if event is None:
        raise NotFound(f"session {session_id} has no event {seq}")
    return event


@router.get("/sessions/{session_id}/exchanges/{name}", tags=["events"])
def show_exchange(state: State, session_id: str, name: str) -> dict[str, Any]:
    """What a model was asked and what it answered; `file` of an `llm.call` event names it."""
    record = state.session(session_id)
    exchange = read_object(record.llm_dir / name) if _EXCHANGE.fullmatch(name) else None
    if exchange is None:
        raise NotFound(f"session {session_id} has no exchange {name!r}")
    return exchange


@router.get("/sessions/{session_id}/analysis", tags=["events"])
def show_analysis(state: State, session_id: str) -> SessionAnalysisResponse:
    """The latest analysis of the session."""
    analysis = read_model(state.session(session_id).analysis_path, SessionAnalysis)
    if analysis is None:
        raise NotFound(f"session {session_id} was not analysed yet")
    return analysis


@router.get(
    "/sessions/{session_id}/live",
    tags=["events"],
    response_class=EventSourceResponse,
    responses=STREAMED,
)
def live_session(
    state: State,
    request: Request,
    session_id: str,
    after: Annotated[int, Query(ge=0, description="the last event's number seen")] = 0,
) -> EventSourceResponse:
    """Server-sent events: `session`, `event` and `metrics`, each when it has changed."""
    record = state.session(session_id)
    last_id = request.headers.get("last-event-id", "")
    seen = max(after, int(last_id) if last_id.isdecimal() else 0)
    look = state.watcher.messages(
        f"session {session_id}", lambda: session_stamps(record), {"event": seen}
    )
    return stream(look)


@router.get("/live", tags=["events"], response_class=EventSourceResponse, responses=STREAMED)
def live_sessions(state: State) -> EventSourceResponse:
    """Server-sent events: `sessions`, when the list has changed."""
    look = state.watcher.messages("sessions", lambda: {"sessions": state.index.find_json(WATCHED)})
    return stream(look)
