"""Iterations and training runs: curves, videos, policies, and people's scores of the videos."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse, PlainTextResponse

from p2p.api.metrics import Axis
from p2p.api.problems import ResourceNotFound, WrongState
from p2p.api.schemas import (
    AggregatedMetricsResponse,
    BlindVideo,
    IterationRunEntry,
    LabelRequest,
    LabelsResponse,
    RunMetricsResponse,
)
from p2p.api.state import AppState, PathNumber, State, view_of
from p2p.files import UnreadableError, is_data
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.session_view import SessionView
from p2p.records.summaries import IterationDetail, IterationSummary, RunHyperparameters
from p2p.session.labels import LabelledVideo, add_label, as_csv, compare, labelled_videos
from p2p.session.publishing import rewrite_report
from p2p.settings import resolve_session_dir
from p2p.training.checkpoints import export_policy
from p2p.training.policies.policy import PolicyFileError

if TYPE_CHECKING:
    from pathlib import Path

router = APIRouter(prefix="/api", tags=["iterations"])
_DRAWING = threading.Lock()


def describe_file(media_type: str) -> dict[int | str, dict[str, Any]]:
    """Describe a route that answers with a file, for the API's document."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"description": "the file, or a part of it", "content": {media_type: binary}}}


Points = Annotated[int, Query(ge=2, le=5000)]


@router.get("/sessions/{session_id}/iterations/{iteration_id}")
def show_iteration(state: State, session_id: str, iteration_id: str) -> IterationDetail:
    """An iteration, or a run of `p2p train`."""
    return IterationDetail.model_validate(state.view(session_id, iteration_id))


@router.get("/sessions/{session_id}/iterations/{iter_num}/runs")
def list_runs(state: State, session_id: str, iter_num: str) -> list[IterationRunEntry]:
    """The training runs of an iteration."""
    runs = state.view(session_id, iter_num).runs
    return [IterationRunEntry.model_validate(run) for run in runs]


@router.get("/sessions/{session_id}/iterations/{iter_num}/runs/{run_id}/metrics")
def show_metrics(
    state: State, session_id: str, iter_num: str, run_id: str, points: Points = 400
) -> RunMetricsResponse:
    """The curves of a run."""
    run = state.run(session_id, iter_num, run_id)
    return state.metrics.run(run_id, run.scalars_path, points)


@router.get("/sessions/{session_id}/iterations/{iter_num}/metrics")
def show_bands(
    state: State,
    session_id: str,
    iter_num: str,
    axis: Annotated[Axis, Query(description="the grid: of steps, or of seconds")] = "steps",
) -> list[AggregatedMetricsResponse]:
    """The curves of an iteration: each configuration with its seeds, as a band and one by one."""
    by_config: dict[str, dict[str, Path]] = {}
    for run in state.view(session_id, iter_num).runs:
        by_config.setdefault(run.config_id or run.run_id, {})[run.run_id] = run.record.scalars_path
    return state.metrics.bands(by_config, axis)


@router.get("/sessions/{session_id}/hyperparameters")
def list_hyperparameters(state: State, session_id: str) -> list[RunHyperparameters]:
    """The hyperparameters of every run of a session."""
    iterations = SessionView(state.session(session_id)).iterations.values()
    return [
        RunHyperparameters(iteration=each.number, run_id=run.run_id, config=run.config)
        for each in iterations
        for run in each.runs
        if run.config is not None
    ]


@router.get(
    "/sessions/{session_id}/iterations/{iter_num}/runs/{run_id}/videos/{name}",
    response_class=FileResponse,
    responses=describe_file("video/mp4"),
)
def get_video(state: State, session_id: str, iter_num: str, run_id: str, name: str) -> FileResponse:
    """A video, drawn now where that has not been done; parts of it by `Range`."""
    run = state.run(session_id, iter_num, run_id)
    if name not in run.video_filenames():
        raise ResourceNotFound(f"run {run_id} has no video {name!r}")
    return send_file(_ensure_video(run.videos_dir / name), state.runs_dir, "video/mp4")


def _ensure_video(path: Path) -> Path:
    """The path of a video that is there; one after the other, or many would take every core."""
    from p2p.training.video.rendering import VideoError, draw_video

    if is_data(path):
        return path
    try:
        with _DRAWING:
            return draw_video(path)
    except VideoError as error:
        raise ResourceNotFound(str(error)) from error


@router.get(
    "/sessions/{session_id}/iterations/{iter_num}/runs/{run_id}/policies/{step}",
    response_class=FileResponse,
    responses=describe_file("application/zip"),
)
def get_policy(
    state: State, session_id: str, iter_num: str, run_id: str, step: PathNumber
) -> FileResponse:
    """A policy, as Stable-Baselines3 loads it."""
    run = state.run(session_id, iter_num, run_id)
    path = _export_if_absent(run.checkpoints_dir / f"step_{step}" / "policy.zip", state.runs_dir)
    name = f"{session_id}_{run.iteration_id}_{step}.zip"
    return send_file(path, state.runs_dir, "application/zip", download_as=name)


def _export_if_absent(path: Path, runs_dir: Path) -> Path:
    """The path of a checkpoint's policy.zip, which is made now where that has not been done."""
    step = path.parent.name.removeprefix("step_")
    ours = path.resolve().is_relative_to(runs_dir.resolve()) and path.name == "policy.zip"
    if is_data(path) or not ours or not step.isdecimal():
        return path
    try:
        return export_policy(IterationRecord(path.parents[2]), int(step))
    except (OSError, PolicyFileError) as error:
        raise ResourceNotFound(f"there is no {path.name} of step {step}: {error}") from error


@router.get(
    "/sessions/{session_id}/policy",
    response_class=FileResponse,
    responses=describe_file("application/zip"),
)
def get_best_policy(state: State, session_id: str) -> FileResponse:
    """The policy that the session ended with."""
    record = state.session(session_id)
    result = record.result.read()
    if result is None or result.policy is None:
        raise ResourceNotFound(f"session {session_id} has no policy yet")
    path = record.path / result.policy
    path = _export_if_absent(path / "policy.zip" if path.is_dir() else path, state.runs_dir)
    return send_file(path, state.runs_dir, "application/zip", download_as=f"{session_id}.zip")


@router.get(
    "/sessions/{session_id}/report",
    response_class=FileResponse,
    responses=describe_file("text/markdown"),
)
def get_report(state: State, session_id: str) -> FileResponse:
    """report.md."""
    record = state.session(session_id)
    return send_file(record.report_path, state.runs_dir, "text/markdown; charset=utf-8")


def send_file(
    path: Path, runs_dir: Path, media_type: str, download_as: str | None = None
) -> FileResponse:
    """A file of ours; one behind a link, or outside of the runs folder, is not."""
    if not is_data(path) or not path.resolve().is_relative_to(runs_dir.resolve()):
        raise ResourceNotFound(f"there is no {path.name}")
    return FileResponse(path, media_type=media_type, filename=download_as)


@router.get("/iterations")
def list_iterations(
    state: State, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> list[IterationSummary]:
    """Training runs, of the newest sessions first."""
    summaries = (
        IterationSummary.model_validate(view_of(run))
        for session_id in state.index.newest_with(limit=limit)
        for iteration in _open_session(state, session_id).iteration_records()
        for run in iteration.runs() or [iteration]
    )
    return list(islice(summaries, limit))


OfSession = Annotated[str, Query(description="else the newest session that has one")]


@router.get("/iterations/{iteration_id}")
def show_newest_iteration(
    state: State, iteration_id: str, session_id: OfSession = ""
) -> IterationDetail:
    """An iteration or training run by its folder's name, which many sessions may have."""
    return IterationDetail.model_validate(view_of(_find_newest(state, iteration_id, session_id)))


@router.get("/iterations/{iteration_id}/metrics")
def show_newest_metrics(
    state: State, iteration_id: str, points: Points = 400, session_id: OfSession = ""
) -> RunMetricsResponse:
    """The curves of a run; of an iteration, those of its best run."""
    record = _find_newest(state, iteration_id, session_id)
    best = view_of(record).best_run
    path = best.record.scalars_path if best else record.scalars_path
    return state.metrics.run(iteration_id, path, points)


def _find_newest(state: AppState, name: str, session_id: str) -> IterationRecord:
    for found in [session_id] if session_id else state.index.newest_with(name):
        session = state.session(found)
        for iteration in reversed(session.iteration_records()):
            for record in (iteration, *iteration.runs()):
                if record.iteration_id == name:
                    return record
    raise ResourceNotFound(f"there is no training run {name!r}")


def _open_session(state: AppState, session_id: str) -> SessionRecord:
    """Open a session that the index has listed."""
    return SessionRecord(resolve_session_dir(session_id, state.runs_dir))


# --- people's scores, given blind: see `p2p label` ------------------------------------------------


@router.get("/sessions/{session_id}/labels")
def list_labels(
    state: State,
    session_id: str,
    annotator: Annotated[str, Query(max_length=100, description="whose scores to show")] = "",
) -> LabelsResponse:
    """The videos to score, in an order and under names that say nothing of them."""
    return _make_labels(session_id, state.session(session_id), annotator)


@router.post("/sessions/{session_id}/labels", status_code=201)
def save_label(state: State, session_id: str, body: LabelRequest) -> LabelsResponse:
    """Score a video; a score by the same annotator before is replaced."""
    record = state.session(session_id)
    video = _find_video(record, body.video)
    try:
        add_label(record, video.path, body.score, body.annotator, body.note)
    except UnreadableError as error:
        raise WrongState(f"{record.labels.path.name} of {session_id}: {error}") from error
    rewrite_report(record)
    return _make_labels(session_id, record, body.annotator)


@router.get(
    "/sessions/{session_id}/labels/{video}/video",
    response_class=FileResponse,
    responses=describe_file("video/mp4"),
)
def get_blind_video(state: State, session_id: str, video: str) -> FileResponse:
    """A video to score; parts of it by `Range`."""
    record = state.session(session_id)
    path = _ensure_video(record.path / _find_video(record, video).path)
    return send_file(path, state.runs_dir, "video/mp4")


@router.get(
    "/sessions/{session_id}/labels.csv",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def get_labels_csv(state: State, session_id: str) -> PlainTextResponse:
    """All scores, with those of the judges."""
    text = as_csv(SessionView(state.session(session_id)))
    return PlainTextResponse(text, media_type="text/csv")


def _find_video(record: SessionRecord, video_id: str) -> LabelledVideo:
    for video in labelled_videos(SessionView(record)):
        if video.video_id == video_id:
            return video
    raise ResourceNotFound(f"session {record.session_id} has no video {video_id!r} to score")


def _make_labels(session_id: str, record: SessionRecord, annotator: str) -> LabelsResponse:
    view = SessionView(record)
    comparison = compare(view)
    return LabelsResponse(
        videos=tuple(
            BlindVideo(
                video=video.video_id,
                url=f"/api/sessions/{session_id}/labels/{video.video_id}/video",
                score=next((e.score for e in video.labels if e.annotator == annotator), None),
            )
            for video in labelled_videos(view)
        ),
        compared=len(comparison.pairs) if comparison else 0,
        mean_difference=comparison.difference if comparison else None,
        same_verdict=comparison.same_verdict if comparison else 0,
    )
