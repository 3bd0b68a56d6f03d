"""One iteration: train, judge every run, choose the best, confirm a pass on fresh starts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from p2p.contracts import IterationAggregation, JudgmentResult
from p2p.event_log import emit, span
from p2p.files import save_model
from p2p.records.iteration_record import IterationRecord
from p2p.records.loop_files import BestRun
from p2p.records.session_view import IterationView
from p2p.session.endings import JudgeUnavailable, SessionCancelled, TrainingUnavailable
from p2p.session.phases import Work, done_or, make_plan
from p2p.session.streaming import judging_early
from p2p.session.thinking import JudgeTask
from p2p.training.trainer import LocalTrainer, Trainer, final_return

if TYPE_CHECKING:
    from pathlib import Path

    from p2p.config import LoopConfig
    from p2p.contracts import AuthoredCode, Intent
    from p2p.session.stopping import StopSwitch

JUDGING_BLOCK = 1
FIRST_CONFIRMATION_BLOCK = 2


def run_iteration(
    work: Work, number: int, intent: Intent, reward: AuthoredCode, judge: AuthoredCode | None
) -> IterationView:
    """Do what of this iteration is not done yet; its folder then holds all of it.

    Raises JudgeUnavailable, TrainingUnavailable or SessionCancelled; a reward that cannot be
    trained is an outcome.
    """
    if reward.valid:
        aggregation = _train(work, number, intent, judge)
        if aggregation.best_run_id is not None:
            _judge(work, number, intent, judge, aggregation)
            _confirm(work, number, intent, judge)
    return work.iteration(number)


# --- training -------------------------------------------------------------------------------------


def local_trainer(loop: LoopConfig, switch: StopSwitch) -> Trainer:
    """Train on this machine."""
    return LocalTrainer(
        max_parallel=loop.max_parallel,
        cores_per_run=loop.cores_per_run,
        videos=loop.videos,
        unsafe_local=loop.unsafe_local,
        cancelled=switch.cancelled,
    )


TRAINERS: Mapping[str, tuple[str, str]] = {
    "local": (__name__, "local_trainer"),
    "scheduled": ("p2p.scheduler.scheduled_trainer", "scheduled_trainer"),
}
"""Who trains, by module and name: the scheduler stands above this floor."""


def trainer_named(name: str) -> Callable[[LoopConfig, StopSwitch], Trainer]:
    """What makes the trainer of this name."""
    module, function = TRAINERS[name]
    found: Callable[[LoopConfig, StopSwitch], Trainer] = getattr(import_module(module), function)
    return found


def _train(
    work: Work, number: int, intent: Intent, judge: AuthoredCode | None
) -> IterationAggregation:
    iteration = work.session.iteration(number)
    plan = make_plan(work, number)

    def produce() -> IterationAggregation:
        trainer = (work.trainer or trainer_named(work.loop.trainer))(work.loop, work.switch)
        with work.switch.polled(), judging_early(work, iteration, intent, judge):
            found = trainer.train(
                plan.configs,
                plan.seeds,
                reward_path=iteration.reward_fn_path,
                base_config=plan.train,
                iteration_dir=iteration.path,
            )
        work.switch.check()
        _must_be_an_answer(found)
        return found

    return done_or(
        iteration.aggregation.path,
        IterationAggregation,
        produce,
        event="train",
        iteration=number,
        runs=len(plan.configs) * len(plan.seeds),
        timesteps=plan.train.total_timesteps,
    )


def _must_be_an_answer(found: IterationAggregation) -> None:
    """Raise unless something was trained, or the reward is to blame that nothing was."""
    runs = [run for config in found.configs for run in config.per_seed]
    statuses = {run.status for run in runs}
    if statuses & {"completed", "failed"}:
        return
    if "cancelled" in statuses:
        raise SessionCancelled
    reasons = sorted({run.error or f"it is {run.status}" for run in runs})
    raise TrainingUnavailable(
        f"no run could be trained: {'; '.join(reasons)[:1000]}; `p2p resume` tries again"
    )


# --- judging --------------------------------------------------------------------------------------


def _judge(
    work: Work,
    number: int,
    intent: Intent,
    judge: AuthoredCode | None,
    aggregation: IterationAggregation,
) -> None:
    iteration = work.session.iteration(number)
    completed = [
        run.run_id
        for config in aggregation.configs
        for run in config.per_seed
        if run.status == "completed"
    ]
    candidates = []
    for run_id in completed:
        run = IterationRecord(iteration.path / run_id)
        judgment = _judge_run(work, number, intent, judge, run)
        candidates.append((_candidate(run, judgment), judgment))
        if work.loop.judge_every_checkpoint and work.loop.strategy != "code":
            _judge_early_ones(work, number, intent, judge, run)
    best, judgment = max(candidates, key=lambda item: _rank(item[0]))
    done_or(iteration.best_run.path, BestRun, lambda: best, event="best_run", iteration=number)
    if iteration.read_judgment() is None:
        iteration.save_judgment(judgment)


def _judge_run(
    work: Work, number: int, intent: Intent, judge: AuthoredCode | None, run: IterationRecord
) -> JudgmentResult:
    summary = run.read_summary()
    if summary is None or summary.selected_step is None:
        raise TrainingUnavailable(f"{run.path} says that it is complete, but its files are not")
    step = summary.selected_step
    task = _task(work, intent, judge, run, step, run.path / "judged")
    return done_or(
        run.judgment_path,
        JudgmentResult,
        lambda: judged(work, task, number),
        event="judge",
        iteration=number,
        run_id=run.iteration_id,
        step=step,
    )


def _task(
    work: Work,
    intent: Intent,
    judge: AuthoredCode | None,
    run: IterationRecord,
    step: int,
    folder: Path,
) -> JudgeTask:
    config = run.config.read()
    if config is None:
        raise TrainingUnavailable(f"{run.config_path} cannot be read any more")
    return JudgeTask(
        intent=intent,
        judge_code=judge.code if judge else None,
        config=config,
        policy=run.checkpoints_dir / f"step_{step}",
        step=step,
        episodes=work.loop.judge_episodes,
        block=JUDGING_BLOCK,
        folder=folder,
        loop=work.loop,
        training=run.read_summary(),
    )


def _judge_early_ones(
    work: Work, number: int, intent: Intent, judge: AuthoredCode | None, run: IterationRecord
) -> None:
    """Let all judges look at the early checkpoints, too; what code alone said gives way."""
    summary = run.read_summary()
    for checkpoint in summary.checkpoints if summary else ():
        step = checkpoint.step
        known = run.read_streaming().get(step)
        if summary is None or step == summary.selected_step:
            continue
        if known is not None and known.strategy == work.loop.strategy:
            continue
        with span("judge", iteration=number, run_id=run.iteration_id, step=step):
            task = _task(work, intent, judge, run, step, run.path / f"judged_{step}")
            save_model(run.streaming_dir / f"{step}.json", work.thinking.judge(task))


def judged(work: Work, task: JudgeTask, number: int) -> JudgmentResult:
    """A judgement with a score; a judge that cannot judge is asked again, some times."""
    for wait in (*work.judge_waits_s, None):
        judgment = work.thinking.judge(task)
        if judgment.intent_score is not None:
            return judgment
        reasons = "; ".join(f"{name}: {why}" for name, why in judgment.unavailable.items())
        if wait is None:
            raise JudgeUnavailable(
                f"no judge could judge iteration {number} ({reasons or 'no reason given'}); "
                "`p2p resume` tries again"
            )
        emit("judge.wait", iteration=number, reason=reasons, seconds=wait)
        _pause(work, wait)
    raise AssertionError("not reached")


def _pause(work: Work, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        work.switch.check()
        time.sleep(min(0.2, seconds))


def _candidate(run: IterationRecord, judgment: JudgmentResult) -> BestRun:
    summary = run.read_summary()
    assert summary is not None
    assert judgment.step is not None or summary.selected_step is not None
    return BestRun(
        run_id=run.iteration_id,
        step=summary.selected_step or 0,
        score=judgment.intent_score,
        final_return=final_return(summary),
    )


def _rank(run: BestRun) -> tuple[float, float]:
    value = run.final_return
    comparable = value if value is not None and math.isfinite(value) else -math.inf
    return (-1.0 if run.score is None else run.score, comparable)


# --- confirming -----------------------------------------------------------------------------------


def _confirm(work: Work, number: int, intent: Intent, judge: AuthoredCode | None) -> None:
    """A pass has to hold on starts that nobody has seen, new ones each time."""
    iteration = work.session.iteration(number)
    best = iteration.best_run.read()
    assert best is not None
    run = IterationRecord(iteration.path / best.run_id)
    first = run.read_judgment()
    assert first is not None
    if not first.passed:
        return
    earlier = [work.session.iteration(k).confirmation.read() for k in range(1, number)]
    task = replace(
        _task(work, intent, judge, run, best.step, run.path / "confirmed"),
        episodes=work.loop.confirm_episodes,
        block=FIRST_CONFIRMATION_BLOCK + sum(found is not None for found in earlier),
    )
    confirmation = done_or(
        iteration.confirmation.path,
        JudgmentResult,
        lambda: judged(work, task, number),
        event="confirm",
        iteration=number,
        run_id=best.run_id,
        step=best.step,
        episodes=task.episodes,
    )
    final = verdict(first, confirmation, None, work.loop.pass_threshold)
    if final != iteration.read_judgment() and work.taken(number).score is None:
        iteration.save_judgment(final)


def settle_verdict(work: Work, number: int) -> bool:
    """Let the person's score count, where there is one; whether it changed the verdict."""
    iteration = work.session.iteration(number)
    best = iteration.best_run.read()
    first = IterationRecord(iteration.path / best.run_id).read_judgment() if best else None
    score = work.taken(number).score
    if first is None or score is None:
        return False
    final = verdict(first, iteration.confirmation.read(), score, work.loop.pass_threshold)
    if final == iteration.read_judgment():
        return False
    with span("verdict", iteration=number, score=score):
        iteration.save_judgment(final)
    return True


def verdict(
    first: JudgmentResult,
    confirmation: JudgmentResult | None,
    person: float | None,
    threshold: float,
) -> JudgmentResult:
    """What counts for an iteration: the person's word, else fresh starts, else the first look."""
    final = first
    if confirmation is not None:
        final = confirmation.model_copy(update={"passed": first.passed and confirmation.passed})
        if not final.passed:
            note = f"passed with {_shown(first)}, but on fresh starts {_shown(confirmation)}"
            text = f"{note}. {confirmation.diagnosis}".strip()
            final = final.model_copy(update={"diagnosis": text})
    if person is not None:
        text = f"the person's score is {person:g} (the judges': {_shown(final)}). {final.diagnosis}"
        final = final.model_copy(
            update={
                "intent_score": person,
                "passed": person >= threshold,
                "diagnosis": text.strip(),
            }
        )
    return final


def _shown(judgment: JudgmentResult) -> str:
    score = judgment.intent_score
    return "no score" if score is None else f"{score:.2f}"
