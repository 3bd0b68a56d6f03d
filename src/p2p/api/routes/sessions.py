"""Sessions: started, listed, shown, watched, renamed, steered, stopped, resumed.

Each is a job of the scheduler, and outlives this server.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from sse_starlette import EventSourceResponse

from p2p.api.index import SessionQuery
from p2p.api.live import STREAMED, session_stamps, stream
from p2p.api.problems import BadRequest, NotFound, WrongState
from p2p.api.schemas import (
    EventDetail,
    EventSummary,
    LoopIterationSummary,
    ResumeRequest,
    SessionAnalysisResponse,
    SessionDetail,
    SessionRow,
    StartSessionRequest,
    StartSessionResponse,
    SteerRequest,
    StopResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from p2p.api.state import AppState, State
from p2p.api.views import is_resumable, loop_iterations, pending_feedback, session_detail
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
from p2p.inference.question import InferenceError
from p2p.scheduler.controllers import JobOptions, one_run_job, session_job, session_run
from p2p.scheduler.service import ensure_scheduler
from p2p.session.agents import check_models
from p2p.session.request import SessionOptions, minutes_to_resume
from p2p.session.run_session import open_config
from p2p.session.steering import give_feedback
from p2p.session.stopping import cancel, worked_s
from p2p.settings import session_path

router = APIRouter(prefix="/api", tags=["sessions"])
WATCHED = SessionQuery(limit=200)
"""What the stream of all sessions looks at: the newest."""
_EXCHANGE = re.compile(r"\d{4,}_[a-z_]+\.json")


@router.get("/sessions", response_model=list[SessionRow])
def list_sessions(state: State, query: Annotated[SessionQuery, Query()]) -> Response:
    """A page of the sessions; `X-Total-Count` says how many there are."""
    rows, total = state.index.find_json(query)
    # The index holds them as they are sent.
    text = f"[{','.join(rows)}]"
    return Response(text, media_type="application/json", headers={"X-Total-Count": str(total)})


@router.post("/sessions", status_code=201)
def start_session(state: State, wanted: StartSessionRequest) -> StartSessionResponse:
    """Start a session; it runs as soon as there is room."""
    check_remote(wanted)
    job_options = JobOptions(priority=wanted.priority, title=wanted.prompt[:200])
    try:
        job = session_job(wanted, state.runs_dir, job_options)
    except InferenceError as error:  # an unknown model, or a missing key
        raise BadRequest(str(error)) from error
    except ValueError as error:
        raise BadRequest(describe_errors(error)) from error
    with state.store() as store:
        store.submit(job)
    ensure_scheduler(state.runs_dir)
    return StartSessionResponse(session_id=job.runs[0].folder, job_id=job.job_id)


def check_remote(request: SessionOptions) -> None:
    """Refuse what only somebody at this machine may ask for."""
    if "unsafe_local" in request.settings:
        raise BadRequest("settings.unsafe_local: not over HTTP; use the command line")


@router.post("/sessions/{session_id}/resume")
def resume_session(
    state: State, session_id: str, wanted: ResumeRequest | None = None
) -> StartSessionResponse:
    """Resume a session that has ended, with other limits if you like.

    One that is out of time gets as much again as at first. One that has passed needs feedback
    (steer) that asks for more.
    """
    record = state.session(session_id)
    status, asked = record.derive_status(), record.config.read()
    if asked is None:
        raise WrongState(f"{session_id} is a training run, not a session")
    if not is_resumable(status, pending_feedback(record)):
        hint = ": give feedback first (steer)" if status == "passed" else ""
        raise WrongState(f"session {session_id} is {status}{hint}")
    changes = wanted.model_dump(exclude_none=True) if wanted else {}
    changes.setdefault("max_minutes", minutes_to_resume(asked, worked_s(record)))
    # Before anything is changed; no name means what the settings give.
    check_models(changes.get("model", ""), changes.get("vlm_model", ""))
    try:
        open_config(record, changes)
        with state.store() as store:
            taken = {job.job_id for job in store.jobs(prefix=session_id)}
            number = next(n for n in range(2, 10_000) if f"{session_id}.{n}" not in taken)
            run = session_run(record, state.runs_dir, JobOptions(), run_id=f"{session_id}.{number}")
            store.submit(one_run_job("session", run, JobOptions(title="resumed")))
    except ValueError as error:
        raise BadRequest(describe_errors(error)) from error
    record.set_status_if("queued", (status, "cancelled"))
    ensure_scheduler(state.runs_dir)
    return StartSessionResponse(session_id=session_id, job_id=run.run_id)


@router.get("/sessions/{session_id}")
def show_session(state: State, session_id: str) -> SessionDetail:
    """One session, in full."""
    return session_detail(session_id, state.session(session_id))


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
    return UpdateMetadataResponse(id=session_id, **metadata.model_dump(exclude={"deleted_at"}))


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
