"""Judging while training goes on, which ends with the first checkpoint that holds.

Each new checkpoint is judged by code on the episodes that its evaluation has recorded. One that
meets every hard criterion there is judged again on the judging seeds and, if it passes, at once on
held-out ones. If that holds too, it stands for the iteration and the training ends.

Whoever tries often enough passes by luck. So an iteration has few tries on held-out seeds, the last
of them kept for its end; each takes seeds that nothing was played on before, is written down before
it begins, and is counted in the verdict. What failed on held-out seeds is not tried again.
"""

from __future__ import annotations

import contextvars
import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from p2p.contracts import ROLLOUT_LABELS, JudgmentResult
from p2p.event_log import emit, span
from p2p.files import read_model, save_model
from p2p.records.iteration_record import IterationRecord
from p2p.records.loop_files import ConfirmationTries, ConfirmationTry, StopRequest
from p2p.records.statuses import UNFINISHED
from p2p.training.checkpoints import checkpoint_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from p2p.contracts import Intent
    from p2p.session.context import SessionContext

    AskJudges = Callable[[IterationRecord, int, Path, int, int], JudgmentResult]
    """Judge a run's checkpoint: run, step, folder of the episodes, how many, block of seeds."""

JUDGING_BLOCK = 1
FIRST_CONFIRMATION_BLOCK = 2
EARLY_TRIES = {"code": 2, "both": 1, "vlm": 0}
"""Of MOST_TRIES while training goes on, by strategy: a model that looks is paid for each."""
EARLY_LOOK_S = 0.5
NICENESS = 10
ERROR_LENGTH = 300


@dataclass(frozen=True)
class Confirmations:
    """Judges checkpoints of an iteration on held-out seeds, each checkpoint once."""

    context: SessionContext
    record: IterationRecord
    ask_judges: AskJudges

    @property
    def tries(self) -> tuple[ConfirmationTry, ...]:
        known = self.record.confirmation_tries.read()
        return known.tries if known else ()

    @property
    def passed(self) -> ConfirmationTry | None:
        """The checkpoint that has passed."""
        return next((each for each in self.tries if each.passed), None)

    def failed_steps(self, run: IterationRecord) -> set[int]:
        """Return the steps of a run's checkpoints that failed their confirmation."""
        tries = (each for each in self.tries if each.run_id == run.iteration_id)
        return {each.step for each in tries if each.passed is False}

    def confirm(self, run: IterationRecord, step: int) -> JudgmentResult:
        """Return what the judges make of a checkpoint on held-out seeds of its own."""
        path = run.path / f"confirmed_{step}.json"
        known = read_model(path, JudgmentResult)
        if known is not None:
            return known
        attempt = self._find_or_begin(run, step)
        episodes = self.context.loop.confirm_episodes
        data = {"run_id": run.iteration_id, "step": step, "episodes": episodes}
        with span("confirm", iteration=self.record.number, **data) as outcome:
            folder = run.path / f"confirmed_{step}"
            judgment = self.ask_judges(run, step, folder, episodes, attempt.block)
            outcome |= {"score": judgment.intent_score, "passed": judgment.passed}
        if judgment.intent_score is not None:
            save_model(path, judgment)
            self._save(attempt.model_copy(update={"passed": judgment.passed}))
        return judgment

    def _find_or_begin(self, run: IterationRecord, step: int) -> ConfirmationTry:
        for each in self.tries:
            if (each.run_id, each.step) == (run.iteration_id, step):
                return each  # a process that was killed had begun it
        blocks = [FIRST_CONFIRMATION_BLOCK - 1]
        for earlier in self.context.session.iteration_records():
            tries = earlier.confirmation_tries.read()
            blocks += [each.block for each in tries.tries] if tries else []
            if tries is None and earlier.confirmation.exists():  # of an earlier version
                blocks.append(max(blocks) + 1)
        attempt = ConfirmationTry(run_id=run.iteration_id, step=step, block=max(blocks) + 1)
        self._save(attempt)
        return attempt

    def _save(self, attempt: ConfirmationTry) -> None:
        others = [each for each in self.tries if each.block != attempt.block]
        tries = sorted((*others, attempt), key=lambda each: each.block)
        self._update(tries=tuple(tries))

    def keep_error(self, error: Exception) -> None:
        """Keep the first error of the judging on the way, for the user to see."""
        known = self.record.confirmation_tries.read()
        if known is None or not known.error:
            text = " ".join(f"{type(error).__name__}: {error}".split())[:ERROR_LENGTH]
            emit("early_judge.error", iteration=self.record.number, error=text)
            self._update(error=text)

    def _update(self, **changes: Any) -> None:
        known = self.record.confirmation_tries.read() or ConfirmationTries()
        self.record.confirmation_tries.save(known.model_copy(update=changes))


@dataclass(frozen=True)
class EarlyJudge:
    """Judges an iteration's checkpoints as they come, and ends its training when one holds."""

    context: SessionContext
    record: IterationRecord
    intent: Intent
    code: str
    """Of the judge."""
    confirmations: Confirmations
    stops: bool = True
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watch_checkpoints(self) -> Iterator[None]:
        """Judge each new checkpoint of each run inside of the context.

        An error is kept for the user to see, and training and judging go on.
        """
        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._watch,), name="early-judge",
            daemon=True,
        )  # fmt: skip
        thread.start()
        try:
            yield
        except BaseException:
            self._ended.set()  # what it is at ends on its own: nobody waits for it
            raise
        self._ended.set()
        thread.join()

    def judge_runs(self, runs: Iterable[IterationRecord]) -> None:
        """Judge each recorded checkpoint that is not judged yet."""
        for run in runs:
            for step in checkpoint_steps(run):
                self.judge_recorded(run, step)

    def judge_recorded(self, run: IterationRecord, step: int) -> JudgmentResult | None:
        """Judge a checkpoint's recorded episodes by code; return None if there are none."""
        path = run.streaming_dir / f"{step}.json"
        known = read_model(path, JudgmentResult)
        if known is not None:
            return known
        config = run.config.read()
        files: list[Path] = [run.trajectory_file(step, label) for label in ROLLOUT_LABELS]
        if config is None or not all(file.exists() for file in files):
            return None
        judgment = self.context.agents.judge_early(self.intent, self.code, config, files, step)
        save_model(path, judgment)
        emit("early_judge", run_id=run.iteration_id, step=step, score=judgment.intent_score)
        return judgment

    def try_pass(self, run: IterationRecord, step: int) -> bool:
        """Return whether a checkpoint passes on the judging seeds and on held-out ones.

        If so, it stands for the iteration, and a training that may be stopped ends. One that has
        been tried, or comes when there are no tries left, does not.
        """
        done = [each for each in self.confirmations.tries if each.passed is not None]
        if self.confirmations.passed or len(done) >= EARLY_TRIES[self.context.loop.strategy]:
            return False
        if step in self.confirmations.failed_steps(run):
            return False
        judgment = read_model(run.path / f"judged_{step}.json", JudgmentResult)
        if judgment is None:
            judgment = self._judge_on_judging_seeds(run, step)
        if not judgment.passed or not self.confirmations.confirm(run, step).passed:
            return False
        if self.stops:
            self.end_training()
        return True

    def try_in_order(self, checkpoints: Iterable[tuple[IterationRecord, int]]) -> None:
        """Try checkpoints of a training that has ended, until one of them holds."""
        for run, step in checkpoints:
            if self.try_pass(run, step):
                return

    def _judge_on_judging_seeds(self, run: IterationRecord, step: int) -> JudgmentResult:
        data = {"run_id": run.iteration_id, "step": step}
        with span("judge", iteration=self.record.number, **data) as outcome:
            episodes, folder = self.context.loop.judge_episodes, run.path / f"judged_{step}"
            judgment = self.confirmations.ask_judges(run, step, folder, episodes, JUDGING_BLOCK)
            outcome |= {"score": judgment.intent_score, "passed": judgment.passed}
        if judgment.intent_score is not None:
            save_model(run.path / f"judged_{step}.json", judgment)
            # It gives a better idea than the three episodes of an evaluation.
            save_model(run.streaming_dir / f"{step}.json", judgment)
        return judgment

    def end_training(self) -> None:
        """Select the passed checkpoint for the iteration, and end its training."""
        passed = self.confirmations.passed
        if passed is None:
            return
        winner = IterationRecord(self.record.path / passed.run_id)
        winner.stop.save(StopRequest(step=passed.step))
        for run in self.record.runs():
            if run.iteration_id != passed.run_id:
                run.set_status_if("cancelled", UNFINISHED, f"{passed.run_id} has passed")
        emit("training.stopped", iteration=self.record.number, **passed.model_dump())

    def _watch(self) -> None:
        # Of this thread and the processes it starts alone: training has the cores first.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        seen: set[Path] = set()
        # A process that was killed may have come so far that only the end is missing.
        judge_new = repeat(partial(self._judge_new, seen))
        owed = [self.end_training] if self.stops else []
        looks: Iterator[Callable[[], None]] = chain(owed, judge_new)
        for look in looks:
            try:
                look()
            # Whatever it is: training, which is the main thing, must not be disturbed by it.
            except Exception as error:  # noqa: BLE001
                if not self.context.switch.is_cancelled():
                    self.confirmations.keep_error(error)
            if self._ended.wait(EARLY_LOOK_S):
                return

    def _judge_new(self, seen: set[Path]) -> None:
        """Judge each checkpoint that is not `seen` yet, and try those that may pass."""
        for run in self.record.runs():
            for step in checkpoint_steps(run):
                path = run.streaming_dir / f"{step}.json"
                if path in seen or self._ended.is_set():
                    continue
                seen.add(path)
                judgment = self.judge_recorded(run, step)
                if self.stops and judgment is not None and judgment.passed:
                    self.try_pass(run, step)
