"""What to change after an iteration, by rule: weights, terms, steps, hyperparameters.

All that could be changed is put in an order. The first proposal is taken that was not tried and
breaks no lesson; when it comes back, the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from p2p.agents.builtin.remarks import Followed, follow
from p2p.agents.builtin.revision_rules import REASONS, RULES, VARY, WORSE, Case, Plan, variations
from p2p.agents.builtin.reward import Recipe, Term, read_recipe, recipe_for, render
from p2p.agents.requests import LessonUpdate, ReviseRequest, RevisionProposal, RewardRequest
from p2p.agents.revise_checks import violations
from p2p.agents.reward_source import SHORT_DIGEST, reward_digest

_SURE = 2
"""After so many refusals, only weights that cannot have been there are proposed."""
_ENOUGH = 60
_BONUS = Term(name="alive", quantity="", shape="alive", weight=1.0)


@dataclass(frozen=True, slots=True)
class Base:
    """What is changed."""

    iteration: int
    code: str
    recipe: Recipe
    ours: bool
    """Whether the recipe says all of the code; else the code is somebody else's."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal that could be made."""

    rule: str
    plan: Plan
    code: str
    broken_lessons: tuple[int, ...]


def revise(request: ReviseRequest, refusals: int = 0) -> RevisionProposal:
    """The best proposal that is left after so many that would not do."""
    base = _base(request)
    case = Case(request, base.iteration)
    followed = follow(request.remarks, base.recipe)
    sure = refusals >= _SURE
    plans = _plans(case, base, followed, varied_only=sure)
    chosen = _chosen(_untried(case, base, plans), refusals - _SURE if sure else refusals)
    unheeded = "the built-in author has no reward that keeps to it"
    return RevisionProposal(
        diagnosis=_diagnosis(case),
        lesson=_lesson(case),
        based_on=base.iteration,
        rule=chosen.rule,
        changes=_in_words(case, chosen, followed),
        reward_code=chosen.code,
        hp_changes=dict(chosen.plan.settings),
        lesson_updates=tuple(
            LessonUpdate(index=index, tier="STRONG", reason=unheeded)
            for index in chosen.broken_lessons
        ),
        remarks_taken_up=followed.answer,
    )


def _base(request: ReviseRequest) -> Base:
    """This iteration, or the best one if this one is worse or cannot be had."""
    here, best = Case(request, request.iteration), request.best_iteration
    past = here.past.get(best) if best is not None else None
    best_score = (past.score if past else None) or 0.0
    if request.score is not None:
        fell = best_score > request.score + WORSE
    else:  # without a verdict it deserves a second chance, but not a third
        fell = here.broken or here.unjudged_in_a_row > 1
    iteration, code = request.iteration, request.reward_code
    if best is not None and best != iteration and request.best_reward_code and (fell or not code):
        iteration, code = best, request.best_reward_code
    elif not code and iteration in here.past:
        iteration = here.past[iteration].parent or iteration
    recipe = read_recipe(code)
    if recipe is None or recipe.env_id != request.env_id:
        recipe = recipe_for(
            RewardRequest(prompt=request.prompt, env_id=request.env_id, criteria=request.criteria)
        )
    ours = render(recipe) == code
    if not any(term.weight > 0 for term in recipe.terms):
        recipe = recipe.model_copy(update={"terms": (_BONUS,)})
    return Base(iteration, code, recipe, ours)


def _plans(
    case: Case, base: Base, followed: Followed, *, varied_only: bool
) -> Iterator[tuple[str, Plan]]:
    """All that could be done, each with its rule, in the order in which to try it.

    Rules that have not helped so far come later, those that have failed most last.
    """
    # Somebody else's code is left alone as long as can be.
    starts = [Plan(None)] if base.code and not base.ours and not followed.changes else []
    starts = [_obedient(case, plan) for plan in (*starts, Plan(followed.recipe))]
    if followed.longer:
        starts[-1] = case.longer(starts[-1])
    plans: list[tuple[str, Plan]] = []
    for start in starts if not varied_only else []:
        if followed.changes:
            yield "remarks", start
        elif start.recipe is not None and not base.ours:
            plans.append(("rewrite", start))
        for rule in RULES:
            for changes in rule.changes if rule.when(case) else ():
                plan = start
                for change in changes:
                    plan = change(case, plan)
                if plan != start:
                    plans.append((rule.name, plan))
    failures = {name: case.failures(name) for name in REASONS}
    plans.sort(key=lambda plan: failures[plan[0]])
    yield from (plan for plan in plans if failures[plan[0]] <= failures[VARY])
    yield from ((VARY, plan) for plan in variations(case, starts[-1]) if plan != starts[-1])
    yield from (plan for plan in plans if failures[plan[0]] > failures[VARY])


def _obedient(case: Case, plan: Plan) -> Plan:
    """With what HARD lessons ask of any proposal."""
    for lesson in case.request.lessons:
        check = lesson.check
        if lesson.tier != "HARD" or check is None:
            continue
        if check.kind == "term_forbidden":
            plan = plan.keep(lambda term, name=check.name: term.name != name)  # type: ignore[misc]
        elif check.value is not None and violations([lesson], "", case.settings):
            whole = isinstance(case.settings.get(check.name), int)
            plan = case.set(plan, check.name, int(check.value) if whole else check.value)
    return plan


def _untried(case: Case, base: Base, plans: Iterator[tuple[str, Plan]]) -> Iterator[Candidate]:
    """Those that differ from each other and from every iteration of the history."""
    request = case.request
    tried = [(past.reward_digest, case.settings_of(past.iteration)) for past in request.history]
    fixed = set(request.fixed)
    for rule, plan in plans:
        code = base.code if plan.recipe is None else render(plan.recipe)
        settings = {**case.settings, **plan.settings}
        proposed = (reward_digest(code)[:SHORT_DIGEST], settings)
        if proposed not in tried:
            tried.append(proposed)
            free = {name: value for name, value in settings.items() if name not in fixed}
            broken = (n for n, one in enumerate(request.lessons) if violations([one], code, free))
            yield Candidate(rule, plan, code, tuple(broken))


def _chosen(candidates: Iterator[Candidate], skipped: int) -> Candidate:
    """The first after the skipped that keeps to HARD lessons; where none does, any."""
    looked_at: list[Candidate] = []
    lawful: list[Candidate] = []
    for candidate in islice(candidates, _ENOUGH):
        looked_at.append(candidate)
        lawful += [] if candidate.broken_lessons else [candidate]
        if len(lawful) > skipped:
            break
    return (lawful or looked_at[: skipped + 1])[-1]


# --- in words -------------------------------------------------------------------------------------


def _in_words(case: Case, chosen: Candidate, followed: Followed) -> str:
    """What is changed and why."""
    back = case.based_on != case.request.iteration
    edits, settings = ", ".join(chosen.plan.edits), chosen.plan.settings
    why = REASONS[chosen.rule]
    return "; ".join(
        (
            *([f"back to iteration {case.based_on}"] if back else []),
            *(f"{name} {case.settings[name]} to {value}" for name, value in settings.items()),
            f"{why}: {edits}" if edits else why,
            *followed.changes,
        )
    )


def _diagnosis(case: Case) -> str:
    request = case.request
    if request.training_error:
        problem = "Nothing could be trained" if case.broken else "Nobody could judge it"
        return f"{problem}: {request.training_error}"
    if not case.unmet:
        return request.diagnosis or "Every criterion is met."
    titles = {criterion.id: criterion.title for criterion in request.criteria}
    parts = [f"{titles.get(score.id, score.id)} {score.score:.2f}" for score in case.unmet[:4]]
    text = f"Below {request.pass_threshold:g}: {', '.join(parts)}."
    if request.still_improving:
        text += " The return was still rising."
    return text


def _lesson(case: Case) -> str:
    """What the change that led here did, against the iteration it was made to."""
    here = case.past.get(case.request.iteration)
    gain = case.gain(here) if here else None
    if here is None or here.score is None or gain is None or not here.changes:
        return ""
    verdict = "helped" if gain > WORSE else "hurt" if gain < -WORSE else "changed little"
    return f"{here.changes[:350]}: {verdict} ({here.score - gain:.2f} to {here.score:.2f})"
