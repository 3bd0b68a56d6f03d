"""Sessions: started, listed, shown, watched, renamed, steered, stopped, resumed.

Each is a job of the scheduler, and outlives this server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from sse_starlette import EventSourceResponse

from p2p.api.index import SessionQuery
from p2p.api.live import STREAMED, Stamps, session_stamps, stream
from p2p.api.problems import BadRequest, ResourceNotFound, Unavailable, WrongState
from p2p.api.schemas import (
    EventDetail,
    EventSummary,
    PendingFeedback,
    ResumeRequest,
    RewardCheckRequest,
    RewardCheckResponse,
    SessionAnalysisResponse,
    SessionDetail,
    StartSessionRequest,
    StartSessionResponse,
    SteerRequest,
    StopResponse,
    TunableSetting,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from p2p.api.state import AppState, PathNumber, State
from p2p.benchmark.measuring import ground_truth
from p2p.config import TUNABLE_BOUNDS, TrainConfig
from p2p.contracts import (
    Criterion,
    Intent,
    SessionAnalysis,
    StatusLiteral,
    SteeringOrder,
    describe_errors,
    utc_now,
)
from p2p.event_log import read_event, read_events
from p2p.files import read_model
from p2p.inference.question import InferenceError
from p2p.records.formatting import count, describe_evidence
from p2p.records.iteration_record import SessionRecord
from p2p.records.loop_files import SteeringTaken
from p2p.records.session_view import SessionView
from p2p.records.statuses import FINAL, RESUMABLE, status_words
from p2p.records.summaries import LoopIterationSummary, SessionRow
from p2p.records.time_left import session_left
from p2p.sandbox import SandboxUnavailable
from p2p.scheduler.controllers import JobOptions, one_run_job, session_job, session_run
from p2p.scheduler.service import cancel_run_in, ensure_scheduler
from p2p.session.request import ResumeOptions, SessionRequest, command_line, minutes_to_resume
from p2p.session.start import open_config
from p2p.session.steering import (
    NotPending,
    check_settings,
    give_feedback,
    merge_feedback,
    pending_feedback,
    withdraw_feedback,
)
from p2p.session.stopping import cancel, read_worked_seconds
from p2p.session.verdict import verdict_sentence
from p2p.training.reward_check import check_reward

router = APIRouter(prefix="/api", tags=["sessions"])
WATCHED = SessionQuery(limit=200)
"""What the stream of all sessions looks at: the newest."""
_checking = threading.Lock()
"""A reward that is checked takes memory and a core: one at a time."""


@router.get("/sessions", response_model=list[SessionRow])
def list_sessions(state: State, query: Annotated[SessionQuery, Query()]) -> Response:
    """A page of the sessions; `X-Total-Count` says how many there are."""
    entries, total = state.index.find(query)
    # The index holds them as they are sent.
    text = f"[{','.join(entry.json for entry in entries)}]"
    return Response(text, media_type="application/json", headers={"X-Total-Count": str(total)})


@router.post("/sessions", status_code=201)
def start_session(state: State, wanted: StartSessionRequest) -> StartSessionResponse:
    """Start a session; it runs as soon as there is room."""
    title = wanted.prompt[:200]
    return submit_session(state, wanted, lambda: JobOptions(priority=wanted.priority, title=title))


def submit_session(
    state: AppState, wanted: SessionRequest, read_options: Callable[[], JobOptions]
) -> StartSessionResponse:
    """Make a session and hand it to the scheduler; raises BadRequest for one that cannot be."""
    try:
        job = session_job(wanted, state.runs_dir, read_options())
    except InferenceError as error:  # an unknown model, or a missing key
        raise BadRequest(str(error)) from error
    except ValueError as error:
        raise BadRequest(describe_errors(error)) from error
    with state.store(make=True) as store:
        store.submit(job)
    ensure_scheduler(state.runs_dir)
    return StartSessionResponse(session_id=job.runs[0].folder, job_id=job.job_id)


@router.post("/sessions/{session_id}/resume")
def resume_session(
    state: State, session_id: str, wanted: ResumeRequest | None = None
) -> StartSessionResponse:
    """Resume a session that has ended, with other limits if you like.

    One that is out of time gets as much again as at first. One that has passed needs feedback
    (steer) that asks for more.
    """
    record = state.session(session_id)
    status = record.derive_status()
    if record.config.read() is None:
        raise WrongState(f"{session_id} is a training run, not a session")
    if not is_resumable(status, pending_feedback(record)):
        hint = ": give feedback first (steer)" if status in FINAL else ""
        raise WrongState(f"session {session_id} is {status}{hint}")
    changes = wanted or ResumeOptions()
    changes.check_models()  # before anything is changed
    try:
        open_config(record, changes, resume=True)
        with state.store(make=True) as store:
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
    view = SessionView(state.session(session_id))
    record, asked, pending = view.record, view.config, pending_feedback(view.record)
    more: dict[str, Any] = {
        "ground_truth": ground_truth(record.path),
        "orders": tuple(PendingFeedback(number=n, **dict(each)) for n, each in pending.items()),
        "analysis": read_model(record.analysis_path, SessionAnalysis),
        "seconds_left": session_left(view) if view.status == "running" else None,
    }
    if view.status in ("queued", "pending"):
        more["waiting"] = _explain_wait(state, record)
    if asked is not None:
        more |= {
            "resumable": is_resumable(view.status, pending),
            "minutes_to_go_on": minutes_to_resume(asked, read_worked_seconds(record)),
            "command": command_line(asked, record.path),
        }
    return SessionDetail.model_validate(view).model_copy(update=more)


def _explain_wait(state: AppState, record: SessionRecord) -> str:
    """Return what a session that has not begun lacks, and who has it; empty where nobody knows."""
    with state.store() as store:
        run = store.run_in(record.path.relative_to(state.runs_dir).as_posix())
        if run is None or run.message or run.state != "pending":
            return run.message if run is not None else ""
        needs, others = count(run.cores, "core"), [each.run_id for each in store.live_runs()]
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        return f"needs {needs}; running: {', '.join(others[:3])}{more}" if others else ""


def is_resumable(status: StatusLiteral, pending: Mapping[int, SteeringOrder]) -> bool:
    """Return whether there is something left to do: after a pass, if feedback asks for more."""
    if status in FINAL:
        scored = any(order.score is not None for order in pending.values())
        return scored or merge_feedback(SteeringTaken(), pending).wants_more
    return status in RESUMABLE


@router.get("/sessions/{session_id}/loop-iterations")
def list_loop_iterations(state: State, session_id: str) -> list[LoopIterationSummary]:
    """The iterations of a session, with their scores, rewards and runs."""
    session = SessionView(state.session(session_id))
    lineage = session.record.lineage.read()
    changes = {node.iteration: node.changes for node in lineage.nodes} if lineage else {}
    return [
        LoopIterationSummary.model_validate(each).model_copy(
            update={
                "changes": changes.get(each.number, ""),
                "verdict": verdict_sentence(session, each),
                "evidence": describe_evidence(each),
                "unverified": session.outcome_of(each) == "unverified",
            }
        )
        for each in session.iterations.values()
    ]


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
    queued = _cancel_run(state, record)
    if cancel(record) is None and not queued:
        words = status_words(record.derive_status())
        raise WrongState(f"session {session_id} is not running: it is {words}")
    state.index.refresh_one(session_id, record.path)
    return StopResponse(id=session_id, status="cancelled")


def _cancel_run(state: AppState, record: SessionRecord) -> bool:
    """Cancel its job first: the scheduler would start it, or start it again."""
    with state.store() as store:
        return cancel_run_in(store, state.runs_dir, record.path)


@router.post("/sessions/{session_id}/steer", status_code=201)
def steer_session(state: State, session_id: str, body: SteerRequest) -> SteeringOrder:
    """Give feedback: the session takes it up when the current iteration ends."""
    record = state.session(session_id)
    train = _read_train_config(record)
    if not any(value not in (None, "", {}) for value in body.model_dump().values()):
        raise BadRequest("nothing to change: set pause, remark, score, criteria, reward_code, ...")
    try:
        check_settings(body.hp_changes, train)
    except ValueError as error:
        raise BadRequest(f"hp_changes.{error}") from None
    if body.criteria is not None:
        _check_criteria(body.criteria)
    if body.scored_iteration is not None:
        _check_scored(record, body.scored_iteration)
    order = SteeringOrder(**body.model_dump(), given_at=utc_now())
    give_feedback(record.path, order)
    return order


def _check_scored(record: SessionRecord, number: int) -> None:
    """Refuse a score of an iteration that has none yet, or that was revised since."""
    last = SessionView(record).current
    if last is None or number != last.number:
        newest = f"the last one is {last.number}" if last else "there is none yet"
        raise WrongState(f"iteration {number} cannot be scored any more: {newest}")
    if last.judgment is None:
        raise WrongState(f"iteration {number} is not judged yet: score it when it is")


@router.delete("/sessions/{session_id}/steer/{number}")
def withdraw(state: State, session_id: str, number: PathNumber) -> SteeringOrder:
    """Withdraw feedback, by its number among `orders`; 409 once the session has taken it up."""
    try:
        return withdraw_feedback(state.session(session_id), number)
    except NotPending as error:
        raise WrongState(str(error)) from None


@router.get("/sessions/{session_id}/settings")
def list_settings(state: State, session_id: str) -> list[TunableSetting]:
    """The hyperparameters that feedback may set, and what they are now."""
    now = _read_train_config(state.session(session_id))
    return [
        TunableSetting(
            name=name,
            kind=_kind_of_setting(name),
            value=now.model_dump(mode="json")[name],
            low=TUNABLE_BOUNDS.get(name, (None, None))[0],
            high=TUNABLE_BOUNDS.get(name, (None, None))[1],
        )
        for name in now.tunable
    ]


def _kind_of_setting(name: str) -> Literal["number", "integer", "boolean", "layers"]:
    field = TrainConfig.model_json_schema()["properties"][name]
    kind = field.get("type") or field["anyOf"][0]["type"]
    kinds: dict[str, Literal["number", "integer", "boolean", "layers"]] = {
        "integer": "integer", "boolean": "boolean", "array": "layers",
    }  # fmt: skip
    return kinds.get(kind, "number")


def _read_train_config(record: SessionRecord) -> TrainConfig:
    """The configuration of the last iteration, or that of the first one before it begins."""
    view = SessionView(record)
    if view.config is None:
        raise WrongState(f"{record.session_id} is a training run: it has no next iteration")
    return view.current.config if view.current else view.config.loop.train


@router.post("/sessions/{session_id}/check-reward", response_model=RewardCheckResponse)
def check_session_reward(state: State, session_id: str, body: RewardCheckRequest) -> Response:
    """Run a reward in the sandbox on the session's environment, as `p2p check` does."""
    record = state.session(session_id)
    train, env_id = _read_train_config(record), SessionView(record).env_id
    if not env_id:
        raise WrongState(f"{session_id} has not chosen its environment yet")
    if not _checking.acquire(blocking=False):
        raise WrongState("another reward is being checked: try again in a moment")
    try:
        # With a line break it is code, never the name of a file here.
        report = check_reward(f"{body.reward_code}\n", train.in_environment(env_id))
    except SandboxUnavailable as error:
        raise Unavailable(str(error)) from error
    finally:
        _checking.release()
    answer = RewardCheckResponse(**dict(report), fit=report.ok)
    # Written by pydantic: a term may have been infinite, which other JSON writers refuse.
    return Response(answer.model_dump_json(), media_type="application/json")


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
def show_event(state: State, session_id: str, seq: PathNumber) -> EventDetail:
    """One event in full."""
    event = read_event(state.session(session_id).events_path, seq)
    if event is None:
        raise ResourceNotFound(f"session {session_id} has no event {seq}")
    return event


@router.get("/sessions/{session_id}/analysis", tags=["events"])
def show_analysis(state: State, session_id: str) -> SessionAnalysisResponse:
    """The latest analysis of the session."""
    analysis = read_model(state.session(session_id).analysis_path, SessionAnalysis)
    if analysis is None:
        raise ResourceNotFound(f"session {session_id} was not analysed yet")
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
    known = last_id.isdecimal() and len(last_id) < 18  # else no number of ours
    seen = max(after, int(last_id) if known else 0)
    look = state.watcher.messages(
        f"session {session_id}", lambda: session_stamps(record), {"event": seen}
    )
    return stream(look)


@router.get("/live", tags=["events"], response_class=EventSourceResponse, responses=STREAMED)
def live_sessions(state: State) -> EventSourceResponse:
    """Server-sent events: `sessions`, when the list has changed."""

    def look() -> Stamps:
        entries, total = state.index.find(WATCHED)
        return {"sessions": ([entry.json for entry in entries], total)}

    return stream(state.watcher.messages("sessions", look))
