"""Start a run, or resume it: by turns, with overlap, or on Ray, as its configuration says."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from unstable.actor import VLLMActor
from unstable.collector import CollectionError, Collector
from unstable.config import ConfigError, RunConfig
from unstable.engines import EngineError
from unstable.games import GameError
from unstable.learners.policy import choose_device, choose_dtype, copy_sharing_weights, load_base
from unstable.learners.standard_learner import StandardLearner
from unstable.run import RunFolder, SelfPlayStatus, Status, parse_step
from unstable.run.parts import Parts, begin, make_parts, raise_config_errors, register_own_parts
from unstable.run.progress import (
    LEARNER,
    Progress,
    ReportProgress,
    RunResult,
    collect_result,
    load_state,
    retire,
    save_state,
    select_settled_evaluations,
    write_json_states,
)
from unstable.utils.handles import run_coroutine
from unstable.utils.interrupts import check_interrupt
from unstable.utils.logging import logging_to

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
WATCH = 2.0
"""Seconds between two reports."""
EVALUATION_TIMEOUT = 600.0
"""Seconds for the last checkpoint's evaluation games."""
LEARNERS_SHARE, SPARE_SHARE = 0.5, 0.05
"""Of the free memory of the one GPU: the learner's, and what neither it nor the engine takes."""
EMPTY_ROUNDS = 10
"""Rounds of games without anything to learn from, one after the other, that end a run."""


async def train_by_turns(
    config: RunConfig, folder: RunFolder, model: str, report: ReportProgress
) -> RunResult:
    """Alternate playing and learning in one process.

    Every batch is of the newest policy, nothing depends on timing, and on the CPU a run that was
    killed continues bit for bit.
    """
    states = folder.states()
    with raise_config_errors():
        register_own_parts(config)
        resume_step = parse_step(states[-1]) if states else -1
        parts = make_parts(config, folder, model, resume_step, partial(_make_part, config))
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
            check_interrupt()
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
        return collect_result(folder, parts, step)
    finally:
        await parts.collector.close()
        parts.buffer.close()
        parts.tracker.close()


def _make_part(config: RunConfig, kind: type, _: str, **arguments: Any) -> Any:
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


async def train_overlapping(
    config: RunConfig, folder: RunFolder, model: str, report: ReportProgress
) -> RunResult:
    """Play while the learner updates, in one process: for one GPU.

    Engine and learner have the base model's weights once. A new adapter goes from one to the other
    in memory. A game keeps the policy it began with, so steps are some updates old; those that are
    too old are dropped (`max_staleness`).
    """
    states = folder.states()
    with raise_config_errors():
        register_own_parts(config)
        parts, actor = make_sharing_parts(
            config, folder, model, parse_step(states[-1]) if states else -1
        )
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
            check_interrupt()
            await run.update(collecting)
        parts.collector.finish()
        run.report_phase("evaluating")
        await asyncio.wait({collecting}, timeout=EVALUATION_TIMEOUT)
        if collecting.done():
            collecting.result()  # raises what ended it
        else:
            _LOG.warning("the last checkpoint was not wholly evaluated")
        await run.save()
        return collect_result(folder, parts, run.step)
    finally:
        parts.buffer.stop("the run has ended")
        if collecting is not None:
            collecting.cancel()
            await asyncio.wait({collecting})
        await run.save_ending()
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
        update = self._run_in_learner(self.parts.learner.next_update)
        # A run that is interrupted here does not await it: retrieve its error, or asyncio logs it.
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

    async def save_ending(self) -> None:
        """Save the state of an ending run, including an update that was in progress."""
        step = await self._run_in_learner(
            self.parts.learner.whole_step
        )  # its turn comes after that
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
            await self._run_in_learner(parts.learner.save_state, state / LEARNER)
            write_json_states(state, parts)
        parts.learner.remove_checkpoints(retired)
        self.saved_step, self.saved_at = self.step, time.monotonic()

    def report_phase(self, phase: str) -> None:
        evaluations = select_settled_evaluations(
            self.parts.tracker.get_evaluations(), self.config.eval_games
        )
        self.report(Progress(phase, self.step, self.config.updates, self.learned, evaluations))

    def _run_in_learner(self, job: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self.thread, job, *args)


def make_sharing_parts(
    config: RunConfig, folder: RunFolder, model: str, resume_step: int
) -> tuple[Parts, VLLMActor]:
    """Make all parts; engine and learner share the base model's weights."""
    device = choose_device(config.engine.device)
    base, tokenizer = load_base(model, device, choose_dtype(config.engine.dtype, device))
    trained = copy_sharing_weights(base)
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


RUN_ERRORS = (CollectionError, EngineError, GameError, ImportError, OSError, RuntimeError)
"""How a run may fail through no mistake of the program's."""


def start(config: RunConfig, folder: RunFolder, model: str, report: ReportProgress) -> RunResult:
    """Train to the end, or until failure or interrupt; what was reached is on disk.

    A run that cannot be resumed is left as it was, its configuration included.

    Raises:
        ConfigError: another process runs it, something in the configuration cannot be had, or the
            newest state cannot be read.
    """
    with folder.hold_lock(), logging_to("run", folder.path / "logs") as write_log:
        step = _saved_step(folder)
        if config.updates < step:
            raise ConfigError(
                f"updates: {config.updates}, but {folder.path} has made {step}; name at least as"
                " many with --updates"
            )
        has_begun = False

        def begin() -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                write_log()
                folder.write_config(config)

        def note(progress: Progress) -> None:
            nonlocal step
            begin()
            if progress.step > step:
                _LOG.info("update %d of %d is done", progress.step, progress.updates)
            step = progress.step
            running = SelfPlayStatus(
                "running", step, config.updates, pid=os.getpid(), host=socket.gethostname()
            )
            folder.write_status(running)
            report(progress)

        if not folder.states():
            begin()
        _LOG.info("%s: %d updates of %s, mode %s", config.name, config.updates, model, config.mode)
        try:
            result = _train(config, folder, model, note)
        except BaseException as error:
            if has_begun:
                step = _saved_step(folder)  # what is not saved is lost
                _LOG.info("ended after update %d: %s", step, _describe_error(error))
                ended = SelfPlayStatus(
                    _end_status(error), step, config.updates, _describe_error(error)
                )
                folder.write_status(ended)
            raise
        begin()
        _LOG.info("completed after update %d", result.step)
        folder.write_status(SelfPlayStatus("completed", result.step, config.updates))
        return result


def _saved_step(folder: RunFolder) -> int:
    states = folder.states()
    return parse_step(states[-1]) if states else 0


def _train(config: RunConfig, folder: RunFolder, model: str, report: ReportProgress) -> RunResult:
    if config.mode == "ray":
        from unstable.run.on_ray import train_on_ray

        return train_on_ray(config, folder, model, report)
    train = train_overlapping if config.mode == "overlap" else train_by_turns
    return run_coroutine(train(config, folder, model, report))


def _end_status(error: BaseException) -> Status:
    return "failed" if isinstance(error, Exception) else "cancelled"


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, Exception) else "interrupted"
