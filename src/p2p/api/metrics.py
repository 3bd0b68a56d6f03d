"""Training curves, short enough to draw: the many lines of a long run thinned on the server."""

from __future__ import annotations

import math
import threading
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from p2p.contracts import (
    AggregatedMetrics,
    EvalResult,
    MeanStdSeries,
    RunMetricsDetail,
    Series,
)
from p2p.files import parse_line, read_from
from p2p.records.run_checks import step_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

POINTS = 400
GRID_POINTS = 200
KEPT_RUNS = 64
MOST_STEPS = 1 << 60
_META = frozenset({"type", "global_step", "iteration"})
_EVALUATION: TypeAdapter[EvalResult] = TypeAdapter(EvalResult)


@dataclass
class _Curve:
    """What has been read of a run's metrics file: a column for each metric, NaN where it has none.

    A list of lines would take ten times the memory, and every question would go through all of it.
    """

    offset: int = 0
    steps: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, array[float]] = field(default_factory=dict)
    evaluations: list[EvalResult] = field(default_factory=list)

    def add(self, line: dict[str, Any]) -> None:
        """Take a line over; a resumed run repeats steps, and its later line counts."""
        step = step_of(line)
        if step is None or step > MOST_STEPS:
            return
        if line.get("type") == "eval":
            self._add_evaluation(step, line)
            return
        while self.steps and self.steps[-1] >= step:
            self.steps.pop()
            for column in self.columns.values():
                column.pop()
        for name, value in line.items():
            if name in _META or (number := _number(value)) is None:
                continue
            if name not in self.columns:
                self.columns[name] = array("d", [math.nan]) * len(self.steps)
            self.columns[name].append(number)
        self.steps.append(step)
        for column in self.columns.values():
            if len(column) < len(self.steps):
                column.append(math.nan)

    def _add_evaluation(self, step: int, line: dict[str, Any]) -> None:
        try:
            result = _EVALUATION.validate_python(line)
        except ValidationError:
            return
        while self.evaluations and self.evaluations[-1].global_step >= step:
            self.evaluations.pop()
        self.evaluations.append(result)


class MetricsReader:
    """Reads metrics files from where it left off; keeps those of the runs asked for last."""

    def __init__(self) -> None:
        self._curves: OrderedDict[Path, _Curve] = OrderedDict()
        self._lock = threading.Lock()

    def _curve(self, path: Path) -> _Curve:
        curve = self._curves.pop(path, None) or _Curve()
        self._curves[path] = curve
        while len(self._curves) > KEPT_RUNS:
            self._curves.popitem(last=False)
        while True:
            lines, offset = read_from(path, curve.offset)
            if offset < curve.offset:  # another file has taken its place
                curve = self._curves[path] = _Curve()
                continue
            if offset == curve.offset:
                return curve
            curve.offset = offset
            for line in lines:
                record = parse_line(line)
                if record is not None:
                    curve.add(record)

    def run(self, run_id: str, path: Path, points: int = POINTS) -> RunMetricsDetail:
        """The curves of one run, in at most so many points each."""
        with self._lock:
            curve = self._curve(path)
            chosen = thinned(len(curve.steps), points)
            steps = tuple(curve.steps[i] for i in chosen)
            columns = {n: _chosen(curve.columns[n], chosen) for n in sorted(curve.columns)}
            return RunMetricsDetail(
                run_id=run_id,
                total_points=len(curve.steps),
                training={
                    name: Series(steps=steps, values=values)
                    for name, values in columns.items()
                    if any(value is not None for value in values)
                },
                evaluation=tuple(curve.evaluations),
            )

    def seeds(self, config_id: str, paths: Mapping[str, Path]) -> AggregatedMetrics:
        """The runs of one configuration on a common grid; a run counts as far as it has got."""
        with self._lock:
            curves = [self._curve(path) for path in paths.values()]
            begun = [curve for curve in curves if curve.steps]
            last = max((curve.steps[-1] for curve in begun), default=0)
            first = min((curve.steps[0] for curve in begun), default=0)
            grid = np.unique(np.linspace(first, last, GRID_POINTS if begun else 0).round())
            names = sorted({name for curve in begun for name in curve.columns})
            evaluated = sorted({e.global_step for curve in curves for e in curve.evaluations})
            return AggregatedMetrics(
                config_id=config_id,
                run_ids=tuple(paths),
                steps=tuple(int(step) for step in grid),
                series={name: _band([_on_grid(c, name, grid) for c in begun]) for name in names},
                evaluation_steps=tuple(evaluated),
                evaluation=_band([_evaluations(curve, evaluated) for curve in curves]),
            )


def thinned(count: int, points: int) -> list[int]:
    """Which of `count` to keep, evenly, the first and the last among them."""
    if count <= points:
        return list(range(count))
    return [round(i * (count - 1) / (points - 1)) for i in range(points)]


def _chosen(column: array[float], chosen: Sequence[int]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(column[i]) else column[i] for i in chosen)


def _number(value: Any) -> float | None:
    """The value, if it is a number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _on_grid(curve: _Curve, name: str, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    if name not in curve.columns:
        return np.full(len(grid), np.nan)
    # Copies: an array that numpy looks into cannot grow.
    steps = np.array(curve.steps, dtype=np.float64)
    values = np.array(curve.columns[name], dtype=np.float64)
    known = np.isfinite(values)
    found: NDArray[np.float64] = np.interp(
        grid, steps[known], values[known], left=np.nan, right=np.nan
    )
    return found


def _evaluations(curve: _Curve, steps: Sequence[int]) -> NDArray[np.float64]:
    means = {e.global_step: e.mean_return for e in curve.evaluations}
    return np.array([means.get(step, np.nan) for step in steps], dtype=np.float64)


def _band(rows: Sequence[NDArray[np.float64]]) -> MeanStdSeries:
    if not rows or not len(rows[0]):
        return MeanStdSeries(mean=(), std=())
    values = np.stack(rows)
    known = np.isfinite(values)
    count = known.sum(axis=0)
    filled = np.where(known, values, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = filled.sum(axis=0) / count
        std = np.sqrt((np.where(known, values - mean, 0.0) ** 2).sum(axis=0) / count)
    return MeanStdSeries(mean=_plain(mean), std=_plain(std))


def _plain(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(float(value) if math.isfinite(value) else None for value in values)
