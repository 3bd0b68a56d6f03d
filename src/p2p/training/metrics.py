"""A run's numbers on their way to its files and to trackers.

`scalars.jsonl` and TensorBoard's files are always written, by the process that owns the run's
folder. Trackers that need the network are fed by a thread: training does not wait for a server.
"""

from __future__ import annotations

import json
import math
import os
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from p2p.contracts import EvalResult, TrainScalars
from unstable.writers import (
    MetricsWriter,
    TensorBoardWriter,
    TrackioWriter,
    WandbWriter,
    truncate_lines,
)

Scalars = TrainScalars | EvalResult

PROJECT = "prompt2policy"
LOCAL = ("jsonl", "tensorboard")
"""Written for every run."""
Make = Callable[[Path, str, str, Mapping[str, Any]], MetricsWriter]
TRACKERS: dict[str, Make] = {
    "wandb": lambda folder, run, group, config: WandbWriter(
        folder, os.environ.get("WANDB_PROJECT") or PROJECT, run, run, "global_step", group, config
    ),
    "trackio": lambda _, run, group, config: TrackioWriter(PROJECT, run, group, config),
}
"""By name: a function of the run's metrics folder, its name, its group and its configuration;
MissingExtraError where the library is not installed."""


class RunMetrics:
    """Takes a run's records to its files and to the trackers that were asked for.

    Args:
        folder: the run's metrics folder.
        run: the run's name, as trackers show it.
        group: what its run belongs to, there.
        config: its hyperparameters, as trackers show them.
        trackers: names of TRACKERS (or of LOCAL, which are written anyway).
        after_step: the step the run continues from; later lines are dropped. 0: a new run.

    Raises:
        MissingExtraError: a tracker's library is not installed.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        group: str = "",
        trackers: tuple[str, ...] = (),
        after_step: int = 0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        names = (name for name in trackers if name not in LOCAL)
        remote = [TRACKERS[name](folder, run, group, config or {}) for name in names]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "scalars.jsonl"
        truncate_lines(path, after_step, "global_step")
        self._file = path.open("a", encoding="utf-8")
        self._tensorboard = TensorBoardWriter(folder / "tensorboard", after_step or None)
        self._problems: list[str] = []
        self._queue: queue.SimpleQueue[Scalars | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_records, args=(remote,), daemon=True)
        if remote:
            self._thread.start()

    def write(self, record: Scalars) -> None:
        """Take one record; its line has left this process when this returns."""
        self._file.write(to_line(record) + "\n")
        self._file.flush()
        self._tensorboard.write(named_values(record), record.global_step)
        if self._thread.is_alive():
            self._queue.put(record)

    def close(self, patience_s: float = 30.0) -> list[str]:
        """Finish writing; what went wrong with the trackers."""
        self._file.close()
        self._tensorboard.close()
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(patience_s)
            if self._thread.is_alive():
                self._problems.append(f"a tracker did not finish within {patience_s:g} s")
        return self._problems

    def _write_records(self, writers: list[MetricsWriter]) -> None:
        try:
            try:
                while (record := self._queue.get()) is not None:
                    for writer in writers:
                        writer.write(named_values(record), record.global_step)
            finally:
                for writer in writers:
                    writer.close()
        # A server that is away must not cost a training run; the summary says so.
        except Exception as error:  # noqa: BLE001
            self._problems.append(f"a tracker failed: {type(error).__name__}: {error}")


def to_line(record: Scalars) -> str:
    """The record as a line of scalars.jsonl, in strict JSON.

    A number that is not finite is left out (in a list it is null): bare NaN is no JSON, and a chart
    has nothing to draw there.
    """
    flat = record.line() if isinstance(record, TrainScalars) else record.model_dump(mode="python")
    return json.dumps(_finite(flat), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items() if not _is_nonfinite(item)}
    if isinstance(value, list | tuple):
        return [None if _is_nonfinite(item) else _finite(item) for item in value]
    return value


def _is_nonfinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def named_values(record: Scalars) -> dict[str, float]:
    """The record's finite numbers under the names that trackers show: train/... and eval/..."""
    if isinstance(record, EvalResult):
        plain = record.model_dump(exclude={"type", "global_step", "reward_terms", "rollouts"})
        values = {f"eval/{key}": value for key, value in plain.items() if isinstance(value, float)}
        values |= {f"eval/reward_term_{name}": v for name, v in record.reward_terms.items()}
    else:
        values = {f"train/{key}": value for key, value in record.values.items()}
    return {name: value for name, value in values.items() if math.isfinite(value)}
