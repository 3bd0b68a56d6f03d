"""report.md: a session for people, with links that work from its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from p2p.contracts import Criterion, Intent, SessionResult
    from p2p.records.session_view import IterationView
    from p2p.session.phases import Work

SIGNS = {"at_least": "≥", "at_most": "≤"}


def report_text(work: Work, result: SessionResult, done: Sequence[IterationView]) -> str:
    """The report as Markdown."""
    parts = [
        _head(work, result),
        *_criteria(work.session.intent.read(), _best(result, done)),
        *_iterations(work, done),
        *_where(result),
    ]
    return "\n\n".join(parts) + "\n"


def _best(result: SessionResult, done: Sequence[IterationView]) -> IterationView | None:
    return next((o for o in done if o.number == result.best_iteration), None)


def _head(work: Work, result: SessionResult) -> str:
    spent = f"models: {spent_text(result)}"
    lines = [
        f"# {_line(work.config.prompt)}",
        "",
        f"- environment: {_environment(work)}",
        f"- status: **{result.status}**"
        + (f" ({_line(result.message)})" if result.message else ""),
        f"- score: {_number(result.score)}"
        + (
            f", on fresh starts {_number(result.confirmed_score)}"
            if result.confirmed_score is not None
            else ""
        )
        + f" (a pass is {work.loop.pass_threshold:g})",
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


def _environment(work: Work) -> str:
    config = work.config
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


def _iterations(work: Work, done: Sequence[IterationView]) -> Iterator[str]:
    if not done:
        return
    yield "## Iterations"
    rows = ["| iteration | from | score | fresh starts | return | what changed |"]
    rows.append("|---|---|---|---|---|---|")
    for outcome in done:
        plan = outcome.plan
        made_by = work.session.iteration(outcome.number - 1).revision.read()
        final = outcome.best.final_return if outcome.best else None
        fresh = outcome.confirmation.intent_score if outcome.confirmation else None
        rows.append(
            f"| {outcome.number} | {plan.parent if plan and plan.parent else ''} "
            f"| {_number(outcome.score)}{' ✓' if outcome.passed else ''} "
            f"| {_number(fresh) if outcome.confirmation else ''} "
            f"| {'' if final is None else f'{final:.1f}'} "
            f"| {_cell(made_by.changes if made_by else 'the first reward')} |"
        )
    yield "\n".join(rows)
    for outcome in done:
        said = outcome.judgment.diagnosis if outcome.judgment else outcome.training_error
        files = f"[reward](iter_{outcome.number}/reward_fn.py)"
        yield f"**Iteration {outcome.number}** ({files}): {_line(said)[:1000] or 'no diagnosis'}"
        if reasons := _reasons(work, outcome.number):
            yield "\n".join(f"- {reason}" for reason in reasons)


def _reasons(work: Work, number: int) -> list[str]:
    """Why an iteration differs from the one it is based on, and where it had to stay as it was."""
    made_by = work.session.iteration(number - 1).revision.read()
    plan = work.session.iteration(number).plan.read()
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
