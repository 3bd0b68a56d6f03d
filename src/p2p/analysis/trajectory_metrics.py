"""How the terms of a reward went over one episode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from p2p.analysis import Direction, direction, keep_finite, scale_to_one
from p2p.contracts import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike


class TermMetrics(Record):
    """One reward term over an episode."""

    mean: float | None
    """None if no value was finite."""
    std: float | None
    trend: Direction
    fraction_of_total: float | None
    """Its part of the sum of all terms' absolute values; None if that sum is zero."""
    not_finite: int = 0
    """Steps whose value was NaN or infinite; the other numbers leave them out."""


class TrajectoryMetrics(Record):
    """The terms of a reward over an episode, by name."""

    terms: dict[str, TermMetrics]

    def text(self) -> str:
        """Return one line per term, the largest share first."""
        by_share = sorted(self.terms.items(), key=lambda item: -(item[1].fraction_of_total or 0.0))
        return "\n".join(_line(name, term) for name, term in by_share)


def analyze_trajectory(terms: Mapping[str, ArrayLike]) -> TrajectoryMetrics:
    """Mean, spread, trend and share of each term, from its values step by step."""
    curves = {name: scale_to_one(keep_finite(values)) for name, values in terms.items()}
    # Sizes relative to the largest, so that shares of huge values can be added up.
    largest = max((scale for curve, scale in curves.values() if len(curve)), default=1.0)
    sizes = {
        name: float(np.abs(curve).mean()) * (scale / largest) if len(curve) else 0.0
        for name, (curve, scale) in curves.items()
    }
    total = sum(sizes.values())
    return TrajectoryMetrics(
        terms={
            name: TermMetrics(
                mean=float(curve.mean()) * scale if len(curve) else None,
                std=float(curve.std()) * scale if len(curve) else None,
                trend=direction(curve),
                fraction_of_total=sizes[name] / total if total > 0 else None,
                not_finite=int(np.size(np.asarray(terms[name], dtype=object)) - len(curve)),
            )
            for name, (curve, scale) in curves.items()
        }
    )


def _line(name: str, term: TermMetrics) -> str:
    if term.mean is None or term.std is None:
        return f"{name}: no finite value in {term.not_finite} steps"
    share = "" if term.fraction_of_total is None else f", {term.fraction_of_total:.0%} of the total"
    bad = f", {term.not_finite} values not finite" if term.not_finite else ""
    return f"{name}: mean {term.mean:.4g}, std {term.std:.4g}, {term.trend}{share}{bad}"
