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
        return words + (f" in the {WINDOWS[self.window]}" if self.window in WINDOWS else "")


def read_measure(text: str, quantities: Mapping[str, Quantity]) -> Measure | None:
    """The measure that a text means; None: none of ours."""
    text = " ".join(text.lower().split()).rstrip(".")
    if text in (LASTING, ENDS):
        return Measure("lasting" if text == LASTING else "ends")
    window = next(
        (span for span, name in WINDOWS.items() if text.endswith(f" in the {name}")), WHOLE
    )
    text = text.removesuffix(f" in the {WINDOWS.get(window)}")
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
