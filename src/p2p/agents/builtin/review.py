"""Reviewing, fixing and varying code by rule, and looking back on a session."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Literal, get_args

from p2p.agents.builtin.judge import write_judge
from p2p.agents.builtin.reward import (
    Recipe,
    Shape,
    Term,
    read_recipe,
    recipe_for,
    render,
    write_reward,
)
from p2p.agents.requests import (
    AlternativeRequest,
    AnalysisRequest,
    CodeDraft,
    CodeReview,
    FixRequest,
    JudgeRequest,
    ReviewRequest,
    RewardRequest,
)
from p2p.agents.reward_source import reward_digest
from p2p.contracts import FAILURE_TAGS, CriterionScore, SessionAnalysis
from p2p.records.formatting import format_score
from p2p.training.env_spec import EnvSpec, get_env_spec
from p2p.utils.utils import parse_python


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
        nodes = list(ast.walk(parse_python(request.code)))
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
        tree = parse_python(code)
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
            term.scale_weight(2.0 if term.shape == "alive" else 1.0 if term in vital else rest)
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


# --- other rewards for the same criteria ----------------------------------------------------------


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


_SLOPES: tuple[Shape, ...] = ("near", "within", "reach", "under", "over")
VARIATIONS = (
    Variation("what was asked counts twice", weight=2.0, roles=("task",)),
    Variation("costs count half", weight=0.5, roles=("cost",)),
    Variation("slopes reach twice as far", scale=2.0, shapes=_SLOPES),
    Variation("more than asked pays, too", cap=1.5, shapes=("more", "rise")),
    Variation("how it is done counts twice", weight=2.0, roles=("style", "cost")),
    Variation("slopes are twice as steep", scale=0.5, shapes=_SLOPES),
)
"""The most promising first; then pairs of them."""


def vary(request: RewardRequest, alternative: AlternativeRequest) -> CodeDraft:
    """The next reward that is not one of those before; the first again where there is none."""
    recipe = read_recipe(alternative.code) or recipe_for(request)
    task = {criterion.id for criterion in request.criteria if criterion.category == "task"}
    digests = {reward_digest(alternative.code)}
    for text, varied in _vary_recipe(recipe, task):
        code = render(varied)
        if reward_digest(code) not in digests:
            digests.add(reward_digest(code))
            if len(digests) == alternative.number:
                return CodeDraft(code=code, explanation=f"As the first, but {text}.")
    return CodeDraft(code=alternative.code, explanation="The same as the first.")


def _vary_recipe(recipe: Recipe, task: Collection[str]) -> Iterator[tuple[str, Recipe]]:
    plans = [(each,) for each in VARIATIONS] + list(combinations(VARIATIONS, 2))
    for plan in plans:
        yield " and ".join(each.text for each in plan), _apply_variations(recipe, plan, task)


def _apply_variations(recipe: Recipe, plan: Sequence[Variation], task: Collection[str]) -> Recipe:
    terms = list(recipe.terms)
    for variation in plan:
        terms = [variation.of(term, _role(term, task)) for term in terms]
    return recipe.with_terms(terms)


def _role(term: Term, task: Collection[str]) -> Role:
    if term.is_cost:
        return "cost"
    return "task" if not set(task).isdisjoint(term.criteria) else "style"


# --- what happened in a session -------------------------------------------------------------------


AUTHOR = "builtin"
MET, POOR = 0.8, 0.5


def analyze_session(request: AnalysisRequest) -> SessionAnalysis:
    """Which criteria were met when, what went wrong again and again, what to try."""
    judged = [past for past in request.history if past.score is not None]
    titles = {criterion.id: criterion.title for criterion in request.criteria}
    if not judged:
        return SessionAnalysis(
            summary=f"No iteration of “{request.prompt}” was judged; it ended as {request.status}.",
            causes=("there is nothing to compare: see the session's events for what failed",),
            author=AUTHOR,
        )
    best = max(judged, key=lambda past: (past.score or 0.0, past.iteration))
    first, last = judged[0], judged[-1]
    scores = request.criterion_scores.get(best.iteration, ())
    met = [titles.get(s.id, s.id) for s in scores if (s.score or 0.0) >= MET]
    missed = [s for s in scores if s.score is not None and s.score < MET]
    worked = [f"met in iteration {best.iteration}: {', '.join(met)}"] if met else []
    worked += [
        f"iteration {past.iteration} ({past.changes}) rose to {format_score(past.score)}"
        for before, past in pairwise(judged)
        if (past.score or 0.0) > (before.score or 0.0) + 0.02 and past.changes
    ]
    failed = [_describe_miss(score, titles) for score in missed]
    failed += [
        f"iteration {past.iteration} ({past.changes}) fell to {format_score(past.score)}"
        for before, past in pairwise(judged)
        if (past.score or 0.0) < (before.score or 0.0) - 0.02 and past.changes
    ]
    tags = [tag for past in judged for tag in past.failure_tags]
    often = sorted({t for t in tags if tags.count(t) * 2 >= len(judged)}, key=tags.index)
    causes = [f"{tag}: {FAILURE_TAGS.get(tag, tag)}, in {tags.count(tag)} of {len(judged)} "
              "iterations" for tag in often]  # fmt: skip
    count = len(request.history)
    history = (
        f"{count} iterations: from {format_score(first.score)} to {format_score(last.score)}, best "
        f"{format_score(best.score)} in iteration {best.iteration}"
    )
    summary = (
        f"“{request.prompt}” on {request.env_id} ended as {request.status} after "
        f"{history if count > 1 else f'one iteration, with {format_score(best.score)}'}."
    )
    return SessionAnalysis(
        summary=summary,
        worked=tuple(worked),
        failed=tuple(failed),
        causes=tuple(causes),
        suggestions=tuple(_suggestions(missed, titles, request.status)),
        author=AUTHOR,
    )


def _describe_miss(score: CriterionScore, titles: dict[str, str]) -> str:
    evidence = f" ({score.evidence})" if score.evidence else ""
    return f"not met: {titles.get(score.id, score.id)}, {format_score(score.score)}{evidence}"


def _suggestions(missed: list[CriterionScore], titles: dict[str, str], status: str) -> list[str]:
    if status == "unverified":
        return ["say the unchecked words as something that can be measured, or as criteria"]
    if status == "passed":
        return ["train longer, or with more seeds, if the motion should be cleaner"]
    near = [s for s in missed if (s.score or 0.0) >= POOR]
    far = [s for s in missed if (s.score or 0.0) < POOR]
    suggestions = [f"“{titles.get(s.id, s.id)}” is close: more training steps" for s in near]
    suggestions += [
        f"“{titles.get(s.id, s.id)}” is far: check that its threshold is within the agent's reach"
        for s in far
    ]
    return suggestions or ["let more iterations run"]
