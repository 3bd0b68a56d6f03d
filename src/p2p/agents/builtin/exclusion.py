"""Which criteria no episode can meet at once."""

from __future__ import annotations

from math import inf

from p2p.agents.builtin.measures import Measure, Window
from p2p.contracts import Criterion

_Judged = tuple[Criterion, Measure]
_AGAINST = {"forward_speed": "backward_speed", "left_speed": "right_speed",
            "turn_left_rate": "turn_right_rate", "cart_left": "cart_right"}  # fmt: skip
_SIDES = frozenset({"cart_left", "cart_right"})
_STRAYING = {"forward_speed": "stray_ahead", "backward_speed": "stray_ahead",
             "left_speed": "stray_aside", "right_speed": "stray_aside"}  # fmt: skip
_AGAINST |= {other: one for one, other in _AGAINST.items()}


def exclude_each_other(one: _Judged, other: _Judged, seconds: float) -> bool:
    """Whether no episode of this length can meet both."""
    start, end = zip(_looked_at(one[1]), _looked_at(other[1]), strict=True)
    if max(start) >= min(end):
        return False
    first, second = _bounds(*one, seconds), _bounds(*other, seconds)
    return any(
        max(first[name][0], second[name][0]) > min(first[name][1], second[name][1])
        for name in first.keys() & second.keys()
    )


def _looked_at(measure: Measure) -> Window:
    """The part of the episode that a measure is about."""
    first, last = measure.window
    return (last - (last - first) / 5, last) if measure.stat == "final" else measure.window


def _bounds(
    criterion: Criterion, measure: Measure, seconds: float
) -> dict[str, tuple[float, float]]:
    """Between what a quantity is for most of the time, or on average, if the criterion is met."""
    value, low, high = criterion.threshold, -inf, inf
    if measure.stat == "share" and value > 0.5:
        low = low if measure.low is None else measure.low
        high = high if measure.high is None else measure.high
    elif measure.stat == "miss" and measure.low is not None:
        low, high = measure.low - value, measure.low + value
    elif measure.stat in ("mean", "final"):
        low, high = (value, inf) if criterion.comparison == "at_least" else (-inf, value)
    elif measure.stat == "events" and measure.high is None and measure.low is not None:
        high = measure.low
    elif measure.stat == "highest" and criterion.comparison == "at_most":
        high = value
    bounds = {measure.quantity: (low, high)}
    if low > 0 and measure.quantity in _AGAINST:
        bounds[_AGAINST[measure.quantity]] = (-inf, -low)
        if measure.quantity in _SIDES:  # as far from the middle as to this side
            bounds["cart_offset"] = (low, inf)
        if measure.quantity.endswith("_speed"):
            bounds["ground_speed"] = (low, inf)
            # Half of what a steady pace makes of it.
            away = low * seconds * (measure.window[1] - measure.window[0]) / 4
            bounds["drift"] = bounds[_STRAYING[measure.quantity]] = (away, inf)
    return bounds
