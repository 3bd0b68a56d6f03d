"""The files about a session as a whole: result, history, lineage, report.

All of them are made anew from the iterations' own files after each iteration, so none of them can
be behind or ahead of those for longer than that.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from p2p.agents.reward_source import reward_digest
from p2p.contracts import LineageData, LineageNode, SessionResult, StatusLiteral
from p2p.event_log import span
from p2p.files import write_text
from p2p.records.formatting import (
    count,
    criterion_results,
    describe_evidence,
    format_score,
)
from p2p.records.iteration_record import IterationRecord
from p2p.records.session_view import IterationView, SessionView
from p2p.records.statuses import status_words
from p2p.session.labels import compare
from p2p.session.verdict import HINT
from p2p.training.checkpoints import export_policy
from p2p.training.policies.policy import PolicyFileError
from p2p.training.video.rendering import LOWEST, VideoError, draw_video
from unstable.utils.logging import printable

if TYPE_CHECKING:
    from p2p.contracts import Revision
    from p2p.records.iteration_record import SessionRecord
    from p2p.records.session_view import SessionView
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
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow, and needed once

    environment = Environment(
        loader=PackageLoader("p2p.session", "."),
        autoescape=False,  # noqa: S701 - Markdown, in which `line` escapes
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"line": _line, "cell": _cell, "score": format_score, "count": count}
    best = view.best if result.best_iteration else None
    iterations = []
    for each in done:
        amendment = each.record.amendment.read()
        origin = _origin(view, each)
        findings = amendment.findings if amendment else ()
        iterations.append((each, origin, _reasons(origin, each), findings))
    return environment.get_template("report.md.jinja").render(
        view=view,
        result=result,
        env_id=(view.config.env_id if view.config else "") or "not chosen yet",
        status=status_words(result.status),
        hint=HINT,
        evidence=describe_evidence(best) if best else "",
        spent=spent_text(result),
        criteria=criterion_results(view, view.iterations.get(result.best_iteration or 0)),
        iterations=iterations,
        marks=MARKS,
        labels=compare(view),
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


def _line(text: str) -> str:
    """A text as one line of Markdown in which it makes no links, pictures or HTML."""
    return re.sub(r"([\\\[\]<])", r"\\\1", " ".join(printable(text).split()))


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


# --- the best policy's file and video -------------------------------------------------------------


def deliver(view: SessionView) -> bool:
    """Export each iteration's judged policy and draw the best one's median episode.

    Drawing gives way to all that trains. Returns whether something was made; what cannot be made is
    an event.
    """
    made = False
    for iteration in view.iterations.values():
        best = iteration.record.best_run.read()
        if best is None:
            continue
        run = IterationRecord(iteration.record.path / best.run_id)
        if not (best.policy(iteration.record.path) / "policy.zip").exists():
            # The span tells of what goes wrong.
            with suppress(OSError, PolicyFileError), span("export", step=best.step):
                export_policy(run, best.step)
                made = True
        video = run.videos_dir / f"eval_{best.step}_median.mp4"
        if iteration == view.best and view.loop.videos and not video.exists():
            with suppress(VideoError), span("draw", video=video.name):
                draw_video(video, niceness=LOWEST)
                made = True
    return made
