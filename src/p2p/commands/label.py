"""`p2p label`: score a session's videos yourself, without seeing what the judges say."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from p2p.commands.arguments import RunsDirOption, SessionArgument, open_session
from p2p.commands.console import (
    EXIT_INTERRUPTED,
    CommandError,
    JsonFlag,
    UsageError,
    answer,
    display_path,
    err,
    out,
    reject_argument,
)

if TYPE_CHECKING:
    from p2p.records.iteration_record import SessionRecord
    from p2p.session.labels import LabelledVideo

QUESTION = "score 0..1, nothing to skip, q to end"


def label(
    session: SessionArgument,
    video: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The video to score.", show_default="asks for each"),
    ] = None,
    score: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, metavar="0..1", help="How well it does it.", show_default="asked for"
        ),
    ] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="Why.", show_default="none")] = "",
    annotator: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who scores.", show_default="you")
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all scores as CSV; `-`: print it.", show_default="none"
        ),
    ] = None,
    runs_dir: RunsDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Score a session's videos yourself; compare with its judges.

    Videos have names that say nothing of their iteration or score. Scores stay in
    the session's folder; its report says how far they are from the judges'.

    [bold]Examples[/]

      p2p label last
      p2p label last --video 3fa9c2d1 --score 0.6 --note "limps"
      p2p label last --csv scores.csv
    """
    from p2p.records.find import NotFound, find_name
    from p2p.records.session_view import SessionView
    from p2p.session.labels import as_csv, labelled_videos

    record = open_session(session, runs_dir)
    videos, who = labelled_videos(SessionView(record)), annotator or getpass.getuser()
    if (video is None) != (score is None):
        raise UsageError("--video, --score: give both, or none of them")
    if not videos:
        raise CommandError(f"{record.session_id} has no videos to score")
    if csv is not None:
        text = as_csv(SessionView(record))
        if str(csv) == "-":
            typer.echo(text, nl=False)
            return
        try:
            csv.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"--csv: {csv} cannot be written: {error.strerror}") from error
    elif video is not None and score is not None:
        by_id = {each.video_id: each for each in videos}
        with reject_argument("--video", NotFound):
            name = find_name(video, sorted(by_id), "video", record.path)
        _save_score(record, by_id[name], score, who, note)
    elif sys.stdin.isatty() and not as_json:
        _ask_for_scores(record, videos, who)
    _print_comparison(record, who, as_json=as_json)


def _save_score(
    record: SessionRecord, video: LabelledVideo, score: float, annotator: str, note: str
) -> None:
    from p2p.files import UnreadableError
    from p2p.session.labels import add_label
    from p2p.session.publishing import rewrite_report

    with reject_argument(record.labels.path.name, UnreadableError):
        add_label(record, video.path, score, annotator, note)
    rewrite_report(record)


def _ask_for_scores(record: SessionRecord, videos: list[LabelledVideo], annotator: str) -> None:
    left = [v for v in videos if annotator not in {each.annotator for each in v.labels}]
    for number, video in enumerate(left, 1):
        file, problem = _draw(record, video)
        if file is None:
            err.print(f"{video.video_id}: {escape(problem)}: skipped", soft_wrap=True)
            continue
        err.print(f"{number} of {len(left)}  {escape(display_path(file))}", soft_wrap=True)
        try:
            text = typer.prompt(QUESTION, default="", show_default=False, err=True)
        except typer.Abort:  # Ctrl-C, or the end of the input
            err.print("\nscores so far are kept", style="dim")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        if text.strip() == "q":
            return
        try:
            score = float(text) if text.strip() else None
        except ValueError:
            score = -1.0
        if score is not None and not 0 <= score <= 1:
            err.print(f"{escape(text)} is not a number from 0 to 1: skipped")
        elif score is not None:
            _save_score(record, video, score, annotator, "")


def _draw(record: SessionRecord, video: LabelledVideo) -> tuple[Path | None, str]:
    """Return the file to look at, or None and why there is none."""
    from p2p.session.labels import blind_copy
    from p2p.training.video.rendering import VideoError

    try:
        return blind_copy(record, video), ""
    except VideoError as error:
        return None, f"it cannot be drawn: {error}"


def _print_comparison(record: SessionRecord, annotator: str, *, as_json: bool) -> None:
    """What there is to score, and how the scores compare with the judges'."""
    from p2p.records.formatting import format_score
    from p2p.records.session_view import SessionView
    from p2p.session.labels import compare, labelled_videos

    view = SessionView(record)
    videos, comparison = labelled_videos(view), compare(view)
    drawn = [_draw(record, each) for each in videos]
    if as_json:
        value: dict[str, Any] = {
            "videos": [
                {
                    "video": each.video_id,
                    "file": str(file) if file else None,
                    "error": problem,
                    "labels": [label.model_dump(mode="json") for label in each.labels],
                }
                for each, (file, problem) in zip(videos, drawn, strict=True)
            ],
            "scores": len(comparison.pairs) if comparison else 0,
            "mean_difference": comparison.difference if comparison else None,
            "same_verdict": comparison.same_verdict if comparison else None,
        }
        answer(value, "", as_json=True)
        return
    for each, (file, problem) in zip(videos, drawn, strict=True):
        mine = [label.score for label in each.labels if label.annotator == annotator]
        given = format_score(mine[0]) if mine else "  - "
        place = display_path(file) if file else problem
        out.print(f"{each.video_id}  {given}  {escape(place)}", soft_wrap=True)
    if comparison is not None:
        out.print(str(comparison), soft_wrap=True)
