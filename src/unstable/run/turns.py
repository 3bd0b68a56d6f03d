"""A run in one process: playing and learning take turns.

Every batch is of the newest policy, nothing depends on timing, and on the CPU a run that was killed
continues bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from unstable.collector import CollectionError, Collector
from unstable.config import RunConfig
from unstable.run.folder import RunFolder, state_step
from unstable.run.parts import begin, make_parts, prepare, refusals_are_mistakes
from unstable.run.progress import (
    Progress,
    ReportProgress,
    RunResult,
    load_state,
    result_of,
    save_state,
)

LEARNERS_SHARE, SPARE_SHARE = 0.5, 0.05
"""Of the free memory of the one GPU: the learner's, and what neither it nor the engine takes."""
EMPTY_ROUNDS = 10
"""Rounds of games without anything to learn from, one after the other, that end a run."""


async def train_by_turns(
    config: RunConfig, folder: RunFolder, model: str, report: ReportProgress
) -> RunResult:
    """Begin the run of a folder, or resume it from its newest state."""
    states = folder.states()
    with refusals_are_mistakes():
        prepare(config)
        resume_step = state_step(states[-1]) if states else -1
        parts = make_parts(config, folder, model, resume_step, partial(_make, config))
    step = 0
    learner_metrics: Mapping[str, float] = {}

    def report_phase(phase: str) -> None:
        evaluations = tuple(parts.tracker.get_evaluations())
        report(Progress(phase, step, config.updates, learner_metrics, evaluations))

    async def evaluate() -> None:
        if config.eval_games:
            report_phase("evaluating")
            await parts.collector.evaluate(config.eval_games, config.workers)

    def save() -> None:
        parts.tracker.flush()
        save_state(folder, parts, step, config)

    try:
        if states:
            step = load_state(states[-1], parts)
        else:
            begin(config, parts)
            await evaluate()  # the model as it is, so that there is something to compare with
            save()
        while step < config.updates:
            report_phase("playing")
            for _ in range(EMPTY_ROUNDS):
                await parts.collector.play(config.games_per_update, config.workers)
                if parts.buffer.size():
                    break
            else:
                raise CollectionError(_explain_no_steps(config, parts.collector.stats()))
            report_phase("learning")
            learner_metrics = parts.learner.update_once(parts.buffer.size())
            step = int(learner_metrics["step"])
            every = config.eval_every
            if step == config.updates or (every > 0 and step % every == 0):
                await evaluate()
            save()
        return result_of(folder, parts, step)
    finally:
        await parts.collector.close()
        parts.buffer.close()
        parts.tracker.close()


def _make(config: RunConfig, kind: type, _: str, **arguments: Any) -> Any:
    if kind is Collector:
        # The engine starts when the learner has its weights; what that will need stays free.
        learners = config.learner.options.get("memory_share", LEARNERS_SHARE)
        share = max(0.0, 1.0 - learners - SPARE_SHARE)
        arguments["vllm_config"] = {"free_memory_share": share, **arguments["vllm_config"]}
    return kind(**arguments)


def _explain_no_steps(config: RunConfig, counts: Mapping[str, Any]) -> str:
    games = EMPTY_ROUNDS * config.games_per_update
    filtering = " (games.filter_opponent_invalid)" * config.games.filter_opponent_invalid
    return (
        f"{games} games gave no step to learn from; of all {counts['games']} games"
        f" {counts['invalid']} ended by an invalid move, {counts['filtered']} were"
        f" filtered{filtering}"
    )
