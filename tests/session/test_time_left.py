"""How long a session may still take: a bound, from what was measured."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from p2p.contracts import AuthoredCode, TrainScalars
from p2p.event_log import EventLog
from p2p.files import save_model
from p2p.records.iteration_record import IterationRecord
from p2p.records.time_left import MARGIN, session_left
from p2p.training.metrics import to_line
from session_folder import TRAIN, SessionFolder


def train(folder: SessionFolder, number: int, step: int | None) -> None:
    """A run of 100,000 steps at 100 a second that is at this step; None: it waits."""
    iteration = folder.record.iteration(number)
    save_model(iteration.path / "reward.json", AuthoredCode(code="x", author="t", valid=True))
    run = IterationRecord(iteration.path / "base_seed_1")
    run.save_config(TRAIN)
    run.set_status("queued" if step is None else "running")
    if step is not None:
        run.scalars_path.parent.mkdir(exist_ok=True)
        scalars = TrainScalars(global_step=step, iteration=1, values={"elapsed_time": step / 100})
        run.scalars_path.write_text(to_line(scalars) + "\n")


def session(tmp_path: Path, **loop: float) -> tuple[SessionFolder, EventLog]:
    folder = SessionFolder.create(tmp_path, max_iterations=3, **loop)
    return folder, EventLog(folder.record.events_path)


def took(log: EventLog, phase: str, iteration: int, seconds: float) -> None:
    log.emit(f"{phase}.start", iteration=iteration)
    log.emit(f"{phase}.end", iteration=iteration, duration_ms=1000 * seconds)


def test_before_a_training_has_shown_its_rate_nothing_is_promised(tmp_path: Path) -> None:
    folder, log = session(tmp_path)
    took(log, "reward", 1, 10)
    assert session_left(folder.view()) is None
    log.emit("train.start", iteration=1)
    train(folder, 1, None)
    assert session_left(folder.view()) is None


def test_in_the_first_iteration_all_are_taken_to_be_like_it(tmp_path: Path) -> None:
    folder, log = session(tmp_path)
    took(log, "reward", 1, 10)
    began = log.emit("train.start", iteration=1).timestamp
    train(folder, 1, 40_000)
    training = 400 + 600  # began 400 s ago, 60,000 steps are left
    other = 2 * 10 + training / 4
    most = session_left(folder.view(), began + timedelta(seconds=400))
    assert most == pytest.approx(MARGIN * (600 + other - 10 + 2 * (training + other)), abs=1)


def test_later_the_longest_iteration_so_far_is_the_measure(tmp_path: Path) -> None:
    folder, log = session(tmp_path)
    for phase, seconds in (("reward", 10), ("train", 500), ("judge", 20), ("revise", 5)):
        took(log, phase, 1, seconds)
    took(log, "reward", 2, 8)
    now = log.emit("train.start", iteration=2).timestamp + timedelta(seconds=100)
    train(folder, 1, 100_000)
    train(folder, 2, None)
    assert session_left(folder.view(), now) == pytest.approx(MARGIN * (400 + 27 + 535), abs=1)
    train(folder, 2, 90_000)
    assert session_left(folder.view(), now) == pytest.approx(MARGIN * (100 + 27 + 535), abs=1)


def test_a_limit_of_time_bounds_it(tmp_path: Path) -> None:
    folder, log = session(tmp_path, max_minutes=2)
    log.emit("train.start", iteration=1)
    train(folder, 1, 10_000)
    assert session_left(folder.view()) == 120
