"""Collects the criteria that goals add up to in one environment.

A threshold is a number, or a share of something that scales with the environment's morphology.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Literal

from p2p.agents.builtin.measures import (
    WHOLE,
    Measure,
    Stat,
    Window,
    exclude_each_other,
    window_name,
)
from p2p.agents.builtin.morphology import Morphology
from p2p.agents.builtin.quantities import Quantity
from p2p.contracts import Category, Criterion

Comparison = Literal["at_least", "at_most"]
Scaled = float | tuple[float, Literal["pace", "length", "height", "allowed", "alive", "clear"]]
UNITS: Mapping[Stat, str] = {
    "share": "", "lasting": "", "turns": "turns", "swings": "swings", "events": "times",
    "ends": "times",
}  # fmt: skip

SCALES: Mapping[str, Callable[[Morphology, float], float]] = {
    "pace": lambda model, share: share * model.pace,
    "length": lambda model, share: share * model.length,
    "height": lambda model, share: share * model.standing_height,
    # Well within what does not end the episode; and just within it.
    "allowed": lambda model, share: model.allowed_height(share * model.standing_height),
    "alive": lambda model, share: max(
        share * model.standing_height, model.spec.healthy_ranges.get("z", (None, None))[0] or 0.0
    ),
    # Of the height at which one that starts lying is clearly off the ground.
    "clear": lambda model, share: (
        share * (model.start_height + 0.3 * (model.standing_height - model.start_height))
    ),
}
"""What a share in a threshold is a share of."""


@dataclass(frozen=True, slots=True)
class Row:
    """One criterion of a motion."""

    title: str
    stat: Stat
    quantity: str
    threshold: Scaled
    category: Category = "task"
    weight: float = 1.0
    low: Scaled | None = None
    high: Scaled | None = None
    whole: bool = False
    """Over the whole episode, in whichever part of a sequence it stands."""
    comparison: Comparison = "at_least"
    event: str = ""
    """What is counted, in the past tense; see `Criterion.event`."""
    soft_reason: str = ""
    """See `Criterion.soft_reason`."""


Limit = partial(Row, comparison="at_most")
SWUNG_UP = 0.3
"""Radians: a pole that was swung up sways more than one that begins upright."""


@dataclass(slots=True)
class CriteriaBuilder:
    """The criteria that goals add up to in one environment."""

    model: Morphology
    quantities: Mapping[str, Quantity]
    window: Window = WHOLE
    turning: bool = False
    """Whether it is to turn as it goes: then no direction of the world is the right one."""
    sideways: bool = False
    """Whether it goes to a side of the world, so that forward is off its line."""
    tumbling: bool = False
    """Whether it is to turn over or lie: then being upside down is no fall."""
    swaying: bool = False
    """Whether it is to sway: then nothing asks it to stand still."""
    settling: bool = False
    """Whether it is to end up on one side: then turning over is only how it gets there."""
    speed: float | None = None
    """At which it is to go, where that is stated, in m/s."""
    travelling: bool = False
    """Whether it is to get somewhere: then what it does besides need not be done in place."""
    rising: bool = False
    """Whether it is to get up, or be upright: then to stay is not to lie."""
    stepping: bool = True
    """Whether one that goes on two legs may use both."""
    criteria: list[Criterion] = field(default_factory=list)
    measures: list[Measure] = field(default_factory=list)
    """Of the criteria, in their order."""
    cannot: list[str] = field(default_factory=list)
    """What was asked for and cannot be measured here."""
    moves: bool = True
    """Whether a motion is measured, or none is asked for: a style alone is something else."""
    served: bool = False
    """Whether the goal at hand is measured."""
    uncovered: list[str] = field(default_factory=list)
    """Words of the goals that no criterion measures."""

    @property
    def has_task(self) -> bool:
        return self.moves and any(criterion.category == "task" for criterion in self.criteria)

    def add(self, *rows: Row) -> None:
        """Add those that can be measured and are not asked for already.

        What went without saying and is then asked for in so many words belongs to the task.
        """
        for row in self._fit_to_start(rows):
            known = row.quantity in self.quantities if row.quantity else self.model.may_end_early
            if known:
                self._add(row)
                self.served = True

    def _fit_to_start(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Relax rows that a pole cannot meet from its hanging start: it has to swing up first.

        The cart that swings it up leaves the middle to do so.
        """
        for row in rows:
            if row.quantity not in ("pole_tilt", "cart_offset") or not self.model.hangs:
                yield row
            elif row.quantity == "cart_offset":
                yield row if row.stat != "share" else replace(row, threshold=0.5, weight=0.3)
            elif row.stat == "share":
                yield replace(row, threshold=0.5, high=SWUNG_UP)
                yield Limit("Has the pole up at the end", "final", "pole_tilt", SWUNG_UP)

    def _add(self, row: Row) -> None:
        window = WHOLE if row.whole else self.window
        low, high = (None if edge is None else self._number(edge) for edge in (row.low, row.high))
        measure = Measure(row.stat, row.quantity, low, high, window)
        title = row.title + ("" if window == WHOLE else f" ({window_name(window)})")
        for place, known in enumerate(self.criteria):
            same = self.measures[place] == measure and known.comparison == row.comparison
            if same and row.category == "task":
                update = {
                    "category": "task",
                    "weight": max(known.weight, row.weight),
                    "soft_reason": row.soft_reason,
                }
                self.criteria[place] = known.model_copy(update=update)
            if same or (title == known.title and measure.quantity == self.measures[place].quantity):
                return
            if title == known.title:  # goes on to the right, besides going on forward
                title = f"{title}: {self.quantities[row.quantity].words}" if row.quantity else title
        text, unit = measure.text(self.quantities), UNITS.get(row.stat)
        self.measures.append(measure)
        self.criteria.append(
            Criterion(
                id=self._unused_id(title),
                title=title,
                description=f"{title}: {text}.",
                measure=text,
                comparison=row.comparison,
                threshold=self._number(row.threshold),
                unit=self.quantities[row.quantity].unit if unit is None else unit,
                weight=row.weight,
                category=row.category,
                event=row.event,
                soft_reason=row.soft_reason,
            )
        )

    def _number(self, value: Scaled) -> float:
        if isinstance(value, tuple):
            value = SCALES[value[1]](self.model, value[0])
        return float(f"{value:.3g}")

    def _unused_id(self, title: str) -> str:
        letters = "".join(c if c.isalnum() else " " for c in title.lower())
        name = "_".join(letters.split())[:40] or "criterion"
        used = {criterion.id for criterion in self.criteria}
        names = (name, *(f"{name[:37]}_{number}" for number in range(2, 99)))
        return next(unused for unused in names if unused not in used)

    def resolve(self) -> list[tuple[str, str]]:
        """Drop implied rows that exclude what the prompt asks for.

        Returns the pairs of titles, both asked for, that exclude each other; of several pairs with
        a title in common, the first.
        """
        pairs: list[tuple[str, str]] = []
        seconds = self.model.horizon * self.model.spec.dt
        for one, other in combinations(list(zip(self.criteria, self.measures, strict=True)), 2):
            if not exclude_each_other(one, other, seconds):
                continue
            if one[0].category == other[0].category == "task":
                titles = one[0].title, other[0].title
                if not {*titles} & {title for pair in pairs for title in pair}:
                    pairs.append(titles)
            else:
                self._drop(one[0] if other[0].category == "task" else other[0])
        return pairs

    def _drop(self, criterion: Criterion) -> None:
        if criterion in self.criteria:
            place = self.criteria.index(criterion)
            del self.criteria[place], self.measures[place]
