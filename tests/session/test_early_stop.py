"""Training that ends with the first checkpoint that holds on held-out seeds."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from p2p.agents.builtin.goals import asks_for_most
from p2p.commands.session_progress import SessionProgress
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import (
    ROLLOUT_LABELS,
    AuthoredCode,
    Intent,
    JudgmentResult,
    SessionConfig,
    utc_now,
)
from p2p.files import save_model
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.loop_files import MOST_TRIES, ConfirmationTries, ConfirmationTry
from p2p.records.session_view import SessionView
from p2p.session.agents import SessionAgents
from p2p.session.context import IterationState, SessionContext
from p2p.session.early_stop import Confirmations, EarlyJudge
from p2p.session.iteration_runner import IterationRunner

Scores = dict[tuple[int, int], float]
"""By step and block of seeds."""


def judged(score: float, step: int) -> JudgmentResult:
    return JudgmentResult(intent_score=score, passed=score >= 0.8, step=step)


class Judges:
    """Scores that are given; a note of what was asked; and steps at which judging fails."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
        self.failing: tuple[int, ...] = ()
        self.asked: list[tuple[int, int, int]] = []

    def __call__(
        self, run: IterationRecord, step: int, folder: Path, episodes: int, block: int
    ) -> JudgmentResult:
        self.asked.append((step, episodes, block))
        if step in self.failing and block > 1:
            raise OSError(f"no space left for step {step}")
        return judged(self.scores.get((step, block), 0.1), step)


Made = Callable[..., tuple[EarlyJudge, Judges, IterationRecord]]


@pytest.fixture
def make(tmp_path: Path) -> Made:
    def make(scores: Scores, number: int = 1, **options: Any) -> Any:
        loop = LoopConfig.model_validate({"judge_episodes": 2, "confirm_episodes": 3, **options})
        session = SessionRecord(tmp_path / "session_x")
        config = SessionConfig(
            session_id="session_x", prompt="run", created_at=utc_now(), version="1", loop=loop
        )
        context = SessionContext(session, config, SessionAgents(session, loop))
        record, judges = session.iteration(number), Judges(scores)
        run = IterationRecord(record.path / "base_seed_1")
        run.save_config(TrainConfig())
        run.set_status("running")
        confirmations = Confirmations(context, record, judges)
        early = EarlyJudge(context, record, cast("Intent", None), "", confirmations)
        return early, judges, run

    return make


def checkpoint(run: IterationRecord, step: int, score: float) -> None:
    """A checkpoint with its recorded episodes, judged on them."""
    folder = run.checkpoints_dir / f"step_{step}"
    folder.mkdir(parents=True)
    (folder / "policy.safetensors").touch()
    for label in ROLLOUT_LABELS:
        np.savez(run.trajectory_file(step, label), obs=np.zeros(1))
    save_model(run.streaming_dir / f"{step}.json", judged(score, step))


def test_a_checkpoint_that_holds_ends_the_training_of_all_runs(make: Made) -> None:
    early, judges, run = make({(100, 1): 0.9, (100, 2): 0.85})
    other = IterationRecord(early.record.path / "base_seed_2")
    other.save_config(TrainConfig())
    other.set_status("running")
    assert early.try_pass(run, 100)
    stop = run.stop.read()
    assert stop is not None
    assert stop.step == 100
    assert judges.asked == [(100, 2, 1), (100, 3, 2)]
    assert other.stated_status() == "cancelled"
    assert run.stated_status() == "running"
    assert early.confirmations.confirm(run, 100).intent_score == 0.85
    assert len(judges.asked) == 2, "what is known is not asked again"


def test_a_miss_on_judging_seeds_spends_no_held_out_seeds(make: Made) -> None:
    early, judges, run = make({(100, 1): 0.5, (100, 2): 0.9})
    assert not early.try_pass(run, 100)
    assert judges.asked == [(100, 2, 1)]
    assert early.confirmations.tries == ()
    assert run.read_streaming()[100].intent_score == 0.5


def test_tries_are_bounded_and_each_has_its_own_seeds(make: Made) -> None:
    scores = {(step, 1): 0.9 for step in (100, 200, 300, 400)}
    early, judges, run = make({**scores, (300, 4): 0.9, (400, 4): 0.9})
    assert [early.try_pass(run, step) for step in (100, 100, 200, 300)] == [False] * 4
    blocks = [block for _, _, block in judges.asked if block > 1]
    assert blocks == [2, 3]
    assert early.confirmations.confirm(run, 300).passed, "the last try is for the end"
    assert len(early.confirmations.tries) == MOST_TRIES
    again, judges, run = make({(100, 1): 0.9}, number=2)
    again.try_pass(run, 100)
    assert judges.asked[-1] == (100, 3, 5), "another iteration has other seeds"


def test_a_try_that_was_killed_is_the_same_try_again(make: Made) -> None:
    early, judges, run = make({(100, 1): 0.9, (100, 7): 0.9})
    begun = ConfirmationTry(run_id=run.iteration_id, step=100, block=7)
    early.record.confirmation_tries.save(ConfirmationTries(tries=(begun,)))
    assert early.try_pass(run, 100)
    assert judges.asked[-1] == (100, 3, 7)
    assert [each.passed for each in early.confirmations.tries] == [True]


def test_the_watcher_stops_at_the_first_that_holds(make: Made) -> None:
    early, judges, run = make({(100, 1): 0.9, (200, 1): 0.9, (200, 3): 0.9, (300, 1): 0.9})
    for step, score in ((100, 0.9), (150, 0.3), (200, 0.9), (300, 0.9)):
        checkpoint(run, step, score)
    with early.watch_checkpoints():
        deadline = time.monotonic() + 60
        while not run.stop.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert judges.asked == [(100, 2, 1), (100, 3, 2), (200, 2, 1), (200, 3, 3)]
    passed = early.confirmations.passed
    assert passed is not None
    assert (passed.step, passed.block) == (200, 3)
    assert early.confirmations.failed_steps(run) == {100}


def test_a_stop_that_a_killed_process_owed_is_given(make: Made) -> None:
    early, judges, run = make({})
    passed = ConfirmationTry(run_id=run.iteration_id, step=100, block=2, passed=True)
    early.record.confirmation_tries.save(ConfirmationTries(tries=(passed,)))
    with early.watch_checkpoints():
        pass
    assert run.stop.exists()
    assert judges.asked == []


def test_an_error_is_kept_once_and_later_checkpoints_are_judged(make: Made) -> None:
    early, judges, run = make({(step, 1): 0.9 for step in (100, 200, 300)} | {(300, 4): 0.9})
    judges.failing = (100, 200)
    for step in (100, 200, 300):
        checkpoint(run, step, 0.9)
    with early.watch_checkpoints():
        deadline = time.monotonic() + 60
        while not run.stop.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    stop = run.stop.read()
    assert stop is not None
    assert stop.step == 300
    assert early.confirmations.passed is not None, "the error does not push the tries out"
    (iteration,) = SessionView(early.context.session).iterations.values()
    assert iteration.early_judge_error == "OSError: no space left for step 100"
    output = io.StringIO()
    SessionProgress(Console(file=output, width=200), early.context.session).update()
    assert output.getvalue().count("no space left for step 100") == 1


def test_after_a_whole_training_the_best_checkpoint_that_holds_stands(make: Made) -> None:
    scores = {(step, 1): 0.9 for step in (100, 200, 300)} | {(200, 3): 0.9}
    early, judges, run = make(scores)
    whole = replace(early, stops=False)
    for step in (100, 200, 300):
        checkpoint(run, step, 0.9)
    whole.try_in_order([(run, 300), (run, 200), (run, 100)])
    assert [(each.step, each.passed) for each in early.confirmations.tries] == [
        (300, False),
        (200, True),
    ]
    assert not run.stop.exists()
    assert (100, 2, 1) not in judges.asked


@pytest.mark.parametrize(
    ("prompt", "most"),
    [
        ("sprint forward as fast as possible", True),
        ("jump as high as you possibly can", True),
        ("walk at top speed", True),
        ("run forward fast", False),
        ("run forward at 2 m/s", False),
        ("stand still", False),
    ],
)
def test_prompt_for_as_much_as_possible_trains_on_after_a_pass(
    make: Made, prompt: str, most: bool
) -> None:
    context, record = (early := make({})[0]).context, early.record
    state = SimpleNamespace(record=record, intent=Intent.model_construct(prompt=prompt))
    judge = AuthoredCode.model_construct(code="", valid=True)
    runner = IterationRunner(context, cast("IterationState", state), judge)
    assert asks_for_most(prompt) == most
    assert runner.early_judge is not None
    assert runner.early_judge.stops == (not most)
