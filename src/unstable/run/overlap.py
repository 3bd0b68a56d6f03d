"""A run in one process where playing goes on while the learner updates: for one GPU.

Engine and learner have the base model's weights once. A new adapter goes from one to the other in
memory. A game keeps the policy it began with, so steps are some updates old; those that are too old
are dropped (`max_staleness`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from unstable.actor import VLLMActor
from unstable.collector import Collector
from unstable.config import RunConfig
from unstable.learners.policy import choose_device, choose_dtype, load_base, sharing_weights
from unstable.learners.standard_learner import StandardLearner
from unstable.run.folder import RunFolder, state_step
from unstable.run.parts import Parts, begin, make_parts, prepare, refusals_are_mistakes
from unstable.run.progress import (
    LEARNER,
    Progress,
    ReportProgress,
    RunResult,
    load_state,
    result_of,
    retire,
    settled,
    write_json_states,
)

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
WATCH = 2.0
"""Seconds between two reports."""
EVALUATION_TIMEOUT = 600.0
"""Seconds for the last checkpoint's evaluation games."""


async def train_overlapping(
    config: RunConfig, folder: RunFolder, model: str, report: ReportProgress
) -> RunResult:
    """Begin the run of a folder, or resume it from its newest state."""
    states = folder.states()
    with refusals_are_mistakes():
        prepare(config)
        parts, actor = _make(config, folder, model, state_step(states[-1]) if states else -1)
    run = _Run(config, folder, parts, report)
    collecting: asyncio.Task[dict[str, int]] | None = None
    try:
        if states:
            run.step = run.saved_step = load_state(states[-1], parts)
        else:
            begin(config, parts)
            await run.save()
        collecting = asyncio.create_task(
            parts.collector.collect(config.workers, config.eval_workers)
        )
        await asyncio.sleep(0)  # it has begun, also where nothing is left but to finish
        while run.step < config.updates:
            await run.update(collecting)
        parts.collector.finish()
        run.report_phase("evaluating")
        await asyncio.wait({collecting}, timeout=EVALUATION_TIMEOUT)
        if collecting.done():
            collecting.result()  # raises what ended it
        else:
            _LOG.warning("the last checkpoint was not wholly evaluated")
        await run.save()
        return result_of(folder, parts, run.step)
    finally:
        parts.buffer.stop("the run has ended")
        if collecting is not None:
            collecting.cancel()
            await asyncio.wait({collecting})
        await run.save_what_is_left()
        run.thread.shutdown(wait=True)
        await parts.collector.close()
        await actor.close()
        parts.buffer.close()
        parts.tracker.close()


@dataclass
class _Run:
    config: RunConfig
    folder: RunFolder
    parts: Parts
    report: ReportProgress
    step: int = 0
    learned: Mapping[str, float] = field(default_factory=dict)
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "learner"))
    """One: what the learner does, it does in its order."""
    saved_step: int | None = None
    saved_at: float = field(default_factory=time.monotonic)

    async def update(self, collecting: asyncio.Task[dict[str, int]]) -> None:
        update = self._by_learner(self.parts.learner.next_update)
        # Of a run that is interrupted here nobody asks what became of it.
        update.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        while not update.done():
            self.report_phase("learning")
            await asyncio.wait({update}, timeout=WATCH)
        if collecting.done():  # it raises what ended it, which the update only noticed
            update.exception()
            collecting.result()
        self.learned = update.result()
        self.step = int(self.learned["step"])
        is_last = self.step >= self.config.updates
        if is_last or time.monotonic() - self.saved_at >= self.config.state_seconds:
            await self.save()

    async def save_what_is_left(self) -> None:
        """A state of an ending run: also the update that was under way when it was interrupted."""
        step = await self._by_learner(self.parts.learner.whole_step)  # its turn comes after that
        if self.saved_step is None or step is None or step <= self.saved_step:
            return
        self.step = step
        try:
            await self.save()
        except OSError as error:  # what ended the run is to be heard, and may be the same
            _LOG.warning("update %d was not saved: %s", step, error)

    async def save(self) -> None:
        parts = self.parts
        parts.tracker.flush()
        retired = retire(parts, self.config)
        with self.folder.new_state(self.step, self.config.keep_states) as state:
            await self._by_learner(parts.learner.save_state, state / LEARNER)
            write_json_states(state, parts)
        parts.learner.remove_checkpoints(retired)
        self.saved_step, self.saved_at = self.step, time.monotonic()

    def report_phase(self, phase: str) -> None:
        evaluations = settled(self.parts.tracker.get_evaluations(), self.config.eval_games)
        self.report(Progress(phase, self.step, self.config.updates, self.learned, evaluations))

    def _by_learner(self, job: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self.thread, job, *args)


def _make(
    config: RunConfig, folder: RunFolder, model: str, resume_step: int
) -> tuple[Parts, VLLMActor]:
    """All parts; engine and learner are over the same weights."""
    device = choose_device(config.engine.device)
    base, tokenizer = load_base(model, device, choose_dtype(config.engine.dtype, device))
    trained = sharing_weights(base)
    actors: list[VLLMActor] = []

    def make(kind: type, _: str, **arguments: Any) -> Any:
        if kind is Collector:
            # No pool to ask for adapters: they come from the learner, or are on this disk.
            actors.append(
                VLLMActor(
                    arguments["vllm_config"], arguments["tracker"], "actor-0",
                    loaded=(base, tokenizer),
                )
            )  # fmt: skip
            arguments["actors"] = actors
        if kind is StandardLearner:
            arguments["device"] = str(device)
            arguments |= {"base": (trained, tokenizer), "engine": actors[0].engine}
        return kind(**arguments)

    parts = make_parts(config, folder, model, resume_step, make)
    return parts, actors[0]
