"""The few statistics of a report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Z = 1.959963984540054
"""Of a normal distribution: 95 % lie within."""


def wilson(passed: int, total: int) -> tuple[float, float] | None:
    """The 95 % interval of a pass rate by Wilson's score; None of nothing."""
    if total == 0:
        return None
    share, spread = passed / total, Z**2 / total
    middle = (share + spread / 2) / (1 + spread)
    half = Z * float(np.sqrt(share * (1 - share) / total + spread / (4 * total))) / (1 + spread)
    # Rounding must not leave the rate itself outside.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Rank correlation, ties at their mean rank; None where it is not defined."""
    if len(one) < 3:
        return None
    a, b = _ranks(one), _ranks(other)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    _, place, count = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    means: NDArray[np.float64] = (last - (count - 1) / 2)[place]
    return means
