"""Starting and resuming sessions: each is a job of the scheduler, and outlives this server."""

from __future__ import annotations

from fastapi import APIRouter

from p2p.api.problems import BadRequest, WrongState
from p2p.api.schemas import ResumeRequest, StartSessionRequest, StartSessionResponse
from p2p.api.state import State
from p2p.api.views import is_resumable, pending_feedback
from p2p.contracts import describe_errors
from p2p.inference.question import InferenceError
from p2p.scheduler.controllers import JobOptions, one_run_job, session_job, session_run
from p2p.scheduler.service import ensure_scheduler
from p2p.session.agents import check_models
from p2p.session.request import SessionOptions, minutes_to_resume
from p2p.session.run_session import open_config
from p2p.session.stopping import worked_s

router = APIRouter(prefix="/api", tags=["sessions"])


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
