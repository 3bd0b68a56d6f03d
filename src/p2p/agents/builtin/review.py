"""Reviewing and mending by rule: does the code name what exists, and say what it returns?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from p2p.agents.builtin.judge import write_judge
from p2p.agents.builtin.reward import Recipe, read_recipe, recipe_for, render, write_reward
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
    """Look for indices and keys that do not exist, and returned terms that nothing declares."""
    findings = tuple(_reward_findings(request.code, get_env_spec(request.env_id)))
    if not findings:
        return CodeReview(approved=True)
    own = RewardRequest(prompt=request.prompt, env_id=request.env_id, criteria=request.criteria)
    return CodeReview(approved=False, findings=findings, code=write_reward(own).code)


def review_judge(request: ReviewRequest) -> CodeReview:
    """Look for criteria that the judge never mentions."""
    missing = [c.id for c in request.criteria if f"{c.id}" not in request.code]
    findings = [f"the criterion {name!r} is not scored" for name in missing]
    try:
        tree = ast.parse(request.code)
    except SyntaxError as error:
        findings.append(f"syntax error: {error}")
    else:
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        if "judge_fn" not in names:
            findings.append("there is no judge_fn")
    if not findings:
        return CodeReview(approved=True)
    own = JudgeRequest(
        prompt=request.prompt, env_id=request.env_id, criteria=request.criteria, columns={}
    )
    return CodeReview(approved=False, findings=tuple(findings), code=write_judge(own).code)


def _reward_findings(code: str, spec: EnvSpec) -> Iterator[str]:
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        yield f"syntax error: {error}"
        return
    sizes = {"obs": spec.obs_dim, "next_obs": spec.obs_dim, "action": spec.action_dim}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            continue
        name, index = node.value.id, _last_index(node.slice)
        if name in sizes and isinstance(index, int) and not -sizes[name] <= index < sizes[name]:
            yield f"line {node.lineno}: {name} has {sizes[name]} entries, no [{index}]"
        known = {*spec.info_keys, "_episode_start", "mj_data", "mj_model"}
        if name == "info" and isinstance(index, str) and index not in known:
            yield f"line {node.lineno}: {spec.env_id} gives no info[{index!r}]"


def _last_index(node: ast.expr) -> object:
    """The constant that a subscript ends with: i of `x[..., i]`, `x[:, i]` and `x[i]`."""
    last = node.elts[-1] if isinstance(node, ast.Tuple) and node.elts else node
    if isinstance(last, ast.UnaryOp) and isinstance(last.op, ast.USub):
        inner = _last_index(last.operand)
        return -inner if isinstance(inner, int) else None
    return last.value if isinstance(last, ast.Constant) else None


# --- mending ------------------------------------------------------------------------------------


def fix_reward(request: RewardRequest, fixes: list[FixRequest]) -> CodeDraft:
    """A simpler reward: without the terms that were complained of; in the end the task alone."""
    given = next((fix.code for fix in reversed(fixes) if fix.code), "")
    recipe = read_recipe(given)
    if recipe is None or recipe.env_id != request.env_id:
        recipe = recipe_for(request)
    text = "\n".join(problem for fix in fixes for problem in fix.problems)
    if "worse behaviour first" in text or "highest for ending" in text:
        mended, how = _rebalanced(recipe, request, len(fixes)), "costs count less"
    else:
        accused = {term.name for term in recipe.terms if re.search(rf"\b{term.name}\b", text)}
        mended, how = _without(recipe, request, accused, len(fixes)), "fewer terms"
    return CodeDraft(code=render(mended), explanation=f"A simpler reward: {how}.")


def fix_judge(request: JudgeRequest, fixes: list[FixRequest]) -> CodeDraft:
    """The judge again, without what cannot be measured after all."""
    text = "\n".join(problem for fix in fixes for problem in fix.problems)
    columns = {
        name: words
        for name, words in request.columns.items()
        if not re.search(rf"KeyError.*\b{name}\b", text)
    }
    return write_judge(request.model_copy(update={"columns": columns}))


def _task_ids(request: RewardRequest) -> set[str]:
    return {c.id for c in request.criteria if c.category == "task"}


def _rebalanced(recipe: Recipe, request: RewardRequest, times: int) -> Recipe:
    """What is asked for counts more, everything else less, and living more."""
    task = _task_ids(request)
    terms = tuple(
        term.model_copy(update={"weight": round(term.weight * (2.0 if term.shape == "alive" else
                                1.0 if task & set(term.criteria) else 0.5**times), 4)})
        for term in recipe.terms
    )  # fmt: skip
    return recipe.model_copy(update={"terms": terms})


def _without(recipe: Recipe, request: RewardRequest, accused: set[str], times: int) -> Recipe:
    task = _task_ids(request)
    terms = tuple(term for term in recipe.terms if term.name not in accused)
    if times > 1 or not terms:
        terms = tuple(
            term for term in recipe.terms if term.shape == "alive" or task & set(term.criteria)
        )
    return recipe.model_copy(update={"terms": terms or recipe.terms[:1]})
