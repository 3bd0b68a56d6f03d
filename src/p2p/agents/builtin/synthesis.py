"""Two judges on one episode: what is measured counts, what is seen adds to it."""

from __future__ import annotations

from typing import NoReturn

from p2p.agents.requests import SeenCriterion, Synthesis, SynthesisRequest, VisualRequest
from p2p.inference.question import RequestRejected

MEASURED, SEEN = 0.7, 0.3
"""What each judge's score counts where both have one."""


def cannot_see(_: VisualRequest) -> NoReturn:
    """Raises RequestRejected: rules do not look at pictures."""
    raise RequestRejected(
        "the built-in author cannot see: name a vision model for the visual judge, or none"
    )


def synthesise(request: SynthesisRequest) -> Synthesis:
    """A weighted mean of the two judges; the nearer they are, the more confident."""
    code = {score.id: score for score in request.code.criteria}
    vlm = {score.id: score for score in request.vlm.criteria}
    seen: list[SeenCriterion] = []
    gaps: list[float] = []
    for criterion in request.criteria:
        first = code[criterion.id].score if criterion.id in code else None
        second = vlm[criterion.id].score if criterion.id in vlm else None
        both = first is not None and second is not None
        score = first if second is None else second if first is None else (
            MEASURED * first + SEEN * second
        )  # fmt: skip
        if first is not None and second is not None:
            gaps.append(abs(first - second))
        evidence = code[criterion.id].evidence if criterion.id in code else ""
        if both and gaps[-1] > 0.3:
            evidence = f"the judges differ ({first:.2f} measured, {second:.2f} seen). {evidence}"
        seen.append(SeenCriterion(id=criterion.id, score=score, evidence=evidence.strip()))
    tags = tuple(dict.fromkeys((*request.code.failure_tags, *request.vlm.failure_tags)))
    texts = (request.code.diagnosis, request.vlm.diagnosis)
    return Synthesis(
        criteria=tuple(seen),
        diagnosis=" / ".join(filter(None, texts)) or "no judge said anything",
        failure_tags=tags,
        confidence=1.0 - sum(gaps) / len(gaps) if gaps else 0.5,
    )
