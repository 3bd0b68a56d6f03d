"""Judging early checkpoints while training goes on: by code, which costs nothing.

The episodes are those that training's own evaluation has recorded. This is a view of how the
behaviour grows and never more: it does not hold up training, and its failure is an event.
"""

from __future__ import annotations

import contextvars
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from p2p.contracts import ROLLOUT_LABELS
from p2p.event_log import emit
from p2p.files import save_model
from p2p.training.checkpoints import checkpoint_steps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from p2p.contracts import AuthoredCode, Intent
    from p2p.records.iteration_record import IterationRecord
    from p2p.session.context import SessionContext

LOOK_S = 1.0
NICENESS = 10


@contextmanager
def judging_early(
    context: SessionContext, iteration: IterationRecord, intent: Intent, judge: AuthoredCode | None
) -> Iterator[None]:
    """While this lasts, each new checkpoint of each run is judged, in the background."""
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
    while not ended.wait(LOOK_S):
        for run in iteration.runs():
            for step in checkpoint_steps(run):
                if ended.is_set():
                    return
                if (run.streaming_dir / f"{step}.json").exists():
                    continue
                try:
                    _judge_one(context, run, intent, code, step)
                except Exception as error:  # noqa: BLE001 - it must not disturb the training
                    emit("early_judge.error", iteration=iteration.number, error=repr(error))
                    return


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
