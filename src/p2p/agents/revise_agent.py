"""What the next iteration does differently: asked of a model, and held to what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from p2p.agents.requests import (
    LessonUpdate,
    PastIteration,
    ReviseRequest,
    RevisionProposal,
    TermStatistics,
)
from p2p.agents.revise_tool_dispatch import (
    SessionTools,
    episode_files,
    history,
    lesson_update_problem,
    round_digits,
    tunable_settings,
)
from p2p.agents.reward_author import access
from p2p.agents.reward_source import SHORT_DIGEST, find_breaches, reward_digest
from p2p.agents.screening import describe_gradients
from p2p.agents.visual_judge import MOTION_TRAIL, film
from p2p.analysis.trajectory_metrics import analyze_trajectory
from p2p.config import TUNABLE_BOUNDS, TrainConfig
from p2p.contracts import (
    ROLLOUT_LABELS,
    CriterionScore,
    JudgmentResult,
    Lesson,
    LineageNode,
    Revision,
    RolloutJudgment,
)
from p2p.inference.llm_client import LLMClient
from p2p.inference.providers import PROVIDERS, choose_model
from p2p.inference.question import AskAgain, InferenceError, Media, RequestRejected
from p2p.inference.vlm import frames_of
from p2p.prompts import all_facts, question
from p2p.records.formatting import criterion_results
from p2p.records.lineage import Lineage
from p2p.records.session_view import IterationView, RunView, SessionView
from p2p.training.env_spec import spec_for
from p2p.training.trajectory import Column, RecordedEpisode, TrajectoryFileError
from p2p.utils.utils import parse_python

MAX_TOOL_CALLS = 24
STAGNATION = 3
"""So many judged iterations without a new best one are a plateau."""
_MOST_POINTS = 16
_FEWEST_EPISODES = 6
"""For a correlation."""
_CORRELATED = 0.5
"""Weaker ones are not told."""
_NEVER_RUN = "no run was trained"


def revise(client: LLMClient, view: SessionView, iteration: int) -> Revision:
    """Return what to train after this iteration, whose node stands in the lineage already.

    A proposal that was tried before, is based on nothing, breaks a HARD lesson that code can check,
    passes over the person's remarks or sets a hyperparameter out of its range goes back to the
    model; those that the person has fixed stay, with a note. A model that sees is shown frames.
    Raises an InferenceError, and ValueError where there is nothing to revise.
    """
    request = revise_request(view, iteration)
    tools = SessionTools(view, iteration)

    def assess(proposal: RevisionProposal) -> Assessment:
        return assess_proposal(view, iteration, proposal, tools.updates.values())

    def check(proposal: RevisionProposal) -> None:
        if problems := assess(proposal).problems:
            raise AskAgain("\n".join(problems))

    asked = question(
        "revise_agent",
        request,
        RevisionProposal,
        {"environment": environment_facts(view.iterations[iteration].config)},
        media=pictures_of(view, iteration, client.model),
        tools=tools.all(),
        max_tool_calls=MAX_TOOL_CALLS,
        check=check,
    )
    try:
        answer = client.ask(asked)
    except RequestRejected:
        if isinstance(asked.prompt, str):
            raise
        # Of the parts, the first is the text: a model that takes no pictures can do without.
        answer = client.ask(replace(asked, prompt=asked.prompt[:1]))
    proposal, outcome = answer.value, assess(answer.value)
    return Revision(
        based_on=proposal.based_on,
        diagnosis=proposal.diagnosis,
        lesson=outcome.lesson,
        changes=proposal.changes,
        rule=proposal.rule,
        reward_code=proposal.reward_code,
        hp_changes=outcome.hp_changes,
        warm_start=proposal.warm_start,
        lessons=outcome.lessons,
        remarks_taken_up=proposal.remarks_taken_up,
        notes=outcome.notes,
        author=answer.model,
    )


def environment_facts(config: TrainConfig) -> str:
    """Describe the environment and what a reward can read of it."""
    facts = all_facts(spec_for(config))
    return f"{facts}\n\n{access(side_info=config.side_info)}"


def revise_request(view: SessionView, iteration: int) -> ReviseRequest:
    """The request after an iteration, whose node stands in the lineage already.

    Raises ValueError where the session has no criteria, or the iteration or its node are missing.
    """
    intent, current = view.intent, view.iterations.get(iteration)
    lineage = view.lineage
    node, best = lineage.node(iteration), lineage.best
    if intent is None or current is None or node is None:
        missing = "criteria" if intent is None else f"iteration {iteration} in its lineage"
        raise ValueError(f"the session has no {missing}: there is nothing to revise")
    judgment = current.judgment or JudgmentResult(intent_score=None)
    run, elsewhere = current.best_run, best is not None and best.iteration != iteration
    best_view = view.iterations.get(best.iteration) if best and elsewhere else None
    fixed = fixed_hyperparameters(view)
    return ReviseRequest(
        prompt=intent.prompt,
        env_id=intent.env_id,
        criteria=intent.criteria,
        iteration=iteration,
        best_iteration=best.iteration if best else None,
        reward_code=current.reward_code,
        best_reward_code=best_view.reward_code if best_view else "",
        score=node.score,
        pass_threshold=view.loop.pass_threshold,
        criterion_scores=tuple(map(_shorten_score, judgment.criteria)),
        unmet=tuple(
            each.id
            for each in criterion_results(view, current)
            if each.met is False and not each.soft_reason
        ),
        failure_tags=judgment.failure_tags,
        diagnosis=judgment.diagnosis[:4000],
        judged=_describe_checkpoint(run, judgment),
        dynamics=run.dynamics().text() if run else _NEVER_RUN,
        terms=term_statistics(run, judgment.step) if run else (),
        screening=describe_gradients(current.reward.gradients) if current.reward else "",
        learning_curve=_thin_curve(run.curve) if run else (),
        training_curve=_thin_curve(run.training_curve) if run else (),
        still_improving=_still_improving(run),
        hyperparameters=tunable_settings(current.config),
        bounds={
            name: TUNABLE_BOUNDS[name]
            for name in current.config.tunable
            if name in TUNABLE_BOUNDS and name not in fixed
        },
        fixed=fixed,
        history=_history(view, current.config),
        lessons=lineage.active_lessons,
        remarks=view.remarks,
        stagnation=_stagnation(best, lineage.since_best),
        trained=not current.error,
        training_error=_training_error(node, current, judgment),
    )


def _history(view: SessionView, config: TrainConfig) -> tuple[PastIteration, ...]:
    """The iterations so far, with hyperparameters where they differ from this configuration."""
    here = tunable_settings(config)

    def add_details(past: PastIteration) -> PastIteration:
        iteration, node = view.iterations.get(past.iteration), view.lineage.node(past.iteration)
        code = iteration.reward_code if iteration else ""
        settings = tunable_settings(iteration.config) if iteration else {}
        details = {
            "rule": node.rule if node else "",
            "reward_digest": reward_digest(code)[:SHORT_DIGEST] if code else "",
            "hyperparameters": {n: v for n, v in settings.items() if v != here[n]},
        }
        return past.model_copy(update=details)

    return tuple(map(add_details, history(view)))


def _still_improving(run: RunView | None) -> bool | None:
    states = {"rising": True, "plateau": False, "falling": False}
    return states.get(run.dynamics().returns.state) if run else None


def _thin_curve(curve: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Evenly, with the first, the last and the highest point; four digits of each."""
    if len(curve) > _MOST_POINTS:
        last = len(curve) - 1
        places = {round(i * last / (_MOST_POINTS - 2)) for i in range(_MOST_POINTS - 1)}
        places.add(max(range(len(curve)), key=lambda place: curve[place][1]))
        curve = tuple(curve[place] for place in sorted(places))
    return tuple((step, round_digits(value)) for step, value in curve)


def _shorten_score(score: CriterionScore) -> CriterionScore:
    """Shorten a score to the digits that matter."""
    numbers = {"score": score.score, "std": score.std, "value": score.value}
    update = {name: value and round_digits(value) for name, value in numbers.items()}
    return score.model_copy(update=update)


def _describe_checkpoint(run: RunView | None, judgment: JudgmentResult) -> str:
    if run is None or judgment.step is None:
        return ""
    parts = (
        f"{run.run_id}, checkpoint at step {judgment.step}, deterministic actions",
        describe_lengths(run),
    )
    return "; ".join(filter(None, parts))


def term_statistics(run: RunView, step: int | None) -> tuple[TermStatistics, ...]:
    """The reward's terms in the episodes that the judged checkpoint's evaluation recorded.

    Correlations are over the recorded episodes of all checkpoints that were judged while training
    went on: too few, or a criterion that never changes, and there is none.
    """
    recorded = {label: _terms(run, step, label) for label in ROLLOUT_LABELS}
    episodes = [terms for terms in recorded.values() if terms]
    if not episodes:
        return tuple(
            TermStatistics(
                name=name, mean=round_digits(mean), share=round(run.term_shares[name], 3)
            )
            for name, mean in run.term_means.items()
        )
    series = {name: np.concatenate([each[name] for each in episodes]) for name in episodes[0]}
    correlations = _correlations(run)
    return tuple(
        TermStatistics(
            name=name,
            mean=round_digits(each.mean or 0.0),
            share=round(each.fraction_of_total or 0.0, 3),
            low=round_digits(float(np.nanmin(series[name]))),
            high=round_digits(float(np.nanmax(series[name]))),
            correlations=correlations.get(name, {}),
        )
        for name, each in analyze_trajectory(series).terms.items()
        if each.mean is not None
    )


def _terms(run: RunView, step: int | None, label: str) -> dict[str, Column]:
    if step is None:
        return {}
    try:
        return dict(RecordedEpisode.load(run.record.trajectory_file(step, label)).reward_terms)
    except (OSError, TrajectoryFileError):
        return {}  # not every evaluation leaves one


def _correlations(run: RunView) -> dict[str, dict[str, float]]:
    """Return the clear correlations by term, then by criterion."""
    means: dict[str, list[float]] = {}
    values: dict[str, list[float]] = {}
    for step, judgment in run.record.read_streaming().items():
        for rollout in judgment.rollouts:
            terms = _terms(run, step, rollout.label)
            measured = {each.id: each.value for each in rollout.criteria if each.value is not None}
            for name, column in terms.items():
                means.setdefault(name, []).append(float(np.mean(column)))
            for name, value in measured.items() if terms else ():
                values.setdefault(name, []).append(value)
    return {
        term: {
            criterion: round(float(r), 2)
            for criterion, numbers in values.items()
            if len(numbers) == len(column) >= _FEWEST_EPISODES
            and np.std(numbers) > 0 < np.std(column)
            and abs(r := np.corrcoef(column, numbers)[0, 1]) >= _CORRELATED
        }
        for term, column in means.items()
    }


def _stagnation(best: LineageNode | None, since_best: int) -> str:
    if best is None or since_best < STAGNATION:
        return ""
    return (
        f"{since_best} judged iterations have come after the best one, {best.iteration}, and none "
        "was better. Small changes do not help any more: change the structure of the reward "
        "(other terms, another way to measure), not weights alone."
    )


def _training_error(node: LineageNode, iteration: IterationView, judgment: JudgmentResult) -> str:
    if node.score is not None:
        return ""
    judges = (f"the {judge} judge: {why}" for judge, why in judgment.unavailable.items())
    reason = iteration.error or "; ".join(judges) or node.diagnosis
    return reason[:2000] or "it was not judged, and nobody said why"


@dataclass(frozen=True)
class Assessment:
    """A proposal as it would be carried out."""

    problems: tuple[str, ...]
    """Why it will not do; empty if it will."""
    hp_changes: dict[str, Any]
    """Those that are allowed, within their bounds."""
    lesson: str
    lessons: tuple[Lesson, ...]
    """All lessons afterwards, the retired among them."""
    notes: tuple[str, ...]
    """What of it was not taken over, and why."""


def assess_proposal(
    view: SessionView,
    iteration: int,
    proposal: RevisionProposal,
    updates: Iterable[LessonUpdate] = (),
) -> Assessment:
    """Hold a proposal after this iteration against the session.

    Args:
        view: the session.
        iteration: the one that was just judged.
        proposal: what the model wants.
        updates: to lessons, noted on the way; those of the proposal come after them.
    """
    iterations = view.iterations
    base = iterations.get(proposal.based_on)
    lineage, notes = _update_lessons(view.lineage, [*updates, *proposal.lesson_updates])
    taught, lesson = _learn_lesson(lineage, iteration, proposal, notes)
    problems = [*_code_problems(proposal.reward_code), *_remark_problems(view, proposal)]
    changes: dict[str, Any] = {}
    if base is None or not base.reward_code:
        usable = [number for number, each in iterations.items() if each.reward_code]
        problems.append(
            f"based_on={proposal.based_on}: there is no such iteration with reward code; "
            f"there are {', '.join(map(str, usable[-50:]))}"
        )
    else:
        before = tunable_settings(base.config)
        fixed = fixed_hyperparameters(view)
        free = {name: value for name, value in proposal.hp_changes.items() if name not in fixed}
        problems += base.config.tuning_problems(free)
        after = tunable_settings(
            _apply_changes(view, base.config, proposal.hp_changes, fixed, notes)
        )
        changes = {name: value for name, value in after.items() if value != before[name]}
        digest = reward_digest(proposal.reward_code)
        alike = [
            number
            for number, each in iterations.items()
            if tunable_settings(each.config) == after and reward_digest(each.reward_code) == digest
        ]
        if alike and not proposal.warm_start:  # a policy that is trained on is another one
            same = f"iteration {alike[0]} had the same reward and hyperparameters"
            problems.append("; ".join([same, *notes]))
        movable = {name: value for name, value in after.items() if name not in fixed}
        problems += find_breaches(lineage.active_lessons, proposal.reward_code, movable)
    return Assessment(tuple(problems), changes, lesson, taught.data.lessons, tuple(notes))


def fixed_hyperparameters(view: SessionView) -> tuple[str, ...]:
    """Return the hyperparameters that no revision may change."""
    tunable = view.loop.train.tunable
    return tuple(n for n in tunable if n in view.fixed) if view.loop.hp_tuning else tunable


def _apply_changes(
    view: SessionView,
    base: TrainConfig,
    asked: dict[str, Any],
    fixed: tuple[str, ...],
    notes: list[str],
) -> TrainConfig:
    """Apply the permitted changes to the configuration."""
    why = "the user has set it" if view.loop.hp_tuning else "hyperparameters are not to be tuned"
    notes += [f"{n} stays at {getattr(base, n)}: {why}" for n in asked if n in fixed]
    free = {name: value for name, value in asked.items() if name not in fixed}
    config, refused = base.apply_updates(free)
    if moved := [name for name in fixed if getattr(config, name) != getattr(base, name)]:
        # Only the size of a batch has another value follow: the number of minibatches.
        notes.append(f"num_steps stays at {base.num_steps}: it would move {', '.join(moved)}")
        config, refused = base.apply_updates({n: v for n, v in free.items() if n != "num_steps"})
    notes += refused
    return config


def _update_lessons(lineage: Lineage, updates: Iterable[LessonUpdate]) -> tuple[Lineage, list[str]]:
    """The lessons with other tiers; the last word on each counts."""
    lessons, notes = lineage.active_lessons, []
    last = {update.index: update for update in updates}
    # From the end, because a retired lesson moves the numbers of those behind it.
    for index in sorted(last, reverse=True):
        update = last[index]
        if problem := lesson_update_problem(update, len(lessons)):
            notes.append(problem)
            continue
        change = {"tier": update.tier, "reason": update.reason}
        check = update.check or lessons[index].check
        changed = Lesson.model_validate({**lessons[index].model_dump(), **change, "check": check})
        lineage = lineage.replace_lesson(index, changed)
    return lineage, notes


def _learn_lesson(
    lineage: Lineage, iteration: int, proposal: RevisionProposal, notes: list[str]
) -> tuple[Lineage, str]:
    """Add the new lesson, unless the iteration was not judged."""
    text = " ".join(proposal.lesson.split())[:500]
    node = lineage.node(iteration)
    if not text:
        return lineage, ""
    if node is None or node.score is None:
        notes.append(f"no lesson from iteration {iteration}: it was not judged")
        return lineage, ""
    lesson = Lesson(text=text, learned_at=iteration, check=proposal.lesson_check)
    return lineage.learn(lesson), text


def _code_problems(code: str) -> list[str]:
    """Return why nothing could be trained with it; the author's own checks go deeper."""
    if not code.strip():
        return ["reward_code is empty; give the whole file, also where it stays as it was"]
    try:
        parse_python(code)
    except SyntaxError as error:
        return [f"reward_code, line {error.lineno}: {error.msg}"]
    except (ValueError, RecursionError, MemoryError) as error:
        return [f"reward_code cannot be parsed: {error}"]
    return []


def _remark_problems(view: SessionView, proposal: RevisionProposal) -> list[str]:
    if not view.remarks or proposal.remarks_taken_up.strip():
        return []
    remarks = "; ".join(view.remarks)
    return [f"remarks_taken_up is empty: follow what the person said, and say how ({remarks})"]


FRAMES = 6


def describe_lengths(run: RunView) -> str:
    """Return how long the judged episodes are, and how many ended before their time."""
    labels = {each.label for each in run.judgment.rollouts} if run.judgment else set()
    episodes = []
    for label, file in episode_files(run).items():
        if label in labels:
            with suppress(OSError, TrajectoryFileError):  # files of old runs may be gone
                episodes.append(RecordedEpisode.load(file))
    if not episodes:
        return ""
    lengths = sorted(int(each["step"][-1]) + 1 for each in episodes)
    early = sum(bool(each["terminated"][-1]) for each in episodes)
    middle = lengths[len(lengths) // 2]
    return (
        f"{len(lengths)} episodes of {lengths[0]} to {lengths[-1]} steps (median {middle}), "
        f"{early} of them ended early by the environment"
    )


def middle_rollout(run: RunView) -> RolloutJudgment | None:
    """The judged episode with the median score."""
    rollouts = run.judgment.rollouts if run.judgment else ()
    judged = (each for each in rollouts if each.score is not None)
    order = sorted(judged, key=lambda each: each.score or 0.0)
    return order[len(order) // 2] if order else None


# --- frames ---------------------------------------------------------------------------------------


def takes_pictures(model: str, vlm: str) -> bool:
    """Return whether a model accepts images, by its provider or because it judges videos."""
    provider = model.partition(":")[0]
    if provider in PROVIDERS and PROVIDERS[provider].sees:
        return True
    try:
        return bool(vlm) and choose_model(vlm) == model
    except InferenceError:
        return False


def pictures_of(view: SessionView, iteration: int, model: str) -> tuple[str | Media, ...]:
    """The median judged episode for a model that sees: all poses at once, then some frames."""
    run = view.iterations[iteration].best_run
    rollout = middle_rollout(run) if run else None
    if run is None or rollout is None or not takes_pictures(model, view.loop.vlm_model):
        return ()
    file = episode_files(run).get(rollout.label)
    if file is None or not view.loop.videos:
        return ()
    [drawn] = film(view.env_id, [file], (), motion_trail=True)
    if drawn.problem:
        return ()
    try:
        frames = frames_of(drawn.frames)
    except RequestRejected:
        return ()
    times = [time for group in drawn.groups for time in group.times]
    chosen = sorted({round(i * (len(frames) - 1) / (FRAMES - 1)) for i in range(FRAMES)})
    parts: list[str | Media] = [f"Episode {rollout.label} of the judged checkpoint:"]
    if drawn.motion_trail:
        parts += [MOTION_TRAIL, Media(drawn.motion_trail.read_bytes(), "image/png")]
    for place in sorted(chosen, key=times.__getitem__):
        parts += [f"At {times[place]:.2f} s:", Media(frames[place], "image/jpeg")]
    return tuple(parts)
