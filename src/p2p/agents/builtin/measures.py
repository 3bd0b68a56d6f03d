"""What is measured on an episode, as text and back: `mean forward speed in the first half`.

A criterion keeps only its text; whatever the person did to threshold, title or weight, the text
says which quantity is meant, so criteria, reward terms and judgements agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from p2p.agents.builtin.quantities import Quantity
from p2p.contracts import Criterion

Stat = Literal["mean", "steady", "share", "highest", "final", "turns", "swings", "miss", "lasting",
               "events", "ends"]  # fmt: skip
Window = tuple[float, float]

LASTING = "share of the full time that the episode lasts"
ENDS = "number of times that the episode ends early"
COUNTED: frozenset[Stat] = frozenset({"events", "ends"})
"""What must not happen, counted."""
_STATS: Mapping[Stat, str] = {
    "mean": "mean {words}",
    "steady": "lowest mean {words} of any fifth of the time",
    "share": "share of time with {words}",
    "highest": "highest {words}",
    "final": "{words} at the end",
    "turns": "full turns at the {words}",
    "swings": "swings from side to side of the {words} beyond",
    "miss": "difference of the mean {words} from",
    "events": "number of times that it comes to {words}",
}
WHOLE: Window = (0.0, 1.0)
WINDOWS: Mapping[Window, str] = {
    (0.0, 0.5): "first half",
    (0.5, 1.0): "second half",
    (0.0, 1 / 3): "first third",
    (1 / 3, 2 / 3): "second third",
    (2 / 3, 1.0): "last third",
}
_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
_BOUNDS = (
    (rf" between (?P<low>{_NUMBER}) and (?P<high>{_NUMBER})", ("share", "events")),
    (rf" at least (?P<low>{_NUMBER})", ("share", "events")),
    (rf" at most (?P<high>{_NUMBER})", ("share", "events")),
    (rf"(?<= from) (?P<low>{_NUMBER})", ("miss",)),
    (rf"(?<= beyond) (?P<low>{_NUMBER})", ("swings",)),
)
_BOUNDED = ("share", "miss", "swings", "events")


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of an episode."""

    stat: Stat
    quantity: str = ""
    """Empty for `lasting` and `ends`."""
    low: float | None = None
    high: float | None = None
    """For shares and events: the quantity lies between these. For a miss, `low` is what is aimed
    at; for swings, how far to either side they go."""
    window: Window = WHOLE
    """Which part of the episode's full time is looked at."""

    def text(self, quantities: Mapping[str, Quantity]) -> str:
        if not self.quantity:
            return {"lasting": LASTING, "ends": ENDS}[self.stat]
        quantity = quantities[self.quantity]
        words = _STATS[self.stat].format(words=quantity.words)
        unit = f" {quantity.unit}" if quantity.unit else ""
        if self.stat in ("miss", "swings"):
            words += f" {self.low:g}{unit}"
        elif self.low is not None and self.high is not None:
            words += f" between {self.low:g} and {self.high:g}{unit}"
        elif self.low is not None:
            words += f" at least {self.low:g}{unit}"
        elif self.high is not None:
            words += f" at most {self.high:g}{unit}"
        return words + ("" if self.window == WHOLE else f" in the {window_name(self.window)}")


def window_name(window: Window) -> str:
    return WINDOWS.get(window) or f"part from {window[0]:g} to {window[1]:g} of the time"


def _read_window(text: str) -> tuple[str, Window]:
    """A measure's text without its window, and the window."""
    for window, name in WINDOWS.items():
        if text.endswith(f" in the {name}"):
            return text.removesuffix(f" in the {name}"), window
    if match := re.search(rf" in the part from ({_NUMBER}) to ({_NUMBER}) of the time$", text):
        return text[: match.start()], (float(match[1]), float(match[2]))
    return text, WHOLE


def read_measure(text: str, quantities: Mapping[str, Quantity]) -> Measure | None:
    """Parse a measure from a text, or return None if the text is not one."""
    text = " ".join(text.lower().split()).rstrip(".")
    if text in (LASTING, ENDS):
        return Measure("lasting" if text == LASTING else "ends")
    text, window = _read_window(text)
    units = "|".join({re.escape(quantity.unit) for quantity in quantities.values()} - {""})
    limits: dict[str, float] = {}
    bounded: tuple[str, ...] = ()
    for pattern, stats in _BOUNDS:
        if match := re.search(rf"{pattern}(?: (?:{units}))?$", text):
            limits = {name: float(value) for name, value in match.groupdict().items()}
            text, bounded = text[: match.start()], stats
            break
    for known, form in _STATS.items():
        if known not in bounded if known in _BOUNDED else bounded:
            continue
        for key, quantity in quantities.items():
            if text == form.format(words=quantity.words).lower():
                return Measure(known, key, limits.get("low"), limits.get("high"), window)
    return None


# --- measures that exclude each other -------------------------------------------------------------


_Judged = tuple[Criterion, Measure]
_AGAINST = {"forward_speed": "backward_speed", "left_speed": "right_speed",
            "turn_left_rate": "turn_right_rate", "cart_left": "cart_right"}  # fmt: skip
_SIDES = frozenset({"cart_left", "cart_right"})
_STRAYING = {"forward_speed": "stray_ahead", "backward_speed": "stray_ahead",
             "left_speed": "stray_aside", "right_speed": "stray_aside"}  # fmt: skip
_AGAINST |= {other: one for one, other in _AGAINST.items()}


def exclude_each_other(one: _Judged, other: _Judged, seconds: float) -> bool:
    """Return whether no episode of this length can meet both."""
    start, end = zip(_select_window(one[1]), _select_window(other[1]), strict=True)
    if max(start) >= min(end):
        return False
    first, second = _bounds(*one, seconds), _bounds(*other, seconds)
    return any(
        max(first[name][0], second[name][0]) > min(first[name][1], second[name][1])
        for name in first.keys() & second.keys()
    )


def _select_window(measure: Measure) -> Window:
    """Select the part of the episode that a measure is about."""
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
