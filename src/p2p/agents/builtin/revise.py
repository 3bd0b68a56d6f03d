"""What to change after an iteration, by rule: weights, terms, steps, hyperparameters.

All that could be changed is put in an order. The first proposal is taken that was not tried and
breaks no lesson; when it comes back, the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from p2p.agents.builtin.remarks import Heard, take_up
from p2p.agents.builtin.revise_case import WORSE, Case, Plan
from p2p.agents.builtin.revise_rules import RULES, VARIED, variations
from p2p.agents.builtin.reward import Recipe, Term, read_recipe, recipe_for, render
from p2p.agents.requests import LessonUpdate, ReviseRequest, RevisionProposal, RewardRequest
from p2p.agents.reward_source import reward_digest, term_names
from p2p.contracts import LessonCheck

ANEW = "the reward written anew from the criteria"
_REMARKED = "as the person said"
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

    why: str
    plan: Plan
    code: str
    changes: str


def revise(request: ReviseRequest, refusals: int = 0) -> RevisionProposal:
    """The best proposal that is left after so many that would not do."""
    base = _base(request)
    case = Case(request, base.iteration)
    recipe, heard = take_up(request, base.recipe)
    sure = refusals >= _SURE
    plans = _plans(case, base, recipe, heard, varied_only=sure)
    found = _lawful(case, _new(case, base, heard, plans), refusals - _SURE if sure else refusals)
    chosen = found[-1]
    unheeded = "the built-in author has no reward that keeps to it"
    return RevisionProposal(
        diagnosis=_diagnosis(case),
        lesson=_lesson(case),
        based_on=base.iteration,
        changes=chosen.changes,
        reward_code=chosen.code,
        hp_changes=dict(chosen.plan.settings),
        lesson_updates=tuple(
            LessonUpdate(index=index, tier="STRONG", reason=unheeded)
            for index in _broken_lessons(case, chosen)
        ),
        remarks_taken_up=heard.answer,
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
    ours = recipe is not None and recipe.env_id == request.env_id and render(recipe) == code
    if recipe is None or recipe.env_id != request.env_id:
        recipe = recipe_for(
            RewardRequest(prompt=request.prompt, env_id=request.env_id, criteria=request.criteria)
        )
    if not any(term.weight > 0 for term in recipe.terms):
        recipe = recipe.model_copy(update={"terms": (_BONUS,)})
    return Base(iteration, code, recipe, ours)


def _plans(
    case: Case, base: Base, recipe: Recipe, heard: Heard, *, varied_only: bool
) -> Iterator[tuple[str, Plan]]:
    """All that could be done, each with its reason, in the order in which to try it.

    Reasons that have not helped so far come later, those that have failed most last.
    """
    found: list[tuple[str, Plan]] = []
    starts = list(_starts(case, base, recipe, heard))
    varied = ((VARIED, plan) for plan in variations(case, starts[-1]) if plan != starts[-1])
    for start in starts if not varied_only else []:
        if heard.changes:
            yield _REMARKED, start
        elif start.recipe is not None and not base.ours:
            found.append((ANEW, start))
        found += [
            (rule.why, plan)
            for rule in RULES
            if rule.when(case)
            for change in rule.changes
            if (plan := change(case, start)) != start
        ]
    failures = {why: case.failures(why) for why in (VARIED, *(why for why, _ in found))}
    found.sort(key=lambda one: failures[one[0]])
    later = [one for one in found if failures[one[0]] > failures[VARIED]]
    yield from (one for one in found if one not in later)
    yield from varied
    yield from later


def _starts(case: Case, base: Base, recipe: Recipe, heard: Heard) -> Iterator[Plan]:
    """What every change is made to: somebody else's code is left alone as long as can be."""
    if not base.ours and base.code and not heard.changes:
        yield _obedient(case, Plan(None))
    plan = _obedient(case, Plan(recipe))
    yield case.longer(plan) if heard.longer else plan


def _obedient(case: Case, plan: Plan) -> Plan:
    """With what HARD lessons ask of any proposal."""
    for _, check in _checks(case):
        value = case.settings.get(check.name)
        if check.kind == "term_forbidden":
            plan = plan.keep(lambda term, name=check.name: term.name != name)  # type: ignore[misc]
        elif check.value is not None and _beyond(check, value):
            limit = int(check.value) if isinstance(value, int) else check.value
            plan = case.set(plan, check.name, limit)
    return plan


def _new(
    case: Case, base: Base, heard: Heard, plans: Iterator[tuple[str, Plan]]
) -> Iterator[Candidate]:
    """Those that differ from each other and from all that is known to have been tried."""
    request = case.request
    seen = [(reward_digest(request.reward_code), request.hyperparameters)]
    if request.best_iteration is not None and request.best_reward_code:
        best = Case(request, request.best_iteration)
        seen.append((reward_digest(request.best_reward_code), best.settings))
    for why, plan in plans:
        changes = _in_words(case, why, plan, heard)
        if case.tried(changes):
            continue
        code = base.code if plan.recipe is None else render(plan.recipe)
        known = (reward_digest(code), {**case.settings, **plan.settings})
        if known not in seen:
            seen.append(known)
            yield Candidate(why, plan, code, changes)


def _lawful(case: Case, candidates: Iterator[Candidate], skipped: int) -> list[Candidate]:
    """Those up to the wanted one that keep to HARD lessons; where none does, any."""
    looked_at: list[Candidate] = []
    lawful: list[Candidate] = []
    for one in islice(candidates, _ENOUGH):
        looked_at.append(one)
        lawful += [] if _broken_lessons(case, one) else [one]
        if len(lawful) > skipped:
            break
    return lawful or looked_at[: skipped + 1]


# --- lessons --------------------------------------------------------------------------------------


def _checks(case: Case) -> Iterator[tuple[int, LessonCheck]]:
    """Those of HARD lessons, which no proposal may break, with the lesson's place."""
    for index, lesson in enumerate(case.request.lessons):
        if lesson.tier == "HARD" and lesson.check is not None:
            yield index, lesson.check


def _broken_lessons(case: Case, candidate: Candidate) -> list[int]:
    names = term_names(candidate.code)
    settings = {**case.settings, **candidate.plan.settings}
    free = {name: value for name, value in settings.items() if name not in case.request.fixed}
    return [
        index
        for index, check in _checks(case)
        if (check.kind == "term_required" and check.name not in names)
        or (check.kind == "term_forbidden" and check.name in names)
        or (check.kind == "code_forbidden" and check.name and check.name in candidate.code)
        or _beyond(check, free.get(check.name))
    ]


def _beyond(check: LessonCheck, value: object) -> bool:
    if check.value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if check.kind == "hyperparameter_at_most":
        return value > check.value
    return check.kind == "hyperparameter_at_least" and value < check.value


# --- in words -------------------------------------------------------------------------------------


def _in_words(case: Case, why: str, plan: Plan, heard: Heard) -> str:
    """What is changed and why; settings first, because the history cuts off the end."""
    back = case.based_on != case.request.iteration
    edits = ", ".join(plan.edits)
    return "; ".join(
        (
            *([f"back to iteration {case.based_on}"] if back else []),
            *case.settings_text(plan),
            f"{why}: {edits}" if edits else why,
            *heard.changes,
        )
    )


def _diagnosis(case: Case) -> str:
    request = case.request
    if request.training_error:
        trained = "Nobody could judge it" if case.unjudged else "Nothing could be trained"
        return f"{trained}: {request.training_error}"
    if not case.unmet:
        return request.diagnosis or "Every criterion is met."
    titles = {c.id: c.title for c in request.criteria}
    parts = [f"{titles.get(s.id, s.id)} {s.score:.2f}" for s in case.unmet[:4]]
    text = f"Below {request.pass_threshold:g}: {', '.join(parts)}."
    if request.still_improving:
        text += " The return was still rising."
    return text


def _lesson(case: Case) -> str:
    """What the change that led here did, against the iteration it was made to."""
    here = case.past.get(case.request.iteration)
    before = case.past.get(here.parent) if here and here.parent is not None else None
    if here is None or before is None or not here.changes:
        return ""
    if here.score is None or before.score is None:
        return ""
    gain = here.score - before.score
    verdict = "helped" if gain > WORSE else "hurt" if gain < -WORSE else "changed little"
    return f"{here.changes[:350]}: {verdict} ({before.score:.2f} to {here.score:.2f})"
