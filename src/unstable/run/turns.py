"""A run in one process: playing and learning take turns.

Every batch is of the newest policy, nothing depends on timing, and on the CPU a run that was killed
continues bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping

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


async def train_by_turns(
    config: RunConfig, folder: RunFolder, model: str, report: ReportProgress
) -> RunResult:
    """Begin the run of a folder, or resume it from its newest state."""
    states = folder.states()
    with refusals_are_mistakes():
        prepare(config)
        resume_step = state_step(states[-1]) if states else -1
        parts = make_parts(
            config, folder, model, resume_step, lambda kind, _, **arguments: kind(**arguments)
        )
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
            await parts.collector.play(config.games_per_update, config.workers)
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
