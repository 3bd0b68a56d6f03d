"""Sessions: listed, shown, named, steered, stopped, put away."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import ValidationError

from p2p.api.house import House, TheHouse
from p2p.api.index import Sort, Wanted
from p2p.api.problems import BadRequest, NotFound, WrongState
from p2p.api.rows import SessionRow
from p2p.api.schemas import (
    LoopIterationSummary,
    SessionDetail,
    SteerRequest,
    StopResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from p2p.api.views import loop_iterations, session_detail
from p2p.config import TUNABLE
from p2p.contracts import Criterion, Intent, SteeringOrder, describe_errors, utc_now
from p2p.records.statuses import CANCELLABLE
from p2p.scheduler.service import ensure_scheduler
from p2p.session.steering import give_feedback
from p2p.session.stopping import cancel
from p2p.settings import session_path

router = APIRouter(prefix="/api", tags=["sessions"])


@router.get("/sessions", response_model=list[SessionRow])
def list_sessions(
    house: TheHouse,
    q: Annotated[str, Query(max_length=200, description="words of the prompt, name or id")] = "",
    status: Annotated[str, Query(max_length=40)] = "",
    env_id: Annotated[str, Query(max_length=200)] = "",
    tag: Annotated[str, Query(max_length=50)] = "",
    starred: bool | None = None,
    cases: Annotated[
        bool | None, Query(description="those of benchmarks: only them, or none of them")
    ] = None,
    sort: Sort = "created_at",
    order: Literal["asc", "desc"] = "desc",
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """A page of the sessions; `X-Total-Count` says how many there are."""
    rows, total = house.index.find_json(
        Wanted(
            text=q, status=status, env_id=env_id, tag=tag, starred=starred, cases=cases,
            sort=sort, descending=order == "desc", offset=offset, limit=limit,
        )
    )  # fmt: skip
    # The index holds them as they are sent.
    text = f"[{','.join(rows)}]"
    return Response(text, media_type="application/json", headers={"X-Total-Count": str(total)})


@router.get("/sessions/{session_id}")
def show_session(house: TheHouse, session_id: str) -> SessionDetail:
    """One session, in full."""
    found = session_detail(session_id, house.session(session_id))
    if found is None:
        raise NotFound(f"there is no session {session_id!r}")
    return found


@router.get("/sessions/{session_id}/loop-iterations")
def list_loop_iterations(house: TheHouse, session_id: str) -> list[LoopIterationSummary]:
    """What each iteration did, and what came of it."""
    return loop_iterations(session_id, house.session(session_id))


@router.patch("/sessions/{session_id}")
def update_session(
    house: TheHouse, session_id: str, wanted: UpdateMetadataRequest
) -> UpdateMetadataResponse:
    """Give it another name, a star, tags."""
    record = house.session(session_id)
    given = {name: value for name, value in wanted.model_dump().items() if value is not None}
    now = record.update_metadata(**given)
    house.index.refresh_one(session_id, record.path)
    return UpdateMetadataResponse(
        id=session_id, alias=now.alias, starred=now.starred, tags=now.tags
    )


@router.post("/sessions/{session_id}/stop")
def stop_session(house: TheHouse, session_id: str) -> StopResponse:
    """End it; what is done stays, and it can be resumed."""
    record = house.session(session_id)
    queued = _cancel_run(house, session_id)
    if cancel(record) is None and not queued:
        raise WrongState(f"session {session_id} is not running: it is {record.derive_status()}")
    house.index.refresh_one(session_id, record.path)
    return StopResponse(id=session_id, status="cancelled")


def _cancel_run(house: House, session_id: str) -> bool:
    """Take it out of the scheduler's hands first: it would be started, or started again."""
    with house.store() as store:
        run = store.run_in(session_path(session_id).as_posix())
        if run is None or not store.cancel(run.job_id, [run.run_id]):
            return False
    ensure_scheduler(house.runs_dir)
    return True


@router.post("/sessions/{session_id}/steer", status_code=201)
def steer_session(house: TheHouse, session_id: str, wanted: SteerRequest) -> SteeringOrder:
    """Say what the next iteration should do; it is taken up when the current one ends."""
    record = house.session(session_id)
    if record.config.read() is None:
        raise WrongState(f"{session_id} is a training run: it has no next iteration")
    if not any(value not in (None, "", {}) for value in wanted.model_dump().values()):
        raise BadRequest("say what to change: pause, remark, score, criteria, reward_code, ...")
    for name in wanted.hp_changes:
        if name not in TUNABLE:
            raise BadRequest(f"hp_changes.{name}: only {', '.join(TUNABLE)} can be changed")
    if wanted.criteria is not None:
        _check_criteria(wanted.criteria)
    order = SteeringOrder(**wanted.model_dump(), given_at=utc_now())
    give_feedback(record.path, order)
    return order


def _check_criteria(criteria: tuple[Criterion, ...]) -> None:
    """Hold them to what a session's own criteria are held to."""
    try:
        Intent(prompt="", env_id="", criteria=criteria, author="user")
    except ValidationError as error:
        raise BadRequest(f"criteria: {describe_errors(error)}") from None


@router.delete("/sessions/{session_id}")
def trash_session(house: TheHouse, session_id: str) -> StopResponse:
    """Put it away; it can be restored."""
    record = house.session(session_id)
    if record.derive_status() in CANCELLABLE:
        raise WrongState(f"session {session_id} is running: stop it first")
    record.update_metadata(deleted_at=utc_now())
    house.index.refresh_one(session_id, record.path)
    return StopResponse(id=session_id, status="deleted")


@router.post("/sessions/{session_id}/restore")
def restore_session(house: TheHouse, session_id: str) -> StopResponse:
    """Take it out of the trash."""
    record = house.session(session_id)
    if record.read_metadata().deleted_at is None:
        raise WrongState(f"session {session_id} is not in the trash")
    record.update_metadata(deleted_at=None)
    house.index.refresh_one(session_id, record.path)
    return StopResponse(id=session_id, status="restored")
