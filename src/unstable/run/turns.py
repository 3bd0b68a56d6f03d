"""A run in one process: playing and learning take turns.

Every batch is of the newest policy, nothing depends on timing, and on the CPU a run that was killed
continues bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unstable.buffer import StepBuffer
from unstable.collector import Collector
from unstable.config import RunConfig
from unstable.learners.standard_learner import StandardLearner
from unstable.model_pool import ModelPool
from unstable.run.folder import RunFolder, state_step
from unstable.run.parts import (
    BASE_ITERATION,
    Parts,
    buffer_arguments,
    collector_arguments,
    learner_arguments,
    pool_arguments,
    refusals_are_mistakes,
    tracker_arguments,
)
from unstable.run.progress import (
    Progress,
    ReportProgress,
    RunResult,
    load_state,
    result_of,
    save_state,
)
from unstable.trackers import Tracker


async def train_by_turns(
    config: RunConfig, folder: RunFolder, model: str, report: ReportProgress
) -> RunResult:
    """Begin the run of a folder, or go on where its newest state was taken.

    Args:
        config: what to do.
        folder: of the run.
        model: the base model's folder or Hugging Face id.
        report: called before every phase.
    """
    states = folder.states()
    with refusals_are_mistakes():
        parts = _make_parts(config, folder, model, state_step(states[-1]) if states else -1)
    run = _Turns(config, folder, parts, report)
    try:
        if states:
            run.step = load_state(states[-1], parts)
        else:
            await run.begin()
        await run.go_on()
        return result_of(folder, parts, run.step)
    finally:
        await parts.collector.close()
        parts.buffer.close()
        parts.tracker.close()


def _make_parts(config: RunConfig, folder: RunFolder, model: str, resume_step: int) -> Parts:
    tracker = Tracker(**tracker_arguments(config, folder.path, resume_step))
    buffer = StepBuffer(tracker=tracker, **buffer_arguments(config))
    pool = ModelPool(tracker=tracker, **pool_arguments(config))
    shared: dict[str, Any] = {"step_buffer": buffer, "model_pool": pool, "tracker": tracker}
    collector = Collector(**shared, **collector_arguments(config, model))
    learner = StandardLearner(**shared, **learner_arguments(config, model))
    return Parts(tracker, buffer, pool, collector, learner)


class _Turns:
    def __init__(
        self, config: RunConfig, folder: RunFolder, parts: Parts, report: ReportProgress
    ) -> None:
        self.step = 0
        self._config, self._folder, self._parts, self._report_progress = config, folder, parts, report
        self._learned: Mapping[str, float] = {}

    async def begin(self) -> None:
        """Measure the model as it is, so that there is something to compare with."""
        self._parts.pool.add_checkpoint(None, BASE_ITERATION)
        for name in self._config.pool.fixed:
            self._parts.pool.add_fixed(name)
        await self._evaluate()
        self._save()

    async def go_on(self) -> None:
        """Take turns until the last update; each leaves a state to continue from."""
        config, parts = self._config, self._parts
        while self.step < config.updates:
            self._report("playing")
            await parts.collector.play(config.games_per_update, config.workers)
            self._report("learning")
            self._learned = parts.learner.update_once(parts.buffer.size())
            self.step = int(self._learned["step"])
            if self._evaluation_is_due():
                await self._evaluate()
            self._save()

    def _evaluation_is_due(self) -> bool:
        every = self._config.eval_every
        last = self.step == self._config.updates
        return last or (every > 0 and self.step % every == 0)

    async def _evaluate(self) -> None:
        if self._config.eval_games:
            self._report("evaluating")
            await self._parts.collector.evaluate(self._config.eval_games, self._config.workers)

    def _save(self) -> None:
        self._parts.tracker.flush()
        save_state(self._folder, self._parts, self.step, self._config)

    def _report(self, phase: str) -> None:
        found = tuple(self._parts.tracker.get_evaluations())
        self._report_progress(
            Progress(phase, self.step, self._config.updates, self._learned, found)
        )
