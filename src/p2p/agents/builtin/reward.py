"""Rewards from criteria: terms as data (a recipe), and the recipe as source text.

The recipe stands in the reward's source as one line of JSON, so that a later revision reads back
what it changes.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from p2p.agents.builtin.builder import CriteriaBuilder
from p2p.agents.builtin.criteria import apply_goal
from p2p.agents.builtin.goals import asks_for_most
from p2p.agents.builtin.lexicon import load_words
from p2p.agents.builtin.measures import WHOLE, Measure, Window, read_measure
from p2p.agents.builtin.morphology import morphology_of
from p2p.agents.builtin.quantities import Quantity, quantities_of
from p2p.agents.requests import CodeDraft, RewardRequest
from p2p.contracts import Category, Criterion, Name, Record

MARK = "# recipe: "
Shape = Literal[
    "more", "rise", "near", "within", "under", "square", "over", "reach", "swing", "alive"
]

CATEGORY_WEIGHTS: Mapping[Category, float] = {
    "task": 1.0,
    "gait": 0.3,
    "posture": 0.6,
    "stability": 0.4,
    "dynamics": 0.1,
    "efficiency": 0.05,
}
"""How strongly a term of a criterion pulls, before the criterion's own weight."""
LIMIT_WEIGHT = 0.5
ALL_OUT = 8.0
"""How many times its target a speed still pays more where as much as possible is asked for."""
_SPEED_UNITS = ("m/s", "rad/s")
_LEAST_SCALE = 1e-3
FALL_TILT, FALL_MARGIN, FALL_HEIGHT = 1.2, 0.5, 0.7
KNEELING = 0.95
"""The same of a tall robot whose environment ends no episode: one that kneels has fallen."""
"""A fall is a tilt of so many radians and so far beyond the one allowed, or a height below this
share of the one asked for."""
MOST_OF_THE_TIME = 0.8
"""From this share on, a criterion leaves no time to lie and get up again."""
_STRIDE_TURNS = 1.0
"""rad/s: a cost of turning that is at its end below it says nothing to one that walks."""
_TURNING_CAP = 1.5
"""How many times a well-going turn still pays more."""
_SQUARED = 3.0
"""How many times its weight a cost has as a square, to count as much at a third of its scale."""
_HIGHER = 2.0
"""How many times the rise that is asked for still pays more."""
_LEAST_RISE = 0.05
"""As a share of the height that is asked for: with less, one that hops would stand on its toes."""
_INNER = 0.4
"""The share of the way from the middle of two bounds to either in which a place is as good as any
other: the best one may be out of reach."""


class Term(Record):
    """One term of a reward, -weight to weight (for `more` and `rise`: to cap * weight)."""

    name: Name
    quantity: str
    """Empty for `alive`."""
    shape: Shape
    weight: float
    target: float = 0.0
    scale: float = 1.0
    slack: float = 0.0
    """Of `within`: how far off the target is as good as on it."""
    cap: float = 1.0
    window: Window = WHOLE
    criteria: tuple[str, ...] = ()
    """The ids of the criteria that it serves."""

    @property
    def is_cost(self) -> bool:
        return self.shape in ("under", "square", "over")

    def scale_weight(self, factor: float) -> Term:
        return self.model_copy(update={"weight": round(self.weight * factor, 4)})


class Fall(Record):
    """Where training ends an episode: a quantity above or below a bound."""

    quantity: str
    above: float | None = None
    below: float | None = None

    def describe(self, quantity: Quantity) -> str:
        way, bound = ("below", self.below) if self.above is None else ("above", self.above)
        return f"{quantity.words} {way} {bound:g} {quantity.unit}"


class Recipe(Record):
    env_id: str
    title: str
    terms: tuple[Term, ...]
    falls: tuple[Fall, ...] = ()
    """Never without a bonus for lasting, or falling at once could pay."""
    side_info: bool = False
    """Whether it may look at the simulator's state."""
    observe_time: bool = False
    """Whether the observation ends with the share of the episode that has passed."""

    def line(self) -> str:
        """Return the source line."""
        return MARK + json.dumps(self.model_dump(mode="json", exclude_defaults=True))

    def with_terms(self, terms: Sequence[Term]) -> Recipe:
        """With the bonus for lasting outweighing all costs: else ending the episode would pay.

        Without the bonus, no fall ends an episode.
        """
        costs = sum(term.weight for term in terms if term.is_cost)
        if self.falls:  # and these turn into costs, far from their targets
            costs += sum(term.weight for term in terms if term.shape in ("near", "within", "reach"))
        balanced = [
            term.model_copy(update={"weight": round(max(term.weight, costs), 4)})
            if term.shape == "alive"
            else term
            for term in terms
        ]
        falls = self.falls if any(term.shape == "alive" for term in terms) else ()
        return self.model_copy(update={"terms": tuple(balanced), "falls": falls})


def read_recipe(code: str) -> Recipe | None:
    """Read the recipe in a reward's source, or return None if missing or damaged."""
    for line in code.splitlines():
        if line.startswith(MARK):
            try:
                return Recipe.model_validate_json(line.removeprefix(MARK))
            except ValidationError:
                return None
    return None


def write_reward(request: RewardRequest) -> CodeDraft:
    """The reward for these criteria."""
    recipe = recipe_for(request)
    text = f"Terms: {', '.join(f'{term.name} ({term.weight:g})' for term in recipe.terms)}."
    if recipe.falls:
        quantities = quantities_of(recipe.env_id)
        ends = " or ".join(fall.describe(quantities[fall.quantity]) for fall in recipe.falls)
        text += f" A training episode ends at {ends}."
    served = {name for term in recipe.terms for name in term.criteria}
    if unread := [criterion.id for criterion in request.criteria if criterion.id not in served]:
        text += f" Judged, but without a term: {', '.join(unread)}."
    return CodeDraft(code=render(recipe), explanation=text)


def recipe_for(request: RewardRequest) -> Recipe:
    title = clean_docstring(request.prompt)[:70].strip().rstrip(".") or "as asked"
    empty = Recipe(
        env_id=request.env_id,
        title=title[0].upper() + title[1:],
        terms=(),
        side_info=request.side_info,
        observe_time=request.observe_time,
    )
    criteria = match_criteria(request.env_id, request.criteria)
    recipe = with_criteria(empty, criteria)
    if _is_all_out(request):
        quantities = quantities_of(request.env_id)
        speeds = {key for key, quantity in quantities.items() if quantity.unit in _SPEED_UNITS}
        terms = [
            term.model_copy(update={"cap": ALL_OUT})
            if term.shape == "more" and term.quantity in speeds
            else term
            for term in recipe.terms
        ]
        recipe = recipe.with_terms(terms)
    return _add_falls(recipe, criteria)


def _is_all_out(request: RewardRequest) -> bool:
    """Return whether the prompt asks for as much speed as there is, so that no speed is enough."""
    goals = morphology_of(request.env_id).parse(request.prompt).goals
    return asks_for_most(request.prompt) and any(goal.speed == "fast" for goal in goals)


def clean_docstring(text: str) -> str:
    """Put a text on one line, without anything that could end a string or a comment."""
    plain = " ".join(text.split()).replace("\\", " ").replace('"', "'")
    return "".join(letter for letter in plain if letter.isprintable())


def match_criteria(
    env_id: str, criteria: Sequence[Criterion]
) -> tuple[tuple[Criterion, Measure], ...]:
    """Pair each criterion that has a known measure, or that the grammar can give one, with it."""
    quantities = quantities_of(env_id)
    pairs = (
        (
            criterion,
            read_measure(criterion.measure, quantities) or _guess_measure(env_id, criterion),
        )
        for criterion in criteria
    )
    return tuple((criterion, measure) for criterion, measure in pairs if measure is not None)


def _guess_measure(env_id: str, criterion: Criterion) -> Measure | None:
    """Guess the measure of a user's own criterion from its words."""
    model = morphology_of(env_id)
    for text in (criterion.measure, criterion.title):
        builder = CriteriaBuilder(model, quantities_of(env_id))
        for goal in model.parse(text).goals:
            apply_goal(builder, goal)
        for ours, measure in zip(builder.criteria, builder.measures, strict=True):
            is_share = measure.stat in ("share", "lasting")
            same_kind = is_share == (0 <= criterion.threshold <= 1 and not criterion.unit)
            if criterion.event or ours.event:
                same_kind = bool(criterion.event) == bool(ours.event)
            if same_kind and ours.comparison == criterion.comparison:
                return measure
    return None


# --- criteria to terms ----------------------------------------------------------------------------


def with_criteria(recipe: Recipe, criteria: Sequence[tuple[Criterion, Measure]]) -> Recipe:
    """A recipe without terms, with those that pull towards these criteria."""
    quantities = quantities_of(recipe.env_id)

    def visible(term: Term) -> bool:
        if not term.quantity:
            return True
        return quantities[term.quantity].reward_code(side_info=recipe.side_info) is not None

    terms: list[Term] = []
    for criterion, measure in criteria:
        term = _term(criterion, measure, quantities, criteria)
        if term is None or not visible(term):
            continue
        kind = (term.quantity, term.shape, term.window)
        same = [t for t in terms if (t.quantity, t.shape, t.window) == kind]
        if same:
            stronger = max(same[0], term, key=lambda t: t.weight)
            ids = tuple(dict.fromkeys((*same[0].criteria, *term.criteria)))
            update = {"name": same[0].name, "criteria": ids}
            terms[terms.index(same[0])] = stronger.model_copy(update=update)
        else:
            names = {t.name for t in terms}
            name = term.name if term.name not in names else f"{term.name[:36]}_{len(terms)}"
            terms.append(term.model_copy(update={"name": name}))
    terms = _move_cost(terms, quantities)
    limits = _limits(criteria, terms, quantities)
    return recipe.with_terms([*terms, *(term for term in limits if visible(term))])


def _add_falls(recipe: Recipe, criteria: Sequence[tuple[Criterion, Measure]]) -> Recipe:
    """Add falls that end training episodes, and costs of lying as high as the pay.

    What counts as a fall is read off the hard criteria that ask it to be up nearly all the time.
    One that cannot fall is not paid for being up: it would get that for standing still.
    """
    model, quantities = morphology_of(recipe.env_id), quantities_of(recipe.env_id)
    drops = bool(model.poles) and not model.hangs and not model.may_end_early
    stands = model.height_joint is not None and not model.cannot_fall
    if model.starts_lying or not (stands or drops):
        return recipe
    share = KNEELING if model.is_tall and not model.may_end_early else FALL_HEIGHT
    bounds: dict[str, Fall] = {}
    up: set[str] = set()
    for criterion, measure in criteria:
        fall = _find_fall(criterion, measure, share)
        if fall is None:
            continue
        up.add(criterion.id)
        if quantities[fall.quantity].reward_code(side_info=recipe.side_info) is not None:
            known = bounds.get(fall.quantity, fall)
            bounds[fall.quantity] = max(known, fall, key=_strictness)
    if (low := bounds.get("height")) and (low.below or 0.0) >= share * model.start_height:
        del bounds["height"]  # it is to rise above its start first
    terms = _raise_lying_costs(recipe.terms, up, criteria)
    if bounds and not any(term.shape == "alive" for term in terms):
        ids = tuple(criterion.id for criterion, _ in criteria if criterion.id in up)
        terms.append(Term(name="alive", quantity="", shape="alive", weight=0.3, criteria=ids))
    falls = tuple(bounds.values())
    return recipe.model_copy(update={"falls": falls}).with_terms(terms)


def _find_fall(criterion: Criterion, measure: Measure, height: float) -> Fall | None:
    """Return the fall that makes an upright criterion fail, or None for other criteria."""
    lasting = measure.stat == "share" and measure.window == WHOLE
    if not (lasting and criterion.hard and criterion.threshold >= MOST_OF_THE_TIME):
        return None
    if criterion.comparison == "at_most":
        return None
    if measure.quantity == "pole_tilt" and measure.low is None and measure.high is not None:
        return Fall(quantity="pole_tilt", above=_round_weight(measure.high + FALL_MARGIN))
    if measure.quantity == "tilt" and measure.low is None and measure.high is not None:
        return Fall(
            quantity="tilt", above=_round_weight(max(measure.high + FALL_MARGIN, FALL_TILT))
        )
    if measure.quantity == "height" and measure.high is None and measure.low is not None:
        return Fall(quantity="height", below=_round_weight(height * measure.low))
    return None


def _strictness(fall: Fall) -> float:
    return -fall.above if fall.above is not None else fall.below or 0.0


def _raise_lying_costs(
    terms: Sequence[Term], up: set[str], criteria: Sequence[tuple[Criterion, Measure]]
) -> list[Term]:
    """Raise the costs of lying until, in full, they cancel the task's pay."""
    task = {criterion.id for criterion, _ in criteria if criterion.category == "task"}
    paying = [t for t in terms if not t.is_cost and t.shape != "alive" and task & {*t.criteria}]
    windows = {term.window for term in paying}
    pay = max(
        (sum(t.weight for t in paying if t.window in (window, WHOLE)) for window in windows),
        default=0.0,
    )
    lying = [term for term in terms if term.is_cost and up & {*term.criteria}]
    cost = sum(term.weight for term in lying)
    factor = max(1.0, pay / cost) if cost else 1.0
    return [term.scale_weight(factor) if term in lying else term for term in terms]


def _move_cost(terms: Sequence[Term], quantities: Mapping[str, Quantity]) -> list[Term]:
    """Move an unobservable cost to an observable quantity that is a term too.

    How far an agent is from its start, which it does not observe, says nothing about what to do;
    its speed does. One that hops is pushed to and fro: the size of its speed is least where it is
    still in the air, whichever way the ground pushes it, and its square where it gets nowhere.
    """
    left = list(terms)
    hops = any(term.quantity == "bounce" and not term.is_cost for term in terms)
    for term in terms:
        through = quantities[term.quantity].felt_as if term.quantity else ""
        like = (through, term.shape, term.window)
        for place, other in enumerate(left):
            if through and (other.quantity, other.shape, other.window) == like:
                weight = round(other.weight + term.weight, 4)
                ids = (*other.criteria, *term.criteria)
                update = {"weight": weight, "criteria": ids}
                if hops:
                    update |= {"shape": "square", "weight": round(_SQUARED * weight, 4)}
                left[place] = other.model_copy(update=update)
                left.remove(term)
                break
    return left


def _limits(
    criteria: Sequence[tuple[Criterion, Measure]],
    terms: Sequence[Term],
    quantities: Mapping[str, Quantity],
) -> list[Term]:
    """Costs of coming near to what ends an episode, where it must last.

    The end itself is seen too late to be learnt from: an agent that rears or tumbles has been on
    its way there for long. Where more of it is asked for, as in a jump, there is no such cost.
    """
    lasting = tuple(
        criterion.id for criterion, measure in criteria if measure.stat in ("lasting", "ends")
    )
    wanted = {term.quantity for term in terms if term.shape in ("more", "rise")}
    return [
        Term(
            name=f"{key}_limit",
            quantity=key,
            shape="under",
            weight=LIMIT_WEIGHT,
            target=_round_weight(quantity.ceiling[0]),
            scale=_round_weight(quantity.ceiling[1] - quantity.ceiling[0]),
            criteria=lasting,
        )
        for key, quantity in quantities.items()
        if lasting and quantity.ceiling is not None and key not in wanted
    ]


def _term(
    criterion: Criterion,
    measure: Measure,
    quantities: Mapping[str, Quantity],
    everything: Sequence[tuple[Criterion, Measure]],
) -> Term | None:
    """Return the reward term of a criterion, or None if no reward can compute it."""
    # A light criterion still pulls.
    emphasis = 0.3 + 0.7 * criterion.weight
    weight = CATEGORY_WEIGHTS[criterion.category] * emphasis
    if measure.quantity:
        weight = max(weight, quantities[measure.quantity].least_weight)
    weight = round(weight, 4)
    if measure.stat == "events" or (measure.stat == "turns" and criterion.comparison == "at_most"):
        return None  # it is seen when it is too late: what leads there has criteria of its own
    if not measure.quantity:
        return Term(name="alive", quantity="", shape="alive", weight=max(weight, 0.3),
                    criteria=(criterion.id,))  # fmt: skip
    key = measure.quantity
    if key == "action_change" and quantities[key].code.reward is None:
        key = "effort"  # no earlier action is observed; large ones shake most
    quantity = quantities[key]
    if measure.stat == "share" and quantity.span is not None and measure.low is None:
        return None  # of a share of time at a target, the distance itself pulls
    opposite = next(
        (
            other.threshold
            for other, same in everything
            if same == measure
            and other.comparison != criterion.comparison
            and measure.stat != "turns"
        ),
        None,
    )
    aim = _find_target(criterion, measure, opposite)
    shape, numbers = _shape(criterion, measure, quantity, aim)
    if shape == "within":  # or circling from afar would earn as much as at its distance
        weight = round(_TURNING_CAP * weight, 4)
    return Term(name=key, quantity=key, shape=shape, weight=weight, window=measure.window,
                criteria=(criterion.id,), **numbers)  # fmt: skip


def _find_target(criterion: Criterion, measure: Measure, opposite: float | None) -> float | None:
    """Return the target value of a criterion, or None if it has one bound only."""
    if measure.stat == "miss":
        return measure.low
    if measure.stat == "share":
        low, high = measure.low, measure.high
        return None if low is None or high is None else (low + high) / 2
    return None if opposite is None else (criterion.threshold + opposite) / 2


def _shape(
    criterion: Criterion, measure: Measure, quantity: Quantity, aim: float | None
) -> tuple[Shape, dict[str, float]]:
    """The shape of a criterion's term with its target, scale and cap."""
    t, up = criterion.threshold, criterion.comparison == "at_least"
    shape: Shape = "under"
    numbers: dict[str, float] = {}
    if quantity.key == "effort":
        numbers = {"scale": quantity.full_cost}
    elif aim is not None:
        shape, numbers = _aimed_shape(t, measure, quantity, aim)
    elif measure.low is not None or measure.high is not None:
        shape, numbers = _bounded_shape(t, measure, quantity)
    elif quantity.stretch is not None:
        shape, numbers = _stretched_shape(t, quantity.stretch, up=up)
    elif up:
        shape, numbers = _growing_shape(t, measure, quantity)
    elif quantity.span is not None:
        shape, numbers = "reach", {"target": 2 * t, "scale": quantity.span}
    else:
        numbers = {"scale": 3 * abs(t)}
    numbers["scale"] = max(numbers.get("scale", 1.0), _LEAST_SCALE)
    return shape, {name: _round_weight(number) for name, number in numbers.items()}


def _aimed_shape(
    threshold: float, measure: Measure, quantity: Quantity, aim: float
) -> tuple[Shape, dict[str, float]]:
    """Return the shape for a quantity that is best at a value, or between two bounds."""
    missed = measure.stat == "miss"
    scale = max(abs(aim), 3 * abs(threshold) if missed else _LEAST_SCALE)
    if measure.low is not None and measure.high is not None:
        scale = measure.high - measure.low  # or one that stands would be paid for crouching
    if not aim and quantity.unit == "rad/s" and not quantity.memory:  # strides turn it to and fro
        scale = max(scale, _STRIDE_TURNS)
    if not aim and missed:  # and every stroke pushes it aside
        scale = max(scale, quantity.headroom * abs(threshold))
    if quantity.span is None:
        return "near", {"target": aim, "scale": scale}
    far = quantity.span / 3  # from far away as well
    if measure.low is None or measure.high is None:
        return "near", {"target": aim, "scale": far}
    slack = _INNER * (measure.high - measure.low)
    return "within", {"target": aim, "scale": far, "slack": slack}


def _bounded_shape(
    threshold: float, measure: Measure, quantity: Quantity
) -> tuple[Shape, dict[str, float]]:
    """Return the shape for a share of time beyond a bound, and for swings beyond one."""
    low, high = measure.low or 0.0, measure.high
    if quantity.stretch is not None:
        edge = low if high is None else high
        return _stretched_shape(edge, quantity.stretch, up=high is None)
    if measure.stat == "swings":  # a little beyond, and somewhat more often
        return "swing", {"target": 1.2 * low, "scale": 1.5 * threshold}
    if high is not None:
        leans = quantity.key in ("tilt", "pole_tilt", "facing")  # none of it is of any use
        whole = leans or quantity.key == "cart_offset"
        scale = max(1.5 * abs(high), quantity.full_cost if whole else 0.0)
        return "under", {"target": 0.0 if leans else 0.9 * high, "scale": scale}
    return "over", {"target": 1.15 * low, "scale": abs(low)}


def _stretched_shape(edge: float, stretch: float, *, up: bool) -> tuple[Shape, dict[str, float]]:
    """Return the shape for a limb's height over the root, which may have either sign."""
    beyond = 0.1 * stretch if up else -0.1 * stretch
    return "over" if up else "under", {"target": edge + beyond, "scale": stretch}


def _growing_shape(
    threshold: float, measure: Measure, quantity: Quantity
) -> tuple[Shape, dict[str, float]]:
    """Return the shape for a quantity that must be at least a bound."""
    if measure.stat == "turns":
        return "more", {"target": quantity.turning or 4.0, "cap": _TURNING_CAP}
    rise = threshold - (quantity.usual or threshold)
    if measure.stat == "highest" and rise >= _LEAST_RISE * abs(threshold):
        # Where it stands earns nothing: of the whole height, a jump is a small share of the pay.
        return "rise", {"target": threshold - rise, "scale": rise, "cap": _HIGHER}
    if quantity.enough is not None:
        return "near", {"target": quantity.enough * threshold, "scale": abs(threshold)}
    return "more", {"target": max(abs(threshold), _LEAST_SCALE), "cap": quantity.headroom}


def _round_weight(value: float) -> float:
    return float(f"{value:.4g}")


# --- terms to source text -------------------------------------------------------------------------


class _Form(NamedTuple):
    """A shape as code over the quantity {q}, as LaTeX over its symbol {x}, and in words."""

    code: str
    latex: str
    text: str


class _Templates(BaseModel):
    """The texts of `templates/reward.toml`."""

    function: str
    class_: str = Field(alias="class")
    failed: str
    swinging: str
    forms: dict[Shape, _Form]


_TEMPLATES = load_words(_Templates, "reward", "templates")


def render(recipe: Recipe) -> str:
    """The source of a reward: a class where it has to remember something, else a function."""
    quantities = quantities_of(recipe.env_id)
    forms = [_form(recipe.env_id, term, quantities) for term in recipe.terms]
    used = dict.fromkeys(term.quantity for term in recipe.terms if term.quantity)
    lines = [f"q_{key} = {quantities[key].reward_code(side_info=recipe.side_info)}" for key in used]
    timed = any(term.window != WHOLE for term in recipe.terms)
    kept = [quantities[key].memory_code(side_info=recipe.side_info) for key in used]
    memory = [begin for begin, _ in filter(None, kept)]
    lines = [update for _, update in filter(None, kept)] + lines
    if timed and recipe.observe_time:
        lines.append("now = obs[..., -1]")
    elif timed:
        memory.append("self._step = 0")
        horizon = morphology_of(recipe.env_id).horizon
        lines += [
            "self._step = np.where(start, 0, self._step + 1)",
            f"now = self._step / {horizon}",
        ]
    if swing := next((term for term in recipe.terms if term.shape == "swing"), None):
        memory += ["self._side = 1.0", "self._reached = 0.0", "self._due = 0.0"]
        numbers = {"t": f"{swing.target:g}", "per_step": _per_step(recipe.env_id, swing)}
        lines += _TEMPLATES.swinging.format(q=f"q_{swing.quantity}", **numbers).splitlines()
    for term, form in zip(recipe.terms, forms, strict=True):
        first, last = term.window
        while_ = f"np.where((now >= {first:.4g}) & (now < {last:.4g}), {form.code}, 0.0)"
        lines.append(f"{term.name} = {form.code if term.window == WHOLE else while_}")
    for term, place in _find_places(recipe, quantities):
        share = f"np.clip({place.name} / {place.weight:g}, 0.0, 1.0)"
        lines.append(f"{term.name} = {term.name} * {share}")
    names = [term.name for term in recipe.terms]
    total = " + ".join(names) or "np.zeros(np.shape(action)[:-1])"
    by_name = ", ".join(f'"{name}": {name}' for name in names)
    lines += [f"terms = {{{by_name}}}", f"return {total}, terms"]
    entry, indent = ('    "{}": "{}",', 8) if memory else ("    {}: {}", 4)
    terms = [entry.format(name, form.text) for name, form in zip(names, forms, strict=True)]
    return (_TEMPLATES.class_ if memory else _TEMPLATES.function).format(
        title=recipe.title,
        env_id=recipe.env_id,
        recipe=recipe.line(),
        memory=textwrap.indent("\n".join(memory), " " * 8),
        latex="r = " + (" + ".join(form.latex for form in forms) or "0"),
        terms=textwrap.indent("\n".join(terms), " " * indent),
        body=textwrap.indent("\n".join(lines), " " * indent),
        failed=_write_failed(recipe, quantities, in_class=bool(memory)),
    )


def _find_places(recipe: Recipe, quantities: Mapping[str, Quantity]) -> Iterator[tuple[Term, Term]]:
    """Yield terms for going round something, each with the term for how far off to do so.

    From afar, an arm that whirls about its own base goes round it as well.
    """
    for term in recipe.terms:
        about = quantities[term.quantity].about if term.quantity else ""
        for place in recipe.terms:
            near = place.quantity == about and place.shape == "within" and place.weight
            if near and place.window == term.window:
                yield term, place


def _write_failed(recipe: Recipe, quantities: Mapping[str, Quantity], *, in_class: bool) -> str:
    """Write the function that ends training episodes; empty if nothing ends them."""
    if not recipe.falls:
        return ""
    tests = []
    for fall in recipe.falls:
        value = quantities[fall.quantity].reward_code(side_info=recipe.side_info)
        way, bound = ("<", fall.below) if fall.above is None else (">", fall.above)
        tests.append(f"({value} {way} {bound:g})")
    words = " or ".join(fall.describe(quantities[fall.quantity]) for fall in recipe.falls)
    text = _TEMPLATES.failed.format(
        self="self, " if in_class else "", words=words, code=" | ".join(tests)
    )
    return textwrap.indent(text, "    ") if in_class else f"\n{text}"


def _per_step(env_id: str, term: Term) -> str:
    """How far a swing comes within a step if as many are made as earn more, in equal times."""
    first, last = term.window
    return f"{term.scale * 2 * term.target / (morphology_of(env_id).horizon * (last - first)):.4g}"


def _form(env_id: str, term: Term, quantities: Mapping[str, Quantity]) -> _Form:
    quantity = quantities.get(term.quantity)
    numbers = {"w": term.weight, "t": term.target, "s": term.scale, "c": term.cap, "m": term.slack}
    values: dict[str, object] = {name: f"{number:g}" for name, number in numbers.items()}
    most = term.target + term.scale * term.cap if term.shape == "rise" else term.target * term.cap
    values |= {"q": f"q_{term.quantity}", "target": term.target, "most": most}
    if quantity is not None:
        unit = f" {quantity.unit}" if quantity.unit else ""
        values |= {"x": quantity.symbol, "words": quantity.words, "unit": unit}
        values["per_step"] = _per_step(env_id, term)
    return _Form(*(text.format(**values) for text in _TEMPLATES.forms[term.shape]))
