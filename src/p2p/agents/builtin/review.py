"""Reviewing and fixing code by rule: does it name what exists, and score what was asked for?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from p2p.agents.builtin.judge import write_judge
from p2p.agents.builtin.reward import read_recipe, recipe_for, render, write_reward
from p2p.agents.requests import (
    CodeDraft,
    CodeReview,
    FixRequest,
    JudgeRequest,
    ReviewRequest,
    RewardRequest,
)
from p2p.training.env_spec import EnvSpec, get_env_spec


def review_reward(request: ReviewRequest) -> CodeReview:
    """Look for indices and keys that do not exist."""
    findings = tuple(_unknown_names(request.code, get_env_spec(request.env_id)))
    if not findings:
        return CodeReview(approved=True)
    own = RewardRequest(prompt=request.prompt, env_id=request.env_id, criteria=request.criteria)
    return CodeReview(approved=False, findings=findings, code=write_reward(own).code)


def review_judge(request: ReviewRequest) -> CodeReview:
    """Look for criteria that the judge never mentions."""
    missing = [c.id for c in request.criteria if c.id not in request.code]
    findings = [f"the criterion {name!r} is not scored" for name in missing]
    try:
        nodes = list(ast.walk(ast.parse(request.code)))
    except SyntaxError as error:
        findings.append(f"syntax error: {error}")
    else:
        if not any(isinstance(n, ast.FunctionDef) and n.name == "judge_fn" for n in nodes):
            findings.append("there is no judge_fn")
    if not findings:
        return CodeReview(approved=True)
    own = JudgeRequest(
        prompt=request.prompt, env_id=request.env_id, criteria=request.criteria, columns={}
    )
    return CodeReview(approved=False, findings=tuple(findings), code=write_judge(own).code)


def _unknown_names(code: str, spec: EnvSpec) -> Iterator[str]:
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        yield f"syntax error: {error}"
        return
    sizes = {"obs": spec.obs_dim, "next_obs": spec.obs_dim, "action": spec.action_dim}
    known = {*spec.info_keys, *spec.quantities, "_episode_start", "mj_data", "mj_model"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            continue
        name, index = node.value.id, _last_index(node.slice)
        if name in sizes and isinstance(index, int) and not -sizes[name] <= index < sizes[name]:
            yield f"line {node.lineno}: {name} has {sizes[name]} entries, no [{index}]"
        if name == "info" and isinstance(index, str) and index not in known:
            yield f"line {node.lineno}: {spec.env_id} gives no info[{index!r}]"


def _last_index(node: ast.expr) -> object:
    """The constant that a subscript ends with: i of `x[..., i]`, `x[:, i]` and `x[i]`."""
    last = node.elts[-1] if isinstance(node, ast.Tuple) and node.elts else node
    try:
        return ast.literal_eval(last)
    except (ValueError, TypeError):
        return None


def fix_reward(request: RewardRequest, fixes: Sequence[FixRequest]) -> CodeDraft:
    """A simpler reward: without the terms that were complained of; in the end the task alone."""
    recipe = read_recipe(next((fix.code for fix in reversed(fixes) if fix.code), ""))
    if recipe is None or recipe.env_id != request.env_id:
        recipe = recipe_for(request)
    task = {criterion.id for criterion in request.criteria if criterion.category == "task"}
    vital = [t for t in recipe.terms if t.shape == "alive" or not task.isdisjoint(t.criteria)]
    if any(fix.ranking for fix in fixes):
        # The task counts as before, everything else less, and staying in the episode more.
        text, rest = "costs count less", 0.5 ** len(fixes)
        terms = [
            term.scaled(2.0 if term.shape == "alive" else 1.0 if term in vital else rest)
            for term in recipe.terms
        ]
    else:
        text, problems = "fewer terms", _problems(fixes)
        terms = [t for t in recipe.terms if not re.search(rf"\b{t.name}\b", problems)]
        if len(fixes) > 1 or not terms:
            terms = vital or [*recipe.terms[:1]]
    fixed = recipe.with_terms(terms)
    return CodeDraft(code=render(fixed), explanation=f"A simpler reward: {text}.")


def _problems(fixes: Sequence[FixRequest]) -> str:
    return "\n".join(problem for fix in fixes for problem in fix.problems)


def fix_judge(request: JudgeRequest, fixes: Sequence[FixRequest]) -> CodeDraft:
    """The judge again, without the columns that were missing after all."""
    problems = _problems(fixes)
    columns = {
        name: text
        for name, text in request.columns.items()
        if not re.search(rf"KeyError.*\b{name}\b", problems)
    }
    return write_judge(request.model_copy(update={"columns": columns}))
