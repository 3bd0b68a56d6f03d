"""A reward's source: when two are the same, which terms one has, the same with other weights."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from p2p.agents.builtin.reward import Recipe, read_recipe, render
from p2p.contracts import Lesson, LessonCheck
from p2p.utils.utils import parse_python

SHORT_DIGEST = 12
"""So many characters tell the rewards of a session apart."""


def reward_digest(code: str) -> str:
    """SHA-256 of what the code does: layout, comments and docstrings do not count."""
    return hashlib.sha256(_normalise_code(code).encode("utf-8", "replace")).hexdigest()


def term_names(code: str) -> frozenset[str]:
    """Return the possible names of a reward's terms, read from its source.

    Those are the text keys of its dicts, written as displays, calls of `dict` or item by item. Keys
    that are only read, such as those of `info`, are none. Code that cannot be parsed has none.
    """
    tree = _parse_code(code)
    if tree is None:
        return frozenset()
    names: set[str | None] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            names |= {_text(key) for key in node.keys}
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            names.add(_text(node.slice))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names |= {word.arg for word in node.keywords} if node.func.id == "dict" else set()
    return frozenset(name for name in names if name is not None)


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _parse_code(code: str) -> ast.Module | None:
    try:
        return parse_python(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _normalise_code(code: str) -> str:
    tree = _parse_code(code)
    if tree is not None:
        try:
            # Not ast.dump, whose form differs between versions of Python.
            return ast.unparse(_WithoutRemarks().visit(tree))
        except RecursionError:
            pass
    return re.sub(r"\s+", " ", code).strip()


class _WithoutRemarks(ast.NodeTransformer):
    """Drops constants that stand alone: docstrings, and text used as a comment."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | None:
        return None if isinstance(node.value, ast.Constant) else node


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


def reweight(code: str, factors: Mapping[str, float]) -> str | None:
    """Multiply each named term by its factor; None if that is impossible for this code.

    Of a recipe the terms are weighed anew. Any other `reward_fn`, whose total is the sum of its
    terms by the rules of writing one, is wrapped, once.
    """
    recipe = _read_own_recipe(code)
    if recipe is not None:
        terms = [term.scale_weight(factors.get(term.name, 1.0)) for term in recipe.terms]
        return render(recipe.with_terms(terms))
    if _MARK in code or not _defines_function(code):
        return None
    weights = json.dumps(dict(sorted(factors.items())))
    return code.rstrip() + "\n\n" + _WRAPPED.format(mark=_MARK, weights=weights)


def terms_serving(code: str, criteria: Collection[str]) -> tuple[str, ...]:
    """The terms of a recipe that serve one of these criteria; none where there is no recipe."""
    recipe = _read_own_recipe(code)
    terms = recipe.terms if recipe else ()
    return tuple(term.name for term in terms if not set(criteria).isdisjoint(term.criteria))


def _read_own_recipe(code: str) -> Recipe | None:
    """Return the recipe that generates exactly this code, or None if the code differs from it."""
    recipe = read_recipe(code)
    if recipe is None or reward_digest(render(recipe)) != reward_digest(code):
        return None
    return recipe


def _defines_function(code: str) -> bool:
    try:
        tree = parse_python(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    classes = any(isinstance(node, ast.ClassDef) for node in tree.body)
    return "reward_fn" in functions and not classes


# --- lessons held against it ---------------------------------------------------------------------


def find_breaches(
    lessons: Sequence[Lesson], code: str, hyperparameters: Mapping[str, Any]
) -> list[str]:
    """Return what a proposal does against the HARD lessons that code can check, a sentence each."""
    checks = [(lesson, lesson.check) for lesson in lessons if lesson.tier == "HARD"]
    return [
        f"it {broken}, against the HARD lesson: {lesson.text}"
        for lesson, check in checks
        if check is not None and (broken := _describe_breach(check, code, hyperparameters))
    ]


def _describe_breach(check: LessonCheck, code: str, hyperparameters: Mapping[str, Any]) -> str:
    """Describe how a proposal breaks the check; empty if it does not, or if unknown."""
    name, limit = check.name, check.value
    if check.kind == "term_required":
        return "" if name in term_names(code) else f"has no reward term `{name}`"
    if check.kind == "term_forbidden":
        return f"has the reward term `{name}`" if name in term_names(code) else ""
    if check.kind == "code_forbidden":
        return f"has `{name}` in its code" if name and name in code else ""
    value = hyperparameters.get(name)
    if limit is None or isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if check.kind == "hyperparameter_at_most":
        return f"sets {name}={value:g}, over {limit:g}" if value > limit else ""
    return f"sets {name}={value:g}, under {limit:g}" if value < limit else ""
