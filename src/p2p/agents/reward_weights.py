"""The same reward with other weights: whoever wrote it."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Mapping

from p2p.agents.builtin.reward import Recipe, read_recipe, render
from p2p.agents.reward_source import reward_digest

_MARK = "# weights: "
_WRAPPED = """
{mark}{weights}
_unweighted = reward_fn


def reward_fn(obs, action, next_obs, info):
    total, terms = _unweighted(obs, action, next_obs, info)
    weighted = {{name: _WEIGHTS.get(name, 1.0) * value for name, value in terms.items()}}
    return total + sum(weighted[name] - terms[name] for name in terms), weighted


reward_fn.__doc__ = _unweighted.__doc__
_WEIGHTS = {weights}
"""


def reweighted(code: str, factors: Mapping[str, float]) -> str | None:
    """The reward with each named term times its factor; None: that cannot be done to this code.

    Of a recipe the terms are weighed anew. Any other `reward_fn`, whose total is the sum of its
    terms by the rules of writing one, is wrapped, once.
    """
    recipe = _own_recipe(code)
    if recipe is not None:
        terms = [term.scaled(factors.get(term.name, 1.0)) for term in recipe.terms]
        return render(recipe.with_terms(terms))
    if _MARK in code or not _defines_function(code):
        return None
    weights = json.dumps(dict(sorted(factors.items())))
    return code.rstrip() + "\n\n" + _WRAPPED.format(mark=_MARK, weights=weights)


def terms_serving(code: str, criteria: Collection[str]) -> tuple[str, ...]:
    """The terms of a recipe that serve one of these criteria; none where there is no recipe."""
    recipe = _own_recipe(code)
    terms = recipe.terms if recipe else ()
    return tuple(term.name for term in terms if not set(criteria).isdisjoint(term.criteria))


def _own_recipe(code: str) -> Recipe | None:
    """The recipe that says all of the code; None: the code is, or was changed by, somebody else."""
    recipe = read_recipe(code)
    if recipe is None or reward_digest(render(recipe)) != reward_digest(code):
        return None
    return recipe


def _defines_function(code: str) -> bool:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    classes = any(isinstance(node, ast.ClassDef) for node in tree.body)
    return "reward_fn" in functions and not classes
