"""A sheet of criteria: what goals have added up to on one body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from p2p.agents.builtin.body import Body
from p2p.agents.builtin.measures import WHOLE, WINDOW_TITLES, Measure, Stat
from p2p.agents.builtin.quantities import Quantity
from p2p.contracts import Category, Criterion

UNITS: Mapping[Stat, str] = {"share": "", "lasting": "", "turns": "turns"}


@dataclass(slots=True)
class Sheet:
    """The criteria of one body, as goals add to them."""

    body: Body
    quantities: Mapping[str, Quantity]
    window: tuple[float, float] = WHOLE
    turning: bool = False
    """Whether it is to turn as it goes: then no direction of the world is the right one."""
    found: list[Criterion] = field(default_factory=list)
    cannot: list[str] = field(default_factory=list)

    def has(self, quantity: str) -> bool:
        """Whether the body has this quantity."""
        return quantity in self.quantities

    def add(
        self,
        title: str,
        measure: Measure,
        comparison: str,
        threshold: float,
        *,
        category: Category,
        weight: float,
        why: str = "",
    ) -> None:
        """Add a criterion, unless the same number is asked for already or cannot be measured.

        What went without saying and is then asked for in so many words belongs to the task.
        """
        if measure.quantity and measure.quantity not in self.quantities:
            return
        text = measure.text(self.quantities)
        title += WINDOW_TITLES.get(measure.window, "")
        for place, known in enumerate(self.found):
            if text == known.measure and category == "task":
                self.found[place] = known.model_copy(
                    update={"category": "task", "weight": max(known.weight, weight)}
                )
            if text == known.measure or title == known.title:
                return
        unit = UNITS.get(measure.stat)
        if unit is None:
            unit = self.quantities[measure.quantity].unit
        ids = {criterion.id for criterion in self.found}
        name = _name(title)
        unique = next(
            n for n in (name, *(f"{name[:37]}_{k}" for k in range(2, 99))) if n not in ids
        )
        self.found.append(
            Criterion(
                id=unique,
                title=title,
                description=why or f"{title}: {text}.",
                measure=text,
                comparison="at_least" if comparison == "at_least" else "at_most",
                threshold=tidy_number(threshold),
                unit=unit,
                weight=weight,
                category=category,
            )
        )

    def at(
        self, stat: Stat, quantity: str, low: float | None = None, high: float | None = None
    ) -> Measure:
        """A measure in this part of the time."""
        return Measure(
            stat,
            quantity,
            None if low is None else tidy_number(low),
            None if high is None else tidy_number(high),
            self.window,
        )


def _name(title: str) -> str:
    letters = "".join(c if c.isalnum() else "_" for c in title.lower()).strip("_")
    return "_".join(filter(None, letters.split("_")))[:40] or "criterion"


def tidy_number(value: float) -> float:
    """Rounded to three digits."""
    return float(f"{value:.3g}")
