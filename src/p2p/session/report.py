"""report.md: a session for people, with links that work from its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from p2p.contracts import Criterion, Intent, SessionResult
    from p2p.session.outcome import Outcome
    from p2p.session.phases import Work

SIGNS = {"at_least": "≥", "at_most": "≤"}


def report_text(work: Work, result: SessionResult, done: Sequence[Outcome]) -> str:
    """The report as Markdown."""
    parts = [
        _head(work, result),
        *_criteria(work.session.read_intent(), _best(result, done)),
        *_iterations(work, done),
        *_where(result),
    ]
    return "\n\n".join(parts) + "\n"


def _best(result: SessionResult, done: Sequence[Outcome]) -> Outcome | None:
    return next((o for o in done if o.number == result.best_iteration), None)


def _head(work: Work, result: SessionResult) -> str:
    cost = f", ${result.cost_usd:.4f}" if result.cost_usd else ""
    spent = f"{result.model_calls} model calls, {result.tokens:,} tokens{cost}"
    lines = [
        f"# {_line(work.config.prompt)}",
        "",
        f"- environment: {work.config.env_id}",
        f"- status: **{result.status}**"
        + (f" ({_line(result.message)})" if result.message else ""),
        f"- score: {_number(result.score)}"
        + (
            f", on fresh starts {_number(result.confirmed_score)}"
            if result.confirmed_score is not None
            else ""
        )
        + f" (a pass is {work.loop.pass_threshold:g})",
        f"- {result.iterations} iterations, {result.seconds:.0f} s, {spent}",
    ]
    return "\n".join(lines)


def _criteria(intent: Intent | None, best: Outcome | None) -> Iterator[str]:
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


def _iterations(work: Work, done: Sequence[Outcome]) -> Iterator[str]:
    if not done:
        return
    yield "## Iterations"
    rows = ["| iteration | from | score | fresh starts | return | what changed |"]
    rows.append("|---|---|---|---|---|---|")
    for outcome in done:
        iteration = work.session.iteration(outcome.number)
        plan = iteration.read_plan()
        made_by = work.session.iteration(outcome.number - 1).read_revision()
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
