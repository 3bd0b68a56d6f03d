"""Many episodes, one judgement."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from p2p.agents.judging.scores import weighted_score
from p2p.agents.judging.verdicts import Verdict, agreement
from p2p.contracts import (
    Criterion,
    CriterionScore,
    JudgeName,
    JudgeOpinion,
    JudgeStrategy,
    JudgmentResult,
    RolloutJudgment,
)

TAG_SHARE = 1 / 3
"""A tag of the run is one that at least this share of its judged episodes have."""
MAX_DIAGNOSIS = 3000


def rollout(
    label: str,
    seed: int | None,
    opinions: Sequence[JudgeOpinion],
    verdict: Verdict | None,
    criteria: Sequence[Criterion],
) -> RolloutJudgment:
    """One episode, judged; without a verdict its score is None."""
    return RolloutJudgment(
        label=label,
        seed=seed,
        score=None if verdict is None else weighted_score(verdict.criteria, criteria),
        criteria=() if verdict is None else verdict.criteria,
        opinions=tuple(opinions),
        diagnosis="" if verdict is None else verdict.diagnosis,
        failure_tags=() if verdict is None else verdict.failure_tags,
    )


def judgment(
    rollouts: Sequence[RolloutJudgment],
    confidences: Sequence[float],
    criteria: Sequence[Criterion],
    *,
    strategy: JudgeStrategy,
    threshold: float,
    step: int | None,
    unavailable: Mapping[JudgeName, str],
) -> JudgmentResult:
    """Means and spreads over the episodes that could be judged.

    `confidences` are those of the judged episodes. It passes if the score and every task criterion
    reach the threshold; a task criterion that could not be judged has not reached it.
    """
    judged = [each for each in rollouts if each.score is not None]
    scores = [each.score for each in judged if each.score is not None]
    summed = tuple(_criterion(criterion, judged) for criterion in criteria)
    if not judged:
        reasons = "; ".join(f"{name}: {why}" for name, why in unavailable.items())
        return JudgmentResult(
            intent_score=None,
            diagnosis=f"could not be judged ({reasons or 'no episode was judged'})",
            strategy=strategy,
            step=step,
            rollouts=tuple(rollouts),
            unavailable=dict(unavailable),
        )
    score = min(1.0, math.fsum(scores) / len(scores))
    # Episodes that only a judge was asked about who could judge none are nobody's failure.
    asked = sum(any(o.judge not in unavailable for o in r.opinions) for r in rollouts)
    task = {criterion.id for criterion in criteria if criterion.category == "task"}
    reached = all(
        each.score is not None and each.score >= threshold for each in summed if each.id in task
    )
    return JudgmentResult(
        intent_score=score,
        passed=score >= threshold and reached,
        diagnosis=_diagnosis(judged, asked, summed, criteria)[:MAX_DIAGNOSIS],
        failure_tags=_tags(judged),
        strategy=strategy,
        step=step,
        score_std=_std(scores),
        criteria=summed,
        rollouts=tuple(rollouts),
        agreement=_agreement(judged),
        confidence=_share(math.fsum(confidences) / asked),
        unavailable=dict(unavailable),
    )


def _criterion(criterion: Criterion, judged: Sequence[RolloutJudgment]) -> CriterionScore:
    found = [each for r in judged for each in r.criteria if each.id == criterion.id]
    scores = [each.score for each in found if each.score is not None]
    values = [each.value for each in found if each.value is not None]
    if not scores:
        return CriterionScore(id=criterion.id, score=None)
    mean = math.fsum(scores) / len(scores)
    typical = min(
        (each for each in found if each.score is not None),
        key=lambda each: abs((each.score or 0.0) - mean),
    )
    return CriterionScore(
        id=criterion.id,
        score=_share(mean),
        std=_std(scores),
        value=math.fsum(values) / len(values) if values else None,
        evidence=typical.evidence,
    )


def _diagnosis(
    judged: Sequence[RolloutJudgment],
    episodes: int,
    summed: Sequence[CriterionScore],
    criteria: Sequence[Criterion],
) -> str:
    """The weakest criteria by name, and what the judges say of the worst and the middle episode."""
    by_id = {criterion.id: criterion for criterion in criteria}
    weak = sorted((s for s in summed if s.score is not None and s.score < 1), key=_score)[:3]
    parts = [f"{len(judged)} of {episodes} episodes judged."] if len(judged) < episodes else []
    if weak:
        parts.append("Weakest: " + "; ".join(_shortfall(each, by_id[each.id]) for each in weak))
        parts[-1] += "."
    order = sorted(judged, key=lambda each: each.score or 0.0)
    said = (order[0].diagnosis, order[len(order) // 2].diagnosis)
    parts += dict.fromkeys(text for text in said if text)
    return " ".join(parts)


def _shortfall(score: CriterionScore, criterion: Criterion) -> str:
    text = f"{criterion.title} {_score(score):.2f}"
    if score.value is None:
        return text
    relation = criterion.comparison.replace("_", " ")
    wanted = f"{relation} {criterion.threshold:.4g} {criterion.unit}".rstrip()
    return f"{text} (measured {score.value:.4g}, asked for {wanted})"


def _score(each: CriterionScore) -> float:
    return each.score if each.score is not None else math.inf


def _tags(judged: Sequence[RolloutJudgment]) -> tuple[str, ...]:
    counts = Counter(tag for each in judged for tag in set(each.failure_tags))
    often = [tag for tag, count in counts.items() if count >= TAG_SHARE * len(judged)]
    return tuple(sorted(often, key=lambda tag: (-counts[tag], tag)))


def _agreement(judged: Sequence[RolloutJudgment]) -> float | None:
    found = []
    for each in judged:
        by_judge = {opinion.judge: opinion for opinion in each.opinions if opinion.available}
        if len(by_judge) == 2:
            near = agreement(by_judge["code"], by_judge["vlm"])
            found += [] if near is None else [near]
    return _share(math.fsum(found) / len(found)) if found else None


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def _std(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
