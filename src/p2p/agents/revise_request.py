"""All that a revision starts from, as one request."""

from __future__ import annotations

from p2p.agents.requests import ReviseRequest
from p2p.agents.session_text import history, tunables
from p2p.config import TUNABLE
from p2p.contracts import JudgmentResult, LineageNode
from p2p.records.session_view import IterationView, RunView, SessionView

STAGNATION = 3
"""So many judged iterations without a new best one are a plateau."""
_MOST_POINTS = 40
_NEVER_RUN = "no run was trained"


def revise_request(view: SessionView, iteration: int) -> ReviseRequest:
    """The request after an iteration, whose node stands in the lineage already.

    Raises ValueError where the session has no criteria, or the iteration or its node are missing.
    """
    intent, found = view.intent, view.iterations.get(iteration)
    lineage = view.lineage
    node, best = lineage.node(iteration), lineage.best
    if intent is None or found is None or node is None:
        missing = "criteria" if intent is None else f"iteration {iteration} in its lineage"
        raise ValueError(f"the session has no {missing}: there is nothing to revise")
    judgment = found.judgment or JudgmentResult(intent_score=None)
    run, elsewhere = found.best_run, best is not None and best.iteration != iteration
    best_found = view.iterations.get(best.iteration) if best and elsewhere else None
    return ReviseRequest(
        prompt=intent.prompt,
        env_id=intent.env_id,
        criteria=intent.criteria,
        category_of={criterion.id: criterion.category for criterion in intent.criteria},
        iteration=iteration,
        best_iteration=best.iteration if best else None,
        reward_code=found.reward_code,
        best_reward_code=best_found.reward_code if best_found else "",
        score=node.score,
        pass_threshold=view.loop.pass_threshold,
        criterion_scores=judgment.criteria,
        failure_tags=judgment.failure_tags,
        diagnosis=judgment.diagnosis[:4000],
        dynamics=run.dynamics().text() if run else _NEVER_RUN,
        term_shares=dict(run.term_shares) if run else {},
        learning_curve=_thinned(run.curve) if run else (),
        still_improving=_still_improving(run),
        hyperparameters=tunables(found.config),
        fixed=fixed_hyperparameters(view),
        history=history(view),
        lessons=lineage.active_lessons,
        remarks=view.remarks,
        stagnation=_stagnation(best, lineage.since_best),
        training_error=_training_error(node, found, judgment),
    )


def fixed_hyperparameters(view: SessionView) -> tuple[str, ...]:
    """Those that no revision may change."""
    fixed = view.fixed if view.loop.hp_tuning else frozenset(TUNABLE)
    return tuple(name for name in TUNABLE if name in fixed)


def _still_improving(run: RunView | None) -> bool | None:
    states = {"rising": True, "plateau": False, "falling": False}
    return states.get(run.dynamics().returns.state) if run else None


def _thinned(curve: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Evenly, with the first and the last point."""
    if len(curve) <= _MOST_POINTS:
        return curve
    last = len(curve) - 1
    return tuple(curve[round(i * last / (_MOST_POINTS - 1))] for i in range(_MOST_POINTS))


def _stagnation(best: LineageNode | None, since_best: int) -> str:
    if best is None or since_best < STAGNATION:
        return ""
    return (
        f"{since_best} judged iterations have come after the best one, {best.iteration}, and none "
        "was better. Small changes do not help any more: change the structure of the reward "
        "(other terms, another way to measure), not weights alone."
    )


def _training_error(node: LineageNode, found: IterationView, judgment: JudgmentResult) -> str:
    if node.score is not None:
        return ""
    judges = (f"the {judge} judge: {why}" for judge, why in judgment.unavailable.items())
    told = found.error or "; ".join(judges) or node.diagnosis
    return told[:2000] or "it was not judged, and nobody said why"
