"""From the files of a session to what the API answers."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from p2p.api.schemas import (
    IterationDetail,
    IterationRunEntry,
    IterationSummary,
    LoopIterationSummary,
    SessionDetail,
    SessionRow,
    Video,
)
from p2p.contracts import EvalResult
from p2p.records.iteration_record import SessionRecord
from p2p.records.loop_files import SteeringTaken
from p2p.records.session_view import SessionView
from p2p.records.statuses import RESUMABLE
from p2p.session.request import minutes_to_resume
from p2p.session.steering import merge, not_taken
from p2p.session.stopping import worked_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from p2p.contracts import StatusLiteral, SteeringOrder
    from p2p.records.iteration_record import IterationRecord
    from p2p.records.loop_files import SessionConfig

_VIDEO = re.compile(r"eval_(\d+)_(\w+)\.mp4")
_RUN = re.compile(r"(?P<config>.+)_seed_(?P<seed>\d+)")


def is_session(folder: Path) -> bool:
    """Whether a folder holds a session or plain training runs."""
    return (folder / "session.json").is_file() or any(folder.glob("iter_*/"))


def read_row(session_id: str, folder: Path) -> SessionRow | None:
    """A session's line in a list; None if there is none."""
    if not is_session(folder):
        return None
    try:
        touched = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    except FileNotFoundError:  # removed at this moment
        return None
    view = SessionView(SessionRecord(folder))
    asked, result, status = view.config, view.result, view.record.read_status()
    return SessionRow(
        **view.record.read_metadata().model_dump(),
        **_fields(result, "best_iteration", "confirmed_score", "cost_usd", "tokens", "seconds"),
        **_fields(view, "prompt", "status", "error"),
        session_id=session_id,
        env_id=asked.env_id if asked else view.env_id,
        best_score=result.score if result else None,
        iterations=len(view.record.iteration_records()),
        max_iterations=asked.loop.max_iterations if asked else None,
        model=asked.loop.model if asked else "",
        created_at=asked.created_at if asked else touched,
        updated_at=status.updated_at if status else touched,
    )


def run_names(folder: Path) -> tuple[str, ...]:
    """The names of a session's iterations and of the training runs in them, each once."""
    iterations = SessionRecord(folder).iteration_records()
    names = (each.iteration_id for record in iterations for each in (record, *record.runs()))
    return tuple(dict.fromkeys(names))


def session_detail(session_id: str, record: SessionRecord) -> SessionDetail | None:
    """A session, in full."""
    row = read_row(session_id, record.path)
    if row is None:
        return None
    view, pending = SessionView(record), pending_feedback(record)
    asked = view.config
    return SessionDetail(
        **row.model_dump(),
        **_fields(view, "phase", "waiting", "env_reason", "intent", "judge", "result"),
        config=asked.loop if asked else None,
        lineage=record.lineage.read(),
        orders=tuple(pending.values()),
        resumable=asked is not None and is_resumable(view.status, pending),
        minutes_to_go_on=minutes_to_resume(asked, worked_s(record)) if asked else None,
        command=command_line(asked) if asked else "",
    )


def _fields(source: object | None, *names: str) -> dict[str, Any]:
    """Attributes under their own names; none where there is no source yet."""
    return {} if source is None else {name: getattr(source, name) for name in names}


def is_resumable(status: StatusLiteral, pending: Mapping[int, SteeringOrder]) -> bool:
    """Whether there is something left to do: after a pass, if feedback asks for more."""
    if status == "passed":
        asked = merge(SteeringTaken(orders=()), pending)
        return asked.wants_more or asked.score is not None
    return status in RESUMABLE


def pending_feedback(record: SessionRecord) -> Mapping[int, SteeringOrder]:
    """Feedback that the session has not taken up yet."""
    taken = [record.steering.read(), *(i.steering.read() for i in record.iteration_records())]
    return not_taken(record.steering_dir, [each for each in taken if each is not None])


def command_line(asked: SessionConfig) -> str:
    """`p2p run` with what differs from its defaults."""
    from p2p.config import LoopConfig

    flags = {
        "--env": asked.env_id or None,
        "--model": asked.loop.model or None,
        "--vlm": asked.loop.vlm_model or None,
        "--iterations": asked.loop.max_iterations,
        "--budget-usd": asked.loop.budget_usd,
        "--max-minutes": asked.loop.max_minutes,
        "--threshold": asked.loop.pass_threshold,
    }
    plain = {
        "--iterations": LoopConfig.model_fields["max_iterations"].default,
        "--threshold": LoopConfig.model_fields["pass_threshold"].default,
    }
    parts = ["p2p", "run", asked.prompt]
    for flag, value in flags.items():
        if value is not None and value != plain.get(flag):
            parts += [flag, str(value)]
    fixed = asked.loop.train.model_dump()
    parts += [f"--set={name}={fixed[name]}" for name in asked.loop.fixed]
    return shlex.join(parts)


def loop_iterations(session_id: str, record: SessionRecord) -> list[LoopIterationSummary]:
    """All iterations of a session."""
    lineage = record.lineage.read()
    changes = {node.iteration: node.changes for node in lineage.nodes} if lineage else {}
    return [
        _loop_iteration(session_id, iteration, changes)
        for iteration in record.iteration_records()
        if iteration.number is not None
    ]


def _loop_iteration(
    session_id: str, record: IterationRecord, changes: dict[int, str]
) -> LoopIterationSummary:
    number = record.number or 0
    plan, judgment, best = record.plan.read(), record.read_judgment(), record.best_run.read()
    confirmation = record.confirmation.read()
    runs = record.runs() or [record]
    return LoopIterationSummary(
        **_fields(plan, "parent", "hp_changes", "train", "notes"),
        **_fields(
            judgment, "intent_score", "score_std", "passed", "criteria", "diagnosis",
            "failure_tags", "agreement", "confidence",
        ),
        iteration=number,
        iteration_id=record.iteration_id,
        status=record.derive_status(),
        progress=record.compute_progress(),
        changes=changes.get(number, ""),
        confirmed_score=confirmation.intent_score if confirmation else None,
        unavailable={str(n): why for n, why in judgment.unavailable.items()} if judgment else {},
        reward=record.reward.read(),
        reward_spec=record.read_reward_spec(),
        aggregation=record.aggregation.read(),
        runs=tuple(run_entry(run) for run in runs),
        best_run_id=best.run_id if best else None,
        best_step=best.step if best else None,
        revision=record.revision.read(),
        steering=record.steering.read(),
        videos=tuple(v for run in runs for v in videos(session_id, record.iteration_id, run)),
    )  # fmt: skip


def run_entry(record: IterationRecord) -> IterationRunEntry:
    """A training run, as an iteration lists it."""
    config, summary, status = (
        record.config.read(),
        record.read_summary(),
        record.read_status(),
    )
    judgment, name = record.read_judgment(), _RUN.fullmatch(record.iteration_id)
    return IterationRunEntry(
        run_id=record.iteration_id,
        config_id=name["config"] if name else "",
        **_fields(config, "seed", "total_timesteps"),
        status=record.derive_status(),
        error=(status.error or "") if status else "",
        progress=record.compute_progress() or 0.0,
        final_return=summary.final_episodic_return if summary else None,
        score=judgment.intent_score if judgment else None,
        checkpoint_scores={s: j.intent_score for s, j in record.read_streaming().items()},
    )


def videos(session_id: str, iteration_id: str, run: IterationRecord) -> list[Video]:
    """The videos of a run, and where to get them."""
    return [
        _video(session_id, iteration_id, run.iteration_id, name) for name in run.video_filenames()
    ]


def video_at(session_id: str, path: str) -> Video | None:
    """The video at a path inside of a session's folder, as results name them; None if it is none.

    An iteration of `p2p train` is a run itself.
    """
    match path.split("/"):
        case [iteration_id, run_id, "videos", name]:
            return _video(session_id, iteration_id, run_id, name)
        case [iteration_id, "videos", name]:
            return _video(session_id, iteration_id, iteration_id, name)
    return None


def _video(session_id: str, iteration_id: str, run_id: str, name: str) -> Video:
    match = _VIDEO.fullmatch(name)
    base = f"/api/sessions/{session_id}/iterations/{iteration_id}/runs/{run_id}"
    return Video(
        run_id=run_id,
        name=name,
        step=int(match[1]) if match else None,
        label=match[2] if match else "",
        url=f"{base}/videos/{name}",
    )


def iteration_summary(session_id: str, record: IterationRecord) -> IterationSummary:
    """A training run in a list."""
    config, summary, spec = record.read_config(), record.read_summary(), record.read_reward_spec()
    return IterationSummary(
        iteration_id=record.iteration_id,
        session_id=session_id,
        env_id=str((config or {}).get("env_id", "")),
        status=record.derive_status(),
        final_episodic_return=summary.final_episodic_return if summary else None,
        reward_latex=spec.latex,
        reward_description=spec.description,
    )


def iteration_detail(session_id: str, record: IterationRecord) -> IterationDetail:
    """A training run, or an iteration of the loop, in full."""
    _, evaluations = record.parse_scalars()
    runs = [record] if record.config_path.is_file() else record.runs()
    return IterationDetail(
        **iteration_summary(session_id, record).model_dump(),
        config=record.config.read(),
        reward_spec=record.read_reward_spec(),
        reward_source=record.read_reward_source(),
        summary=record.read_summary(),
        eval_results=tuple(_valid(evaluations)),
        judgment=record.read_judgment(),
        progress=record.compute_progress(),
        videos=tuple(v for run in runs for v in videos(session_id, record.iteration_id, run)),
    )


def _valid(lines: list[dict[str, object]]) -> Iterator[EvalResult]:
    for line in lines:
        with suppress(ValidationError):  # from another program
            yield EvalResult.model_validate(line)
