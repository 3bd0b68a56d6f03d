"""Where metrics go: one small protocol, and a dict of what implements it."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Any, Protocol

from unstable.utils.files import to_json, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


class MetricsWriter(Protocol):
    """Takes numbers by name."""

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Take the values that hold at a step of the learner."""
        ...

    def close(self) -> None:
        """No more will come."""
        ...


class MissingExtraError(ImportError):
    """A writer was asked for whose library is not installed."""

    def __init__(self, extra: str) -> None:
        super().__init__(f"{extra} is not installed: pip install 'prompt2policy[{extra}]'")
        self.extra = extra


class JsonlWriter:
    """`metrics.jsonl`: one line per write, with its time and step; not-finite numbers are null."""

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "metrics.jsonl"
        mend_lines(path, resume_step)
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Append a line; it has left this process when this returns."""
        line = {"time": round(time.time(), 3), "step": step, **values}
        self._file.write(to_json(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more lines."""
        self._file.close()


class TensorBoardWriter:
    """Event files in TensorBoard's own record format; neither torch nor TensorFlow is loaded."""

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}.0"
        self._records = RecordWriter((folder / name).open("xb"))
        self._write(file_version="brain.Event:2")
        if resume_step is not None:  # readers forget what lies beyond
            started = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=resume_step + 1, session_log=started)

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write one event with all finite values, flushed."""
        entries = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if math.isfinite(value)
        ]
        self._write(step=step, summary=self._summary(value=entries))

    def close(self) -> None:
        """No more events."""
        self._records.close()

    def _write(self, **fields: Any) -> None:
        event = self._event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())
        self._records.flush()


class WandbWriter:
    """Weights & Biases; WANDB_MODE=offline keeps everything below the run's folder."""

    def __init__(self, folder: Path, project: str, run_name: str) -> None:
        wandb = _library("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        # A resumed run goes on under its id, which must differ between runs of one name.
        place = re.sub(r"[^A-Za-z0-9_.-]", "-", "-".join(folder.parts[-3:]))
        self._run = wandb.init(
            project=project, name=run_name, id=place[-128:], dir=str(folder), resume="allow"
        )  # fmt: skip
        # Steps of ours on the axis: wandb's own counter refuses to go back after a resume.
        self._run.define_metric("*", step_metric="learner_step")

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Log all values."""
        self._run.log({"learner_step": step, **values})

    def close(self) -> None:
        """Finish the run, which waits until it is uploaded."""
        self._run.finish()


class TrackioWriter:
    """trackio's local dashboard."""

    def __init__(self, project: str, run_name: str) -> None:
        trackio = _library("trackio")
        self._run = trackio.init(project=project, name=run_name, resume="allow", embed=False)

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Log all values at the step."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._run.log(finite, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


WRITERS: dict[str, Callable[[Path, str, str, int | None], MetricsWriter]] = {
    "jsonl": lambda folder, _, __, step: JsonlWriter(folder, step),
    "tensorboard": lambda folder, _, __, step: TensorBoardWriter(folder / "tensorboard", step),
    "wandb": lambda folder, project, run, _: WandbWriter(folder, project, run),
    "trackio": lambda _, project, run, __: TrackioWriter(project, run),
}
"""By name: a function of the run's folder, the project, the run's name, and the step that the run
continues from (None: it is new).
"""


def mend_lines(path: Path, resume_step: int | None) -> None:
    """Drop a torn last line, and the lines beyond the step a run continues from."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if line.endswith("\n") and _kept(line, resume_step)]
    if kept != lines:
        write_whole(path, "".join(kept))


def _kept(line: str, resume_step: int | None) -> bool:
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return False
    return resume_step is None or step <= resume_step


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingExtraError(name) from error
