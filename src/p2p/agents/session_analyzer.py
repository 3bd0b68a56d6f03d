"""An after-the-fact report of a session, in whatever state it is."""

from __future__ import annotations

from p2p.agents.requests import AnalysisRequest
from p2p.agents.revise_tool_dispatch import SessionTools, criteria_of, history, shorten_score
from p2p.contracts import SessionAnalysis
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import AskAgain
from p2p.prompts import question
from p2p.records.session_view import SessionView

MAX_TOOL_CALLS = 24
DETAILED = 8
"""So many of the last iterations, and the best one, are shown by criterion."""


def analyze(client: LLMClient, view: SessionView) -> SessionAnalysis:
    """Return what worked, what did not, and why; raises an InferenceError."""
    answer = client.ask(
        question(
            "session_analyzer",
            analysis_request(view),
            SessionAnalysis,
            {},
            tools=SessionTools(view).reading(),
            max_tool_calls=MAX_TOOL_CALLS,
            check=_check_summary,
        )
    )
    return answer.value.model_copy(update={"author": answer.model})


def analysis_request(view: SessionView) -> AnalysisRequest:
    """The session in short; it may have no criteria, no iterations and no judgements yet."""
    intent, status, error = view.intent, view.status, view.error
    iterations, best = view.iterations, view.lineage.best
    shown = {*list(iterations)[-DETAILED:], best.iteration if best else 0}
    return AnalysisRequest(
        prompt=view.prompt,
        env_id=view.env_id,
        status=f"{status}: {error[:1000]}" if error else status,
        criteria=intent.criteria if intent else (),
        history=history(view),
        lessons=view.lineage.active_lessons,
        criterion_scores={
            number: tuple(map(shorten_score, scores))
            for number, found in iterations.items()
            if number in shown and (scores := criteria_of(found))
        },
    )


def _check_summary(analysis: SessionAnalysis) -> None:
    if not analysis.summary.strip():
        raise AskAgain("the summary is empty")
