"""The time of a session: counted over its processes, bounded, and given anew."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from p2p.contracts import SessionConfig, SessionResult, utc_now
from p2p.records.iteration_record import SessionRecord
from p2p.session.request import ResumeOptions, loop_config, minutes_to_resume, with_changes
from p2p.session.stopping import (
    Clock,
    StopSwitch,
    heartbeat,
    make_time_exhausted,
    read_worked_seconds,
)


def config(minutes: float | None) -> SessionConfig:
    return SessionConfig(
        session_id="session_x",
        prompt="run",
        loop=loop_config("Ant-v5", max_minutes=minutes),
        created_at=utc_now(),
        version="1",
    )


def clock_at(seconds: float) -> Clock:
    return Clock(seconds, started=time.monotonic())


def test_without_a_bound_the_time_is_never_over(tmp_path: Path) -> None:
    session = SessionRecord(tmp_path)
    clock_at(1e9).save(session)
    assert not Clock.of(session, config(None)).is_over()
    assert Clock.of(session, config(0.5)).is_over()


def test_time_counts_from_what_the_last_process_has_left_whether_it_ended_or_was_killed(
    tmp_path: Path,
) -> None:
    session = SessionRecord(tmp_path)
    assert read_worked_seconds(session) == 0
    session.result.save(SessionResult(status="running", seconds=100.0))
    assert read_worked_seconds(session) == 100.0
    clock_at(160.0).save(session)  # it worked on, and was killed
    assert read_worked_seconds(session) == pytest.approx(160.0, abs=5)
    session.result.save(SessionResult(status="paused", seconds=300.0))
    following = Clock.of(session, config(5))
    assert following.seconds() >= 300.0
    assert following.is_over()
    assert not Clock.of(session, config(60)).is_over()
    session.clock.path.write_text("{")
    assert read_worked_seconds(session) == 300.0


def test_time_in_which_the_user_is_asked_does_not_count() -> None:
    clock = Clock()
    with clock.pause():
        before = clock.seconds()
        time.sleep(0.3)
        assert clock.seconds() == before
    assert before <= clock.seconds()
    late = Clock(started=time.monotonic() - 100)
    with late.pause():
        pass
    assert late.seconds() >= 100


def test_out_of_time_it_is_given_as_much_again_as_at_first() -> None:
    asked = config(10)
    assert minutes_to_resume(asked, 9 * 60) == 10
    assert minutes_to_resume(asked, 10 * 60) == 20
    longer = with_changes(asked, ResumeOptions(max_minutes=20))
    assert minutes_to_resume(longer, 20 * 60) == 30, "not twice what it has by now"
    longest = with_changes(longer, ResumeOptions(max_minutes=100))
    assert minutes_to_resume(longest, 100 * 60) == 110
    assert minutes_to_resume(asked, 12.001 * 60) == 22.01, "a bound that leaves it all of it"
    assert minutes_to_resume(config(None), 1e9) is None
    # One that had no bound at first has that of later.
    assert minutes_to_resume(with_changes(config(None), ResumeOptions(max_minutes=5)), 300) == 10
    assert with_changes(asked, ResumeOptions(max_minutes=10)) == asked


def test_the_end_says_how_long_it_was_and_how_to_go_on(tmp_path: Path) -> None:
    session = SessionRecord(tmp_path / "session_x")
    session.config.save(config(1))
    told = str(make_time_exhausted(session, config(1)))
    assert told == (
        f"its time of 1 minute is used up; `p2p resume {session.path}` gives it as much again"
    )


def test_the_end_of_the_time_interrupts_what_the_session_waits_for(tmp_path: Path) -> None:
    session = SessionRecord(tmp_path)
    session.set_status("running")
    switch, clock = StopSwitch(), Clock(limit_s=0.1)
    with switch.handle_signals(), heartbeat(session, switch, clock):
        with pytest.raises(KeyboardInterrupt):
            threading.Event().wait(60)
        assert switch.out_of_time
        # What comes after is not interrupted a second time; a person's word still counts.
        os.kill(os.getpid(), signal.SIGINT)
        assert switch.is_cancelled()
        assert not switch.out_of_time


def test_a_cancel_before_the_end_of_the_time_stays_one(tmp_path: Path) -> None:
    session = SessionRecord(tmp_path)
    session.set_status("running")
    switch = StopSwitch()
    with switch.handle_signals(), switch.suspend_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
        switch.stop_for_time()
        assert switch.is_cancelled()
        assert not switch.out_of_time
