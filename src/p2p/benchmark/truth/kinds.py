"""What a ground truth is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from p2p.benchmark.truth.episode import Episode


@dataclass(frozen=True)
class Truth:
    """A number that says how well a motion is done, read off the simulator."""

    measure: Callable[[Episode], float]
    better: Literal["at_least", "at_most"]
    """Which side of its threshold passes."""
    unit: str
    says: str
    """What is measured, for people."""
    needs: tuple[str, ...] = ()
    """Bodies that the environment must have, by their names in its model."""

    def passes(self, value: float, threshold: float) -> bool:
        """Whether a value is on the right side."""
        return bool(value >= threshold if self.better == "at_least" else value <= threshold)

    def attained(self, value: float, threshold: float) -> float:
        """How much of the threshold is attained, 0 to 1: the same scale for every truth."""
        if self.passes(value, threshold):
            return 1.0
        if self.better == "at_least":
            share = value / threshold if threshold > 0 else 0.0
        else:
            share = threshold / value if value > 0 else 0.0
        return min(max(share, 0.0), 1.0)
