"""One iteration: train, judge every run, choose the best, confirm a pass on held-out seeds."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from p2p.agents.builtin.goals import asks_for_most
from p2p.contracts import IterationAggregation, JudgmentResult, RunConfigEntry
from p2p.event_log import emit, span
from p2p.files import load_text, read_model, save_model
from p2p.records.formatting import format_score
from p2p.records.iteration_record import IterationRecord
from p2p.records.loop_files import MOST_TRIES, BestRun, JudgeAmendment
from p2p.session.context import IterationState, SessionContext, load_or_run
from p2p.session.early_stop import JUDGING_BLOCK, Confirmations, EarlyJudge
from p2p.session.phases import publish_reward
from p2p.session.plan import place_start
from p2p.session.search import CandidateSearch
from p2p.session.stopping import JudgeUnavailable, SessionCancelled, TrainingUnavailable
from p2p.training.trainer import final_return, plan_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from p2p.contracts import AuthoredCode, CheckpointInfo, Intent, TrainSummary
    from p2p.records.loop_files import SteeringTaken


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

    @property
    def confirmations(self) -> Confirmations:
        return Confirmations(self.context, self.record, self._ask_judges)

    @property
    def early_judge(self) -> EarlyJudge | None:
        """Judges checkpoints on the way; None where no code judges."""
        if self.judge is None or not self.judge.valid:
            return None
        loop = self.context.loop
        return EarlyJudge(
            self.context, self.record, self.intent, self.judge.code, self.confirmations,
            stops=(
                not loop.train_full
                and loop.trainer == "local"
                and not asks_for_most(self.intent.prompt)
            ),
        )  # fmt: skip

    def run(self) -> None:
        """Train, judge and confirm.

        Raises JudgeUnavailable, TrainingUnavailable or SessionCancelled; a reward that cannot be
        trained is an outcome.
        """
        aggregation = self._train()
        if aggregation.best_run_id is not None:
            self._find_one_that_holds(aggregation)
            self._judge(aggregation)
            self._confirm()
            self._add_amendment()

    # --- training ---------------------------------------------------------------------------------

    def _train(self) -> IterationAggregation:
        context, record = self.context, self.record
        plan = self.state.plan

        def produce() -> IterationAggregation:
            early = self.early_judge
            if early is not None and record.candidates.exists():
                return self._search(early)
            self._warm_start(plan.configs)
            trainer = context.trainer(context.loop, context.switch)
            with (
                context.switch.suspend_interrupts(),
                early.watch_checkpoints() if early else nullcontext(),
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

    def _search(self, early: EarlyJudge) -> IterationAggregation:
        """Train the candidates, the best ones longer; the best of all stands for the iteration."""
        context, record = self.context, self.record
        plan = self.state.plan
        # The first candidate is the revision; the others do it another way.
        first = RunConfigEntry(config_id="c1", params=plan.configs[0].params)
        self._warm_start((first,))
        search = CandidateSearch(
            context=context,
            record=record,
            plan=plan,
            trainer=context.trainer(context.loop, context.switch),
            early=early,
        )
        with early.watch_checkpoints():
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

    # --- judging ----------------------------------------------------------------------------------

    def _find_one_that_holds(self, aggregation: IterationAggregation) -> None:
        """Try the best checkpoints of a training that went on to its end, the best one first.

        The last one may be the fastest, and fall once in ten episodes.
        """
        early = self.early_judge
        if early is None or early.stops or self.record.best_run.exists():
            return
        runs = [run for run in self._completed_runs(aggregation) if _may_choose(run)]
        early.judge_runs(runs)
        ranked = sorted(
            (
                (self._rank_checkpoint(run, each), number, each.step)
                for number, run in enumerate(runs)
                if (summary := run.read_summary()) is not None
                for each in summary.checkpoints
            ),
            reverse=True,
        )
        may_pass = [(runs[number], step) for rank, number, step in ranked if rank[0]]
        early.try_in_order(may_pass[:MOST_TRIES])

    def _completed_runs(self, aggregation: IterationAggregation) -> Iterator[IterationRecord]:
        for result in (run for config in aggregation.configs for run in config.per_seed):
            if result.status == "completed":
                yield IterationRecord(self.record.path / result.run_id)

    def _judge(self, aggregation: IterationAggregation) -> None:
        """Judge every completed run, or the passed one, and select the best."""
        loop, record, passed = self.context.loop, self.record, self.confirmations.passed
        candidates, early = [], self.early_judge
        ended = passed is not None and (early is None or early.stops)
        for run in self._completed_runs(aggregation):
            if ended and passed and run.iteration_id != passed.run_id:
                continue
            if early is not None and passed is None:
                early.judge_runs([run])
            candidates.append(self._judge_run(run))
            if loop.judge_every_checkpoint and loop.strategy != "code":
                self._judge_early_checkpoints(run)
        held = passed.run_id if passed else ""
        best, judgment = max(candidates, key=lambda each: (each[0].run_id == held, _rank(each[0])))
        load_or_run(record.best_run, lambda: best, event="best_run", iteration=self.number)
        if record.read_judgment() is None:
            record.save_judgment(judgment)

    def _judge_run(self, run: IterationRecord) -> tuple[BestRun, JudgmentResult]:
        summary = run.read_summary()
        if summary is None or summary.selected_step is None:
            raise TrainingUnavailable(f"{run.path} says that it is complete, but its files are not")
        step = self._best_step(run, summary)
        tried = run.path / f"judged_{step}"
        known = read_model(tried.with_suffix(".json"), JudgmentResult)
        if known is not None and not run.judgment.exists():  # on the same seeds, by the same judges
            with suppress(OSError):  # it has been moved already
                tried.rename(run.path / "judged")
            run.save_judgment(known)
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
            final_return=final_return(summary, step),
        )
        return candidate, judgment

    def _best_step(self, run: IterationRecord, summary: TrainSummary) -> int:
        """The checkpoint that stands for a run: by what was judged on the way, then by return.

        One that has failed on held-out seeds comes after all that may still pass.
        """
        passed = self.confirmations.passed
        if passed is not None and passed.run_id == run.iteration_id:
            return passed.step
        assert summary.selected_step is not None
        if not run.read_streaming() or not _may_choose(run):
            return summary.selected_step
        return max(summary.checkpoints, key=partial(self._rank_checkpoint, run)).step

    def _rank_checkpoint(
        self, run: IterationRecord, each: CheckpointInfo
    ) -> tuple[bool, float, float, int]:
        """Return whether it may pass, its score on the way, its return and its step.

        Of what may pass, a prompt for as much as there is prefers what earns most.
        """
        judgment = run.read_streaming().get(each.step)
        refuted = self.confirmations.failed_steps(run)
        may_pass = judgment is not None and judgment.passed and each.step not in refuted
        score = judgment.intent_score if judgment else None
        merit = -1.0 if score is None else score
        if may_pass and asks_for_most(self.intent.prompt):
            merit = each.mean_return
        return may_pass, merit, each.mean_return, each.step

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
        episodes: int = 0,
        block: int = JUDGING_BLOCK,
    ) -> JudgmentResult:
        """Judge a checkpoint; 0 episodes: as many as the session judges."""
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
        """Confirm a pass on unseen seeds, new ones each time."""
        context, record = self.context, self.record
        best = record.best_run.read()
        assert best is not None
        run = IterationRecord(record.path / best.run_id)
        first = run.read_judgment()
        assert first is not None
        if not first.passed:
            return
        confirmation = record.confirmation.read()
        if confirmation is None:
            confirmations, step = self.confirmations, best.step
            confirmation = self._score(lambda: confirmations.confirm(run, step))
            record.confirmation.save(confirmation)
        final = combine_judgments(first, confirmation, None, context.loop.pass_threshold)
        if final != record.read_judgment() and context.feedback(self.number).score is None:
            record.save_judgment(final)

    def _add_amendment(self) -> None:
        """Store the errors found in the code judge for later iterations' judges."""
        record = self.record
        if self.judge is None or record.amendment.exists():
            return
        judgments = [*(run.read_judgment() for run in record.runs()), record.confirmation.read()]
        findings = dict.fromkeys(text for each in judgments if each for text in each.amendments)
        if findings:
            record.amendment.save(JudgeAmendment(findings=tuple(findings)))
            emit("judge.amended", iteration=self.number, findings=list(findings))


def _check_trained(aggregation: IterationAggregation) -> None:
    """Raise if no run was trained and the reward is not the cause."""
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


def _may_choose(run: IterationRecord) -> bool:
    """Return whether another checkpoint than the last may stand for a run."""
    config = run.config.read()
    return config is not None and config.judgment_select != "last"


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
            held_out = format_score(confirmation.intent_score)
            note = f"passed with {format_score(first.intent_score)}, on unseen episodes {held_out}"
            text = f"{note}. {confirmation.diagnosis}".strip()
            final = final.model_copy(update={"diagnosis": text})
    if user_score is not None:
        theirs = format_score(final.intent_score)
        text = f"the user's score is {user_score:g} (the judges': {theirs}). "
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
