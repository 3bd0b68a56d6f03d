"""Starting and resuming sessions: each is a job of the scheduler, and outlives this server."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from p2p.api.problems import BadRequest, WrongState
from p2p.api.schemas import ResumeRequest, StartSessionRequest, StartSessionResponse
from p2p.api.state import State
from p2p.api.views import is_resumable, pending_feedback
from p2p.inference.question import InferenceError
from p2p.scheduler.controllers import JobOptions, one_run_job, session_job, session_run
from p2p.scheduler.service import ensure_scheduler
from p2p.session.agents import check_models
from p2p.session.clock import worked_s
from p2p.session.run_session import open_config
from p2p.session.session_config import in_a_line, loop_config, minutes_to_go_on

router = APIRouter(prefix="/api", tags=["sessions"])
NOT_OPTIONS = ("prompt", "env_id", "criteria", "settings", "priority")


@router.post("/sessions", status_code=201)
def start_session(state: State, wanted: StartSessionRequest) -> StartSessionResponse:
    """Start a session; it runs as soon as there is room."""
    given = wanted.model_dump(exclude=set(NOT_OPTIONS), exclude_none=True)
    options: dict[str, Any] = {**wanted.settings, **given}
    if "unsafe_local" in options:
        raise BadRequest("settings.unsafe_local: not over HTTP; use the command line")
    env_id = wanted.env_id or options.pop("env_id", None)
    job_options = JobOptions(priority=wanted.priority, title=wanted.prompt[:200])
    try:
        check_models(wanted.model or "", wanted.vlm_model or "")
        loop = loop_config(env_id, **options)
        job = session_job(
            wanted.prompt,
            loop,
            state.runs_dir,
            job_options,
            criteria=wanted.criteria,
            to_choose=options if env_id is None else None,
        )
    except InferenceError as error:  # a name nobody knows, or a key that is not there
        raise BadRequest(str(error)) from error
    except ValueError as error:
        raise BadRequest(in_a_line(error)) from error
    with state.store() as store:
        store.submit(job)
    ensure_scheduler(state.runs_dir)
    return StartSessionResponse(session_id=job.runs[0].folder, job_id=job.job_id)


@router.post("/sessions/{session_id}/resume")
def resume_session(
    state: State, session_id: str, wanted: ResumeRequest | None = None
) -> StartSessionResponse:
    """Go on with a session that has ended, with other bounds if you like.

    One that is out of time is given as much again as at first. One that has passed needs an order
    (steer) that asks for more.
    """
    record = state.session(session_id)
    status, asked = record.derive_status(), record.config.read()
    if asked is None:
        raise WrongState(f"{session_id} is a training run, not a session")
    if not is_resumable(status, pending_feedback(record)):
        hint = ": order what to do differently first (steer)" if status == "passed" else ""
        raise WrongState(f"session {session_id} is {status}{hint}")
    changes = wanted.model_dump(exclude_none=True) if wanted else {}
    changes.setdefault("max_minutes", minutes_to_go_on(asked, worked_s(record)))
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
        raise BadRequest(in_a_line(error)) from error
    record.set_status_if("queued", (status, "cancelled"))
    ensure_scheduler(state.runs_dir)
    return StartSessionResponse(session_id=session_id, job_id=run.run_id)
