"""A revision's starting point: what was judged, what was tried, what may change."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from p2p.agents.builtin.measures import read_measure
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.builtin.reward import Recipe, Term
from p2p.agents.requests import PastIteration, ReviseRequest
from p2p.contracts import CriterionScore

HEAVIEST, LIGHTEST = 10.0, 0.005
LONGEST = 4_000_000
"""Steps; a person may ask for more, a rule does not."""
MOST_TIMES_LONGER = 4
"""Than the first iteration."""
WORSE = 0.02
"""By so much a score must be below the best to go back to that one."""
STAYING_UP = ("tilt", "pole_tilt", "height")
"""What a body that falls loses."""
REMEMBERED = 199
"""So many characters of an iteration's changes stand in the history."""
_NOT_JUDGED = re.compile(r"the \w+ judge: |it was not judged")
_SETTING = re.compile(r"(\w+) (-?[\d.]+(?:e[+-]?\d+)?) to (-?[\d.]+(?:e[+-]?\d+)?)(?=[;,]|$)")
_MOST_NAMED = 3


@dataclass(frozen=True)
class Plan:
    """A proposal in the making."""

    recipe: Recipe | None
    """None: the code is somebody else's, and stays."""
    edits: tuple[str, ...] = ()
    """What is done to the recipe."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """Hyperparameters with their new values."""

    def weigh(self, factor: float, chosen: Callable[[Term], bool]) -> Plan:
        """Multiply the weights of some terms; those that would leave the bounds stay."""
        if self.recipe is None:
            return self
        terms, edits = [], []
        for term in self.recipe.terms:
            weight = float(f"{term.weight * factor:.4g}")
            if chosen(term) and LIGHTEST <= weight <= HEAVIEST and weight != term.weight:
                edits.append(f"{term.name} {term.weight:g} to {weight:g}")
                terms.append(term.model_copy(update={"weight": weight}))
            else:
                terms.append(term)
        return self.with_terms(terms, *edits)

    def keep(self, chosen: Callable[[Term], bool]) -> Plan:
        """Without the other terms, but never without any."""
        terms = [] if self.recipe is None else [term for term in self.recipe.terms if chosen(term)]
        if self.recipe is None or not terms:
            return self
        gone = [term.name for term in self.recipe.terms if term not in terms]
        return self.with_terms(terms, *(f"without {name}" for name in gone))

    def with_terms(self, terms: list[Term], *edits: str) -> Plan:
        """With these terms, if that changes anything."""
        if self.recipe is None or not edits:
            return self
        recipe = self.recipe.with_terms(terms)
        if recipe == self.recipe:
            return self
        left = len(edits) - _MOST_NAMED
        named = (*edits[:_MOST_NAMED], f"{left} more likewise") if left > 0 else edits
        return replace(self, recipe=recipe, edits=(*self.edits, *named))


@dataclass(frozen=True)
class Case:
    """One request, with what every rule asks of it."""

    request: ReviseRequest
    based_on: int
    """The iteration to change."""

    @cached_property
    def past(self) -> dict[int, PastIteration]:
        """The history by number."""
        return {past.iteration: past for past in self.request.history}

    @property
    def broken(self) -> bool:
        """Nothing could be trained: not the same as a training that nobody could judge."""
        return bool(self.request.training_error) and not self.unjudged

    @property
    def unjudged(self) -> bool:
        """It was trained, and there is no verdict."""
        return self.request.score is None and (
            not self.request.training_error
            or _NOT_JUDGED.match(self.request.training_error) is not None
        )

    @property
    def unmet(self) -> tuple[CriterionScore, ...]:
        """Criteria below the threshold, the worst first."""
        limit = self.request.pass_threshold
        scores = self.request.criterion_scores
        below = [s for s in scores if s.score is not None and s.score < limit]
        return tuple(sorted(below, key=lambda s: s.score or 0.0))

    @property
    def unmet_ids(self) -> frozenset[str]:
        """Their ids."""
        return frozenset(score.id for score in self.unmet)

    @property
    def cannot_stay_up(self) -> bool:
        """Whether a criterion about staying up is not met; a fall now and then is no reason."""
        quantities = quantities_of(self.request.env_id)
        unmet = (c.measure for c in self.request.criteria if c.id in self.unmet_ids)
        measures = (read_measure(text, quantities) for text in unmet)
        return any(m and (m.stat == "lasting" or m.quantity in STAYING_UP) for m in measures)

    @property
    def tasks(self) -> frozenset[str]:
        """The ids of the criteria that are what was asked for; the others say how."""
        return frozenset(c.id for c in self.request.criteria if c.category == "task")

    def tagged(self, *tags: str) -> bool:
        """Whether one of these went wrong, from the controlled list."""
        return not set(tags).isdisjoint(self.request.failure_tags)

    # --- hyperparameters --------------------------------------------------------------------------

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The hyperparameters of the iteration to change."""
        return _replayed(self._first, self._chain(self.based_on))

    @cached_property
    def _first(self) -> dict[str, Any]:
        """Those of the iteration that this one comes from in the end.

        A request has this iteration's; the older ones follow from what was changed on the way.
        """
        settings = dict(self.request.hyperparameters)
        for past in reversed(self._chain(self.request.iteration)):
            for name, before, _ in _settings_in(past.changes):
                if name in settings:
                    settings[name] = before
        return settings

    def _chain(self, iteration: int) -> list[PastIteration]:
        """From the oldest ancestor to the iteration."""
        chain: list[PastIteration] = []
        number: int | None = iteration
        while number is not None and (past := self.past.get(number)) and past not in chain:
            chain.insert(0, past)
            number = past.parent
        return chain

    def set(self, plan: Plan, name: str, value: float) -> Plan:
        """Change a hyperparameter, unless it is not to be touched."""
        if name in self.request.fixed or self.settings.get(name) in (None, value):
            return plan
        return replace(plan, settings={**plan.settings, name: value})

    def longer(self, plan: Plan, most: float = LONGEST) -> Plan:
        """Train for twice as many steps, but not for more than these."""
        steps = self.settings.get("total_timesteps")
        if not isinstance(steps, int | float) or steps >= min(most, LONGEST):
            return plan
        return self.set(plan, "total_timesteps", int(min(LONGEST, most, 2 * steps)))

    def first(self, name: str) -> float:
        """A hyperparameter as it was in the beginning; nan where that is no number."""
        value = self._first.get(name)
        return value if isinstance(value, int | float) else float("nan")

    # --- history ----------------------------------------------------------------------------------

    @property
    def unjudged_in_a_row(self) -> int:
        """How many of the last iterations have no score."""
        count = 0
        for number in sorted(self.past, reverse=True):
            if self.past[number].score is not None:
                break
            count += 1
        return count

    def failures(self, why: str) -> int:
        """How often a change for this reason did not help."""
        return sum(1 for past in self.past.values() if why in past.changes and self._in_vain(past))

    def uses(self, why: str) -> int:
        """How often something was changed for this reason."""
        return sum(1 for past in self.past.values() if why in past.changes)

    def _in_vain(self, past: PastIteration) -> bool:
        before = self.past.get(past.parent) if past.parent is not None else None
        if before is None or before.score is None or past.score is None:
            return False
        return past.score - before.score <= WORSE

    def tried(self, changes: str) -> bool:
        """Whether some iteration came of these changes."""
        cut = changes[:REMEMBERED]
        return any(p.changes[:REMEMBERED] == cut for p in self.past.values())

    def settings_text(self, plan: Plan) -> list[str]:
        """What `Case` reads back from the history later on."""
        return [f"{n} {self.settings[n]} to {value}" for n, value in plan.settings.items()]


def _settings_in(changes: str) -> list[tuple[str, float, float]]:
    return [(name, _number(a), _number(b)) for name, a, b in _SETTING.findall(changes)]


def _number(text: str) -> float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _replayed(first: Mapping[str, Any], chain: list[PastIteration]) -> dict[str, Any]:
    settings = dict(first)
    for past in chain:
        for name, _, after in _settings_in(past.changes):
            if name in settings:
                settings[name] = after
    return settings
