"""What to change after an iteration, by rule: weights, terms, steps, hyperparameters.

`RULES` says what to try for which symptom. Of all tries, the first is taken that is new and breaks
no lesson; when it comes back, the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice
from typing import Any, NamedTuple

from p2p.agents.builtin.measures import read_measure
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.builtin.remarks import Followed, follow
from p2p.agents.builtin.reward import Recipe, Term, read_recipe, recipe_for, render
from p2p.agents.requests import (
    LessonUpdate,
    PastIteration,
    ReviseRequest,
    RevisionProposal,
    RewardRequest,
)
from p2p.agents.reward_source import SHORT_DIGEST, find_breaches, reward_digest
from p2p.contracts import CriterionScore
from p2p.records.formatting import format_score

HEAVIEST, LIGHTEST = 10.0, 0.005
LONGEST = 4_000_000
"""Steps; a person may ask for more, a rule does not."""
MOST_TIMES_LONGER = 4
"""Than the first iteration."""
WORSE = 0.02
"""By so much a score must be below the best to go back to that one."""
STAYING_UP = ("tilt", "pole_tilt", "height")
"""What an agent that falls loses."""
_SURE = 2
"""After so many refusals, only weights that cannot have been there are proposed."""
_NUDGE, _STRIDE, _DISTANCES, _ENOUGH = 0.02, 0.25, 12, 60
_BONUS = Term(name="alive", quantity="", shape="alive", weight=1.0)


@dataclass(frozen=True)
class Plan:
    """A proposal in the making."""

    recipe: Recipe | None
    """None: the code is somebody else's, and stays."""
    edits: tuple[str, ...] = ()
    """What is done to the recipe, in words."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """Hyperparameters with their new values."""

    def weigh(self, factor: float, chosen: Callable[[Term], bool]) -> Plan:
        """Multiply the weights of some terms, within bounds; by 0: remove them, but never all."""
        if self.recipe is None:
            return self
        edits: list[str] = []
        kept: list[Term] = []
        for term in self.recipe.terms:
            weight = float(f"{term.weight * factor:.4g}")
            if chosen(term) and not factor:
                edits.append(f"without {term.name}")
            elif chosen(term) and factor != 1 and LIGHTEST <= weight <= HEAVIEST:
                edits.append(f"{term.name} {term.weight:g} to {weight:g}")
                kept.append(term.model_copy(update={"weight": weight}))
            else:
                kept.append(term)
        if not edits or not kept or (recipe := self.recipe.with_terms(kept)) == self.recipe:
            return self
        return replace(self, recipe=recipe, edits=(*self.edits, *edits))


@dataclass(frozen=True)
class RevisionCase:
    """One request, what of it is changed, and what the rules ask of it."""

    request: ReviseRequest
    based_on: int
    """The iteration to change."""
    code: str
    recipe: Recipe
    ours: bool
    """Whether the recipe says all of the code; else the code is somebody else's."""

    @cached_property
    def unmet(self) -> tuple[CriterionScore, ...]:
        """Criteria below the threshold, the worst first."""
        limit = self.request.pass_threshold
        scores = self.request.criterion_scores
        below = [s for s in scores if s.score is not None and s.score < limit]
        return tuple(sorted(below, key=lambda s: s.score or 0.0))

    @cached_property
    def unmet_ids(self) -> frozenset[str]:
        return frozenset(score.id for score in self.unmet)

    @cached_property
    def task_ids(self) -> frozenset[str]:
        """Of the criteria that are what was asked for; the others say how."""
        return frozenset(c.id for c in self.request.criteria if c.category == "task")

    @property
    def first_term(self) -> str:
        """The name of the first that is not the bonus for lasting, if there is one."""
        return next((t.name for t in self.recipe.terms if t.shape != "alive"), "alive")

    @property
    def cannot_stay_up(self) -> bool:
        """Whether a criterion about staying up is not met; a fall now and then is no reason."""
        quantities = quantities_of(self.request.env_id)
        unmet = (c.measure for c in self.request.criteria if c.id in self.unmet_ids)
        measures = (read_measure(text, quantities) for text in unmet)
        return any(m and (not m.quantity or m.quantity in STAYING_UP) for m in measures)

    def has_tag(self, *tags: str) -> bool:
        return not set(tags).isdisjoint(self.request.failure_tags)

    @property
    def learns_from_past_steps(self) -> bool:
        """As SAC does, not PPO."""
        return "replay_batch_size" in self.settings

    @property
    def is_rising(self) -> bool:
        """Whether it was judged while it was still getting better."""
        return bool(self.request.still_improving) and self.request.score is not None

    @property
    def curve_fell(self) -> bool:
        """The return went down after its peak."""
        curve = [value for _, value in self.request.learning_curve]
        return len(curve) > 2 and max(curve) - curve[-1] > 0.3 * (max(curve) - min(curve))

    # --- history ----------------------------------------------------------------------------------

    @cached_property
    def past(self) -> dict[int, PastIteration]:
        return {past.iteration: past for past in self.request.history}

    def settings_of(self, iteration: int) -> dict[str, Any]:
        past = self.past.get(iteration)
        return {**self.request.hyperparameters, **(past.hyperparameters if past else {})}

    @cached_property
    def settings(self) -> dict[str, Any]:
        return self.settings_of(self.based_on)

    def first(self, name: str) -> float:
        """A hyperparameter of the oldest ancestor; nan where that is no number."""
        iteration = self.request.iteration
        while (past := self.past.get(iteration)) and past.parent in self.past:
            iteration = past.parent
        value = self.settings_of(iteration).get(name)
        return value if isinstance(value, int | float) else float("nan")

    def failures(self, rule: str) -> int:
        """Return how often a change by this rule did not help."""
        gains = (self.gain(past) for past in self.past.values() if past.rule == rule)
        return sum(gain is not None and gain <= WORSE for gain in gains)

    def gain(self, past: PastIteration) -> float | None:
        """Against the iteration it was made from; None where one of them has no score."""
        before = self.past.get(past.parent) if past.parent is not None else None
        if before is None or before.score is None or past.score is None:
            return None
        return past.score - before.score

    def set(self, plan: Plan, name: str, value: float) -> Plan:
        """Change a hyperparameter, unless it is not to be touched."""
        if name in self.request.fixed or self.settings.get(name) in (None, value):
            return plan
        return replace(plan, settings={**plan.settings, name: value})


# --- symptoms and what to try ---------------------------------------------------------------------


def _serves(term: Term, ids: frozenset[str]) -> bool:
    return not ids.isdisjoint(term.criteria)


_GROUPS: Mapping[str, Callable[[RevisionCase, Term], bool]] = {
    "all": lambda *_: True,
    "first": lambda case, term: term.name == case.first_term,
    "costs": lambda _, term: term.is_cost,
    "unmet": lambda case, term: _serves(term, case.unmet_ids),
    "unmet task": lambda case, term: _serves(term, case.unmet_ids & case.task_ids),
    "style": lambda case, term: term.shape != "alive" and not _serves(term, case.task_ids),
    "staying up": lambda _, term: term.shape == "alive" or term.quantity in STAYING_UP,
}


class Setting(NamedTuple):
    """A hyperparameter, while its value may still be changed, and to what."""

    name: str
    while_: Callable[[RevisionCase, float], bool]
    new: Callable[[RevisionCase, float], float]


def _most_steps(case: RevisionCase) -> float:
    return min(LONGEST, MOST_TIMES_LONGER * case.first("total_timesteps"))


_LONGER = Setting(
    "total_timesteps",
    lambda case, steps: bool(case.request.still_improving) and steps < _most_steps(case),
    lambda case, steps: int(min(2 * steps, _most_steps(case))),
)
_FARTHER_SIGHT = Setting("gamma", lambda _, g: g < 0.995, lambda _, g: round(1 - (1 - g) / 2, 5))
_WIDER_TRIES = Setting("log_std_init", lambda _, std: std < 0, lambda _, std: min(0.0, std + 0.5))
_ENTROPY = Setting("ent_coef", lambda _, coefficient: coefficient == 0, lambda *_: 0.003)
_SLOWER_LEARNING = Setting(  # once: below half of the first rate, little is learnt at all
    "learning_rate",
    lambda case, rate: rate >= case.first("learning_rate"),
    lambda _, rate: rate / 2,
)


class Try(NamedTuple):
    """Change these weights by a factor (0: do without these terms), and these settings."""

    terms: str = "all"
    """A group, or the name of a term."""
    factor: float = 1.0
    settings: tuple[Setting, ...] = ()

    def apply_to(self, case: RevisionCase, plan: Plan) -> Plan:
        """Return the changed plan, or the plan itself if there is nothing to change."""
        group = _GROUPS.get(self.terms)
        plan = plan.weigh(
            self.factor,
            lambda term: group(case, term) if group else term.name == self.terms,
        )
        for name, while_, new in self.settings:
            value = case.settings.get(name)
            if isinstance(value, int | float) and while_(case, value):
                plan = case.set(plan, name, new(case, value))
        return plan


def _steps_away(size: float) -> Iterator[float]:
    """Factors ever farther from 1, to both sides in turn."""
    for number in count(1):
        yield from (1 + number * size, 1 / (1 + number * size))


def _vary_clip(factor: float) -> Try:
    """Return the smallest change that trains differently: of foreign code, the clip bound."""
    clip = Setting(
        "obs_clip", lambda case, _: not case.ours, lambda _, clip: float(f"{clip * factor:.4g}")
    )
    return Try("first", factor, (clip,))


class Rule(NamedTuple):
    name: str
    """As it stands in the lineage."""
    why: str
    when: Callable[[RevisionCase], bool]
    tries: tuple[Try, ...]
    """The most promising first."""


LONGER = "train_longer"
RULES: tuple[Rule, ...] = (
    Rule(
        "simplify",
        "a simpler reward: no run could be trained",
        lambda case: not case.request.trained,
        (Try("style", 0.0, (_SLOWER_LEARNING,)), Try("costs", 0.5, (_SLOWER_LEARNING,))),
    ),
    Rule(
        "repeat",
        "the same again: no judge could score it",
        lambda case: case.request.trained and case.request.score is None,
        tuple(_vary_clip(factor) for factor in islice(_steps_away(_NUDGE), _DISTANCES)),
    ),
    Rule(
        LONGER,
        "train the same policy longer: the return was still rising",
        # With another reward it could not continue where it stands.
        lambda case: case.is_rising and case.learns_from_past_steps,
        (Try(settings=(_LONGER,)),),
    ),
    Rule(
        "stay_up",
        "weigh staying up more: it fell",
        lambda case: case.has_tag("fell", "early_end", "unstable") and case.cannot_stay_up,
        (Try("staying up", 2.0, (_FARTHER_SIGHT, _LONGER)), Try("staying up", 3.0)),
    ),
    Rule(
        "explore",
        "explore more, lower penalties: it barely moved",
        lambda case: case.has_tag("no_motion", "wrong_direction"),
        (Try("costs", 0.5, (_WIDER_TRIES, _LONGER)), Try("costs", 0.25, (_ENTROPY, _LONGER))),
    ),
    Rule(
        LONGER,
        "train the same policy longer: the return was still rising",
        lambda case: case.is_rising,
        (Try("unmet task", 1.5, (_LONGER,)), Try(settings=(_LONGER,))),
    ),
    Rule(
        "learn_slower",
        "learn more slowly: the return fell after its peak",
        lambda case: case.curve_fell and case.request.score is not None,
        (Try(settings=(_SLOWER_LEARNING,)),),
    ),
    Rule(
        "task",
        "weigh the task more: it is missing",
        lambda case: bool(case.unmet_ids & case.task_ids),
        (Try("unmet task", 2.0, (_LONGER,)), Try("unmet task", 3.0), Try("unmet task", 1.5)),
    ),
    Rule(
        "style",
        "weigh the style more: only the task is met",
        lambda case: bool(case.unmet_ids) and not case.unmet_ids & case.task_ids,
        tuple(Try("unmet", factor) for factor in (2.5, 5.0, 1.6)),
    ),
    Rule(
        "explore_task",
        "explore more: the task is missing",
        lambda case: bool(case.unmet_ids & case.task_ids),
        (Try(settings=(_WIDER_TRIES,)), Try(settings=(_ENTROPY,))),
    ),
    Rule(
        "fewer_terms",
        "fewer terms: no change has helped for long",
        lambda case: bool(case.request.stagnation),
        (Try("style", 0.0),),
    ),
)
REWRITE = Rule(
    "rewrite",
    "the reward written anew from the criteria",
    lambda case: not case.ours,
    (Try(),),
)
VARY, REMARKS = "vary", "remarks"
REASONS = {
    **{rule.name: rule.why for rule in (REWRITE, *RULES)},
    VARY: "other weights: every rule has been tried",
    REMARKS: "as the user said",
}


# --- the proposal ---------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """A proposal that could be made."""

    rule: str
    plan: Plan
    code: str
    broken_lessons: tuple[int, ...]


def revise(request: ReviseRequest, refusals: int = 0) -> RevisionProposal:
    """The best proposal that is left after so many that would not do."""
    case = _make_case(request)
    followed = follow(request.remarks, case.recipe)
    plans = _plans(case, followed, varied_only=refusals >= _SURE)
    skipped = refusals - _SURE if refusals >= _SURE else refusals
    chosen = _choose_plan(_drop_tried(case, plans), skipped)
    unheeded = "the built-in author has no reward that keeps to it"
    return RevisionProposal(
        diagnosis=_diagnosis(case),
        lesson=_lesson(case),
        based_on=case.based_on,
        rule=chosen.rule,
        changes=_describe_change(case, chosen, followed),
        reward_code=chosen.code,
        hp_changes=dict(chosen.plan.settings),
        warm_start=chosen.rule == LONGER,
        lesson_updates=tuple(
            LessonUpdate(index=index, tier="STRONG", reason=unheeded)
            for index in chosen.broken_lessons
        ),
        remarks_taken_up=followed.answer,
    )


def _make_case(request: ReviseRequest) -> RevisionCase:
    """Return the case of this iteration, or of the best one if that is better."""
    past = {each.iteration: each for each in request.history}
    best, iteration, code = request.best_iteration, request.iteration, request.reward_code
    if request.score is not None:
        best_score = (past[best].score if best in past else None) or 0.0
        fell = best_score > request.score + WORSE
    else:  # without a verdict it deserves a second chance, but not a third
        judged = max((n for n, each in past.items() if each.score is not None), default=0)
        fell = not request.trained or sum(number > judged for number in past) > 1
    if best not in (None, iteration) and request.best_reward_code and (fell or not code):
        iteration, code = best or iteration, request.best_reward_code
    elif not code and iteration in past:
        iteration = past[iteration].parent or iteration
    recipe = read_recipe(code)
    if recipe is None or recipe.env_id != request.env_id:
        recipe = recipe_for(
            RewardRequest(prompt=request.prompt, env_id=request.env_id, criteria=request.criteria)
        )
    ours = render(recipe) == code
    observe_time = request.hyperparameters.get("observe_time") is True
    recipe = recipe.model_copy(update={"observe_time": observe_time})
    if not any(term.weight > 0 for term in recipe.terms):
        recipe = recipe.model_copy(update={"terms": (_BONUS,)})
    return RevisionCase(request, iteration, code, recipe, ours)


def _plans(
    case: RevisionCase, followed: Followed, *, varied_only: bool
) -> Iterator[tuple[str, Plan]]:
    """Yield all possible plans with their rules, in the order to try them.

    Rules that have not helped so far come later, those that have failed most last.
    """
    start = _obey_lessons(case, Plan(followed.recipe))
    steps = case.settings.get("total_timesteps")
    if followed.longer and isinstance(steps, int | float) and steps < LONGEST:
        start = case.set(start, "total_timesteps", int(min(LONGEST, 2 * steps)))
    starts = [start]
    if case.code and not case.ours and not followed.changes:
        # Somebody else's code is left alone as long as can be.
        starts.insert(0, _obey_lessons(case, Plan(None)))
    tries = [
        (rule.name, base, attempt)
        for base in starts
        for rule in (REWRITE, *RULES)
        if rule.when(case) and (rule is not REWRITE or base.recipe is not None)
        for attempt in rule.tries
    ]
    tries += [(VARY, start, attempt) for attempt in _variations(case)]
    failures = {name: case.failures(name) for name in REASONS}
    tries.sort(key=lambda each: failures[each[0]])
    if followed.changes and not varied_only:
        yield REMARKS, start
    for name, base, attempt in tries:
        plan = attempt.apply_to(case, base)
        is_new = plan != base or (name == REWRITE.name and not followed.changes)
        if is_new and (name == VARY or not varied_only):
            yield name, plan


def _variations(case: RevisionCase) -> list[Try]:
    """Other weights, ever farther from these: something to try when every rule has been used."""
    groups = ["unmet" if case.unmet_ids else "all", "costs"]
    groups += [term.name for term in case.recipe.terms]
    used = sum(past.rule == VARY for past in case.past.values())
    factors = islice(_steps_away(_STRIDE), used, used + _DISTANCES)
    return [Try(group, factor) for factor in factors for group in groups]


def _obey_lessons(case: RevisionCase, plan: Plan) -> Plan:
    """Yield plans changed to what HARD lessons ask of any proposal."""
    for lesson in case.request.lessons:
        check = lesson.check
        if lesson.tier != "HARD" or check is None:
            continue
        if check.kind == "term_forbidden":
            plan = plan.weigh(0.0, lambda term, name=check.name: term.name == name)  # type: ignore[misc]
        elif check.value is not None and find_breaches([lesson], "", case.settings):
            whole = isinstance(case.settings.get(check.name), int)
            plan = case.set(plan, check.name, int(check.value) if whole else check.value)
    return plan


def _drop_tried(case: RevisionCase, plans: Iterator[tuple[str, Plan]]) -> Iterator[Candidate]:
    """Yield the plans that differ from each other and from every iteration of the history."""
    request = case.request
    tried = [(past.reward_digest, case.settings_of(past.iteration)) for past in request.history]
    fixed = set(request.fixed)
    for rule, plan in plans:
        code = case.code if plan.recipe is None else render(plan.recipe)
        settings = {**case.settings, **plan.settings}
        proposed = (reward_digest(code)[:SHORT_DIGEST], settings)
        if proposed not in tried:
            tried.append(proposed)
            free = {name: value for name, value in settings.items() if name not in fixed}
            broken = (
                n for n, one in enumerate(request.lessons) if find_breaches([one], code, free)
            )
            yield Candidate(rule, plan, code, tuple(broken))


def _choose_plan(candidates: Iterator[Candidate], skipped: int) -> Candidate:
    """Choose the first plan after the skipped that keeps HARD lessons, else any."""
    looked_at: list[Candidate] = []
    lawful: list[Candidate] = []
    for candidate in islice(candidates, _ENOUGH):
        looked_at.append(candidate)
        lawful += [] if candidate.broken_lessons else [candidate]
        if len(lawful) > skipped:
            break
    return (lawful or looked_at[: skipped + 1])[-1]


# --- in words -------------------------------------------------------------------------------------


def _describe_change(case: RevisionCase, chosen: Candidate, followed: Followed) -> str:
    """Describe what is changed and why."""
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


def _diagnosis(case: RevisionCase) -> str:
    request = case.request
    if request.training_error:
        problem = "No judge could score it" if request.trained else "No run could be trained"
        return f"{problem}: {request.training_error}"
    if not case.unmet:
        return request.diagnosis or "Every criterion is met."
    titles = {criterion.id: criterion.title for criterion in request.criteria}
    parts = [
        f"{titles.get(score.id, score.id)} {format_score(score.score)}" for score in case.unmet[:4]
    ]
    text = f"Below {request.pass_threshold:g}: {', '.join(parts)}."
    if request.still_improving:
        text += " The return was still rising."
    return text


def _lesson(case: RevisionCase) -> str:
    """Return what the change that led here did, against the iteration it was made to."""
    here = case.past.get(case.request.iteration)
    gain = case.gain(here) if here else None
    if here is None or here.score is None or gain is None or not here.changes:
        return ""
    verdict = "helped" if gain > WORSE else "hurt" if gain < -WORSE else "changed little"
    before, after = format_score(here.score - gain), format_score(here.score)
    return f"{here.changes[:350]}: {verdict} ({before} to {after})"
