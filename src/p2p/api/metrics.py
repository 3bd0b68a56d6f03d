"""Training curves, short enough to draw: the server thins the many lines of a long run."""

from __future__ import annotations

import math
import threading
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from p2p.contracts import (
    AggregatedMetrics,
    EvalResult,
    MeanStdSeries,
    RunMetricsDetail,
    SeedCurves,
    Series,
)
from p2p.files import parse_line, read_from
from p2p.records.iteration_record import step_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

POINTS = 400
GRID_POINTS = 200
KEPT_RUNS = 64
MOST_STEPS = 1 << 60
CLOCK = "elapsed_time"
"""The metric that says how long a run has been training, in seconds."""
Axis = Literal["steps", "time"]
_META = frozenset({"type", "global_step", "iteration"})
_EVALUATION: TypeAdapter[EvalResult] = TypeAdapter(EvalResult)


@dataclass
class _Curve:
    """The metrics file of a run, as far as it was read: a column each, NaN where it has no value.

    A list of lines would take ten times the memory, and every question would go through all of it.
    """

    offset: int = 0
    steps: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, array[float]] = field(default_factory=dict)
    evaluations: list[EvalResult] = field(default_factory=list)

    def positions(self, axis: Axis) -> NDArray[np.float64]:
        """The positions of its lines on an axis; empty where the file has none."""
        # Copies: an array that numpy looks into cannot grow.
        if axis == "steps":
            return np.array(self.steps, dtype=np.float64)
        clock = np.array(self.columns.get(CLOCK, ()), dtype=np.float64)
        # A run that was resumed begins to count again; time does not go back.
        return np.maximum.accumulate(np.nan_to_num(clock)) if len(clock) else clock

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
            if name in _META or (number := _finite_number(value)) is None:
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
            chosen = thin_indices(len(curve.steps), points)
            steps = tuple(curve.steps[i] for i in chosen)
            columns = {n: _plain(np.array(curve.columns[n])[chosen]) for n in sorted(curve.columns)}
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

    def bands(
        self, configs: Mapping[str, Mapping[str, Path]], axis: Axis = "steps"
    ) -> list[AggregatedMetrics]:
        """The runs of each configuration, all on one grid; a run counts as far as it has got."""
        with self._lock:
            curves = {
                config_id: {run_id: self._curve(path) for run_id, path in paths.items()}
                for config_id, paths in configs.items()
            }
            every = [curve for runs in curves.values() for curve in runs.values()]
            grid = _grid([curve.positions(axis) for curve in every])
            grid = np.unique(grid.round()) if axis == "steps" else grid
            evaluated = sorted({e.global_step for curve in every for e in curve.evaluations})
            return [_aggregate(name, runs, axis, grid, evaluated) for name, runs in curves.items()]


def _aggregate(
    config_id: str,
    runs: Mapping[str, _Curve],
    axis: Axis,
    grid: NDArray[np.float64],
    evaluated: Sequence[int],
) -> AggregatedMetrics:
    names = sorted({name for curve in runs.values() for name in curve.columns})
    series = {run: {n: _interpolate(c, n, axis, grid) for n in names} for run, c in runs.items()}
    evaluations = {run: _evaluation_means(curve, evaluated) for run, curve in runs.items()}
    times = _mean_and_std([_seconds_at(curve, evaluated) for curve in runs.values()])
    return AggregatedMetrics(
        config_id=config_id,
        run_ids=tuple(runs),
        steps=tuple(int(step) for step in grid) if axis == "steps" else (),
        seconds=tuple(float(second) for second in grid) if axis == "time" else (),
        series={
            name: _mean_and_std([columns[name] for columns in series.values()]) for name in names
        },
        evaluation_steps=tuple(evaluated),
        evaluation_seconds=times.mean,
        evaluation=_mean_and_std(list(evaluations.values())),
        seeds=tuple(
            SeedCurves(
                run_id=run,
                series={name: _plain(values) for name, values in series[run].items()},
                evaluation=_plain(evaluations[run]),
            )
            for run in runs
        ),
    )


def _grid(positions: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the grid from the start of the first run to the present step of the last."""
    begun = [each for each in positions if len(each)]
    if not begun:
        return np.empty(0)
    first, last = min(each[0] for each in begun), max(each[-1] for each in begun)
    return np.linspace(first, last, GRID_POINTS)


def thin_indices(count: int, points: int) -> list[int]:
    """Return which of `count` to keep, evenly spaced, the first and the last included."""
    if count <= points:
        return list(range(count))
    return [round(i * (count - 1) / (points - 1)) for i in range(points)]


def _finite_number(value: Any) -> float | None:
    """The value, if it is a number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _interpolate(
    curve: _Curve, name: str, axis: Axis, grid: NDArray[np.float64]
) -> NDArray[np.float64]:
    values = np.array(curve.columns.get(name, ()), dtype=np.float64)
    at = curve.positions(axis)
    if not len(values) or not len(at):
        return np.full(len(grid), np.nan)
    known = np.isfinite(values)
    column: NDArray[np.float64] = np.interp(
        grid, at[known], values[known], left=np.nan, right=np.nan
    )
    return column


def _seconds_at(curve: _Curve, steps: Sequence[int]) -> NDArray[np.float64]:
    """Return the times at which a run reached these steps."""
    clock = curve.positions("time")
    if not len(clock):
        return np.full(len(steps), np.nan)
    at: NDArray[np.float64] = np.interp(
        np.array(steps, dtype=np.float64), curve.positions("steps"), clock
    )
    return at


def _evaluation_means(curve: _Curve, steps: Sequence[int]) -> NDArray[np.float64]:
    means = {e.global_step: e.mean_return for e in curve.evaluations}
    return np.array([means.get(step, np.nan) for step in steps], dtype=np.float64)


def _mean_and_std(rows: Sequence[NDArray[np.float64]]) -> MeanStdSeries:
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
