"""`p2p label`: people's scores, blind, kept beside the judges' and compared with them."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import pytest
import typer
from cli_runner import Cli

from p2p.commands.label import _ask_for_scores
from p2p.contracts import RolloutJudgment, SessionResult
from p2p.records.session_view import SessionView
from p2p.session.labels import labelled_videos
from session_folder import SessionFolder, judgment


@pytest.fixture
def folder(tmp_path: Path, p2p: Cli) -> SessionFolder:
    """A session with two videos of judged episodes, and one that no judge has seen."""
    made = SessionFolder.create(tmp_path / "runs")
    run = made.iterate(1, 0.4).runs()[0]
    episodes = [
        RolloutJudgment(label=label, score=score) for label, score in (("p10", 0.2), ("p90", 0.9))
    ]
    judged = judgment(0.4).model_copy(update={"rollouts": tuple(episodes), "step": 512})
    run.save_judgment(judged)
    run.videos_dir.mkdir()
    for label in ("p10", "p90", "median"):
        (run.videos_dir / f"eval_512_{label}.mp4").write_bytes(label.encode())
    return made


def video(folder: SessionFolder, label: str) -> str:
    videos = labelled_videos(SessionView(folder.record))
    return next(each.video_id for each in videos if label in each.path)


def test_videos_are_listed_blind(p2p: Cli, folder: SessionFolder) -> None:
    listed = p2p("label", "last", "--json").json["videos"]
    assert len(listed) == 3
    for each in listed:
        assert not {"p10", "p90", "iter_1", "512"} & set(each["file"].replace("/", "_").split("_"))
        assert Path(each["file"]).read_bytes() in (b"p10", b"p90", b"median")
    assert "0.2" not in p2p("label", "last").out


def test_scores_stay_in_the_folder_and_are_compared(p2p: Cli, folder: SessionFolder) -> None:
    folder.record.report_path.write_text("old")
    for label, score in (("p10", 0.3), ("p90", 0.7), ("median", 0.5)):
        done = p2p("label", "last", "--video", video(folder, label), "--score", score,
                   "--annotator", "ann", "--note", "a, b")  # fmt: skip
        assert done.status == 0, done.err
    again = p2p("label", "last", "--video", video(folder, "p90"), "--score", 0.6,
                "--annotator", "ann", "--json").json  # fmt: skip
    assert (again["scores"], again["same_verdict"]) == (2, 1)
    assert again["mean_difference"] == pytest.approx(0.2)
    rows = list(csv.DictReader(io.StringIO(p2p("label", "last", "--csv", "-").out)))
    assert len(rows) == 3
    by_path = {row["path"].rpartition("_")[2]: row for row in rows}
    assert (by_path["p10.mp4"]["human_score"], by_path["p10.mp4"]["judge_score"]) == ("0.3", "0.2")
    assert by_path["median.mp4"]["judge_score"] == ""
    assert by_path["p10.mp4"]["note"] == "a, b"


def test_the_report_says_how_far_people_and_judges_are_apart(
    p2p: Cli, folder: SessionFolder
) -> None:
    folder.record.report_path.write_text("before")
    folder.record.result.save(SessionResult(status="max_iterations", iterations=1))
    p2p("label", "last", "--video", video(folder, "p10"), "--score", 0.25)
    report = folder.record.report_path.read_text()
    assert "## Human scores" in report
    assert "1 human score: off the judges' by 0.05 on average" in report


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--score", "0.5"), "--video, --score: give both"),
        (("--video", "x", "--score", "0.5"), "--video: no video 'x' in"),
        (("--csv", "/no/where.csv"), "--csv: /no/where.csv cannot be written"),
    ],
)
def test_mistakes_are_named(
    p2p: Cli, folder: SessionFolder, flags: tuple[str, ...], said: str
) -> None:
    assert said in p2p("label", "last", *flags).error


def test_ctrl_c_keeps_the_scores_so_far(
    folder: SessionFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("0.5\n"))  # then its end, as by Ctrl-D
    videos = labelled_videos(folder.view())
    with pytest.raises(typer.Exit) as ended:
        _ask_for_scores(folder.record, videos, "me")
    assert ended.value.exit_code == 130
    assert "scores so far are kept" in capsys.readouterr().err
    scores = [label.score for video in labelled_videos(folder.view()) for label in video.labels]
    assert scores == [0.5]
