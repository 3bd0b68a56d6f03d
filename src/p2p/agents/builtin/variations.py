"""Other rewards for the same criteria: a recipe with some of its numbers changed, as data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal, get_args

from p2p.agents.builtin.reward import Recipe, Shape, Term, read_recipe, recipe_for, render
from p2p.agents.requests import AlternativeRequest, CodeDraft, RewardRequest
from p2p.agents.reward_source import reward_digest

Role = Literal["task", "style", "cost"]
"""What a term is for: a criterion of what was asked, of how, or a cost of either."""


@dataclass(frozen=True)
class Variation:
    """What is done to the terms of a role and shape; factors of 1 leave things as they are."""

    text: str
    weight: float = 1.0
    scale: float = 1.0
    cap: float = 1.0
    roles: tuple[Role, ...] = field(default=get_args(Role))
    shapes: tuple[Shape, ...] = field(default=get_args(Shape))

    def of(self, term: Term, role: Role) -> Term:
        if role not in self.roles or term.shape not in self.shapes:
            return term
        update = {
            "weight": round(term.weight * self.weight, 4),
            "scale": float(f"{term.scale * self.scale:.4g}"),
            "cap": float(f"{term.cap * self.cap:.4g}"),
        }
        return term.model_copy(update=update)


_SLOPES: tuple[Shape, ...] = ("near", "reach", "under", "over")
VARIATIONS = (
    Variation("what was asked counts twice", weight=2.0, roles=("task",)),
    Variation("costs count half", weight=0.5, roles=("cost",)),
    Variation("slopes reach twice as far", scale=2.0, shapes=_SLOPES),
    Variation("more than asked pays, too", cap=1.5, shapes=("more",)),
    Variation("how it is done counts twice", weight=2.0, roles=("style", "cost")),
    Variation("slopes are twice as steep", scale=0.5, shapes=_SLOPES),
)
"""The most promising first; then pairs of them."""


def vary(request: RewardRequest, alternative: AlternativeRequest) -> CodeDraft:
    """The next reward that is not one of those before; the first again where there is none."""
    recipe = read_recipe(alternative.code) or recipe_for(request)
    task = {criterion.id for criterion in request.criteria if criterion.category == "task"}
    digests = {reward_digest(alternative.code)}
    for text, varied in _varied(recipe, task):
        code = render(varied)
        if reward_digest(code) not in digests:
            digests.add(reward_digest(code))
            if len(digests) == alternative.number:
                return CodeDraft(code=code, explanation=f"As the first, but {text}.")
    return CodeDraft(code=alternative.code, explanation="The same as the first.")


def _varied(recipe: Recipe, task: Collection[str]) -> Iterator[tuple[str, Recipe]]:
    plans = [(each,) for each in VARIATIONS] + list(combinations(VARIATIONS, 2))
    for plan in plans:
        yield " and ".join(each.text for each in plan), _applied(recipe, plan, task)


def _applied(recipe: Recipe, plan: Sequence[Variation], task: Collection[str]) -> Recipe:
    terms = list(recipe.terms)
    for variation in plan:
        terms = [variation.of(term, _role(term, task)) for term in terms]
    return recipe.with_terms(terms)


def _role(term: Term, task: Collection[str]) -> Role:
    if term.is_cost:
        return "cost"
    return "task" if not set(task).isdisjoint(term.criteria) else "style"
