"""What happened in a session, from its records, by rule."""

from __future__ import annotations

from itertools import pairwise

from p2p.agents.requests import AnalysisRequest
from p2p.contracts import FAILURE_TAGS, CriterionScore, SessionAnalysis

AUTHOR = "builtin"
MET, POOR = 0.8, 0.5


def analyze_session(request: AnalysisRequest) -> SessionAnalysis:
    """Which criteria were met when, what went wrong again and again, what to try."""
    judged = [past for past in request.history if past.score is not None]
    titles = {criterion.id: criterion.title for criterion in request.criteria}
    if not judged:
        return SessionAnalysis(
            summary=f"No iteration of “{request.prompt}” was judged; it ended as {request.status}.",
            causes=("there is nothing to compare: see the session's events for what failed",),
            author=AUTHOR,
        )
    best = max(judged, key=lambda past: (past.score or 0.0, past.iteration))
    first, last = judged[0], judged[-1]
    scores = request.criterion_scores.get(best.iteration, ())
    met = [titles.get(s.id, s.id) for s in scores if (s.score or 0.0) >= MET]
    missed = [s for s in scores if s.score is not None and s.score < MET]
    worked = [f"met in iteration {best.iteration}: {', '.join(met)}"] if met else []
    worked += [
        f"iteration {past.iteration} ({past.changes}) rose to {past.score:.2f}"
        for before, past in pairwise(judged)
        if (past.score or 0.0) > (before.score or 0.0) + 0.02 and past.changes
    ]
    failed = [_missed(score, titles) for score in missed]
    failed += [
        f"iteration {past.iteration} ({past.changes}) fell to {past.score:.2f}"
        for before, past in pairwise(judged)
        if (past.score or 0.0) < (before.score or 0.0) - 0.02 and past.changes
    ]
    tags = [tag for past in judged for tag in past.failure_tags]
    often = sorted({t for t in tags if tags.count(t) * 2 >= len(judged)}, key=tags.index)
    causes = [f"{tag}: {FAILURE_TAGS.get(tag, tag)}, in {tags.count(tag)} of {len(judged)} "
              "iterations" for tag in often]  # fmt: skip
    count = len(request.history)
    history = (
        f"{count} iterations: from {first.score:.2f} to {last.score:.2f}, best "
        f"{best.score:.2f} in iteration {best.iteration}"
    )
    summary = (
        f"“{request.prompt}” on {request.env_id} ended as {request.status} after "
        f"{history if count > 1 else f'one iteration, with {best.score:.2f}'}."
    )
    return SessionAnalysis(
        summary=summary,
        worked=tuple(worked),
        failed=tuple(failed),
        causes=tuple(causes),
        suggestions=tuple(_suggestions(missed, titles, request.status)),
        author=AUTHOR,
    )


def _missed(score: CriterionScore, titles: dict[str, str]) -> str:
    evidence = f" ({score.evidence})" if score.evidence else ""
    return f"not met: {titles.get(score.id, score.id)}, {score.score:.2f}{evidence}"


def _suggestions(missed: list[CriterionScore], titles: dict[str, str], status: str) -> list[str]:
    if status == "unverified":
        return ["say the unchecked words as something that can be measured, or as criteria"]
    if status == "passed":
        return ["train longer, or with more seeds, if the motion should be cleaner"]
    near = [s for s in missed if (s.score or 0.0) >= POOR]
    far = [s for s in missed if (s.score or 0.0) < POOR]
    suggestions = [f"“{titles.get(s.id, s.id)}” is close: more training steps" for s in near]
    suggestions += [
        f"“{titles.get(s.id, s.id)}” is far: check that its threshold is within the agent's reach"
        for s in far
    ]
    return suggestions or ["let more iterations run"]
