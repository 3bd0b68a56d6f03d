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
from p2p.session.phases import rubric_since

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from p2p.contracts import Criterion, Intent
    from p2p.records.session_view import IterationView
    from p2p.session.clock import Clock
    from p2p.session.context import SessionContext

DIAGNOSIS_LENGTH = 2000
SIGNS = {"at_least": "≥", "at_most": "≤"}


def outcomes(context: SessionContext) -> list[IterationView]:
    """What all iterations came to that were trained, or could not be."""
    iterations = SessionView(context.session).iterations.values()
    return [each for each in iterations if each.judgment or each.training_error]


def publish(
    context: SessionContext, status: StatusLiteral, message: str, clock: Clock
) -> SessionResult:
    """Write the files about the session; `result.json` comes last."""
    done = outcomes(context)
    result = _result(context, status, message, done, clock)
    context.session.lineage.save(lineage(context, done))
    context.session.save_history(_history(context, result, done))
    write_text(context.session.report_path, report_text(context, result, done))
    context.session.result.save(result)
    return result


def best_of(context: SessionContext, done: Sequence[IterationView]) -> IterationView | None:
    """The best iteration under the rubric in force: a pass, else the highest score.

    Of equals it is the earlier one, until the user wants something else: then it is the newest.
    """
    since = rubric_since(context, 1 + max((outcome.number for outcome in done), default=0))
    judged = [o for o in done if o.score is not None and o.number >= since]
    # Before anything is judged by a new rubric, the scores of the old one are all there is.
    judged = judged or [outcome for outcome in done if outcome.score is not None]
    ordered = (outcome.number for outcome in done if context.feedback(outcome.number).wants_more)
    answers_from = 1 + next(ordered, math.inf)

    def rank(outcome: IterationView) -> tuple[bool, float, int]:
        number = outcome.number
        return outcome.passed, outcome.score or 0.0, number if number >= answers_from else -number

    return max(judged, key=rank, default=None)


def _result(
    context: SessionContext,
    status: StatusLiteral,
    message: str,
    done: Sequence[IterationView],
    clock: Clock,
) -> SessionResult:
    best = best_of(context, done)
    where: dict[str, Any] = {}
    if best is not None and best.best is not None:
        run = best.best
        folder = f"iter_{best.number}/{run.run_id}"
        videos = (context.session.path / folder / "videos").glob(f"eval_{run.step}_*.mp4")
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
        **context.agents.usage(),
        **where,
    )


def lineage(context: SessionContext, done: Sequence[IterationView]) -> LineageData:
    """The tree. What was judged by other criteria than the last ones has no score in it."""
    since = rubric_since(context, 1 + max((outcome.number for outcome in done), default=0))
    nodes = tuple(_node(context, outcome, counts=outcome.number >= since) for outcome in done)
    revisions = [context.session.iteration(node.iteration).revision.read() for node in nodes]
    lessons = next((r.lessons for r in reversed(revisions) if r is not None), ())
    return LineageData(nodes=nodes, lessons=lessons)


def _node(context: SessionContext, outcome: IterationView, *, counts: bool) -> LineageNode:
    plan, revision, reward = outcome.plan, outcome.revision, outcome.reward
    made_by = context.session.iteration(outcome.number - 1).revision.read()
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


def _history(
    context: SessionContext, result: SessionResult, done: Sequence[IterationView]
) -> dict[str, Any]:
    return {
        "session_id": context.session.session_id,
        "prompt": context.config.prompt,
        "env_id": context.config.env_id,
        "status": result.status,
        "message": result.message,
        "best_iteration": result.best_iteration,
        "iterations": [_entry(context, outcome) for outcome in done],
    }


def _entry(context: SessionContext, outcome: IterationView) -> dict[str, Any]:
    plan, judgment = outcome.plan, outcome.judgment
    made_by = context.session.iteration(outcome.number - 1).revision.read()
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
        "remarks": list(context.feedback(outcome.number).remarks),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# --- report.md: for people, with links that work from the session's folder ------------------------


def report_text(
    context: SessionContext, result: SessionResult, done: Sequence[IterationView]
) -> str:
    """The report as Markdown."""
    parts = [
        _head(context, result),
        *_criteria(context.session.intent.read(), _best(result, done)),
        *_iterations(context, done),
        *_where(result),
    ]
    return "\n\n".join(parts) + "\n"


def _best(result: SessionResult, done: Sequence[IterationView]) -> IterationView | None:
    return next((o for o in done if o.number == result.best_iteration), None)


def _head(context: SessionContext, result: SessionResult) -> str:
    spent = f"models: {spent_text(result)}"
    lines = [
        f"# {_line(context.config.prompt)}",
        "",
        f"- environment: {_environment(context)}",
        f"- status: **{result.status}**"
        + (f" ({_line(result.message)})" if result.message else ""),
        f"- score: {_number(result.score)}"
        + (
            f", on held-out seeds {_number(result.confirmed_score)}"
            if result.confirmed_score is not None
            else ""
        )
        + f" (a pass is {context.loop.pass_threshold:g})",
        f"- {result.iterations} iterations, {result.seconds:.0f} s; {spent}",
    ]
    return "\n".join(lines)


def spent_text(result: SessionResult) -> str:
    """What asking models came to: what is known of it, and what may have come to it."""
    text = f"{result.model_calls} calls, {result.tokens:,} tokens"
    if result.cost_usd:
        text += f", ${result.cost_usd:.4f}"
    if result.unanswered:
        most = f" up to ${result.unanswered_usd:.4f}" if result.unanswered_usd else ""
        text += f"; {result.unanswered} without an answer, which may have cost{most or ' money'}"
    return text


def _environment(context: SessionContext) -> str:
    config = context.config
    why = f" (chosen: {_line(config.env_reason)})" if config.env_reason else ""
    return (config.env_id or "not chosen yet") + why


def _criteria(intent: Intent | None, best: IterationView | None) -> Iterator[str]:
    if intent is None:
        return
    scores = {c.id: c for c in best.judgment.criteria} if best and best.judgment else {}
    rows = ["| criterion | kind | asked for | measured | score |", "|---|---|---|---|---|"]
    for criterion in intent.criteria:
        found = scores.get(criterion.id)
        value = "" if found is None or found.value is None else f"{found.value:.3g}"
        score = _number(found.score if found else None)
        rows.append(
            f"| {_cell(criterion.title)} | {criterion.category} | {_asked(criterion)} "
            f"| {value} | {score} |"
        )
    yield "## What was asked for, and how well the best policy does it"
    yield "\n".join(rows)
    if intent.unused_words:
        yield f"Not covered by any criterion: {_line(', '.join(intent.unused_words))}."


def _asked(criterion: Criterion) -> str:
    return f"{SIGNS[criterion.comparison]} {criterion.threshold:g} {_cell(criterion.unit)}".strip()


def _iterations(context: SessionContext, done: Sequence[IterationView]) -> Iterator[str]:
    if not done:
        return
    yield "## Iterations"
    rows = ["| iteration | from | score | held-out seeds | return | what changed |"]
    rows.append("|---|---|---|---|---|---|")
    for outcome in done:
        plan = outcome.plan
        made_by = context.session.iteration(outcome.number - 1).revision.read()
        final = outcome.best.final_return if outcome.best else None
        held_out = outcome.confirmation.intent_score if outcome.confirmation else None
        rows.append(
            f"| {outcome.number} | {plan.parent if plan and plan.parent else ''} "
            f"| {_number(outcome.score)}{' ✓' if outcome.passed else ''} "
            f"| {_number(held_out) if outcome.confirmation else ''} "
            f"| {'' if final is None else f'{final:.1f}'} "
            f"| {_cell(made_by.changes if made_by else 'the first reward')} |"
        )
    yield "\n".join(rows)
    for outcome in done:
        said = outcome.judgment.diagnosis if outcome.judgment else outcome.training_error
        files = f"[reward](iter_{outcome.number}/reward_fn.py)"
        yield f"**Iteration {outcome.number}** ({files}): {_line(said)[:1000] or 'no diagnosis'}"
        if reasons := _reasons(context, outcome.number):
            yield "\n".join(f"- {reason}" for reason in reasons)


def _reasons(context: SessionContext, number: int) -> list[str]:
    """Why an iteration differs from the one it is based on, and where it had to stay as it was."""
    made_by = context.session.iteration(number - 1).revision.read()
    plan = context.session.iteration(number).plan.read()
    found: list[str] = []
    if made_by is not None and made_by.diagnosis:
        found.append(f"changed because: {_line(made_by.diagnosis)[:1000]}")
    if made_by is not None and made_by.remarks_taken_up:
        found.append(f"remarks taken up: {_line(made_by.remarks_taken_up)[:1000]}")
    notes = (*(made_by.notes if made_by else ()), *(plan.notes if plan else ()))
    return found + [f"note: {_line(note)}" for note in dict.fromkeys(notes)]


def _where(result: SessionResult) -> Iterator[str]:
    if result.policy is None:
        return
    yield "## What it made"
    lines = [f"- policy: [{result.policy}]({result.policy})"]
    lines += [f"- video: [{video}]({video})" for video in result.videos]
    yield "\n".join(lines)


def _number(value: float | None) -> str:
    return "not judged" if value is None else f"{value:.2f}"


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")
