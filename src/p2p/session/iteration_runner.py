"""One iteration: train, judge every run, choose the best, confirm a pass on held-out seeds."""

from __future__ import annotations

import contextvars
import math
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2p.contracts import (
    ROLLOUT_LABELS,
    IterationAggregation,
    JudgmentResult,
    RunConfigEntry,
)
from p2p.event_log import emit, span
from p2p.files import load_text, save_model
from p2p.records.iteration_record import IterationRecord
from p2p.records.loop_files import BestRun, JudgeAmendment
from p2p.session.context import IterationState, SessionContext, load_or_run
from p2p.session.phases import publish_reward
from p2p.session.plan import place_start
from p2p.session.search import CandidateSearch
from p2p.session.stopping import JudgeUnavailable, SessionCancelled, TrainingUnavailable
from p2p.training.checkpoints import checkpoint_steps
from p2p.training.trainer import final_return, plan_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from p2p.contracts import AuthoredCode, Intent
    from p2p.records.loop_files import SteeringTaken

JUDGING_BLOCK = 1
FIRST_CONFIRMATION_BLOCK = 2
REHEARSAL_BLOCK = 3000
"""Seeds of neither."""
EARLY_LOOK_S = 1.0
NICENESS = 10


@dataclass(frozen=True)
class IterationRunner:
    """Does what of an iteration is not done yet; its folder then holds all of it."""

    context: SessionContext
    state: IterationState
    judge: AuthoredCode | None
    """None where only frames are looked at."""

    @property
    def record(self) -> IterationRecord:
        return self.state.record

    @property
    def number(self) -> int:
        return self.state.number

    @property
    def intent(self) -> Intent:
        return self.state.intent

    def run(self) -> None:
        """Train, judge and confirm.

        Raises JudgeUnavailable, TrainingUnavailable or SessionCancelled; a reward that cannot be
        trained is an outcome.
        """
        aggregation = self._train()
        if aggregation.best_run_id is not None:
            self._judge(aggregation)
            self._confirm()
            self._amend()

    # --- training ---------------------------------------------------------------------------------

    def _train(self) -> IterationAggregation:
        context, record = self.context, self.record
        plan = self.state.plan

        def produce() -> IterationAggregation:
            if self.judge is not None and self.judge.valid and record.candidates.exists():
                return self._search()
            self._warm_start(plan.configs)
            trainer = context.trainer(context.loop, context.switch)
            with (
                context.switch.polled(),
                judging_early(context, record, self.intent, self.judge),
            ):
                aggregation = trainer.train(
                    plan.configs,
                    plan.seeds,
                    reward_path=record.reward_fn_path,
                    base_config=plan.train,
                    iteration_dir=record.path,
                )
            context.switch.check()
            _check_trained(aggregation)
            return aggregation

        return load_or_run(
            record.aggregation,
            produce,
            event="train",
            iteration=self.number,
            runs=len(plan.configs) * len(plan.seeds),
            timesteps=plan.train.total_timesteps,
        )

    def _search(self) -> IterationAggregation:
        """Train the candidates, the best ones longer; the best of all stands for the iteration."""
        context, record, judge = self.context, self.record, self.judge
        assert judge is not None
        plan = self.state.plan
        # The first candidate is the revision; the others do it another way.
        first = RunConfigEntry(config_id="c1", params=plan.configs[0].params)
        self._warm_start((first,))
        search = CandidateSearch(
            context=context,
            record=record,
            plan=plan,
            trainer=context.trainer(context.loop, context.switch),
            judge_early=lambda run, step: _judge_one(context, run, self.intent, judge.code, step),
            judge=lambda run, step: self._ask_judges(run, step, run.path / "judged"),
            would_confirm=self._would_confirm,
        )
        with judging_early(context, record, self.intent, judge):
            winner, aggregation = search.run()
        if winner != record.reward.read():
            record.reward.save(winner)
            publish_reward(record, winner.code)
        _check_trained(aggregation)
        return aggregation

    def _warm_start(self, configs: Sequence[RunConfigEntry]) -> None:
        plan = self.state.plan
        if plan.start_policy:
            configurations, _ = plan_runs(configs, plan.seeds, plan.train)
            runs = [(IterationRecord(self.record.path / c.iteration_id), c) for c in configurations]
            code = load_text(self.record.reward_fn_path) or ""
            place_start(self.context, plan.start_policy, runs, code)

    def _would_confirm(self, run: IterationRecord, step: int) -> bool:
        """Whether a pass will be confirmed, as far as code can tell without the held-out seeds."""
        loop = self.context.loop
        if loop.strategy != "code":
            return True  # looking at so many videos is left to the confirmation
        folder = run.path / f"judged_{step}"
        return self._ask_judges(run, step, folder, loop.confirm_episodes, REHEARSAL_BLOCK).passed

    # --- judging ----------------------------------------------------------------------------------

    def _judge(self, aggregation: IterationAggregation) -> None:
        """Judge every completed run; the best one stands for the iteration."""
        loop, record = self.context.loop, self.record
        candidates = []
        for result in (run for config in aggregation.configs for run in config.per_seed):
            if result.status != "completed":
                continue
            run = IterationRecord(record.path / result.run_id)
            candidates.append(self._judge_run(run))
            if loop.judge_every_checkpoint and loop.strategy != "code":
                self._judge_early_checkpoints(run)
        best, judgment = max(candidates, key=lambda candidate: _rank(candidate[0]))
        load_or_run(record.best_run, lambda: best, event="best_run", iteration=self.number)
        if not judgment.passed and self.judge is not None and self.judge.valid:
            # The reviser sees them all, so what it is asked does not depend on who was quicker.
            run = IterationRecord(record.path / best.run_id)
            _judge_recorded(self.context, record, [run], self.intent, self.judge.code)
        if record.read_judgment() is None:
            record.save_judgment(judgment)

    def _judge_run(self, run: IterationRecord) -> tuple[BestRun, JudgmentResult]:
        summary = run.read_summary()
        if summary is None or summary.selected_step is None:
            raise TrainingUnavailable(f"{run.path} says that it is complete, but its files are not")
        step = summary.selected_step
        judgment = load_or_run(
            run.judgment,
            lambda: self._score(lambda: self._ask_judges(run, step, run.path / "judged")),
            event="judge",
            iteration=self.number,
            run_id=run.iteration_id,
            step=step,
        )
        candidate = BestRun(
            run_id=run.iteration_id,
            step=step,
            score=judgment.intent_score,
            final_return=final_return(summary),
        )
        return candidate, judgment

    def _judge_early_checkpoints(self, run: IterationRecord) -> None:
        """Let all judges look at the early checkpoints, too; what code alone said gives way."""
        summary, judged = run.read_summary(), run.read_streaming()
        for checkpoint in summary.checkpoints if summary else ():
            step = checkpoint.step
            known = judged.get(step)
            if summary is None or step == summary.selected_step:
                continue
            if known is not None and known.strategy == self.context.loop.strategy:
                continue
            with span("judge", iteration=self.number, run_id=run.iteration_id, step=step):
                judgment = self._ask_judges(run, step, run.path / f"judged_{step}")
                save_model(run.streaming_dir / f"{step}.json", judgment)

    def _score(self, ask: Callable[[], JudgmentResult]) -> JudgmentResult:
        """A judgement with a score; a judge that cannot judge is asked again, some times."""
        for wait in (*self.context.judge_waits_s, None):
            judgment = ask()
            if judgment.intent_score is not None:
                return judgment
            reasons = "; ".join(f"{name}: {why}" for name, why in judgment.unavailable.items())
            if wait is None:
                raise JudgeUnavailable(
                    f"no judge could judge iteration {self.number} "
                    f"({reasons or 'no reason given'}); `p2p resume` tries again"
                )
            emit("judge.wait", iteration=self.number, reason=reasons, seconds=wait)
            deadline = time.monotonic() + wait
            while time.monotonic() < deadline:
                self.context.switch.check()
                time.sleep(min(0.2, wait))
        raise AssertionError("not reached")

    def _ask_judges(
        self,
        run: IterationRecord,
        step: int,
        folder: Path,
        episodes: int | None = None,
        block: int = JUDGING_BLOCK,
    ) -> JudgmentResult:
        config = run.config.read()
        if config is None:
            raise TrainingUnavailable(f"{run.config_path} cannot be read any more")
        return self.context.agents.judge(
            self.intent,
            self.judge.code if self.judge else None,
            run,
            config,
            step=step,
            episodes=episodes or self.context.loop.judge_episodes,
            block=block,
            folder=folder,
            amendments=self.state.amendments(self.number),
        )

    # --- confirming -------------------------------------------------------------------------------

    def _confirm(self) -> None:
        """A pass has to be confirmed on seeds that nobody has seen, new ones each time."""
        context, record = self.context, self.record
        best = record.best_run.read()
        assert best is not None
        run = IterationRecord(record.path / best.run_id)
        first = run.read_judgment()
        assert first is not None
        if not first.passed:
            return
        earlier = [context.session.iteration(k).confirmation.read() for k in range(1, self.number)]
        block = FIRST_CONFIRMATION_BLOCK + sum(each is not None for each in earlier)
        episodes = context.loop.confirm_episodes
        confirmation = load_or_run(
            record.confirmation,
            lambda: self._score(
                lambda: self._ask_judges(run, best.step, run.path / "confirmed", episodes, block)
            ),
            event="confirm",
            iteration=self.number,
            run_id=best.run_id,
            step=best.step,
            episodes=episodes,
        )
        final = combine_judgments(first, confirmation, None, context.loop.pass_threshold)
        if final != record.read_judgment() and context.feedback(self.number).score is None:
            record.save_judgment(final)

    def _amend(self) -> None:
        """Keep what was found wrong with the code judge for those of later iterations."""
        record = self.record
        if self.judge is None or record.amendment.exists():
            return
        judgments = [*(run.read_judgment() for run in record.runs()), record.confirmation.read()]
        findings = dict.fromkeys(text for each in judgments if each for text in each.amendments)
        if findings:
            record.amendment.save(JudgeAmendment(findings=tuple(findings)))
            emit("judge.amended", iteration=self.number, findings=list(findings))


def _check_trained(aggregation: IterationAggregation) -> None:
    """Raise unless something was trained, or the reward is to blame that nothing was."""
    runs = [run for config in aggregation.configs for run in config.per_seed]
    statuses = {run.status for run in runs}
    if statuses & {"completed", "failed"}:
        return
    if "cancelled" in statuses:
        raise SessionCancelled
    reasons = sorted({run.error or f"it is {run.status}" for run in runs})
    raise TrainingUnavailable(
        f"no run could be trained: {'; '.join(reasons)[:1000]}; `p2p resume` tries again"
    )


def _rank(run: BestRun) -> tuple[float, float]:
    value = run.final_return
    comparable = value if value is not None and math.isfinite(value) else -math.inf
    return (-1.0 if run.score is None else run.score, comparable)


def apply_user_score(
    context: SessionContext, state: IterationState, feedback: SteeringTaken
) -> bool:
    """Let the user's score count, where there is one; return whether it changed the verdict."""
    record, score = state.record, feedback.score
    best = record.best_run.read()
    first = IterationRecord(record.path / best.run_id).read_judgment() if best else None
    if first is None or score is None:
        return False
    confirmation = record.confirmation.read()
    final = combine_judgments(first, confirmation, score, context.loop.pass_threshold)
    if final == record.read_judgment():
        return False
    with span("verdict", iteration=state.number, score=score):
        record.save_judgment(final)
    return True


def combine_judgments(
    first: JudgmentResult,
    confirmation: JudgmentResult | None,
    user_score: float | None,
    threshold: float,
) -> JudgmentResult:
    """The judgment that counts: the user's score, else held-out seeds, else the first look."""
    final = first
    if confirmation is not None:
        final = confirmation.model_copy(update={"passed": first.passed and confirmation.passed})
        if not final.passed:
            held_out = _score_text(confirmation)
            note = f"passed with {_score_text(first)}, but on held-out seeds {held_out}"
            text = f"{note}. {confirmation.diagnosis}".strip()
            final = final.model_copy(update={"diagnosis": text})
    if user_score is not None:
        text = f"the user's score is {user_score:g} (the judges': {_score_text(final)}). "
        passed = user_score >= threshold
        final = final.model_copy(
            update={
                "intent_score": user_score,
                "passed": passed,
                "failure_tags": () if passed else final.failure_tags,
                "diagnosis": (text + final.diagnosis).strip(),
            }
        )
    return final


def _score_text(judgment: JudgmentResult) -> str:
    score = judgment.intent_score
    return "no score" if score is None else f"{score:.2f}"


# --- judging while training goes on ---------------------------------------------------------------


@contextmanager
def judging_early(
    context: SessionContext, iteration: IterationRecord, intent: Intent, judge: AuthoredCode | None
) -> Iterator[None]:
    """While this lasts, each new checkpoint of each run is judged by code, which costs nothing.

    The episodes are those that training's own evaluation has recorded. This is a view of how the
    behaviour grows and never more: it does not hold up training, and its failure is an event.
    """
    if judge is None or not judge.valid:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=contextvars.copy_context().run,
        args=(_judge_as_they_come, context, iteration, intent, judge.code, ended),
        name="early-judge",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()  # what it is at may end on its own: nobody waits for it


def _judge_as_they_come(
    context: SessionContext,
    iteration: IterationRecord,
    intent: Intent,
    code: str,
    ended: threading.Event,
) -> None:
    # Of this thread and the processes it starts alone: training has the cores first.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    while not ended.wait(EARLY_LOOK_S):
        if not _judge_recorded(context, iteration, iteration.runs(), intent, code, ended.is_set):
            return


def _judge_recorded(
    context: SessionContext,
    iteration: IterationRecord,
    runs: Iterable[IterationRecord],
    intent: Intent,
    code: str,
    ended: Callable[[], bool] = lambda: False,
) -> bool:
    """Judge each recorded checkpoint that is not judged yet; False: no more of them can be."""
    for run in runs:
        for step in checkpoint_steps(run):
            if ended():
                return False
            if (run.streaming_dir / f"{step}.json").exists():
                continue
            try:
                _judge_one(context, run, intent, code, step)
            # Whatever it is: this is a view of the training, which must not be disturbed by it.
            except Exception as error:  # noqa: BLE001
                emit("early_judge.error", iteration=iteration.number, error=repr(error))
                return False
    return True


def _judge_one(
    context: SessionContext, run: IterationRecord, intent: Intent, code: str, step: int
) -> None:
    config = run.config.read()
    files: list[Path] = [run.trajectory_file(step, label) for label in ROLLOUT_LABELS]
    if config is None or not all(path.exists() for path in files):
        return
    judgment = context.agents.judge_early(intent, code, config, files, step)
    save_model(run.streaming_dir / f"{step}.json", judgment)
    emit("early_judge", run_id=run.iteration_id, step=step, score=judgment.intent_score)
