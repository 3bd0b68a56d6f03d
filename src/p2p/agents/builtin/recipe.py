"""A reward as data: terms with their shapes and weights, and how criteria become them.

The recipe stands in the reward's source as one line of JSON, so that a later revision reads back
what it changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import ValidationError

from p2p.agents.builtin.measures import Measure
from p2p.agents.builtin.quantities import Quantity, reward_code
from p2p.contracts import Category, Criterion, Name, Record

MARK = "# recipe: "
Shape = Literal["more", "near", "under", "over", "reach", "alive"]

CATEGORY_WEIGHTS: Mapping[Category, float] = {
    "task": 1.0,
    "gait": 0.3,
    "posture": 0.6,
    "stability": 0.4,
    "dynamics": 0.1,
    "efficiency": 0.05,
}
"""How strongly a term of a criterion pulls, before the criterion's own weight."""

HEADROOM_WEIGHT = 0.5


class Term(Record):
    """One term of a reward, -weight to weight (for `more`: to cap * weight)."""

    name: Name
    quantity: str
    """Empty for `alive`."""
    shape: Shape
    weight: float
    target: float = 0.0
    scale: float = 1.0
    cap: float = 1.0
    window: tuple[float, float] = (0.0, 1.0)
    criteria: tuple[str, ...] = ()
    """The ids of the criteria that it serves."""


class Recipe(Record):
    """What a reward is made of."""

    env_id: str
    title: str
    terms: tuple[Term, ...]
    side_info: bool = False
    """Whether it may look at the simulator's state."""

    def line(self) -> str:
        """As it stands in the source."""
        return MARK + json.dumps(self.model_dump(mode="json", exclude_defaults=True))


def read_recipe(code: str) -> Recipe | None:
    """The recipe in a reward's source; None: there is none, or it is damaged."""
    for line in code.splitlines():
        if line.startswith(MARK):
            try:
                return Recipe.model_validate_json(line.removeprefix(MARK))
            except ValidationError:
                return None
    return None


def from_criteria(
    env_id: str,
    title: str,
    criteria: Sequence[tuple[Criterion, Measure]],
    quantities: Mapping[str, Quantity],
    *,
    side_info: bool = False,
) -> Recipe:
    """The terms that pull towards these criteria."""
    terms: list[Term] = []
    for criterion, measure in criteria:
        term = _term(criterion, measure, quantities, criteria)
        if term is None or not _visible(term, quantities, side_info=side_info):
            continue
        same = [t for t in terms if _alike(t, term)]
        if same:
            kept = same[0]
            stronger = max(kept, term, key=lambda t: t.weight)
            ids = tuple(dict.fromkeys((*kept.criteria, *term.criteria)))
            terms[terms.index(kept)] = stronger.model_copy(
                update={"name": kept.name, "criteria": ids}
            )
        else:
            names = {t.name for t in terms}
            name = term.name if term.name not in names else f"{term.name[:36]}_{len(terms)}"
            terms.append(term.model_copy(update={"name": name}))
    terms = _felt(terms, quantities)
    terms += [
        term
        for term in _headroom(criteria, terms, quantities)
        if _visible(term, quantities, side_info=side_info)
    ]
    return Recipe(env_id=env_id, title=title, terms=worth_living(terms), side_info=side_info)


def _felt(terms: Sequence[Term], quantities: Mapping[str, Quantity]) -> list[Term]:
    """Let a cost that a policy cannot notice be charged on what it notices, if that is lighter.

    How far a body is from its start, which it does not observe, says nothing about what to do; its
    speed does.
    """
    left = list(terms)
    for term in terms:
        through = quantities[term.quantity].felt_as if term.quantity else ""
        for place, other in enumerate(left):
            like = (through, term.shape, term.window)
            if (other.quantity, other.shape, other.window) == like and other.weight < term.weight:
                ids = (*other.criteria, *term.criteria)
                left[place] = other.model_copy(update={"weight": term.weight, "criteria": ids})
                left.remove(term)
                break
    return left


def _headroom(
    criteria: Sequence[tuple[Criterion, Measure]],
    terms: Sequence[Term],
    quantities: Mapping[str, Quantity],
) -> list[Term]:
    """Costs of coming near to what ends an episode, where it must last.

    The end itself is seen too late to be learnt from: a body that rears or tumbles has been on its
    way there for long. Where more of the same is asked for, as in a jump, there is no such cost.
    """
    lasting = tuple(criterion.id for criterion, measure in criteria if measure.stat == "lasting")
    wanted = {term.quantity for term in terms if term.shape == "more"}
    return [
        Term(
            name=f"{key}_limit",
            quantity=key,
            shape="under",
            weight=HEADROOM_WEIGHT,
            target=_tidy(quantity.ceiling[0]),
            scale=_tidy(quantity.ceiling[1] - quantity.ceiling[0]),
            criteria=lasting,
        )
        for key, quantity in quantities.items()
        if lasting and quantity.ceiling is not None and key not in wanted
    ]


def _visible(term: Term, quantities: Mapping[str, Quantity], *, side_info: bool) -> bool:
    if not term.quantity:
        return True
    return reward_code(quantities[term.quantity], side_info=side_info) is not None


def worth_living(terms: Sequence[Term]) -> tuple[Term, ...]:
    """Let the bonus for lasting outweigh all costs: else ending the episode would pay."""
    costs = sum(term.weight for term in terms if term.shape in ("under", "over"))
    return tuple(
        term.model_copy(update={"weight": round(max(term.weight, costs), 4)})
        if term.shape == "alive"
        else term
        for term in terms
    )


def _alike(a: Term, b: Term) -> bool:
    return (a.quantity, a.shape, a.window) == (b.quantity, b.shape, b.window)


def _term(
    criterion: Criterion,
    measure: Measure,
    quantities: Mapping[str, Quantity],
    everything: Sequence[tuple[Criterion, Measure]],
) -> Term | None:
    """The term that pulls towards a criterion; None: no reward can see what it is about."""
    weight = round(CATEGORY_WEIGHTS[criterion.category] * _emphasis(criterion), 4)
    if measure.stat == "lasting":
        return Term(name="alive", quantity="", shape="alive", weight=max(weight, 0.3),
                    criteria=(criterion.id,))  # fmt: skip
    # A reward sees no earlier action; large ones shake most.
    key = "effort" if measure.quantity == "action_change" else measure.quantity
    quantity = quantities[key]
    if measure.stat == "share" and quantity.span is not None:
        return None  # of a share of time at a target, the distance itself pulls
    shape = _shape(criterion, measure, quantity, _other_side(criterion, measure, everything))
    return Term.model_validate(
        {
            "name": key,
            "quantity": key,
            "weight": weight,
            "window": measure.window,
            "criteria": (criterion.id,),
            **shape,
        }
    )


def _shape(
    criterion: Criterion, measure: Measure, quantity: Quantity, other: float | None
) -> dict[str, object]:
    """Shape, target, scale and cap of a criterion's term."""
    t = criterion.threshold
    aims = {"miss": measure.low, "share": _middle(measure)}
    aim = aims.get(measure.stat, None if other is None else (t + other) / 2)
    if quantity.key == "effort":
        found: dict[str, object] = {"shape": "under"}
    elif aim is not None:
        scale = max(abs(aim), 3 * abs(t) if measure.stat == "miss" else 1e-3)
        found = {"shape": "near", "target": aim, "scale": scale}
    elif measure.stat == "share":
        found = _bound(quantity, measure)
    elif quantity.stretch is not None:
        up = criterion.comparison == "at_least"
        beyond = t + (0.1 if up else -0.1) * quantity.stretch
        shape = "over" if up else "under"
        found = {"shape": shape, "target": beyond, "scale": max(quantity.stretch, 1e-3)}
    elif quantity.span is not None:
        found = {"shape": "reach", "target": 2 * t, "scale": quantity.span}
    elif criterion.comparison == "at_most":
        found = {"shape": "under", "scale": max(3 * abs(t), 1e-3)}
    elif measure.stat == "turns":
        found = {"shape": "more", "target": 4.0, "cap": 1.5}
    elif quantity.enough is not None:
        found = {"shape": "near", "target": quantity.enough * t, "scale": max(abs(t), 1e-3)}
    else:
        found = {"shape": "more", "target": max(abs(t), 1e-3), "cap": quantity.headroom}
    return {k: _tidy(v) if isinstance(v, float) else v for k, v in found.items()}


def _tidy(value: float) -> float:
    return float(f"{value:.4g}")


def _middle(measure: Measure) -> float | None:
    if measure.low is None or measure.high is None:
        return None
    return (measure.low + measure.high) / 2


def _bound(quantity: Quantity, measure: Measure) -> dict[str, object]:
    """A cost for what lies outside of a share's bound."""
    if measure.high is not None:
        leans = quantity.key in ("tilt", "pole_tilt")  # none of it is of any use
        target = 0.0 if leans else 0.9 * measure.high
        return {"shape": "under", "target": target, "scale": max(1.5 * abs(measure.high), 1e-3)}
    low = measure.low or 0.0
    return {"shape": "over", "target": 1.15 * low, "scale": max(abs(low), 1e-3)}


def _emphasis(criterion: Criterion) -> float:
    """The criterion's weight, moderated: a light one still pulls."""
    return 0.3 + 0.7 * criterion.weight


def _other_side(
    criterion: Criterion, measure: Measure, everything: Sequence[tuple[Criterion, Measure]]
) -> float | None:
    """The threshold of a criterion that bounds the same number from the other side."""
    for other, its in everything:
        if its == measure and other.comparison != criterion.comparison:
            return other.threshold
    return None
