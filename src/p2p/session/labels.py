"""People's own scores of a session's videos, given blind, beside those of the judges."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from p2p.contracts import HumanLabel, HumanLabels, utc_now
from p2p.files import copy_data, hold_lock, open_data
from p2p.records.folder import EVALUATION_VIDEO

if TYPE_CHECKING:
    from pathlib import Path

    from p2p.records.iteration_record import SessionRecord
    from p2p.records.session_view import RunView, SessionView

_JUDGED = re.compile(r"video_(seed_\d+)\.mp4")
COLUMNS = ("video", "path", "annotator", "human_score", "judge_score", "note", "given_at")


@dataclass(frozen=True)
class LabelledVideo:
    """A video, what the judges gave its episode, and what people did."""

    path: str
    """In the session's folder."""
    judge_score: float | None
    """None: no judge has judged this episode."""
    labels: tuple[HumanLabel, ...]

    @property
    def video_id(self) -> str:
        """Says nothing of its iteration, step or score."""
        return hashlib.sha256(self.path.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Comparison:
    """People against judges, over all labels of videos that both have scored."""

    pairs: tuple[tuple[float, float], ...]
    """(human, judge)."""
    threshold: float

    @cached_property
    def difference(self) -> float:
        """Mean absolute."""
        return sum(abs(human - judge) for human, judge in self.pairs) / len(self.pairs)

    @property
    def same_verdict(self) -> int:
        """How often both are on the same side of the threshold."""
        return sum((h >= self.threshold) == (j >= self.threshold) for h, j in self.pairs)

    def __str__(self) -> str:
        count = len(self.pairs)
        return (
            f"{count} human {'score' if count == 1 else 'scores'}: off the judges' by "
            f"{self.difference:.2f} on average, on the same side of {self.threshold:g} in "
            f"{self.same_verdict} of {count}"
        )


def labelled_videos(view: SessionView) -> list[LabelledVideo]:
    """Return a session's videos in the order of their ids, which tell nothing about them."""
    stored = view.record.labels.read() or HumanLabels()
    by_video: dict[str, list[HumanLabel]] = {}
    for label in stored.labels:
        by_video.setdefault(label.video, []).append(label)
    videos = [
        LabelledVideo(path, score, tuple(by_video.get(path, ())))
        for iteration in view.iterations.values()
        for run in iteration.runs
        for path, score in _videos(view.record.path, run)
    ]
    return sorted(videos, key=lambda video: video.video_id)


def _videos(session: Path, run: RunView) -> list[tuple[str, float | None]]:
    """Videos of the judged checkpoints, and those of the episodes that a VLM was shown."""
    judgments, videos = run.checkpoint_judgments, []
    for name in run.record.video_filenames():
        match = EVALUATION_VIDEO.fullmatch(name)
        judgment = judgments.get(int(match[1])) if match else None
        label = match[2] if match else ""
        episodes = judgment.rollouts if judgment else ()
        scores = [each.score for each in episodes if each.label == label]
        videos.append((run.record.videos_dir / name, scores[0] if scores else None))
    for path in sorted(run.record.path.glob("judged/video_seed_*.mp4")):
        match = _JUDGED.fullmatch(path.name)
        episodes = run.judgment.rollouts if run.judgment else ()
        scores = [each.score for each in episodes if match and each.label == match[1]]
        videos.append((path, scores[0] if scores else None))
    return [(path.relative_to(session).as_posix(), score) for path, score in videos]


def compare(view: SessionView) -> Comparison | None:
    """Compare the users' scores with the judges'; None while no video has both."""
    pairs = tuple(
        (label.score, video.judge_score)
        for video in labelled_videos(view)
        for label in video.labels
        if video.judge_score is not None
    )
    return Comparison(pairs, view.loop.pass_threshold) if pairs else None


def add_label(record: SessionRecord, path: str, score: float, annotator: str, note: str) -> None:
    """Keep a score; one that the same annotator gave this video before is replaced."""
    label = HumanLabel(video=path, score=score, annotator=annotator, note=note, given_at=utc_now())
    with hold_lock(record.labels.path.with_suffix(".lock")):
        stored = record.labels.load() or HumanLabels()
        others = [
            each for each in stored.labels if (each.video, each.annotator) != (path, annotator)
        ]
        record.labels.save(HumanLabels(labels=(*others, label)))


def blind_copy(record: SessionRecord, video: LabelledVideo) -> Path:
    """The video under a name that says nothing of it; it takes no room where links are possible.

    It is drawn first where that has not been done; raises VideoError where it cannot be.
    """
    from p2p.training.video.rendering import draw_video

    copy = record.labels_dir / f"{video.video_id}.mp4"
    if not copy.exists():
        source = draw_video(record.path / video.path)
        copy.parent.mkdir(exist_ok=True)
        open_data(source).close()
        try:
            os.link(source, copy)
        except FileExistsError:
            pass  # another process was quicker
        except OSError:  # a file system without links
            copy_data(source, copy)
    return copy


def as_csv(view: SessionView) -> str:
    """A line for each label, with the judges' score of the same episode."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for video in labelled_videos(view):
        for label in video.labels:
            writer.writerow(
                [video.video_id, video.path, label.annotator, label.score,
                 "" if video.judge_score is None else video.judge_score, label.note,
                 label.given_at.isoformat()]
            )  # fmt: skip
    return text.getvalue()
