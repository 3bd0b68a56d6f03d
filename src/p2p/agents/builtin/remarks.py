"""A person's remarks as changes to a recipe: "faster", "lower", "keep the torso level"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from p2p.agents.builtin.builder import CriteriaBuilder
from p2p.agents.builtin.criteria import apply_goal
from p2p.agents.builtin.goals import Goal
from p2p.agents.builtin.morphology import morphology_of
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.builtin.reward import Recipe, Term, with_criteria

_PACES = {"faster": 1.4, "slower": 0.7}
_SPEEDS = frozenset(
    {"forward_speed", "backward_speed", "left_speed", "right_speed", "turn_left_rate",
     "turn_right_rate", "flip_forward_rate", "flip_back_rate", "roll_right_rate", "roll_left_rate"}
)  # fmt: skip
_COMPARATIVES: Mapping[str, tuple[str, float, tuple[str, ...]]] = {
    "smoother": ("smooth", 3.0, ("effort", "joint_speed")),
    "quieter": ("quiet", 3.0, ("effort", "joint_speed", "bounce")),
    "cheaper": ("efficient", 4.0, ("effort",)),
    "steadier": ("stable", 2.0, ("", "tilt", "pole_tilt", "height", "ground_speed")),
    "straighter": ("straight", 3.0, ("tilt", "left_speed", "drift")),
    "lower": ("low", 1.0, ()),
    "higher": ("high", 1.0, ()),
}
"""Which terms a comparative makes heavier, and by how much (the empty one is the bonus for
lasting); where there are none, the style whose terms are added."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What was made of the remarks."""

    recipe: Recipe
    changes: tuple[str, ...] = ()
    longer: bool = False
    """Whether to train longer."""
    answer: str = ""


def follow(remarks: tuple[str, ...], recipe: Recipe) -> Followed:
    """The recipe with the remarks followed, and how."""
    if not remarks:
        return Followed(recipe)
    model = morphology_of(recipe.env_id)
    parsed = [model.parse(remark, remark=True) for remark in remarks]
    unused = [word for each in parsed for word in each.unused]
    goals = [goal for each in parsed for goal in each.goals]
    changes: list[str] = []
    for goal in goals:
        change = "trains longer"
        if goal.motion != "longer":
            recipe, change = _follow_goal(recipe, goal)
        if change:
            changes.append(change)
        else:
            unused += goal.words
    answer = f"Taken up: {'; '.join(changes)}." if changes else "Nothing in the remarks is known."
    if unused:
        answer += f" Not understood: {', '.join(dict.fromkeys(unused))}."
    longer = any(goal.motion == "longer" for goal in goals)
    return Followed(recipe, tuple(changes), longer, answer)


def _follow_goal(recipe: Recipe, goal: Goal) -> tuple[Recipe, str]:
    """Return the recipe changed as a goal asks, and the change in words; empty if impossible."""
    if goal.motion in _PACES:
        return _change_pace(recipe, _PACES[goal.motion], goal.motion)
    style, factor, quantities = _COMPARATIVES.get(goal.motion, (goal.motion, 1.0, ()))
    names = [term.name for term in recipe.terms if term.quantity in quantities]
    if not names:
        return _add_goal_terms(recipe, replace(goal, motion=style))
    terms = [term.scale_weight(factor) if term.name in names else term for term in recipe.terms]
    return recipe.with_terms(terms), f"{goal.motion}: {', '.join(names)} x{factor:g}"


def _change_pace(recipe: Recipe, factor: float, comparative: str) -> tuple[Recipe, str]:
    changes: list[str] = []
    terms: list[Term] = []
    for term in recipe.terms:
        if term.quantity not in _SPEEDS or term.shape not in ("more", "near"):
            terms.append(term)
            continue
        target = float(f"{term.target * factor:.3g}")
        cap = 1.0 if factor < 1 and term.shape == "more" else term.cap
        terms.append(term.model_copy(update={"target": target, "cap": cap}))
        changes.append(f"{term.name} towards {target:g}")
    change = f"{comparative}: {', '.join(changes)}" if changes else ""
    return recipe.model_copy(update={"terms": tuple(terms)}), change


def _add_goal_terms(recipe: Recipe, goal: Goal) -> tuple[Recipe, str]:
    """Add terms for a goal of the grammar; double the weight of terms that exist already."""
    builder = CriteriaBuilder(morphology_of(recipe.env_id), quantities_of(recipe.env_id))
    apply_goal(builder, goal)
    pairs = tuple(zip(builder.criteria, builder.measures, strict=True))
    known = {(term.quantity, term.shape): term for term in recipe.terms}
    terms = {term.name: term for term in recipe.terms}
    changes: list[str] = []
    for term in with_criteria(recipe, pairs).terms:
        same = known.get((term.quantity, term.shape))
        if same is not None:
            terms[same.name] = same.scale_weight(2)
            changes.append(f"{same.name} x2")
        else:
            names = (term.name, f"{term.name}_more", f"{term.name}_too")
            name = next(name for name in names if name not in terms)
            terms[name] = term.model_copy(update={"name": name, "criteria": ()})
            changes.append(f"{name} added")
    if not changes:
        return recipe, ""
    change = f"{' '.join(goal.words) or goal.motion}: {', '.join(changes)}"
    return recipe.with_terms(list(terms.values())), change
