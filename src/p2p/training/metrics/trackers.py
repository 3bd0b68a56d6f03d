"""Scalars for TensorBoard, Weights & Biases and trackio."""

from __future__ import annotations

import importlib
import math
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Any

from p2p.contracts import EvalResult

if TYPE_CHECKING:
    from pathlib import Path

    from p2p.training.metrics.scalars_file import Scalars

PROJECT = "prompt2policy"


class MissingExtraError(ImportError):
    """A writer was asked for whose library is not installed."""

    def __init__(self, extra: str) -> None:
        super().__init__(f"{extra} is not installed: pip install 'prompt2policy[{extra}]'")
        self.extra = extra


def named_values(record: Scalars) -> dict[str, float]:
    """The record's finite numbers under the names that trackers show: train/... and eval/..."""
    if isinstance(record, EvalResult):
        plain = record.model_dump(exclude={"type", "global_step", "reward_terms", "rollouts"})
        values = {f"eval/{key}": value for key, value in plain.items() if isinstance(value, float)}
        values |= {f"eval/reward_term_{name}": v for name, v in record.reward_terms.items()}
    else:
        values = {f"train/{key}": value for key, value in record.values.items()}
    return {name: value for name, value in values.items() if math.isfinite(value)}


class TensorBoardWriter:
    """Event files, written with TensorBoard's own record format; no torch, no TensorFlow.

    A resumed run begins a new file that tells readers to forget what lies beyond its first step.
    """

    def __init__(self, folder: Path, resume_step: int = 0) -> None:
        # TensorBoard's EventFileWriter would import TensorFlow where that is installed, and writes
        # from a thread; records are all it adds to this.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._records = RecordWriter(_next_event_file(folder).open("xb"))
        self._write(file_version="brain.Event:2")
        if resume_step:
            started = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=resume_step + 1, session_log=started)

    def write(self, record: Scalars) -> None:
        """Write one event with all values of the record, flushed."""
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in named_values(record).items()
        ]
        self._write(step=record.global_step, summary=self._summary(value=values))

    def close(self) -> None:
        """No more events."""
        self._records.close()

    def _write(self, **fields: Any) -> None:
        event = self._event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())
        self._records.flush()


class WandbWriter:
    """Weights & Biases. A resumed run goes on under its name."""

    def __init__(self, folder: Path, run: str) -> None:
        wandb = _library("wandb")
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", run)  # its ids allow little else
        self._run = wandb.init(project=PROJECT, name=run, id=name, dir=str(folder), resume="allow")
        # Steps of ours on the axis: wandb's own counter refuses to go back after a resume.
        self._run.define_metric("*", step_metric="global_step")

    def write(self, record: Scalars) -> None:
        """Log all values of the record."""
        self._run.log({"global_step": record.global_step, **named_values(record)})

    def close(self) -> None:
        """Finish the run, which waits until it is uploaded."""
        self._run.finish()


class TrackioWriter:
    """trackio. A resumed run goes on under its name."""

    def __init__(self, run: str) -> None:
        trackio = _library("trackio")
        self._run = trackio.init(project=PROJECT, name=run, resume="allow", embed=False)

    def write(self, record: Scalars) -> None:
        """Log all values of the record at its step."""
        self._run.log(named_values(record), step=record.global_step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingExtraError(name) from error


def _next_event_file(folder: Path) -> Path:
    """A name that sorts behind all others there: readers take files in the order of names."""
    prefix = "events.out.tfevents."
    taken = [path.name.removeprefix(prefix).split(".")[0] for path in folder.glob(f"{prefix}*")]
    latest = max((int(seconds) for seconds in taken if seconds.isdigit()), default=0)
    seconds = max(int(time.time()), latest + 1)
    return folder / f"{prefix}{seconds:010d}.{socket.gethostname()}.{os.getpid()}.0"
