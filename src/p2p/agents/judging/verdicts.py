"""From the opinions of one or two judges to one verdict on an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from p2p.agents.judging.scores import weighted_score
from p2p.contracts import Criterion, CriterionScore, JudgeName, JudgeOpinion

CLOSE = 0.2
"""Two judges agree if their scores, and those of every task criterion, are as near as this..."""
CLOSE_TASK = 0.4
"""...and this: a judge by eye gives coarse marks."""

CONFIDENCE: Mapping[str, float] = {
    "code": 0.8,  # it measures what was written down, and can be fooled
    "vlm": 0.6,  # it sees the whole, and measures nothing
    "one_of_two": 0.5,  # two were asked for, and one could not judge
    "undecided": 0.4,  # they differ, and nobody could settle it
}
"""How sure one can be of an episode's scores, by who gave them; with two judges that agree it is
how near they are, and with a synthesis what it says itself."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is held true of an episode."""

    criteria: tuple[CriterionScore, ...]
    diagnosis: str
    failure_tags: tuple[str, ...]
    confidence: float


def single(opinion: JudgeOpinion, *, alone: bool) -> Verdict:
    """The verdict of one judge; `alone`: nobody else was asked for."""
    confidence = CONFIDENCE[opinion.judge if alone else "one_of_two"]
    return Verdict(opinion.criteria, opinion.diagnosis, opinion.failure_tags, confidence)


def agreement(code: JudgeOpinion, vlm: JudgeOpinion) -> float | None:
    """1 less the mean difference over the criteria that both scored; None if there is none."""
    seen = {each.id: each.score for each in vlm.criteria}
    gaps = [
        abs(each.score - other)
        for each in code.criteria
        if each.score is not None and (other := seen.get(each.id)) is not None
    ]
    return 1 - sum(gaps) / len(gaps) if gaps else None


def agree(code: JudgeOpinion, vlm: JudgeOpinion, criteria: Sequence[Criterion]) -> bool:
    """Whether there is nothing to settle between them."""
    both = _scored_by_both(code, vlm)
    if not both:
        return True
    shared = [criterion for criterion in criteria if criterion.id in both]
    ours = weighted_score(code.criteria, shared)
    theirs = weighted_score(vlm.criteria, shared)
    assert ours is not None
    assert theirs is not None
    tasks = [both[c.id] for c in shared if c.category == "task"]
    return abs(ours - theirs) <= CLOSE and all(abs(a - b) <= CLOSE_TASK for a, b in tasks)


def merged(code: JudgeOpinion, vlm: JudgeOpinion, *, confidence: float | None = None) -> Verdict:
    """Of judges that agree: numbers by the one who measures, the rest by the one who sees."""
    near = agreement(code, vlm)
    if confidence is None:
        confidence = CONFIDENCE["code"] if near is None else near
    seen = {each.id: each for each in vlm.criteria}
    return Verdict(
        criteria=tuple(
            seen.get(each.id, each) if each.score is None else each for each in code.criteria
        ),
        diagnosis=" ".join(filter(None, (code.diagnosis, vlm.diagnosis))),
        failure_tags=tuple(dict.fromkeys((*code.failure_tags, *vlm.failure_tags))),
        confidence=confidence,
    )


def shifts(pairs: Sequence[tuple[JudgeOpinion, Verdict]]) -> dict[str, float]:
    """By criterion: how far verdicts lie from what the code judge said, on average."""
    found: dict[str, list[float]] = {}
    for opinion, verdict in pairs:
        final = {each.id: each.score for each in verdict.criteria}
        for each in opinion.criteria:
            other = final.get(each.id)
            if each.score is not None and other is not None:
                found.setdefault(each.id, []).append(other - each.score)
    return {name: sum(gaps) / len(gaps) for name, gaps in found.items()}


def corrected(verdict: Verdict, by: Mapping[str, float]) -> Verdict:
    """For an episode nobody looked at: what was learnt of the code judge on those that were seen.

    Otherwise a trick that the eye finds in every episode it is shown would still count in the rest.
    """
    moved = tuple(
        each
        if each.score is None or not by.get(each.id)
        else each.model_copy(update={"score": min(1.0, max(0.0, each.score + by[each.id]))})
        for each in verdict.criteria
    )
    return replace(verdict, criteria=moved)


def _scored_by_both(code: JudgeOpinion, vlm: JudgeOpinion) -> dict[str, tuple[float, float]]:
    seen = {each.id: each.score for each in vlm.criteria}
    return {
        each.id: (each.score, other)
        for each in code.criteria
        if each.score is not None and (other := seen.get(each.id)) is not None
    }


def out(judge: JudgeName, reason: str) -> JudgeOpinion:
    """A judge that could not judge."""
    return JudgeOpinion(judge=judge, available=False, reason=reason[:2000])
