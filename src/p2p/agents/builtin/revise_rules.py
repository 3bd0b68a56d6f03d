"""What could be changed, and for which reason: the rules of revision, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice

from p2p.agents.builtin.revise_case import MOST_TIMES_LONGER, STAYING_UP, Case, Plan
from p2p.agents.builtin.reward import Term

Change = Callable[[Case, Plan], Plan]
"""Gives the plan itself back where there is nothing to change."""

REPEATED = "much the same again, because nobody could judge it"
VARIED = "other weights, because the rules are used up"
_NUDGE, _STRIDE = 0.02, 0.25
_MOST_VARIATIONS = 60


@dataclass(frozen=True, slots=True)
class Rule:
    """Changes that a reason calls for, the most promising first."""

    why: str
    """Stands in the proposal, and is looked for in the history."""
    when: Callable[[Case], bool]
    changes: tuple[Change, ...]


def widening() -> Iterator[int]:
    """1, -1, 2, -2 and so on: ever farther from where one is, to both sides."""
    for n in count(1):
        yield from (n, -n)


def _factor(step: int, size: float) -> float:
    away = 1 + abs(step) * size
    return away if step > 0 else 1 / away


# --- changes --------------------------------------------------------------------------------------


def _all(*changes: Change) -> Change:
    def change(case: Case, plan: Plan) -> Plan:
        for part in changes:
            plan = part(case, plan)
        return plan

    return change


def _missing(factor: float) -> Change:
    return lambda case, plan: plan.weigh(factor, lambda t: _serves(t, case.unmet_ids & case.tasks))


def _manner(factor: float) -> Change:
    return lambda case, plan: plan.weigh(factor, lambda t: _serves(t, case.unmet_ids))


def _staying_up(factor: float) -> Change:
    return lambda _, plan: plan.weigh(
        factor, lambda t: t.shape == "alive" or t.quantity in STAYING_UP
    )


def _costs(factor: float) -> Change:
    return lambda _, plan: plan.weigh(factor, _is_cost)


def _is_cost(term: Term) -> bool:
    return term.shape in ("under", "over")


def _serves(term: Term, ids: frozenset[str]) -> bool:
    return not ids.isdisjoint(term.criteria)


def _task_only(case: Case, plan: Plan) -> Plan:
    return plan.keep(lambda t: t.shape == "alive" or _serves(t, case.tasks))


def _heaviest_only(_: Case, plan: Plan) -> Plan:
    terms = plan.recipe.terms if plan.recipe else ()
    heaviest = max((t.weight for t in terms if t.shape != "alive"), default=0.0)
    return plan.keep(lambda t: t.shape == "alive" or t.weight == heaviest)


def _longer_while_it_pays(case: Case, plan: Plan) -> Plan:
    if not case.request.still_improving:
        return plan
    return case.longer(plan, MOST_TIMES_LONGER * case.first("total_timesteps"))


def _slower_learning(case: Case, plan: Plan) -> Plan:
    """Once: below half of what it was in the beginning, little is learnt at all."""
    rate = case.settings.get("learning_rate")
    if not isinstance(rate, float) or rate < case.first("learning_rate"):
        return plan
    return case.set(plan, "learning_rate", rate / 2)


def _farther_sight(case: Case, plan: Plan) -> Plan:
    gamma = case.settings.get("gamma")
    if not isinstance(gamma, float) or gamma >= 0.995:
        return plan
    return case.set(plan, "gamma", round(1 - (1 - gamma) / 2, 5))


def _wider_tries(case: Case, plan: Plan) -> Plan:
    spread = case.settings.get("log_std_init")
    if not isinstance(spread, int | float) or spread >= 0.0:
        return plan
    return case.set(plan, "log_std_init", min(0.0, spread + 0.5))


def _entropy(case: Case, plan: Plan) -> Plan:
    known = case.settings.get("ent_coef")
    return case.set(plan, "ent_coef", 0.003) if known == 0.0 else plan


def _nudged(step: int) -> Change:
    """As little as makes another training of it."""

    def change(case: Case, plan: Plan) -> Plan:
        factor = _factor(step, _NUDGE)
        if plan.recipe is not None:
            names = [t.name for t in plan.recipe.terms if t.shape != "alive"] or ["alive"]
            return plan.weigh(factor, lambda t: t.name == names[0])
        clip = case.settings.get("obs_clip")  # hardly anything is ever cut off there
        if not isinstance(clip, int | float):
            return plan
        return case.set(plan, "obs_clip", float(f"{clip * factor:.4g}"))

    return change


# --- rules ----------------------------------------------------------------------------------------


def _shaky(case: Case) -> bool:
    """The curve went down after its peak."""
    curve = [value for _, value in case.request.learning_curve]
    if len(curve) < 3:
        return False
    fall, rise = max(curve) - curve[-1], max(curve) - min(curve)
    return rise > 0 and fall > 0.3 * rise


_more_steps = _longer_while_it_pays

RULES: tuple[Rule, ...] = (
    Rule(
        "a simpler reward, because nothing could be trained",
        lambda case: case.broken,
        (
            _all(_task_only, _slower_learning),
            _all(_heaviest_only, _slower_learning),
            _all(_costs(0.5), _slower_learning),
        ),
    ),
    Rule(
        REPEATED,
        lambda case: case.unjudged,
        tuple(_nudged(step) for step in islice(widening(), 12)),
    ),
    Rule(
        "staying up counts more, because it fell",
        lambda case: case.tagged("fell", "early_end", "unstable") and case.cannot_stay_up,
        (
            _all(_staying_up(2.0), _farther_sight, _more_steps),
            _all(_staying_up(2.0), _more_steps),
            _staying_up(3.0),
        ),
    ),
    Rule(
        "more trial and lighter costs, because it did not move as asked",
        lambda case: case.tagged("no_motion", "wrong_direction"),
        (
            _all(_costs(0.5), _wider_tries, _more_steps),
            _all(_costs(0.5), _entropy, _more_steps),
            _costs(0.5),
            _costs(0.25),
        ),
    ),
    Rule(
        "more training, because the return was still rising",
        lambda case: bool(case.request.still_improving) and case.request.score is not None,
        (_all(_more_steps, _missing(1.5)), _more_steps),
    ),
    Rule(
        "slower learning, because the return fell after its peak",
        lambda case: _shaky(case) and case.request.score is not None,
        (_slower_learning,),
    ),
    Rule(
        "the task counts more, because it is missing",
        lambda case: bool(case.unmet_ids & case.tasks),
        (_all(_missing(2.0), _more_steps), _missing(2.0), _missing(3.0), _missing(1.5)),
    ),
    Rule(
        "the manner counts more, because only the task is met",
        lambda case: bool(case.unmet_ids) and not case.unmet_ids & case.tasks,
        (_manner(2.5), _manner(5.0), _manner(1.6)),
    ),
    Rule(
        "more trial, because the task is missing",
        lambda case: bool(case.unmet_ids & case.tasks),
        (_wider_tries, _entropy),
    ),
    Rule(
        "fewer terms, because nothing has helped for long",
        lambda case: bool(case.request.stagnation),
        (_task_only, _heaviest_only),
    ),
)


def variations(case: Case, plan: Plan) -> Iterator[Plan]:
    """Other weights, ever farther from these: something to try when every rule has been used."""
    ids = case.unmet_ids or frozenset(c.id for c in case.request.criteria)
    groups: list[Callable[[Term], bool]] = [lambda t: _serves(t, ids), _is_cost]
    names = [term.name for term in plan.recipe.terms] if plan.recipe else []
    groups += [lambda t, name=name: t.name == name for name in names]  # type: ignore[misc]
    used = case.uses(VARIED)
    for step in islice(widening(), used, used + _MOST_VARIATIONS):
        for group in groups:
            yield plan.weigh(_factor(step, _STRIDE), group)
