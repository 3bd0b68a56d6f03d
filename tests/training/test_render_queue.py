"""The videos of a run, drawn beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

from p2p.records.iteration_record import IterationRecord
from p2p.training.video.rendering import RenderQueue


def copied(tmp_path: Path, run: IterationRecord) -> IterationRecord:
    shutil.copytree(run.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "videos", ignore_errors=True)
    return IterationRecord(tmp_path / "run")


def test_every_recorded_episode_is_drawn_once(tmp_path: Path, trained_run: IterationRecord) -> None:
    record = copied(tmp_path, trained_run)
    with RenderQueue(record, "HalfCheetah-v5", enabled=True) as queue:
        queue.add(512, ("median",))
        queue.add(512)
        queue.add(1024)
        assert queue.finish() == []
    names = {
        f"eval_{step}_{label}.mp4" for step in (512, 1024) for label in ("p10", "median", "p90")
    }
    assert set(record.video_filenames()) == names
    written = {name: (record.videos_dir / name).stat().st_mtime_ns for name in names}
    with RenderQueue(record, "HalfCheetah-v5", enabled=True) as queue:
        queue.add(512)
        assert queue.finish() == []
    assert written == {name: (record.videos_dir / name).stat().st_mtime_ns for name in names}


def test_leaving_early_cancels_and_leaves_no_half_video(
    tmp_path: Path, trained_run: IterationRecord
) -> None:
    record = copied(tmp_path, trained_run)
    with RenderQueue(record, "HalfCheetah-v5", enabled=True) as queue:
        queue.add(512)
        queue.add(1024)
    left = [path.name for path in record.videos_dir.iterdir()]
    assert all(name.endswith(".mp4") and not name.startswith(".") for name in left)
    assert len(left) < 6


def test_what_cannot_be_drawn_is_told_once(tmp_path: Path, trained_run: IterationRecord) -> None:
    record = copied(tmp_path, trained_run)
    for path in record.path.glob("trajectory_512_*.npz"):
        path.write_bytes(b"no trajectory")
    with RenderQueue(record, "HalfCheetah-v5", enabled=True) as queue:
        queue.add(512)
        problems = queue.finish()
    assert problems
    assert len(problems) == len(set(problems))
    assert all("no video" in problem for problem in problems)
    assert record.video_filenames() == []


def test_switched_off_nothing_is_drawn(tmp_path: Path, trained_run: IterationRecord) -> None:
    record = copied(tmp_path, trained_run)
    with RenderQueue(record, "HalfCheetah-v5", enabled=False) as queue:
        queue.add(512)
        assert queue.finish() == []
    assert not record.videos_dir.exists()
