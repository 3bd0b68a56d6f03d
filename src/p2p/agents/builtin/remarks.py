"""A person's remarks as changes to a recipe: "faster", "lower", "keep the torso level"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p2p.agents.builtin.grammar import Goal, parse
from p2p.agents.builtin.morphology import morphology_of
from p2p.agents.builtin.motions import CriteriaBuilder, apply_goal
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.builtin.reward import Recipe, Term, with_criteria
from p2p.agents.requests import ReviseRequest

_SPEEDS = frozenset(
    {"forward_speed", "backward_speed", "left_speed", "right_speed", "turn_left_rate",
     "turn_right_rate", "flip_forward_rate", "flip_back_rate", "roll_right_rate", "roll_left_rate"}
)  # fmt: skip
_SHARPER: Mapping[str, tuple[frozenset[str], float]] = {
    "smoother": (frozenset({"effort", "joint_speed"}), 3.0),
    "quieter": (frozenset({"effort", "joint_speed", "bounce"}), 3.0),
    "cheaper": (frozenset({"effort"}), 4.0),
    "steadier": (frozenset({"", "tilt", "pole_tilt", "height", "ground_speed"}), 2.0),
    "straighter": (frozenset({"tilt", "left_speed", "drift"}), 3.0),
}
"""Which terms a comparative makes heavier; the empty one is the bonus for lasting."""
_AS_GOALS = {
    "smoother": "smooth", "quieter": "quiet", "cheaper": "efficient", "steadier": "stable",
    "straighter": "straight", "lower": "low", "higher": "high",
}  # fmt: skip
"""What to add where the recipe has no such term yet."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What was made of the remarks."""

    changes: tuple[str, ...] = ()
    longer: bool = False
    answer: str = ""


def take_up(request: ReviseRequest, recipe: Recipe) -> tuple[Recipe, Heard]:
    """The recipe with the remarks followed, and how."""
    if not request.remarks:
        return recipe, Heard()
    body = morphology_of(request.env_id)
    changes: list[str] = []
    unused: list[str] = []
    longer = False
    for remark in request.remarks:
        parsed = parse(remark, body.limb_words, remark=True)
        unused += parsed.unused
        for goal in parsed.goals:
            if goal.motion == "longer":
                longer = True
                changes.append("trains longer")
                continue
            recipe, change = _follow(recipe, goal)
            if change:
                changes.append(change)
            else:
                unused += goal.words
    answer = f"Taken up: {'; '.join(changes)}." if changes else "Nothing in the remarks is known."
    if unused:
        answer += f" Not understood: {', '.join(dict.fromkeys(unused))}."
    return recipe, Heard(tuple(changes), longer, answer)


def _follow(recipe: Recipe, goal: Goal) -> tuple[Recipe, str]:
    if goal.motion in ("faster", "slower"):
        return _pace(recipe, 1.4 if goal.motion == "faster" else 0.7, goal.motion)
    if goal.motion in _SHARPER:
        names, factor = _SHARPER[goal.motion]
        found = [term.name for term in recipe.terms if term.quantity in names]
        if found:
            terms = [
                term.model_copy(update={"weight": round(term.weight * factor, 4)})
                if term.name in found
                else term
                for term in recipe.terms
            ]
            recipe = recipe.with_terms(terms)
            return recipe, f"{goal.motion}: {', '.join(found)} x{factor:g}"
    motion = _AS_GOALS.get(goal.motion, goal.motion)
    return _added(recipe, Goal(motion, goal.direction, goal.speed, goal.amount, goal.limb,
                               goal.negated, goal.words))  # fmt: skip


def _pace(recipe: Recipe, factor: float, why: str) -> tuple[Recipe, str]:
    changed: list[str] = []
    terms: list[Term] = []
    for term in recipe.terms:
        if term.quantity in _SPEEDS and term.shape in ("more", "near"):
            target = float(f"{term.target * factor:.3g}")
            update = {
                "target": target,
                "cap": 1.0 if factor < 1 and term.shape == "more" else term.cap,
            }
            terms.append(term.model_copy(update=update))
            changed.append(f"{term.name} towards {target:g}")
        else:
            terms.append(term)
    return recipe.model_copy(update={"terms": tuple(terms)}), (
        f"{why}: {', '.join(changed)}" if changed else ""
    )


def _added(recipe: Recipe, goal: Goal) -> tuple[Recipe, str]:
    """Terms for a goal of the grammar that the recipe does not have."""
    builder = CriteriaBuilder(morphology_of(recipe.env_id), quantities_of(recipe.env_id))
    apply_goal(builder, goal)
    pairs = tuple(zip(builder.criteria, builder.measures, strict=True))
    extra = with_criteria(recipe, pairs).terms
    have = {(term.quantity, term.shape): term for term in recipe.terms}
    terms = list(recipe.terms)
    changed: list[str] = []
    for term in extra:
        same = have.get((term.quantity, term.shape))
        if same is None:
            name = term.name if term.name not in {t.name for t in terms} else f"{term.name}_more"
            terms.append(term.model_copy(update={"name": name, "criteria": ()}))
            changed.append(f"{name} added")
        else:
            stronger = same.model_copy(update={"weight": round(same.weight * 2, 4)})
            terms[terms.index(same)] = stronger
            changed.append(f"{same.name} x2")
    if not changed:
        return recipe, ""
    return recipe.with_terms(terms), (
        f"{' '.join(goal.words) or goal.motion}: {', '.join(changed)}"
    )
