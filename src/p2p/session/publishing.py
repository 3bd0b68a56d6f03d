"""The files about a session as a whole: result, history, lineage, report.

All of them are made anew from the iterations' own files after each iteration, so none of them can
be behind or ahead of those for longer than that.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from p2p.agents.reward_source import reward_digest
from p2p.contracts import LineageData, LineageNode, SessionResult, StatusLiteral
from p2p.files import write_text
from p2p.records.formatting import (
    count,
    criterion_results,
    describe_evidence,
    format_score,
)
from p2p.records.session_view import IterationView, SessionView
from p2p.records.statuses import status_words
from p2p.session.labels import compare
from p2p.session.verdict import HINT
from unstable.utils.logging import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from p2p.contracts import Revision
    from p2p.records.iteration_record import SessionRecord
    from p2p.session.context import SessionContext
    from p2p.session.stopping import Clock

DIAGNOSIS_LENGTH = 2000
MARKS = {"passed": " ✓", "unverified": " ?", "not_passed": ""}


def publish(
    context: SessionContext,
    status: StatusLiteral,
    message: str,
    clock: Clock,
    *,
    refused: bool = False,
) -> SessionResult:
    """Write the files about the session; `result.json` comes last."""
    session, view = context.session, SessionView(context.session)
    done = _done(view)
    since = _rubric_since(done)
    best = best_of(done, since)
    result = SessionResult(
        status=status,
        message=message,
        refused=refused,
        iterations=len(done),
        seconds=clock.seconds(),
        unchecked_words=view.unchecked_words,
        **context.agents.usage(),
        **(_best_policy(best) if best else {}),
    )
    session.lineage.save(_lineage(view, done, since))
    session.save_history(_history(view, done, result))
    write_text(session.report_path, _report(view, done, result))
    session.result.save(result)
    return result


def rewrite_report(session: SessionRecord) -> None:
    """Rewrite an existing report with the latest records."""
    view = SessionView(session)
    if view.result is not None and session.report_path.exists():
        write_text(session.report_path, _report(view, _done(view), view.result))


def best_iteration(context: SessionContext) -> IterationView | None:
    """The iteration whose policy stands for the session so far."""
    done = _done(SessionView(context.session))
    return best_of(done, _rubric_since(done))


def _done(view: SessionView) -> list[IterationView]:
    return [each for each in view.iterations.values() if each.judgment or each.training_error]


def _rubric_since(done: list[IterationView]) -> int:
    """The first iteration that is judged by the criteria in force."""
    changed = (each.number + 1 for each in reversed(done) if each.steering.criteria is not None)
    return next(changed, 1)


def best_of(done: list[IterationView], since: int) -> IterationView | None:
    """The best iteration under the rubric in force: a pass, else the highest score.

    Of equals it is the earlier one, until the user wants something else: then it is the newest.
    """
    judged = [each for each in done if each.score is not None]
    # Before anything is judged by a new rubric, the scores of the old one are all there is.
    judged = [each for each in judged if each.number >= since] or judged
    answers_from = 1 + next((each.number for each in done if each.steering.wants_more), math.inf)

    def rank(each: IterationView) -> tuple[bool, float, int]:
        newest = each.number if each.number >= answers_from else -each.number
        return each.passed, each.score or 0.0, newest

    return max(judged, key=rank, default=None)


def _best_policy(best: IterationView) -> dict[str, Any]:
    run = best.best
    if run is None:
        return {}
    folder = f"iter_{best.number}/{run.run_id}"
    videos = (best.record.path / run.run_id / "videos").glob(f"eval_{run.step}_*.mp4")
    return {
        "best_iteration": best.number,
        "run_id": run.run_id,
        "step": run.step,
        "score": best.score,
        "confirmed_score": best.confirmation.intent_score if best.confirmation else None,
        "policy": f"{folder}/checkpoints/step_{run.step}/policy.zip",
        "videos": tuple(f"{folder}/videos/{path.name}" for path in sorted(videos)),
    }


def _origin(view: SessionView, iteration: IterationView) -> Revision | None:
    before = view.iterations.get(iteration.number - 1)
    return before.revision if before else None


def _final_return(iteration: IterationView) -> float | None:
    value = iteration.best.final_return if iteration.best else None
    return value if value is not None and math.isfinite(value) else None


def _lineage(view: SessionView, done: list[IterationView], since: int) -> LineageData:
    """The tree. What was judged by other criteria than the last ones has no score in it."""
    nodes = tuple(_node(view, each, counts=each.number >= since) for each in done)
    lessons = next((each.revision.lessons for each in reversed(done) if each.revision), ())
    return LineageData(nodes=nodes, lessons=lessons)


def _node(view: SessionView, iteration: IterationView, *, counts: bool) -> LineageNode:
    plan, revision, judgment = iteration.plan, iteration.revision, iteration.judgment
    origin, judged = _origin(view, iteration), counts and iteration.score is not None
    diagnosis = judgment.diagnosis if judgment else iteration.training_error
    return LineageNode(
        iteration=iteration.number,
        parent=plan.parent if plan else None,
        score=iteration.score if judged else None,
        score_std=judgment.score_std if judgment and judged else None,
        passed=judged and iteration.passed,
        final_return=_final_return(iteration),
        failure_tags=judgment.failure_tags if judgment else (),
        diagnosis=diagnosis[:DIAGNOSIS_LENGTH],
        lesson=revision.lesson if revision and judged else "",
        changes=origin.changes if origin else "",
        rule=origin.rule if origin else "",
        hp_changes=plan.hp_changes if plan else {},
        reward_digest=reward_digest(iteration.reward.code if iteration.reward else ""),
    )


def _history(view: SessionView, done: list[IterationView], result: SessionResult) -> dict[str, Any]:
    return {
        "session_id": view.record.session_id,
        "prompt": view.prompt,
        "env_id": view.config.env_id if view.config else "",
        "status": result.status,
        "message": result.message,
        "best_iteration": result.best_iteration,
        "iterations": [_history_entry(view, each) for each in done],
    }


def _history_entry(view: SessionView, iteration: IterationView) -> dict[str, Any]:
    plan, judgment, best = iteration.plan, iteration.judgment, iteration.best
    origin, confirmation = _origin(view, iteration), iteration.confirmation
    return {
        "iteration": iteration.number,
        "parent": plan.parent if plan else None,
        "changes": origin.changes if origin else "",
        "hp_changes": plan.hp_changes if plan else {},
        "run_id": best.run_id if best else None,
        "step": best.step if best else None,
        "final_return": _final_return(iteration),
        "score": iteration.score,
        "passed": iteration.passed,
        "confirmed_score": confirmation.intent_score if confirmation else None,
        "criteria": {c.id: c.score for c in judgment.criteria} if judgment else {},
        "failure_tags": list(judgment.failure_tags) if judgment else [],
        "diagnosis": judgment.diagnosis[:DIAGNOSIS_LENGTH] if judgment else "",
        "training_error": iteration.training_error,
        "remarks": list(iteration.steering.remarks),
    }


# --- report.md: for people, with links that work from the session's folder ------------------------


def _report(view: SessionView, done: list[IterationView], result: SessionResult) -> str:
    parts = [
        _head(view, result),
        *_criteria(view, result),
        *_render_iterations(view, done),
        *_labels(view),
        *_places(result),
    ]
    return "\n\n".join(parts) + "\n"


def _head(view: SessionView, result: SessionResult) -> str:
    env_id = (view.config.env_id if view.config else "") or "not chosen yet"
    reason = f" (chosen: {_line(view.env_reason)})" if view.env_reason else ""
    message = f" ({_line(result.message)})" if result.message else ""
    unchecked = _line(", ".join(result.unchecked_words))
    hint = " (no criterion measures it)"
    if result.status == "unverified":
        hint += f": {HINT}"
    rule = "a pass needs every required criterion; soft ones only move the score"
    best = view.best
    evidence = describe_evidence(best) if best and result.best_iteration else ""
    spent = f"; models: {spent_text(result)}" if result.tokens or result.unanswered else ""
    return "\n".join(
        [
            f"# {_line(view.prompt)}",
            "",
            f"- environment: {env_id}{reason}",
            f"- status: **{status_words(result.status)}**{message}",
            *([f"- **not checked**: {unchecked}{hint}"] if unchecked else []),
            f"- score: {format_score(result.score)}; {rule}",
            *([f"- {evidence}"] if evidence else []),
            f"- {count(result.iterations, 'iteration')}, {result.seconds:.0f} s{spent}",
        ]
    )


def spent_text(result: SessionResult) -> str:
    """Describe the cost of model requests: known and possible."""
    text = count(result.model_calls, "call")
    if result.tokens:
        text += f", {count(result.tokens, 'token')}"
    if result.cost_usd:
        text += f", ${result.cost_usd:.4f}"
    if result.unanswered:
        most = f" up to ${result.unanswered_usd:.4f}" if result.unanswered_usd else ""
        text += f"; {result.unanswered} without an answer, which may have cost{most or ' money'}"
    return text


def _criteria(view: SessionView, result: SessionResult) -> Iterator[str]:
    if view.intent is None:
        return
    rows = ["| asked for | kind | measured | score | met |", "|---|---|---|---|---|"]
    for each in criterion_results(view, view.iterations.get(result.best_iteration or 0)):
        value = each.measured if each.measured and not each.is_event else each.evidence[:200]
        soft = f", soft: {_cell(each.soft_reason)}" if each.soft_reason else ""
        met = "" if each.met is None else "yes" if each.met else "**no**"
        rows.append(
            f"| {_cell(each.demand)} | {each.category}{soft} | {_cell(value)} "
            f"| {format_score(each.score)} | {met} |"
        )
    yield "## What was asked for, and how well the best policy does it"
    yield "\n".join(rows)
    if view.intent.assumptions:
        yield "Assumed, where the prompt leaves it open:"
        yield "\n".join(f"- {_line(text)}" for text in view.intent.assumptions)


def _render_iterations(view: SessionView, done: list[IterationView]) -> Iterator[str]:
    if not done:
        return
    yield "## Iterations"
    rows = ["| iteration | from | score | unseen episodes | return | what changed |"]
    rows.append("|---|---|---|---|---|---|")
    for each in done:
        origin, confirmation = _origin(view, each), each.confirmation
        final = each.best.final_return if each.best else None
        rows.append(
            f"| {each.number} | {each.plan.parent if each.plan and each.plan.parent else ''} "
            f"| {format_score(each.score)}{MARKS[view.outcome_of(each)]} "
            f"| {format_score(confirmation.intent_score) if confirmation else ''} "
            f"| {'' if final is None else f'{final:.1f}'} "
            f"| {_cell(origin.changes if origin else 'the first reward')} |"
        )
    yield "\n".join(rows)
    for each in done:
        diagnosis = _line(each.judgment.diagnosis if each.judgment else each.training_error)
        files = f"[reward](iter_{each.number}/reward_fn.py)"
        yield f"**Iteration {each.number}** ({files}): {diagnosis[:1000] or 'no diagnosis'}"
        if reasons := _reasons(_origin(view, each), each):
            yield "\n".join(f"- {reason}" for reason in reasons)
        if each.early_judge_error:
            yield f"- a checkpoint could not be judged on the way: {_line(each.early_judge_error)}"
        amendment = each.record.amendment.read()
        for finding in amendment.findings if amendment else ():
            yield f"- the judge is amended for later iterations: {_line(finding)[:1000]}"


def _reasons(origin: Revision | None, iteration: IterationView) -> list[str]:
    """Describe why an iteration differs from its parent, and which changes were not allowed."""
    reasons: list[str] = []
    if iteration.search is not None and iteration.search.reason:
        count = len(iteration.candidates)
        reasons.append(f"its reward is one of {count}: {iteration.search.reason}")
    if origin is not None and origin.diagnosis:
        reasons.append(f"changed because: {_line(origin.diagnosis)[:1000]}")
    if origin is not None and origin.remarks_taken_up:
        reasons.append(f"remarks taken up: {_line(origin.remarks_taken_up)[:1000]}")
    notes = (*(origin.notes if origin else ()), *(iteration.plan.notes if iteration.plan else ()))
    return reasons + [f"note: {_line(note)}" for note in dict.fromkeys(notes)]


def _labels(view: SessionView) -> Iterator[str]:
    comparison = compare(view)
    if comparison is not None:
        yield "## Human scores"
        yield f"{comparison}; `p2p label --csv` writes each of them"


def _places(result: SessionResult) -> Iterator[str]:
    if result.policy is None:
        return
    yield "## What it made"
    lines = [f"- policy: [{result.policy}]({result.policy})"]
    lines += [f"- video: [{video}]({video})" for video in result.videos]
    yield "\n".join(lines)


def _line(text: str) -> str:
    """A text as one line of Markdown in which it makes no links, pictures or HTML."""
    return re.sub(r"([\\\[\]<])", r"\\\1", " ".join(printable(text).split()))


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")
