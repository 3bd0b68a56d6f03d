"""What is measured on an episode, as text and back: `mean forward speed in the first half`.

A criterion keeps only its text; whatever the person did to threshold, title or weight, the text
says which quantity is meant, so criteria, reward terms and judgements agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from p2p.agents.builtin.quantities import Quantity

Stat = Literal["mean", "share", "highest", "final", "turns", "miss", "lasting"]

LASTING = "share of the full time that the episode lasts"
_STATS: Mapping[Stat, str] = {
    "mean": "mean {words}",
    "share": "share of time with {words}",
    "highest": "highest {words}",
    "final": "{words} at the end",
    "turns": "full turns at the {words}",
    "miss": "difference of the mean {words} from",
}
_WINDOWS = {
    (0.0, 0.5): " in the first half",
    (0.5, 1.0): " in the second half",
    (0.0, 1 / 3): " in the first third",
    (1 / 3, 2 / 3): " in the second third",
    (2 / 3, 1.0): " in the last third",
}
WINDOW_TITLES = {span: f" ({words.removeprefix(' in the ')})" for span, words in _WINDOWS.items()}
"""For the titles of criteria that look at a part of the time."""
WHOLE = (0.0, 1.0)
_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of an episode."""

    stat: Stat
    quantity: str = ""
    low: float | None = None
    high: float | None = None
    """For shares: the quantity lies between these. For a miss, `low` is what is aimed at."""
    window: tuple[float, float] = WHOLE
    """Which part of the episode's full time is looked at."""

    def text(self, quantities: Mapping[str, Quantity]) -> str:
        """In words."""
        if self.stat == "lasting":
            return LASTING
        quantity = quantities[self.quantity]
        words = _STATS[self.stat].format(words=quantity.words)
        unit = f" {quantity.unit}" if quantity.unit else ""
        if self.stat == "miss":
            words += f" {self.low:g}{unit}"
        elif self.low is not None and self.high is not None:
            words += f" between {self.low:g} and {self.high:g}{unit}"
        elif self.low is not None:
            words += f" at least {self.low:g}{unit}"
        elif self.high is not None:
            words += f" at most {self.high:g}{unit}"
        return words + _WINDOWS.get(self.window, "")


_BOUNDS = (
    (rf" between (?P<low>{_NUMBER}) and (?P<high>{_NUMBER})", "share"),
    (rf" at least (?P<low>{_NUMBER})", "share"),
    (rf" at most (?P<high>{_NUMBER})", "share"),
    (rf"(?<= from) (?P<low>{_NUMBER})", "miss"),
)


def read_measure(text: str, quantities: Mapping[str, Quantity]) -> Measure | None:
    """The measure that a text means; None: none of ours."""
    text = " ".join(text.lower().split()).rstrip(".")
    if text == LASTING:
        return Measure("lasting")
    text, window = _cut_window(text)
    text, bounds, bounded = _cut_bounds(text, quantities)
    for stat, form in _STATS.items():
        if bounded != (stat if stat in ("share", "miss") else ""):
            continue
        for key, quantity in quantities.items():
            if text == form.format(words=quantity.words).lower():
                return Measure(stat, key, bounds.get("low"), bounds.get("high"), window)
    return None


def _cut_window(text: str) -> tuple[str, tuple[float, float]]:
    for span, words in _WINDOWS.items():
        if text.endswith(words):
            return text.removesuffix(words), span
    return text, WHOLE


def _cut_bounds(text: str, quantities: Mapping[str, Quantity]) -> tuple[str, dict[str, float], str]:
    """The text without the numbers at its end, the numbers, and which statistic has them."""
    units = "|".join({re.escape(q.unit) for q in quantities.values() if q.unit})
    for pattern, stat in _BOUNDS:
        if match := re.search(rf"{pattern}(?: (?:{units}))?$", text):
            numbers = {name: float(value) for name, value in match.groupdict().items()}
            return text[: match.start()], numbers, stat
    return text, {}, ""
