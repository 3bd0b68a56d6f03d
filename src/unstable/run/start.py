"""Starting a run, or going on with it, in whichever way its configuration says."""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from unstable.collector import CollectionError
from unstable.config import ConfigError, RunConfig
from unstable.engines.protocol import EngineError
from unstable.games.runner import GameError
from unstable.run.folder import RunFolder, SelfPlayStatus, Status, state_step
from unstable.run.progress import Progress, ReportProgress, RunResult
from unstable.utils.logging import logging_to

_LOG = logging.getLogger(__name__)
RUN_ERRORS = (CollectionError, EngineError, GameError, ImportError, OSError, RuntimeError)
"""How a run may fail through no mistake of the program's."""


def start(config: RunConfig, folder: RunFolder, model: str, report: ReportProgress) -> RunResult:
    """Run to the end, or until it fails or is interrupted; what was reached is on disk.

    A run that cannot be resumed is left as it was, its configuration included.

    Raises:
        ConfigError: another process runs it, something in the configuration cannot be had, or the
            newest state cannot be read.
    """
    with folder.held(), logging_to("run", folder.path / "logs") as write_log:
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
                _LOG.info("ended after update %d: %s", step, _words(error))
                ended = SelfPlayStatus(_ending(error), step, config.updates, _words(error))
                folder.write_status(ended)
            raise
        begin()
        _LOG.info("completed after update %d", result.step)
        folder.write_status(SelfPlayStatus("completed", result.step, config.updates))
        return result


def _saved_step(folder: RunFolder) -> int:
    states = folder.states()
    return state_step(states[-1]) if states else 0


def _train(config: RunConfig, folder: RunFolder, model: str, report: ReportProgress) -> RunResult:
    if config.mode == "ray":
        from unstable.run.on_ray import train_on_ray

        return train_on_ray(config, folder, model, report)
    if config.mode == "overlap":
        from unstable.run.overlap import train_overlapping

        return asyncio.run(train_overlapping(config, folder, model, report))
    from unstable.run.turns import train_by_turns

    return asyncio.run(train_by_turns(config, folder, model, report))


def _ending(error: BaseException) -> Status:
    return "failed" if isinstance(error, Exception) else "cancelled"


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, Exception) else "interrupted"
