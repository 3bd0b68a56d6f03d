"""`p2p sessions`, `show`, `stop` and `steer` on sessions that lie in their folders."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from cli_runner import Cli
from processes import wait_until
from rich.console import Console

from p2p.commands.criteria_editor import apply, edit_criteria
from p2p.commands.live import Countdown, format_estimate
from p2p.commands.session_progress import (
    BARS,
    SessionProgress,
    intent_lines,
    sparkline,
)
from p2p.contracts import (
    AuthoredCode,
    AuthoringStep,
    Revision,
    SessionResult,
    TrainScalars,
    utc_now,
)
from p2p.event_log import EventLog, last_event, use_log
from p2p.files import save_model
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.session_view import SessionView, training_left
from p2p.session.steering import all_feedback, pending_feedback
from p2p.training import trainer
from p2p.training.cpu_manager import CPUManager
from p2p.training.metrics import to_line
from session_folder import INTENT, TRAIN, SessionFolder, judgment


@pytest.fixture
def folder(tmp_path: Path, p2p: Cli) -> SessionFolder:
    """A session with one judged iteration that did not pass and one that did, in runs/."""
    made = SessionFolder.create(tmp_path / "runs")
    first = made.iterate(1, 0.4)
    revision = Revision(
        based_on=1, diagnosis="slow", changes="speed counts [twice]", reward_code="x",
        notes=("gamma stays at 0.99: [you] fixed it",), author="test",
    )  # fmt: skip
    save_model(first.path / "revision.json", revision)
    made.iterate(2, 0.9)
    return made


def end(folder: SessionFolder, status: str = "passed") -> None:
    result = SessionResult.model_validate(
        {
            "status": status, "best_iteration": 2, "run_id": "base_seed_1", "score": 0.9,
            "policy": "iter_2/base_seed_1/checkpoints/step_1/policy.zip", "videos": ["a.mp4"],
            "model_calls": 3, "tokens": 1200, "unanswered": 1,
        }
    )  # fmt: skip
    save_model(folder.record.path / "result.json", result)
    folder.record.set_status(result.status)


def test_sessions_are_listed_newest_first(p2p: Cli, folder: SessionFolder) -> None:
    end(folder)
    later = SessionFolder.create(folder.record.path.parent / "x")
    later.record.path.rename(folder.record.path.parent / "session_20270101_000000_00000000")
    rows = p2p("sessions", "--json").json
    assert [row["session_id"][:12] for row in rows] == ["session_2027", "session_2026"]
    assert (
        rows[1]
        | {
            "session_id": folder.record.session_id,
            "status": "passed",
            "unchecked_words": [],
            "score": 0.9,
            "iterations": 2,
            "env_id": "HalfCheetah-v5",
            "prompt": "run forward fast",
            "alias": "",
        }
        == rows[1]
    )
    assert folder.record.session_id in p2p("sessions").out  # whole, also in 80 columns
    assert [row["session_id"] for row in p2p("sessions", "--limit", 1, "--json").json] == [
        rows[0]["session_id"]
    ]


@pytest.mark.parametrize(
    "text", ["last", "session_2026", "0000000", "runs/session_20260101_000000_00000000"]
)
def test_show_finds_the_session_meant(p2p: Cli, folder: SessionFolder, text: str) -> None:
    end(folder)
    told = p2p("show", text)
    assert told.status == 0, told.err
    assert "run forward fast" in told.out
    assert "≥ 3 m/s" in told.out
    assert (
        '"run forward fast": failed with 0.40; required criteria missed: Fast 1.2 of 3 m/s'
        in told.out
    )
    best = 'iteration 2 (best): "run forward fast": passed with 0.90; measured: Fast 3.6 of 3 m/s'
    assert best in told.out
    assert "speed counts [twice]" in told.out  # text in brackets is no markup
    assert "gamma stays at 0.99: [you] fixed it" in told.out
    assert f"{folder.record.session_id}/a.mp4" in told.out
    assert "3 calls, 1,200 tokens; 1 without an answer, which may have cost money" in told.out
    assert p2p("show", text, "--json").json["iterations"][0]["judgment"]["intent_score"] == 0.4


def test_an_unknown_or_ambiguous_session_is_named(p2p: Cli, folder: SessionFolder) -> None:
    assert "no session 'nothing' in" in p2p("show", "nothing").error
    other = folder.record.path.with_name("session_20260102_000000_00000000")
    (other / "iter_1").mkdir(parents=True)
    outcome = p2p("show", "session_2026")
    assert outcome.status == 2
    assert "type more of the name" in outcome.error


def test_criteria_are_printed_as_a_file_that_can_be_given_back(
    p2p: Cli, folder: SessionFolder, tmp_path: Path
) -> None:
    text = p2p("show", "last", "--criteria").out
    (tmp_path / "criteria.toml").write_text(text.replace("3.0", "4.5"))
    assert p2p("steer", "last", "--criteria", "criteria.toml").status == 0
    (order,) = all_feedback(folder.record.path / "steering").values()
    assert order.criteria is not None
    assert order.criteria[0].threshold == 4.5
    assert order.criteria[1] == INTENT.criteria[1]


def test_a_word_to_a_session_is_kept_whole(p2p: Cli, folder: SessionFolder, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def reward_fn(*_): return 0.0, {}\n")
    outcome = p2p(
        "steer", "last", "--remark", " lower ", "--score", 0.3, "--pause", "--reward", "mine.py",
        "--set", "learning_rate=1e-4", "--json",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    (order,) = all_feedback(folder.record.path / "steering").values()
    assert (order.remark, order.score, order.pause) == ("lower", 0.3, True)
    assert order.reward_code == (tmp_path / "mine.py").read_text()
    assert order.hp_changes == {"learning_rate": 1e-4}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "say what to change"),
        (("--remark", "  "), "say what to change"),
        (("--set", "env_id=Ant-v5"), "--set env_id: only learning_rate"),
        (("--set", "gamma=7"), "--set gamma=7: Input should be less than or equal to 1"),
        (("--set", "lerning_rate=1"), "did you mean learning_rate"),
        (("--reward", "nowhere.py"), "--reward: nowhere.py does not exist"),
        (("--criteria", "bad.toml"), "bad.toml: criterion 1 (speed): weight"),
    ],
)
def test_an_order_that_makes_no_sense_is_not_given(
    p2p: Cli, folder: SessionFolder, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    text = p2p("show", "last", "--criteria").out
    (tmp_path / "bad.toml").write_text(text.replace("weight = 1.0", "weight = 7"))
    outcome = p2p("steer", "last", *arguments)
    assert outcome.status == 2
    assert told in outcome.err
    assert not all_feedback(folder.record.path / "steering")


def test_feedback_is_withdrawn_by_its_number(p2p: Cli, folder: SessionFolder) -> None:
    assert "feedback 1: saved" in p2p("steer", "last", "--remark", "lower").out
    both = p2p("steer", "last", "--withdraw", 1, "--remark", "x")
    assert (both.status, "--withdraw: not with other feedback" in both.err) == (2, True)
    assert "withdrew feedback 1" in p2p("steer", "last", "--withdraw", 1).out
    assert pending_feedback(folder.record) == {}
    again = p2p("steer", "last", "--withdraw", 1)
    assert (again.status, "withdrawn already" in again.err) == (1, True)


def test_stop_waits_until_the_process_has_ended(p2p: Cli, folder: SessionFolder) -> None:
    """Another process runs the session and sees the cancel in its status."""
    script = (
        "import sys, time; from pathlib import Path\n"
        "from p2p.records.iteration_record import SessionRecord\n"
        "record = SessionRecord(Path(sys.argv[1])); record.set_status('running')\n"
        "print('ready', flush=True)\n"
        "while record.read_status().status == 'running': time.sleep(0.05)\n"
        "time.sleep(0.5); (record.path / 'ended').touch()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder.record.path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        outcome = p2p("stop", "last")
        assert outcome.status == 0, outcome.err
        assert (folder.record.path / "ended").exists()
    assert folder.record.derive_status() == "cancelled"
    assert "p2p resume" in outcome.out
    again = p2p("stop", "last")
    assert again.status == 1
    assert "is not running: it is cancelled" in again.error


def test_stop_ends_a_training_that_outlived_its_session(p2p: Cli, folder: SessionFolder) -> None:
    """The session's process was killed; the run it had started goes on and reads its own file."""
    run = folder.record.iteration_records()[-1].runs()[0]
    run.set_status("running")
    folder.record.set_status("running")
    outcome = p2p("stop", "last", "--no-wait")
    assert outcome.status == 0, outcome.err
    assert run.derive_status() == "cancelled"
    earlier = folder.record.iteration_records()[0].runs()[0]
    assert earlier.derive_status() == "completed"


def test_a_folder_of_plain_training_runs_is_shown_as_it_stands(
    p2p: Cli, tmp_path: Path, trained_run: IterationRecord
) -> None:
    session = tmp_path / "runs" / "session_20260103_000000_00000000"
    shutil.copytree(trained_run.path, session / "iter_1")
    shutil.copytree(trained_run.path, session / "by_hand")
    told = p2p("show", "last", "--json").json
    assert told["status"] == "completed"
    assert told["iterations"][0]["runs"] == ["iter_1"]
    assert p2p("sessions", "--json").json[0]["status"] == "completed"
    assert "completed" in p2p("show", "last").out


def test_the_phase_is_read_off_the_files(tmp_path: Path) -> None:
    made = SessionFolder.create(tmp_path)
    record = made.record
    (record.path / "intent.json").rename(record.path / "later")
    assert SessionView(record).phase == "intent"
    (record.path / "later").rename(record.path / "intent.json")
    assert SessionView(record).phase == "authoring"
    iteration = made.iterate(1, 0.9)
    iteration.judgment_path.rename(iteration.path / "later")
    assert SessionView(record).phase == "authoring"
    save_model(iteration.path / "reward.json", AuthoredCode(code="x", author="t", valid=True))
    assert SessionView(record).phase == "judging"
    iteration.runs()[0].set_status("running")
    assert SessionView(record).phase == "training"
    iteration.runs()[0].set_status("completed")
    (iteration.path / "later").rename(iteration.judgment_path)
    assert SessionView(record).phase == "confirming"
    save_model(iteration.path / "confirmation.json", judgment(0.5))
    assert SessionView(record).phase == "revising"
    record.set_status("max_iterations")
    assert SessionView(record).phase == "ended"


@pytest.mark.parametrize("terminal", [False, True])
def test_the_view_tells_each_thing_once(tmp_path: Path, terminal: bool) -> None:
    made = SessionFolder.create(tmp_path)
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100, highlight=False)
    with SessionProgress(console, made.record):
        made.iterate(1, 0.4)
        time.sleep(1.2)
        made.iterate(2, 0.9)
        time.sleep(0.7)
        made.record.set_status("passed")
    told = text.getvalue()
    assert told.count("2 criteria; the task: Fast ≥ 3 m/s\n") == 1
    first, second = (
        'iteration 1: "run forward fast": failed',
        'iteration 2: "run forward fast": passed',
    )
    assert (told.count(first), told.count(second)) == (1, 1)
    assert told.index(first) < told.index(second)
    assert "measured" not in told.split(second)[0], "the table stands in the report alone"


def test_a_curve_becomes_a_line_of_blocks() -> None:
    assert sparkline([]) == ""
    assert sparkline([1.0, 1.0]) == BARS[0] * 2
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == BARS
    long = sparkline([float(i) for i in range(1000)])
    assert len(long) <= 16
    assert long[-1] == BARS[-1]


def test_criteria_are_changed_by_short_commands() -> None:
    changed = apply(INTENT.criteria, ["threshold", "1", "2.5"])
    assert changed[0].threshold == 2.5
    assert apply(changed, ["weight", "2", "0.1"])[1].weight == 0.1
    assert apply(changed, ["drop", "2"]) == changed[:1]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("drp 1", "not one of drop"),
        ("drop", "by its number"),
        ("drop 3", "there are 1 to 2"),
        ("drop 0", "there are 1 to 2"),
        ("drop -1", "by its number"),
        ("threshold 1", "by its number"),
        ("threshold 1 much", "not a number"),
        ("weight 1 7", "less than or equal to 1"),
    ],
)
def test_a_command_that_makes_no_sense_is_an_error(command: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        apply(INTENT.criteria, command.split())


def test_criteria_can_be_edited_in_the_persons_editor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "edit.sh"
    script.write_text('#!/bin/sh\nsed -i "s/3.0/7.5/" "$1"\n')
    script.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(script))
    assert apply(INTENT.criteria, ["edit"])[0].threshold == 7.5


def test_a_session_of_the_public_program_is_listed_shown_and_not_resumed(
    p2p: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "session_old"
    judgment = {"intent_score": 0.6, "passed": False, "diagnosis": "", "failure_tags": ["fell"]}
    history = {
        "prompt": "hop", "env_id": "Hopper-v5", "status": "max_iterations", "best_iteration": 1,
        "best_score": 0.6, "iterations": [{"iteration": 1, "judgment": judgment}],
    }  # fmt: skip
    (folder / "iter_1").mkdir(parents=True)
    (folder / "loop_history.json").write_text(json.dumps(history))
    (folder / "session_config.json").write_text("{}")
    (row,) = p2p("sessions", "--json").json
    assert (row["prompt"], row["score"], row["status"]) == ("hop", 0.6, "max_iterations")
    shown = p2p("show", "session_old").out
    assert 'iteration 1: "hop": failed with 0.60' in shown
    assert "fell" in shown
    assert "--loop-config runs/session_old/session_config.json" in p2p("resume", "last").error


def test_what_nobody_checked_stands_beside_the_verdict(
    p2p: Cli, folder: SessionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder.record.intent.save(INTENT.model_copy(update={"unused_words": ("on", "[ice]")}))
    end(folder)
    listed = p2p("sessions").out
    assert re.search(
        r"^00000000 +unverified +0\.90 +2 +\d+ s.* HalfCheetah +run forward fast",
        listed,
        re.MULTILINE,
    )
    assert "unverified: `p2p show` names the words" in listed
    shown = p2p("show", "last")
    lines = shown.out.splitlines()
    assert "unverified" in lines  # its status file is of a version that knew only `passed`
    assert any(": unverified with 0.90; measured: Fast" in line for line in lines)
    hint = "say it as something measurable, add a criterion (--criteria), or watch the video"
    (line,) = (line for line in lines if line.startswith("not checked: on, [ice] (no criterion"))
    assert hint in line
    assert line.endswith("accept it: p2p steer session_20260101_000000_00000000 --score 1")
    assert p2p("show", "last", "--json").json["unchecked_words"] == ["on", "[ice]"]


@pytest.mark.parametrize("command", ["show", "label", "steer"])
def test_best_is_a_pass_then_the_score_then_the_newest(
    p2p: Cli, tmp_path: Path, command: str
) -> None:
    runs = tmp_path / "runs"
    none = p2p(command, "best", *(("--remark", "x") if command == "steer" else ()))
    assert "no sessions in" in none.error
    scores = {"a": (0.85,), "b": (0.9,), "c": (0.9,), "d": (0.95,), "e": ()}
    for name, judged in scores.items():
        made = SessionFolder.create(runs / "x")
        for score in judged:
            made.iterate(1, score)
        made.record.path.rename(runs / f"session_{name}")
    shutil.rmtree(runs / "x")
    refuted = SessionFolder(SessionRecord(runs / "session_d")).record.iteration(1)
    save_model(refuted.judgment_path, judgment(0.95).model_copy(update={"passed": False}))
    asked = p2p(command, "best", *(("--remark", "x") if command == "steer" else ()))
    assert "best: session_c, passed with 0.90: run forward fast" in asked.err


def training(folder: SessionFolder, *steps: int, waiting: int = 0) -> None:
    """Runs of one iteration of 100,000 steps at 100 steps/s, so far, and some that wait."""
    record = folder.record.iteration(1)
    save_model(record.path / "reward.json", AuthoredCode(code="x", author="t", valid=True))
    for number, step in enumerate((*steps, *(None for _ in range(waiting)))):
        run = IterationRecord(record.path / f"base_seed_{number}")
        run.save_config(TRAIN)
        run.set_status("queued" if step is None else "running")
        if step is not None:
            run.scalars_path.parent.mkdir(exist_ok=True)
            values = {"elapsed_time": step / 100, "episodic_return": float(step)}
            scalars = TrainScalars(global_step=step, iteration=1, values=values)
            run.scalars_path.write_text(to_line(scalars) + "\n")


@pytest.mark.parametrize(
    ("steps", "waiting", "minutes"),
    [((), 1, None), ((500,), 0, None), ((40_000,), 0, 10), ((40_000, 70_000), 0, 10),
     ((40_000, 40_000), 2, 27), ((100_000,), 0, 0)],
)  # fmt: skip
def test_the_time_left_is_what_the_trainings_own_rates_say(
    tmp_path: Path, steps: tuple[int, ...], waiting: int, minutes: int | None
) -> None:
    made = SessionFolder.create(tmp_path)
    training(made, *steps, waiting=waiting)
    left = training_left(made.view().iterations[1].runs)
    assert (None if left is None else round(left / 60)) == minutes


def drawn(folder: SessionFolder) -> list[str]:
    """The live region in 80 columns."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, color_system=None, width=80)
    view = SessionProgress(console, folder.record)
    view.update()
    text.truncate(0)
    text.seek(0)
    console.print(view.region())
    return text.getvalue().splitlines()


def test_the_live_view_tells_the_time_left_and_its_bars_keep_their_width(tmp_path: Path) -> None:
    made = SessionFolder.create(tmp_path)
    ends = set()
    for steps, waiting in (((1_000, 1_000), 1), ((40_000, 99_000), 1), ((100_000, 100_000), 1)):
        training(made, *steps, waiting=waiting)
        headline, *rows = drawn(made)
        assert "iteration 1 of at most 5 · training" in headline
        assert all(len(row) <= 80 for row in (headline, *rows))
        ends |= {row.index("return") for row in rows}
    assert "training 17 min left" in headline
    assert len(ends) == 1
    assert rows[0].count("━") >= 15


def test_the_headline_bounds_the_whole_run_within_80_columns(tmp_path: Path) -> None:
    made = SessionFolder.create(tmp_path)
    EventLog(made.record.events_path).emit("train.start", iteration=1)
    training(made, 40_000)
    (headline, *_) = drawn(made)
    # 10 min of training, a quarter of it for judging, four more such iterations, and a margin.
    assert "iteration 1 of at most 5 · training 10 min left · at most 79 min in all" in headline
    assert len(headline) <= 80


def test_a_run_that_waits_long_for_a_core_says_so(tmp_path: Path) -> None:
    made = SessionFolder.create(tmp_path)
    training(made, waiting=1)
    assert "waiting for a free core" not in drawn(made)[0]
    run = IterationRecord(made.record.iteration(1).path / "base_seed_0")
    status = run.read_status()
    assert status is not None
    earlier = status.model_copy(update={"updated_at": utc_now() - timedelta(seconds=60)})
    save_model(run.status_path, earlier)
    assert "training · waiting for a free core" in drawn(made)[0]


def test_training_that_waits_for_cores_says_who_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "WAIT_S", 0.0)
    made = SessionFolder.create(tmp_path)
    record = made.record.iteration(1)
    save_model(record.path / "reward.json", AuthoredCode(code="x", author="t", valid=True))
    manager = CPUManager(pool=(0, 1), folder=tmp_path / "cores")
    held = manager.try_allocate(2)
    assert held is not None
    held.sign(4711, "session_y/iter_2/base_seed_0")
    log, over = EventLog(made.record.events_path), threading.Event()

    def train() -> None:
        local = trainer.LocalTrainer(cores_per_run=1, cpu_manager=manager, cancelled=over.is_set)
        with use_log(log):
            local.train_runs([(TRAIN.with_updates(iteration_id="base_seed_0"), "x")], record.path)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        wait_until(lambda: (event := last_event(log.path)) is not None and bool(event.data))
        told = "needs 1 core; held: 2 of 2 by process 4711 (session_y/iter_2/base_seed_0)"
        assert told in " ".join(" ".join(drawn(made)).split())
        plain = io.StringIO()
        SessionProgress(Console(file=plain, width=120), made.record).update()
        assert f"training ...\n  {told}\n" in plain.getvalue()
    finally:
        over.set()
        thread.join(timeout=30)
    event = last_event(log.path)
    assert event is not None
    assert (event.event, event.iteration) == ("cores.wait", 1)
    assert event.data["held"]["1"] == {"pid": 4711, "work": "session_y/iter_2/base_seed_0"}


def test_a_countdown_runs_down_and_follows_only_large_changes() -> None:
    countdown = Countdown()
    assert countdown.seconds_left(100.0, now=0.0) == 100
    assert countdown.seconds_left(105.0, now=1.0) == 99
    assert countdown.seconds_left(90.0, now=2.0) == 98
    assert countdown.seconds_left(50.0, now=3.0) == 50
    assert countdown.seconds_left(None, now=4.0) is None
    assert [format_estimate(seconds) for seconds in (0, 41, 61, 5399, 9000, 9100)] == [
        "5 s", "45 s", "2 min", "90 min", "2.5 h", "3 h",
    ]  # fmt: skip


def test_where_there_is_no_terminal_a_run_is_told_in_a_few_lines(tmp_path: Path) -> None:
    made = SessionFolder.create(tmp_path)
    text = io.StringIO()
    view = SessionProgress(Console(file=text, width=80, highlight=False), made.record)
    for step in (10_000, 25_000, 30_000, 50_000, 75_000, 90_000):
        training(made, step)
        view.update()
    lines = [line for line in text.getvalue().splitlines() if "base_seed_0" in line]
    assert lines == [
        "  base_seed_0: 25% of 100k, return 25,000, 13 min left",
        "  base_seed_0: 50% of 100k, return 50,000, 9 min left",
        "  base_seed_0: 75% of 100k, return 75,000, 5 min left",
    ]


def test_unchecked_words_are_counted_from_the_thirteenth_on() -> None:
    words = tuple(f"w{number}" for number in range(1, 16))
    (line,) = intent_lines(INTENT.model_copy(update={"unused_words": words}))
    assert "w12, and 3 more (no criterion measures it)" in line
    assert "w13" not in line
    (line,) = intent_lines(INTENT.model_copy(update={"unused_words": words[:12]}))
    assert "w12, and" not in line


def test_assumptions_and_soft_criteria_are_shown(p2p: Cli, folder: SessionFolder) -> None:
    speed, upright = INTENT.criteria
    soft = upright.model_copy(update={"soft_reason": "nobody asked for it"})
    fell = {"id": "falls", "title": "Stays up", "event": "fell", "comparison": "at_most",
            "threshold": 0.0, "unit": ""}  # fmt: skip
    update = {"criteria": (speed, soft, speed.model_copy(update=fell)), "assumptions": ("+x [is]",)}
    folder.record.intent.save(INTENT.model_copy(update=update))
    end(folder)
    lines = p2p("show", "last").out.splitlines()
    assert "assumed: +x [is]" in lines
    assert any(re.match(r"task +Fast ≥ 3 m/s +3\.6 m/s +0\.90", line) for line in lines)
    assert any(re.match(r"posture, soft +Upright ≥ 0\.9", line) for line in lines)
    assert any(re.match(r"task +never: fell", line) for line in lines)


def test_the_editor_makes_a_criterion_soft_and_hard_again() -> None:
    softened = apply(INTENT.criteria, ["soft", "2", "only", "nicer"])
    assert [c.soft_reason for c in softened] == ["", "only nicer"]
    assert apply(softened, ["hard", "2"]) == INTENT.criteria
    with pytest.raises(ValueError, match="say why it need not be met"):
        apply(INTENT.criteria, ["soft", "2"])


def test_the_editor_says_what_is_not_checked_and_again_after_each_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "edit.sh"
    edit = "s/title = .Upright./title = 'Stays on the Ice'/"
    script.write_text(f'#!/bin/sh\nsed -i "{edit}" "$1"\n')
    script.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(script))
    monkeypatch.setattr(sys, "stdin", io.StringIO("threshold 1 2\nedit\n\n"))
    intent = INTENT.model_copy(update={"unused_words": ("ice", "gladly")})
    with contextlib.redirect_stderr(io.StringIO()) as told:
        changed = edit_criteria(intent)
    assert max(map(len, told.getvalue().splitlines())) <= 80
    assert (changed.criteria[0].threshold, changed.criteria[1].title) == (2, "Stays on the Ice")
    assert changed.unused_words == ("gladly",)
    assert told.getvalue().count("not checked: ice, gladly (no criterion measures it)") == 2
    assert told.getvalue().count("not checked: gladly (no criterion measures it)") == 1


def test_show_tells_what_a_reviewer_changed_in_the_reward(p2p: Cli, folder: SessionFolder) -> None:
    iteration = folder.record.iteration(1)
    review = AuthoringStep(
        kind="review", ok=False, text="too heavy", code="x", diff="@@ -1 +1 @@\n-a = [9]\n+a = [1]"
    )
    authored = AuthoredCode(code="x", author="t", valid=True, steps=(review,))
    save_model(iteration.path / "reward.json", authored)
    shown = p2p("show", "last").out
    assert "the reviewer changed the reward:" in shown
    assert "-a = [9]" in shown
    assert "+a = [1]" in shown


def test_a_deleted_session_is_neither_listed_nor_last_until_it_is_restored(
    p2p: Cli, tmp_path: Path
) -> None:
    first = SessionFolder.create(tmp_path / "runs").record
    first.set_status("passed")
    second = first.path.with_name("session_20260102_000000_11111111")
    shutil.copytree(first.path, second)
    assert "Traceback" not in p2p("rename", "last", "second  try").err
    assert "second try" in p2p("sessions").out
    assert "moved session_20260102" in p2p("delete", "last").out
    assert [row["session_id"] for row in p2p("sessions", "--json").json] == [first.session_id]
    assert "session_20260101" in p2p("delete", "last").out
    assert p2p("trash", "--json").json == [first.session_id, second.name]
    assert p2p("trash", "--restore", "00000000").status == 0
    assert "not in the trash" in p2p("trash", "--restore", "00000000").error
    assert p2p("trash", "--empty").status == 0
    assert (first.path.is_dir(), second.is_dir()) == (True, False)


def test_codes_of_emoji_in_foreign_text_stay_as_they_are(p2p: Cli, tmp_path: Path) -> None:
    made = SessionFolder.create(tmp_path / "runs")
    config = made.record.config.read()
    assert config is not None
    made.record.config.save(config.model_copy(update={"prompt": "obs[:x:] :warning:"}))
    assert "obs[:x:] :warning:" in p2p("show", "last").out
    assert "obs[:x:] :warning:" in p2p("sessions").out
