"""What the next iteration does differently: asked of a model, and held to what is allowed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from p2p.agents.gradients import in_words
from p2p.agents.judged_episode import describe_lengths, pictures_of
from p2p.agents.requests import (
    PastIteration,
    ReviseRequest,
    RevisionProposal,
    TermStatistics,
)
from p2p.agents.revise_checks import Weighed, fixed_hyperparameters, weigh
from p2p.agents.revise_tool_dispatch import SessionTools
from p2p.agents.reward_author import access
from p2p.agents.reward_source import SHORT_DIGEST, reward_digest
from p2p.agents.session_text import history, rounded, tunables
from p2p.analysis.trajectory_metrics import analyze_trajectory
from p2p.config import TUNABLE_BOUNDS, TrainConfig
from p2p.contracts import (
    ROLLOUT_LABELS,
    CriterionScore,
    JudgmentResult,
    LineageNode,
    Revision,
)
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import AskAgain, RequestRejected
from p2p.prompts import question
from p2p.prompts.env_facts import all_facts
from p2p.records.session_view import IterationView, RunView, SessionView
from p2p.training.env_spec import spec_for
from p2p.training.trajectory import Column, RecordedEpisode, TrajectoryFileError

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
    """What to train after this iteration, whose node stands in the lineage already.

    A proposal that was tried before, is based on nothing, breaks a HARD lesson that code can check,
    passes over the person's remarks or sets a hyperparameter out of its range goes back to the
    model; those that the person has fixed stay, with a note. A model that sees is shown frames.
    Raises an InferenceError, and ValueError where there is nothing to revise.
    """
    request = revise_request(view, iteration)
    tools = SessionTools(view, iteration)

    def weighed(proposal: RevisionProposal) -> Weighed:
        return weigh(view, iteration, proposal, tools.updates.values())

    def check(proposal: RevisionProposal) -> None:
        if problems := weighed(proposal).problems:
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
    proposal, outcome = answer.value, weighed(answer.value)
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
    """The environment, and what of it a reward can reach."""
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
        criterion_scores=tuple(map(_brief, judgment.criteria)),
        failure_tags=judgment.failure_tags,
        diagnosis=judgment.diagnosis[:4000],
        judged=_judged(run, judgment),
        dynamics=run.dynamics().text() if run else _NEVER_RUN,
        terms=term_statistics(run, judgment.step) if run else (),
        screening=in_words(current.reward.gradients) if current.reward else "",
        learning_curve=_thinned(run.curve) if run else (),
        training_curve=_thinned(run.training_curve) if run else (),
        still_improving=_still_improving(run),
        hyperparameters=tunables(current.config),
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
    here = tunables(config)

    def tried(past: PastIteration) -> PastIteration:
        iteration, node = view.iterations.get(past.iteration), view.lineage.node(past.iteration)
        code = iteration.reward_code if iteration else ""
        settings = tunables(iteration.config) if iteration else {}
        details = {
            "rule": node.rule if node else "",
            "reward_digest": reward_digest(code)[:SHORT_DIGEST] if code else "",
            "hyperparameters": {n: v for n, v in settings.items() if v != here[n]},
        }
        return past.model_copy(update=details)

    return tuple(map(tried, history(view)))


def _still_improving(run: RunView | None) -> bool | None:
    states = {"rising": True, "plateau": False, "falling": False}
    return states.get(run.dynamics().returns.state) if run else None


def _thinned(curve: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Evenly, with the first, the last and the highest point; four digits of each."""
    if len(curve) > _MOST_POINTS:
        last = len(curve) - 1
        places = {round(i * last / (_MOST_POINTS - 2)) for i in range(_MOST_POINTS - 1)}
        places.add(max(range(len(curve)), key=lambda place: curve[place][1]))
        curve = tuple(curve[place] for place in sorted(places))
    return tuple((step, rounded(value)) for step, value in curve)


def _brief(score: CriterionScore) -> CriterionScore:
    """With as many digits as anybody reads."""
    numbers = {"score": score.score, "std": score.std, "value": score.value}
    update = {name: value and rounded(value) for name, value in numbers.items()}
    return score.model_copy(update=update)


def _judged(run: RunView | None, judgment: JudgmentResult) -> str:
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
            TermStatistics(name=name, mean=rounded(mean), share=round(run.term_shares[name], 3))
            for name, mean in run.term_means.items()
        )
    series = {name: np.concatenate([each[name] for each in episodes]) for name in episodes[0]}
    correlations = _correlations(run)
    return tuple(
        TermStatistics(
            name=name,
            mean=rounded(each.mean or 0.0),
            share=round(each.fraction_of_total or 0.0, 3),
            low=rounded(float(np.nanmin(series[name]))),
            high=rounded(float(np.nanmax(series[name]))),
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
    """By term, then by criterion; only clear ones."""
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
