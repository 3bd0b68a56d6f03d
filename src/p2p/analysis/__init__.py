"""Curves and trajectories as numbers: what rises, what falls, and what is only noise.

Every function gives the same for a curve and for the curve scaled or shifted. Values that are not
finite are left out; the callers report them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2p.contracts import Record

Curve = NDArray[np.float64]
Lines = Sequence[Mapping[str, Any]]
"""Lines of scalars.jsonl, as IterationRecord.parse_scalars gives them."""

Direction = Literal["rising", "falling", "flat"]

ROUNDING = 1e-9
"""Less than this part of the largest value is no change."""

_CLEAR_EFFECT = 0.5
_BLOCKS = 8


class Trend(Record):
    """A straight line through a curve."""

    gain: float
    """How much the line rises from the curve's beginning to its end."""
    error: float
    """The standard error of the gain."""


def keep_finite(values: ArrayLike) -> Curve:
    """Return the finite values, flat and in order, without values that are not numbers."""
    try:
        numbers = np.asarray(values, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        flat = np.asarray(values, dtype=object).ravel()
        numbers = np.array([number(value) for value in flat], dtype=np.float64)
    return numbers[np.isfinite(numbers)]


def scale_to_one(curve: Curve) -> tuple[Curve, float]:
    """The curve within -1 to 1, and its scale: sums and squares of it cannot overflow."""
    scale = float(np.abs(curve).max(initial=0.0)) or 1.0
    return curve / scale, scale


def number(value: object) -> float:
    """Convert a value to float, or to NaN if it is not a number."""
    if isinstance(value, bool) or value is None:
        return float("nan")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def column(lines: Lines, name: str) -> tuple[Curve, Curve]:
    """Steps and values of a metric, where both are finite."""
    pairs = np.array(
        [(number(line.get("global_step")), number(line[name])) for line in lines if name in line],
        dtype=np.float64,
    ).reshape(-1, 2)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    return pairs[:, 0], pairs[:, 1]


def direction(values: ArrayLike) -> Direction:
    """Whether the second half lies clearly above or below the first, against their spread."""
    curve = scale_to_one(keep_finite(values))[0]
    if len(curve) < 4:
        return "flat"
    first, second = curve[: len(curve) // 2], curve[len(curve) // 2 :]
    change = second.mean() - first.mean()
    spread = np.sqrt((first.var() + second.var()) / 2)
    if abs(change) <= max(ROUNDING, _CLEAR_EFFECT * spread):
        return "flat"
    return "rising" if change > 0 else "falling"


def block_medians(curve: Curve, blocks: int = _BLOCKS) -> Curve:
    """Medians of consecutive parts: a curve without outliers, its noise nearly independent."""
    return np.array([np.median(part) for part in np.array_split(curve, min(blocks, len(curve)))])


def trend(curve: Curve) -> Trend:
    """The straight line through the block medians; at least four values."""
    medians = block_medians(curve)
    x = np.linspace(-0.5, 0.5, len(medians))
    gain = float(x @ (medians - medians.mean()) / (x @ x))
    residuals = medians - medians.mean() - gain * x
    error = np.sqrt(residuals @ residuals / max(len(medians) - 2, 1) / (x @ x))
    return Trend(gain=gain, error=float(error))


def part(curve: Curve, start: float, end: float) -> Curve:
    """The values between two fractions of the curve; at least one."""
    begin = min(int(len(curve) * start), len(curve) - 1)
    return curve[begin : max(round(len(curve) * end), begin + 1)]
