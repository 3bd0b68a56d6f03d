"""From the files of a session to what the API answers."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from p2p.api.problems import NotFound
from p2p.api.schemas import (
    IterationDetail,
    IterationRunEntry,
    IterationSummary,
    LoopIterationSummary,
    PendingFeedback,
    SessionDetail,
    SessionRow,
    Video,
)
from p2p.benchmark.measuring import ground_truth
from p2p.config import TrainConfig
from p2p.contracts import EvalResult, SessionAnalysis
from p2p.files import is_session, read_model
from p2p.records.folder import EVALUATION_VIDEO
from p2p.records.iteration_record import SessionRecord
from p2p.records.loop_files import SteeringTaken, candidate_rows
from p2p.records.session_view import IterationView, RunView, SessionView, training_left
from p2p.records.statuses import FINAL, RESUMABLE
from p2p.records.time_left import session_left
from p2p.session.request import command_line, minutes_to_resume
from p2p.session.steering import merge_feedback, pending_feedback
from p2p.session.stopping import worked_s
from p2p.session.verdict import verdict_sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from p2p.contracts import StatusLiteral, SteeringOrder
    from p2p.records.iteration_record import IterationRecord

_RUN = re.compile(r"(?P<config>.+)_seed_(?P<seed>\d+)")


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
        **_fields(view, "prompt", "status", "error", "unchecked_words"),
        session_id=session_id,
        env_id=asked.env_id if asked else view.env_id,
        video=shown_video(session_id, view),
        best_score=view.best_score,
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


def session_detail(session_id: str, record: SessionRecord) -> SessionDetail:
    """A session, in full; raises NotFound if it was removed at this moment."""
    row = read_row(session_id, record.path)
    if row is None:
        raise NotFound(f"there is no session {session_id!r}")
    view, pending = SessionView(record), pending_feedback(record)
    asked = view.config
    return SessionDetail(
        **row.model_dump(),
        **_fields(view, "phase", "waiting", "env_reason", "intent", "judge", "result"),
        config=asked.loop if asked else None,
        ground_truth=ground_truth(record.path),
        lineage=record.lineage.read(),
        orders=tuple(
            PendingFeedback(number=number, **order.model_dump())
            for number, order in pending.items()
        ),
        analysis=read_model(record.analysis_path, SessionAnalysis),
        seconds_left=session_left(view) if view.status == "running" else None,
        resumable=asked is not None and is_resumable(view.status, pending),
        minutes_to_go_on=minutes_to_resume(asked, worked_s(record)) if asked else None,
        command=command_line(asked, record.path) if asked else "",
    )


def _fields(source: object | None, *names: str) -> dict[str, Any]:
    """Attributes under their own names; none where there is no source yet."""
    return {} if source is None else {name: getattr(source, name) for name in names}


def is_resumable(status: StatusLiteral, pending: Mapping[int, SteeringOrder]) -> bool:
    """Whether there is something left to do: after a pass, if feedback asks for more."""
    if status in FINAL:
        scored = any(order.score is not None for order in pending.values())
        return scored or merge_feedback(SteeringTaken(), pending).wants_more
    return status in RESUMABLE


def loop_iterations(session_id: str, record: SessionRecord) -> list[LoopIterationSummary]:
    """All iterations of a session."""
    lineage = record.lineage.read()
    changes = {node.iteration: node.changes for node in lineage.nodes} if lineage else {}
    session = SessionView(record)
    return [
        _loop_iteration(session_id, session, each, changes.get(each.number, ""))
        for each in session.iterations.values()
    ]


def _loop_iteration(
    session_id: str, session: SessionView, view: IterationView, changes: str
) -> LoopIterationSummary:
    record, judgment, best = view.record, view.judgment, view.best
    runs = view.runs or (RunView(record),)
    return LoopIterationSummary(
        **_fields(view.plan, "parent", "hp_changes", "train", "notes"),
        **_fields(
            judgment, "intent_score", "score_std", "passed", "criteria", "diagnosis",
            "failure_tags", "agreement", "confidence",
        ),
        **_fields(view, "reward", "aggregation", "revision", "candidates"),
        choice=view.search.reason if view.search else "",
        iteration=view.number,
        iteration_id=record.iteration_id,
        status=record.derive_status(),
        progress=record.compute_progress(),
        seconds_left=training_left(runs, view.search),
        changes=changes,
        verdict=verdict_sentence(session, view),
        unverified=session.outcome_of(view) == "unverified",
        confirmed_score=view.confirmation.intent_score if view.confirmation else None,
        unavailable={str(n): why for n, why in judgment.unavailable.items()} if judgment else {},
        reward_spec=record.read_reward_spec(),
        reward_code=view.reward.code if view.reward else record.read_reward_source(),
        runs=tuple(run_entry(run) for run in runs),
        best_run_id=best.run_id if best else None,
        best_step=best.step if best else None,
        steering=record.steering.read(),
        videos=tuple(v for run in runs for v in videos(session_id, record.iteration_id, run)),
    )  # fmt: skip


def training_runs(record: IterationRecord) -> list[RunView]:
    """The runs of an iteration; one of `p2p train` is a run itself."""
    return [RunView(run) for run in ([record] if record.config.exists() else record.runs())]


def run_entry(run: RunView) -> IterationRunEntry:
    """A training run, as an iteration lists it."""
    summary, name = run.record.read_summary(), _RUN.fullmatch(run.run_id)
    return IterationRunEntry(
        **_fields(run, "run_id", "status", "error", "progress", "total_timesteps"),
        config_id=name["config"] if name else "",
        seed=run.config.seed if run.config else None,
        final_return=summary.final_episodic_return if summary else None,
        score=run.judgment.intent_score if run.judgment else None,
        checkpoint_scores={s: j.intent_score for s, j in run.record.read_streaming().items()},
    )


def videos(session_id: str, iteration_id: str, run: RunView) -> list[Video]:
    """The videos of a run, and where to get them."""
    names = run.record.video_filenames()
    return [_video(session_id, iteration_id, run.run_id, name) for name in names]


def shown_video(session_id: str, session: SessionView) -> Video | None:
    """The median episode of the best policy, or while there is none of the newest checkpoint."""
    best = session.result.videos if session.result else ()
    there = [path for path in best if (session.record.path / path).is_file()]
    if (video := _median(video_at(session_id, path) for path in there)) is not None:
        return video
    for iteration in reversed(session.record.iteration_records()):
        runs = training_runs(iteration)
        every = (v for run in runs for v in videos(session_id, iteration.iteration_id, run))
        if (video := _median(every)) is not None:
            return video
    return None


def _median(choices: Iterable[Video | None]) -> Video | None:
    """Of median episodes, or else of any, the one of the last step."""
    ranked = [(each.label == "median", each.step or 0, each) for each in choices if each]
    return max(ranked, key=lambda rank: rank[:2])[2] if ranked else None


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
    match = EVALUATION_VIDEO.fullmatch(name)
    base = f"/api/sessions/{session_id}/iterations/{iteration_id}/runs/{run_id}"
    return Video(
        run_id=run_id,
        name=name,
        step=int(match[1]) if match else None,
        label=match[2] if match else "",
        url=f"{base}/videos/{name}",
    )


def representative(record: IterationRecord) -> IterationRecord:
    """The run that stands for an iteration of the loop; a run, or an iteration without: itself."""
    best = IterationView(record, record.number or 0, TrainConfig()).best_run
    return best.record if best else record


def _config(record: IterationRecord, run: IterationRecord) -> TrainConfig | None:
    plan = record.plan.read()
    return run.config.read() or (plan.train if plan else None)


def iteration_summary(session_id: str, record: IterationRecord) -> IterationSummary:
    """A training run in a list."""
    run, spec = representative(record), record.read_reward_spec()
    config, summary = _config(record, run), run.read_summary()
    theirs = {} if config else run.read_config() or {}  # of another program
    return IterationSummary(
        iteration_id=record.iteration_id,
        session_id=session_id,
        env_id=config.env_id if config else str(theirs.get("env_id", "")),
        status=record.derive_status(),
        final_episodic_return=summary.final_episodic_return if summary else None,
        reward_latex=spec.latex,
        reward_description=spec.description,
    )


def iteration_detail(session_id: str, record: IterationRecord) -> IterationDetail:
    """A training run, or an iteration of the loop, in full."""
    run = representative(record)
    _, evaluations = run.parse_scalars()
    search = record.search.read()
    return IterationDetail(
        **iteration_summary(session_id, record).model_dump(),
        config=_config(record, run),
        reward_spec=record.read_reward_spec(),
        reward_source=record.read_reward_source(),
        summary=run.read_summary(),
        eval_results=tuple(_valid(evaluations)),
        judgment=record.read_judgment(),
        candidates=candidate_rows(record.candidates.read(), search),
        choice=search.reason if search else "",
        progress=record.compute_progress(),
        videos=tuple(
            video
            for run in training_runs(record)
            for video in videos(session_id, record.iteration_id, run)
        ),
    )


def _valid(lines: list[dict[str, object]]) -> Iterator[EvalResult]:
    for line in lines:
        with suppress(ValidationError):  # from another program
            yield EvalResult.model_validate(line)
