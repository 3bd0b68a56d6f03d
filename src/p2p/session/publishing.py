"""The files about a session as a whole: result, history, lineage, report.

All of them are made anew from the iterations' own files after each iteration, so none of them can
be behind or ahead of those for longer than that.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from p2p.agents.reward_source import reward_digest
from p2p.contracts import LineageData, LineageNode, SessionResult, StatusLiteral
from p2p.files import write_text
from p2p.records.session_view import SessionView
from p2p.session.phases import Work, rubric_since
from p2p.session.report import report_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2p.records.session_view import IterationView
    from p2p.session.clock import Clock

DIAGNOSIS_LENGTH = 2000


def outcomes(work: Work) -> list[IterationView]:
    """What all iterations came to that were trained, or could not be."""
    iterations = SessionView(work.session).iterations.values()
    return [each for each in iterations if each.judgment or each.training_error]


def publish(work: Work, status: StatusLiteral, message: str, clock: Clock) -> SessionResult:
    """Write the files about the session; `result.json` comes last."""
    done = outcomes(work)
    result = _result(work, status, message, done, clock)
    work.session.lineage.save(lineage(work, done))
    work.session.save_history(_history(work, result, done))
    write_text(work.session.report_path, report_text(work, result, done))
    work.session.result.save(result)
    return result


def best_of(work: Work, done: Sequence[IterationView]) -> IterationView | None:
    """The best iteration under the rubric in force: a pass, else the highest score.

    Of equals it is the earlier one, until a person wants something else: then it is the newest.
    """
    since = rubric_since(work, 1 + max((outcome.number for outcome in done), default=0))
    judged = [o for o in done if o.score is not None and o.number >= since]
    # Before anything is judged by a new rubric, the scores of the old one are all there is.
    judged = judged or [outcome for outcome in done if outcome.score is not None]
    ordered = (outcome.number for outcome in done if work.taken(outcome.number).wants_more)
    answers_from = 1 + next(ordered, math.inf)

    def rank(outcome: IterationView) -> tuple[bool, float, int]:
        number = outcome.number
        return outcome.passed, outcome.score or 0.0, number if number >= answers_from else -number

    return max(judged, key=rank, default=None)


def _result(
    work: Work, status: StatusLiteral, message: str, done: Sequence[IterationView], clock: Clock
) -> SessionResult:
    usage = work.thinking.usage()
    best = best_of(work, done)
    where: dict[str, Any] = {}
    if best is not None and best.best is not None:
        run = best.best
        folder = f"iter_{best.number}/{run.run_id}"
        videos = (work.session.path / folder / "videos").glob(f"eval_{run.step}_*.mp4")
        where = {
            "best_iteration": best.number,
            "run_id": run.run_id,
            "step": run.step,
            "score": best.score,
            "confirmed_score": best.confirmation.intent_score if best.confirmation else None,
            "policy": f"{folder}/checkpoints/step_{run.step}/policy.zip",
            "videos": tuple(f"{folder}/videos/{path.name}" for path in sorted(videos)),
        }
    return SessionResult(
        status=status,
        message=message,
        iterations=len(done),
        seconds=clock.seconds(),
        model_calls=usage.calls,
        tokens=usage.tokens,
        cost_usd=usage.cost_usd,
        unanswered=usage.unanswered,
        unanswered_usd=usage.unanswered_usd,
        **where,
    )


def lineage(work: Work, done: Sequence[IterationView]) -> LineageData:
    """The tree. What was judged by other criteria than the last ones has no score in it."""
    since = rubric_since(work, 1 + max((outcome.number for outcome in done), default=0))
    nodes = tuple(_node(work, outcome, counts=outcome.number >= since) for outcome in done)
    revisions = [work.session.iteration(node.iteration).revision.read() for node in nodes]
    lessons = next((r.lessons for r in reversed(revisions) if r is not None), ())
    return LineageData(nodes=nodes, lessons=lessons)


def _node(work: Work, outcome: IterationView, *, counts: bool) -> LineageNode:
    plan, revision, reward = outcome.plan, outcome.revision, outcome.reward
    made_by = work.session.iteration(outcome.number - 1).revision.read()
    judgment = outcome.judgment
    judged = counts and outcome.score is not None
    return LineageNode(
        iteration=outcome.number,
        parent=plan.parent if plan else None,
        score=outcome.score if judged else None,
        score_std=judgment.score_std if judgment and judged else None,
        passed=judged and outcome.passed,
        final_return=_finite(outcome.best.final_return) if outcome.best else None,
        failure_tags=judgment.failure_tags if judgment else (),
        diagnosis=(judgment.diagnosis if judgment else outcome.training_error)[:DIAGNOSIS_LENGTH],
        lesson=revision.lesson if revision and judged else "",
        changes=made_by.changes if made_by else "",
        hp_changes=plan.hp_changes if plan else {},
        reward_digest=reward_digest(reward.code if reward else ""),
    )


def _history(work: Work, result: SessionResult, done: Sequence[IterationView]) -> dict[str, Any]:
    return {
        "session_id": work.session.session_id,
        "prompt": work.config.prompt,
        "env_id": work.config.env_id,
        "status": result.status,
        "message": result.message,
        "best_iteration": result.best_iteration,
        "iterations": [_entry(work, outcome) for outcome in done],
    }


def _entry(work: Work, outcome: IterationView) -> dict[str, Any]:
    plan, judgment = outcome.plan, outcome.judgment
    made_by = work.session.iteration(outcome.number - 1).revision.read()
    return {
        "iteration": outcome.number,
        "parent": plan.parent if plan else None,
        "changes": made_by.changes if made_by else "",
        "hp_changes": plan.hp_changes if plan else {},
        "run_id": outcome.best.run_id if outcome.best else None,
        "step": outcome.best.step if outcome.best else None,
        "final_return": _finite(outcome.best.final_return) if outcome.best else None,
        "score": outcome.score,
        "passed": outcome.passed,
        "confirmed_score": outcome.confirmation.intent_score if outcome.confirmation else None,
        "criteria": {c.id: c.score for c in judgment.criteria} if judgment else {},
        "failure_tags": list(judgment.failure_tags) if judgment else [],
        "diagnosis": judgment.diagnosis[:DIAGNOSIS_LENGTH] if judgment else "",
        "training_error": outcome.training_error,
        "remarks": list(work.taken(outcome.number).remarks),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
