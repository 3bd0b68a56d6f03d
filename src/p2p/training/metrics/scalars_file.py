"""metrics/scalars.jsonl: one line of strict JSON per rollout or evaluation, appended as it happens.

A number that is not finite is left out of its line (in a list it is null): bare NaN is no JSON, and
a chart has nothing to draw there.
"""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from p2p.contracts import EvalResult, TrainScalars

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Scalars = TrainScalars | EvalResult


class JsonlWriter:
    """Appends lines, each flushed. Opening drops what lies beyond the step a run resumes from."""

    def __init__(self, path: Path, resume_step: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        truncate_after(path, resume_step)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Scalars) -> None:
        """Append one line; it has left this process when this returns."""
        self._file.write(to_line(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more lines."""
        self._file.close()


def to_line(record: Scalars) -> str:
    """The record as it stands in the file, without the line's end."""
    flat = record.line() if isinstance(record, TrainScalars) else record.model_dump(mode="python")
    return json.dumps(_finite(flat), allow_nan=False, separators=(",", ":"))


def from_line(line: str | bytes) -> Scalars | None:
    """The record of a line; None for a torn or foreign one."""
    try:
        flat = json.loads(line)
        if flat["type"] == "eval":
            return EvalResult.model_validate(flat)
        head = {key: flat.pop(key) for key in ("type", "global_step", "iteration")}
        return TrainScalars.model_validate({**head, "values": flat})
    except (ValueError, KeyError, TypeError, ValidationError):
        return None


def truncate_after(path: Path, step: int) -> None:
    """Drop the lines beyond this step, and torn or foreign ones, atomically."""
    if not path.exists():
        return
    kept = [line for line in _lines(path) if _step_of(line) <= step]
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        file.writelines(kept)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))


def _step_of(line: bytes) -> float:
    """The line's step; infinite if it has none, which no file keeps."""
    try:
        step = json.loads(line)["global_step"]
    except (ValueError, KeyError, TypeError):
        return math.inf
    return step if isinstance(step, int) else math.inf


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items() if not _is_nonfinite(item)}
    if isinstance(value, list | tuple):
        return [None if _is_nonfinite(item) else _finite(item) for item in value]
    return value


def _is_nonfinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
