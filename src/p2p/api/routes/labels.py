"""People's own scores of a session's videos, given blind; see `p2p label`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse, PlainTextResponse

from p2p.api.problems import NotFound, WrongState
from p2p.api.routes.iterations import file_answer, file_of
from p2p.api.schemas import BlindVideo, LabelRequest, LabelsResponse
from p2p.api.state import State
from p2p.files import UnreadableError
from p2p.records.iteration_record import SessionRecord
from p2p.records.session_view import SessionView
from p2p.session.labels import LabelledVideo, add_label, as_csv, compare, labelled_videos
from p2p.session.publishing import rewrite_report

router = APIRouter(prefix="/api/sessions/{session_id}", tags=["labels"])


@router.get("/labels")
def list_labels(
    state: State,
    session_id: str,
    annotator: Annotated[str, Query(max_length=100, description="whose scores to show")] = "",
) -> LabelsResponse:
    """The videos to score, in an order and under names that say nothing of them."""
    return _labels(session_id, state.session(session_id), annotator)


@router.post("/labels", status_code=201)
def save_label(state: State, session_id: str, body: LabelRequest) -> LabelsResponse:
    """Score a video; a score by the same annotator before is replaced."""
    record = state.session(session_id)
    video = _video(record, body.video)
    try:
        add_label(record, video.path, body.score, body.annotator, body.note)
    except UnreadableError as error:
        raise WrongState(f"{record.labels.path.name} of {session_id}: {error}") from error
    rewrite_report(record)
    return _labels(session_id, record, body.annotator)


@router.get("/labels/{video}/video", response_class=FileResponse, responses=file_of("video/mp4"))
def get_blind_video(state: State, session_id: str, video: str) -> FileResponse:
    """A video to score; parts of it by `Range`."""
    record = state.session(session_id)
    return file_answer(record.path / _video(record, video).path, state.runs_dir, "video/mp4")


@router.get(
    "/labels.csv",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def get_labels_csv(state: State, session_id: str) -> PlainTextResponse:
    """All scores, with those of the judges."""
    text = as_csv(SessionView(state.session(session_id)))
    return PlainTextResponse(text, media_type="text/csv")


def _video(record: SessionRecord, video_id: str) -> LabelledVideo:
    for video in labelled_videos(SessionView(record)):
        if video.video_id == video_id:
            return video
    raise NotFound(f"session {record.session_id} has no video {video_id!r} to score")


def _labels(session_id: str, record: SessionRecord, annotator: str) -> LabelsResponse:
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
