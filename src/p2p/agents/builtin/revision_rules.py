"""What a revision could change, and for which reason: the rules, in the order to try them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice
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
"""What an agent that falls loses."""
_NUDGE, _STRIDE = 0.02, 0.25
_MOST_VARIATIONS = 60


@dataclass(frozen=True)
class Plan:
    """A proposal in the making."""

    recipe: Recipe | None
    """None: the code is somebody else's, and stays."""
    edits: tuple[str, ...] = ()
    """What is done to the recipe, in words."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """Hyperparameters with their new values."""

    @property
    def terms(self) -> tuple[Term, ...]:
        return self.recipe.terms if self.recipe else ()

    def weigh(self, factor: float, chosen: Callable[[Term], bool]) -> Plan:
        """Multiply the weights of some terms; those that would leave the bounds stay."""

        def weighed(term: Term) -> Term:
            weight = float(f"{term.weight * factor:.4g}")
            stays = not chosen(term) or not LIGHTEST <= weight <= HEAVIEST
            return term if stays else term.model_copy(update={"weight": weight})

        return self._with([weighed(term) for term in self.terms])

    def keep(self, chosen: Callable[[Term], bool]) -> Plan:
        """Without the other terms, but never without any."""
        return self._with([term if chosen(term) else None for term in self.terms])

    def _with(self, terms: Sequence[Term | None]) -> Plan:
        """With these in the place of the terms, one for one; None: without it."""
        edits = [
            f"without {old.name}" if new is None else f"{old.name} {old.weight:g} to {new.weight:g}"
            for old, new in zip(self.terms, terms, strict=True)
            if new != old
        ]
        kept = [term for term in terms if term is not None]
        recipe = self.recipe.with_terms(kept) if self.recipe and kept and edits else self.recipe
        if recipe == self.recipe:
            return self
        return replace(self, recipe=recipe, edits=(*self.edits, *edits))


@dataclass(frozen=True)
class Case:
    """One request, with what every rule asks of it."""

    request: ReviseRequest
    based_on: int
    """The iteration to change."""

    @property
    def broken(self) -> bool:
        """Nothing could be trained: not the same as a training that nobody could judge."""
        return not self.request.trained

    @property
    def unjudged(self) -> bool:
        return self.request.trained and self.request.score is None

    @cached_property
    def unmet(self) -> tuple[CriterionScore, ...]:
        """Criteria below the threshold, the worst first."""
        limit = self.request.pass_threshold
        scores = self.request.criterion_scores
        below = [s for s in scores if s.score is not None and s.score < limit]
        return tuple(sorted(below, key=lambda s: s.score or 0.0))

    @cached_property
    def unmet_ids(self) -> frozenset[str]:
        return frozenset(score.id for score in self.unmet)

    @cached_property
    def task_ids(self) -> frozenset[str]:
        """Of the criteria that are what was asked for; the others say how."""
        return frozenset(c.id for c in self.request.criteria if c.category == "task")

    @property
    def cannot_stay_up(self) -> bool:
        """Whether a criterion about staying up is not met; a fall now and then is no reason."""
        quantities = quantities_of(self.request.env_id)
        unmet = (c.measure for c in self.request.criteria if c.id in self.unmet_ids)
        measures = (read_measure(text, quantities) for text in unmet)
        return any(m and (m.stat == "lasting" or m.quantity in STAYING_UP) for m in measures)

    def tagged(self, *tags: str) -> bool:
        """Whether one of these went wrong, from the controlled list."""
        return not set(tags).isdisjoint(self.request.failure_tags)

    @property
    def curve_fell(self) -> bool:
        """The return went down after its peak."""
        curve = [value for _, value in self.request.learning_curve]
        return len(curve) > 2 and max(curve) - curve[-1] > 0.3 * (max(curve) - min(curve))

    # --- history ----------------------------------------------------------------------------------

    @cached_property
    def past(self) -> dict[int, PastIteration]:
        return {past.iteration: past for past in self.request.history}

    def settings_of(self, iteration: int) -> dict[str, Any]:
        """The hyperparameters of an iteration."""
        past = self.past.get(iteration)
        return {**self.request.hyperparameters, **(past.hyperparameters if past else {})}

    @cached_property
    def settings(self) -> dict[str, Any]:
        return self.settings_of(self.based_on)

    def first(self, name: str) -> float:
        """A hyperparameter of the oldest ancestor; nan where that is no number."""
        iteration = self.request.iteration
        while (past := self.past.get(iteration)) and past.parent in self.past:
            iteration = past.parent
        value = self.settings_of(iteration).get(name)
        return value if isinstance(value, int | float) else float("nan")

    @property
    def unjudged_in_a_row(self) -> int:
        """How many of the last iterations have no score."""
        judged = [n for n, past in self.past.items() if past.score is not None]
        return sum(1 for number in self.past if number > max(judged, default=0))

    def uses(self, rule: str) -> int:
        return sum(1 for past in self.past.values() if past.rule == rule)

    def failures(self, rule: str) -> int:
        """How often a change by this rule did not help."""
        return sum(
            1
            for past in self.past.values()
            if past.rule == rule
            if (gain := self.gain(past)) is not None and gain <= WORSE
        )

    def gain(self, past: PastIteration) -> float | None:
        """Against the iteration it was made from; None where one of them has no score."""
        before = self.past.get(past.parent) if past.parent is not None else None
        if before is None or before.score is None or past.score is None:
            return None
        return past.score - before.score

    # --- hyperparameters --------------------------------------------------------------------------

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


# --- changes --------------------------------------------------------------------------------------

Change = Callable[[Case, Plan], Plan]
"""Gives the plan itself back where there is nothing to change."""
Group = Callable[[Case, Term], bool]
"""Some of the terms."""


def _serves(term: Term, ids: frozenset[str]) -> bool:
    return not ids.isdisjoint(term.criteria)


def _unmet(case: Case, term: Term) -> bool:
    return _serves(term, case.unmet_ids)


def _unmet_task(case: Case, term: Term) -> bool:
    return _serves(term, case.unmet_ids & case.task_ids)


def _staying_up(_: Case, term: Term) -> bool:
    return term.shape == "alive" or term.quantity in STAYING_UP


def _costs(_: Case, term: Term) -> bool:
    return term.is_cost


def _weigh(group: Group, factor: float) -> Change:
    return lambda case, plan: plan.weigh(factor, lambda term: group(case, term))


def _setting(
    name: str, allowed: Callable[[Case, float], bool], new: Callable[[float], float]
) -> Change:
    """Change a hyperparameter from where it is, as far as is allowed."""

    def change(case: Case, plan: Plan) -> Plan:
        value = case.settings.get(name)
        if not isinstance(value, int | float) or not allowed(case, value):
            return plan
        return case.set(plan, name, new(value))

    return change


_FARTHER_SIGHT = _setting("gamma", lambda _, g: g < 0.995, lambda g: round(1 - (1 - g) / 2, 5))
_WIDER_TRIES = _setting("log_std_init", lambda _, std: std < 0, lambda std: min(0.0, std + 0.5))
_ENTROPY = _setting("ent_coef", lambda _, coefficient: coefficient == 0, lambda _: 0.003)
_SLOWER_LEARNING = _setting(  # once: below half of the first rate, little is learnt at all
    "learning_rate", lambda case, rate: rate >= case.first("learning_rate"), lambda rate: rate / 2
)


def _more_steps(case: Case, plan: Plan) -> Plan:
    if not case.request.still_improving:
        return plan
    return case.longer(plan, MOST_TIMES_LONGER * case.first("total_timesteps"))


def _task_only(case: Case, plan: Plan) -> Plan:
    return plan.keep(lambda term: term.shape == "alive" or _serves(term, case.task_ids))


def _heaviest_only(_: Case, plan: Plan) -> Plan:
    heaviest = max((term.weight for term in plan.terms if term.shape != "alive"), default=0.0)
    return plan.keep(lambda term: term.shape == "alive" or term.weight == heaviest)


def _steps_away(size: float) -> Iterator[float]:
    """Factors ever farther from 1, to both sides in turn."""
    for number in count(1):
        yield from (1 + number * size, 1 / (1 + number * size))


def _nudged(factor: float) -> Change:
    """As little as makes another training of it."""

    def change(case: Case, plan: Plan) -> Plan:
        if plan.recipe is not None:
            names = [term.name for term in plan.terms if term.shape != "alive"] or ["alive"]
            return plan.weigh(factor, lambda term: term.name == names[0])
        clip = case.settings.get("obs_clip")  # hardly anything is ever cut off there
        if not isinstance(clip, int | float):
            return plan
        return case.set(plan, "obs_clip", float(f"{clip * factor:.4g}"))

    return change


# --- rules ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    """As it stands in the lineage."""
    why: str
    when: Callable[[Case], bool]
    changes: tuple[tuple[Change, ...], ...]
    """The most promising first; those of one are made together."""


RULES: tuple[Rule, ...] = (
    Rule(
        "simplify",
        "a simpler reward, because nothing could be trained",
        lambda case: case.broken,
        (
            (_task_only, _SLOWER_LEARNING),
            (_heaviest_only, _SLOWER_LEARNING),
            (_weigh(_costs, 0.5), _SLOWER_LEARNING),
        ),
    ),
    Rule(
        "repeat",
        "much the same again, because nobody could judge it",
        lambda case: case.unjudged,
        tuple((_nudged(factor),) for factor in islice(_steps_away(_NUDGE), 12)),
    ),
    Rule(
        "stay_up",
        "staying up counts more, because it fell",
        lambda case: case.tagged("fell", "early_end", "unstable") and case.cannot_stay_up,
        (
            (_weigh(_staying_up, 2.0), _FARTHER_SIGHT, _more_steps),
            (_weigh(_staying_up, 2.0), _more_steps),
            (_weigh(_staying_up, 3.0),),
        ),
    ),
    Rule(
        "explore",
        "more trial and lighter costs, because it did not move as asked",
        lambda case: case.tagged("no_motion", "wrong_direction"),
        (
            (_weigh(_costs, 0.5), _WIDER_TRIES, _more_steps),
            (_weigh(_costs, 0.5), _ENTROPY, _more_steps),
            (_weigh(_costs, 0.5),),
            (_weigh(_costs, 0.25),),
        ),
    ),
    Rule(
        "train_longer",
        "more training, because the return was still rising",
        lambda case: bool(case.request.still_improving) and case.request.score is not None,
        ((_more_steps, _weigh(_unmet_task, 1.5)), (_more_steps,)),
    ),
    Rule(
        "learn_slower",
        "slower learning, because the return fell after its peak",
        lambda case: case.curve_fell and case.request.score is not None,
        ((_SLOWER_LEARNING,),),
    ),
    Rule(
        "task",
        "the task counts more, because it is missing",
        lambda case: bool(case.unmet_ids & case.task_ids),
        (
            (_weigh(_unmet_task, 2.0), _more_steps),
            (_weigh(_unmet_task, 2.0),),
            (_weigh(_unmet_task, 3.0),),
            (_weigh(_unmet_task, 1.5),),
        ),
    ),
    Rule(
        "style",
        "the style counts more, because only the task is met",
        lambda case: bool(case.unmet_ids) and not case.unmet_ids & case.task_ids,
        tuple((_weigh(_unmet, factor),) for factor in (2.5, 5.0, 1.6)),
    ),
    Rule(
        "explore_task",
        "more trial, because the task is missing",
        lambda case: bool(case.unmet_ids & case.task_ids),
        ((_WIDER_TRIES,), (_ENTROPY,)),
    ),
    Rule(
        "fewer_terms",
        "fewer terms, because nothing has helped for long",
        lambda case: bool(case.request.stagnation),
        ((_task_only,), (_heaviest_only,)),
    ),
)

VARY = "vary"
REASONS = {
    **{rule.name: rule.why for rule in RULES},
    VARY: "other weights, because the rules are used up",
    "rewrite": "the reward written anew from the criteria",
    "remarks": "as the person said",
}


def variations(case: Case, plan: Plan) -> Iterator[Plan]:
    """Other weights, ever farther from these: something to try when every rule has been used."""
    ids = case.unmet_ids or frozenset(criterion.id for criterion in case.request.criteria)
    groups: list[Callable[[Term], bool]] = [lambda term: _serves(term, ids), lambda t: t.is_cost]
    names = [term.name for term in plan.terms]
    groups += [lambda term, name=name: term.name == name for name in names]  # type: ignore[misc]
    used = case.uses(VARY)
    for factor in islice(_steps_away(_STRIDE), used, used + _MOST_VARIATIONS):
        yield from (plan.weigh(factor, group) for group in groups)
