"""From judges' opinions to one verdict per episode, and to one judgement of all episodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from p2p.agents.requests import SeenCriterion, VisualVerdict
from p2p.contracts import (
    CLEAR_MISS,
    FAILURE_TAGS,
    Criterion,
    CriterionScore,
    JudgeName,
    JudgeOpinion,
    JudgeStrategy,
    JudgmentResult,
    RolloutJudgment,
)
from p2p.records.formatting import format_score

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

BY_OTHERS = "by other episodes: "
"""Before the evidence in an episode that nobody looked at."""
TAG_SHARE = 1 / 3
"""A tag of the run is one that at least this share of its judged episodes have."""
MAX_DIAGNOSIS = 3000


# --- scores and opinions --------------------------------------------------------------------------


def weighted_score(
    scores: Iterable[CriterionScore | SeenCriterion], criteria: Sequence[Criterion]
) -> float | None:
    """The mean of the scores by the criteria's weights; None if nothing was judged."""
    weights = {criterion.id: criterion.weight for criterion in criteria}
    known = [(weights[s.id], s.score) for s in scores if s.score is not None and s.id in weights]
    if not known:
        return None
    total = sum(weight for weight, _ in known)
    return _share(sum(weight * score for weight, score in known) / total)


def task_score(scores: Iterable[CriterionScore], criteria: Sequence[Criterion]) -> float | None:
    """The same over the criteria of the category `task`."""
    return weighted_score(scores, [c for c in criteria if c.category == "task"])


def split_tags(tags: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tags of the controlled list, and the others; each once, in their order."""
    tidy = [tag.strip().lower().replace(" ", "_").replace("-", "_") for tag in tags]
    each = list(dict.fromkeys(tag for tag in tidy if tag))
    known = tuple(tag for tag in each if tag in FAILURE_TAGS)
    return known, tuple(tag for tag in each if tag not in FAILURE_TAGS)


def add_other_tags(diagnosis: str, tags: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The diagnosis, with tags that are not on the controlled list added to it; and the others."""
    known, others = split_tags(tags)
    also = f" Also: {', '.join(others)}." if others else ""
    return f"{diagnosis}{also}".strip()[:2000], known


def code_opinion(reply: Mapping[str, Any] | str, criteria: Sequence[Criterion]) -> JudgeOpinion:
    """The opinion of the code judge, by its tidied reply or by the reason why there is none."""
    if isinstance(reply, str):
        return unavailable_opinion("code", reply)
    by_id = {criterion.id: criterion for criterion in criteria}
    scores = tuple(
        score_event(
            CriterionScore(id=name, **{key: entry[key] for key in ("score", "value", "evidence")}),
            by_id[name],
        )
        for name, entry in reply["criteria"].items()
    )
    return _opinion("code", scores, criteria, reply["diagnosis"], reply["failure_tags"])


def score_event(score: CriterionScore, criterion: Criterion) -> CriterionScore:
    """The score of an event by its count: 1 up to the threshold, then less for each one more.

    The first one too many already misses the criterion; the rest ranks policies that all miss it.
    """
    if not criterion.event or score.value is None or score.score is None:
        return score
    excess = max(0.0, score.value - criterion.threshold)
    return score.model_copy(update={"score": 1 / (1 + excess)})


def visual_opinion(
    verdict: VisualVerdict, criteria: Sequence[Criterion], shown: str = ""
) -> JudgeOpinion:
    """Return the VLM's opinion, which is unavailable if it could tell nothing."""
    if all(each.score is None for each in verdict.criteria):
        reason = f"the pictures show nothing conclusive: {verdict.diagnosis}"
        return unavailable_opinion("vlm", reason)
    scores = seen_scores(verdict.criteria, criteria)
    opinion = _opinion("vlm", scores, criteria, verdict.diagnosis, verdict.failure_tags)
    return opinion.model_copy(update={"shown": shown})


def seen_scores(
    seen: Iterable[SeenCriterion],
    criteria: Sequence[Criterion],
    measured: Iterable[CriterionScore] = (),
) -> tuple[CriterionScore, ...]:
    """Return the scores of what the VLM saw; a visual criterion's value is its score.

    A number that was measured stays where the score that came with it does. One whose score is
    overruled measured something else.
    """
    visual = {criterion.id for criterion in criteria if criterion.visual}
    by_code = {each.id: each for each in measured}

    def value(each: SeenCriterion) -> float | None:
        if each.id in visual:
            return each.score
        code = by_code.get(each.id)
        return None if code is None or is_overruled(code.score, each.score) else code.value

    return tuple(
        CriterionScore(
            id=each.id, score=each.score, value=value(each), evidence=each.evidence[:500]
        )
        for each in seen
    )


def is_overruled(score: float | None, final: float | None) -> bool:
    """Return whether the final score differs from this one."""
    return score is not None and final is not None and abs(score - final) > CLOSE


def unavailable_opinion(judge: JudgeName, reason: str) -> JudgeOpinion:
    """Return the opinion of a judge that could not judge."""
    return JudgeOpinion(judge=judge, available=False, reason=reason[:4000])


def _opinion(
    judge: JudgeName,
    scores: tuple[CriterionScore, ...],
    criteria: Sequence[Criterion],
    diagnosis: str,
    tags: Iterable[str],
) -> JudgeOpinion:
    diagnosis, known = add_other_tags(diagnosis, tags)
    return JudgeOpinion(
        judge=judge,
        available=True,
        score=weighted_score(scores, criteria),
        criteria=scores,
        diagnosis=diagnosis,
        failure_tags=known,
    )


# --- one episode ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is held true of an episode."""

    criteria: tuple[CriterionScore, ...]
    diagnosis: str
    failure_tags: tuple[str, ...]
    confidence: float
    amendment: str = ""
    """What the code judge measures wrongly, by who has heard both."""


def verdict_of_one(opinion: JudgeOpinion, *, alone: bool) -> Verdict:
    """Return the verdict of a single judge; `alone`: no other judge was requested."""
    confidence = CONFIDENCE[opinion.judge if alone else "one_of_two"]
    return Verdict(opinion.criteria, opinion.diagnosis, opinion.failure_tags, confidence)


def agreement(code: JudgeOpinion, vlm: JudgeOpinion) -> float | None:
    """1 less the mean difference over the criteria that both scored; None if there is none."""
    gaps = [abs(a - b) for a, b in _scored_by_both(code, vlm).values()]
    return 1 - sum(gaps) / len(gaps) if gaps else None


def agree(code: JudgeOpinion, vlm: JudgeOpinion, criteria: Sequence[Criterion]) -> bool:
    """Return whether there is nothing to settle between them."""
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


def merge_opinions(
    code: JudgeOpinion, vlm: JudgeOpinion, *, confidence: float | None = None
) -> Verdict:
    """Merge agreeing opinions: numbers from the code judge, the rest from the VLM."""
    near = agreement(code, vlm)
    if confidence is None:
        confidence = CONFIDENCE["code"] if near is None else near
    seen = {each.id: each for each in vlm.criteria}
    told = tuple(seen.get(each.id, each) if each.score is None else each for each in code.criteria)
    ids = {each.id for each in told}
    return Verdict(
        criteria=(*told, *(each for each in vlm.criteria if each.id not in ids)),
        diagnosis=" ".join(filter(None, (code.diagnosis, vlm.diagnosis))),
        failure_tags=tuple(dict.fromkeys((*code.failure_tags, *vlm.failure_tags))),
        confidence=confidence,
    )


def mean_shifts(pairs: Sequence[tuple[JudgeOpinion, Verdict]]) -> dict[str, float]:
    """Return by criterion the mean difference between verdicts and the code judge's scores."""
    gaps: dict[str, list[float]] = {}
    for opinion, verdict in pairs:
        for name, (measured, final) in _scored_by_both(opinion, verdict).items():
            gaps.setdefault(name, []).append(final - measured)
    return {name: sum(each) / len(each) for name, each in gaps.items()}


def apply_shifts(
    verdict: Verdict, by: Mapping[str, float], evidence: Mapping[str, str] | None = None
) -> Verdict:
    """Apply the corrections of the code judge to an episode that the VLM did not see.

    Otherwise a trick that the eye finds in every episode it is shown would still count in the rest.
    Where the code judge is overruled, `evidence` of those that were seen stands for its own.
    """

    def move_score(each: CriterionScore) -> CriterionScore:
        if each.score is None or not by.get(each.id):
            return each
        score = _share(each.score + by[each.id])
        if not is_overruled(each.score, score):
            return each.model_copy(update={"score": score})
        text = (evidence or {}).get(each.id, each.evidence)
        return each.model_copy(update={"score": score, "value": None, "evidence": text})

    return replace(verdict, criteria=tuple(map(move_score, verdict.criteria)))


def overruling_evidence(pairs: Sequence[tuple[JudgeOpinion, Verdict]]) -> dict[str, str]:
    """Return the VLM's evidence by criterion where it overrules the code judge."""
    return {
        each.id: f"{BY_OTHERS}{each.evidence}"[:500]
        for opinion, verdict in pairs
        for each in verdict.criteria
        if each.evidence
        and (both := _scored_by_both(opinion, verdict).get(each.id))
        and is_overruled(*both)
    }


def _scored_by_both(
    code: JudgeOpinion, other: JudgeOpinion | Verdict
) -> dict[str, tuple[float, float]]:
    others = {each.id: each.score for each in other.criteria}
    return {
        each.id: (each.score, score)
        for each in code.criteria
        if each.score is not None and (score := others.get(each.id)) is not None
    }


# --- all episodes ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JudgedEpisode:
    """A recorded episode and what the judges say of it."""

    label: str
    seed: int | None
    file: Path
    summary: dict[str, Any]
    code: JudgeOpinion | None = None
    vlm: JudgeOpinion | None = None
    verdict: Verdict | None = None

    @property
    def opinions(self) -> tuple[JudgeOpinion, ...]:
        """Of the judges that were asked about it."""
        return tuple(each for each in (self.code, self.vlm) if each is not None)

    def rollout(self, criteria: Sequence[Criterion]) -> RolloutJudgment:
        """Return the stored form; without a verdict its score is None."""
        verdict = self.verdict or Verdict((), "", (), 0.0)
        return RolloutJudgment(
            label=self.label,
            seed=self.seed,
            score=weighted_score(verdict.criteria, criteria),
            criteria=verdict.criteria,
            opinions=self.opinions,
            diagnosis=verdict.diagnosis,
            failure_tags=verdict.failure_tags,
        )


def sum_up(
    episodes: Sequence[JudgedEpisode],
    criteria: Sequence[Criterion],
    *,
    strategy: JudgeStrategy,
    threshold: float,
    step: int | None,
) -> JudgmentResult:
    """Means and spreads over the episodes that could be judged.

    It passes if every hard criterion is met and no failure is tagged; a criterion that could not be
    judged is not met. `threshold` is the mean score that a criterion needs besides its value.
    """
    rollouts = tuple(each.rollout(criteria) for each in episodes)
    judged = [each for each in rollouts if each.score is not None]
    scores = [each.score for each in judged if each.score is not None]
    summed = tuple(_criterion(criterion, judged) for criterion in criteria)
    unavailable = _describe_unavailable(rollouts)
    if not judged:
        reasons = "; ".join(f"{name}: {why}" for name, why in unavailable.items())
        return JudgmentResult(
            intent_score=None,
            diagnosis=f"could not be judged ({reasons or 'no episode was judged'})",
            strategy=strategy,
            step=step,
            rollouts=rollouts,
            unavailable=unavailable,
        )
    score = min(1.0, math.fsum(scores) / len(scores))
    # Episodes that only a judge was asked about who could judge none are nobody's failure.
    asked = sum(any(o.judge not in unavailable for o in r.opinions) for r in rollouts)
    met = all(
        criterion.is_met(result, threshold)
        for criterion, result in zip(criteria, summed, strict=True)
        if criterion.hard
    )
    tags = _tags(judged)
    return JudgmentResult(
        intent_score=score,
        passed=met and not tags,
        diagnosis=_diagnosis(judged, asked, summed, criteria)[:MAX_DIAGNOSIS],
        failure_tags=tags,
        strategy=strategy,
        step=step,
        score_std=_std(scores),
        criteria=summed,
        rollouts=rollouts,
        agreement=_agreement(judged),
        confidence=_share(math.fsum(e.verdict.confidence for e in episodes if e.verdict) / asked),
        unavailable=unavailable,
        amendments=tuple(
            dict.fromkeys(
                e.verdict.amendment for e in episodes if e.verdict and e.verdict.amendment
            )
        ),
    )


def _describe_unavailable(rollouts: Sequence[RolloutJudgment]) -> dict[JudgeName, str]:
    """Describe the requested judges that judged nothing, with their reasons."""
    reasons: dict[JudgeName, str] = {}
    names: tuple[JudgeName, ...] = ("code", "vlm")
    for name in names:
        opinions = [o for each in rollouts for o in each.opinions if o.judge == name]
        if opinions and not any(opinion.available for opinion in opinions):
            reasons[name] = "; ".join(dict.fromkeys(opinion.reason for opinion in opinions))
    return reasons


def _criterion(criterion: Criterion, judged: Sequence[RolloutJudgment]) -> CriterionScore:
    entries = [each for r in judged for each in r.criteria if each.id == criterion.id]
    scores = [each.score for each in entries if each.score is not None]
    values = [each.value for each in entries if each.value is not None]
    if not scores:
        return CriterionScore(id=criterion.id, score=None)
    mean = math.fsum(scores) / len(scores)
    missed = sum(score < CLEAR_MISS for score in scores) / len(scores)
    if criterion.event:
        return CriterionScore(
            id=criterion.id,
            score=_share(mean),
            std=_std(scores),
            missed=missed,
            value=max(values, default=None),
            evidence=_describe_event(criterion, entries),
        )
    # Who overruled a measured number says why, and that number is no evidence any more.
    ruled = [each for each in entries if each.value is None and each.evidence] if values else []
    typical = min(
        (each for each in ruled or entries if each.score is not None),
        key=lambda each: abs((each.score or 0.0) - mean),
    )
    return CriterionScore(
        id=criterion.id,
        score=_share(mean),
        std=_std(scores),
        missed=missed,
        value=math.fsum(values) / len(values) if 2 * len(values) > len(scores) else None,
        evidence=typical.evidence.removeprefix(BY_OTHERS),
    )


def _describe_event(criterion: Criterion, entries: Sequence[CriterionScore]) -> str:
    """Return a text such as `fell in 2 of 16 episodes`, with the evidence of the worst one."""
    episodes, judged = criterion.count_happened(entries)
    text = f"{criterion.event} in {episodes} of {judged} episodes"
    if not episodes:
        return text
    worst = min(
        (each for each in entries if each.score is not None),
        key=lambda each: (each.score or 0.0, -(each.value or 0.0)),
    )
    return f"{text} ({worst.evidence})" if worst.evidence else text


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
        parts.append(
            "Weakest: " + "; ".join(_describe_shortfall(each, by_id[each.id]) for each in weak)
        )
        parts[-1] += "."
    order = sorted(judged, key=lambda each: each.score or 0.0)
    worst, middle = order[0].diagnosis, order[len(order) // 2].diagnosis
    # Where only one of both was looked at, its text begins with what the other's program says.
    longer, shorter = sorted((worst, middle), key=len, reverse=True)
    if shorter in longer:
        parts.append(longer)
    else:
        parts += [f"Worst episode: {worst.rstrip('.')}.", f"Middle one: {middle.rstrip('.')}."]
    return " ".join(parts)


def _describe_shortfall(score: CriterionScore, criterion: Criterion) -> str:
    if criterion.event:
        return f"{criterion.title}: {score.evidence}"
    text = f"{criterion.title} {format_score(_score(score))}"
    if score.value is None:
        return text
    relation = criterion.comparison.replace("_", " ")
    target = f"{relation} {criterion.threshold:.4g} {criterion.unit}".rstrip()
    return f"{text} (measured {score.value:.4g}, asked for {target})"


def _score(each: CriterionScore) -> float:
    return each.score if each.score is not None else math.inf


def _tags(judged: Sequence[RolloutJudgment]) -> tuple[str, ...]:
    counts = Counter(tag for each in judged for tag in set(each.failure_tags))
    often = [tag for tag, count in counts.items() if count >= TAG_SHARE * len(judged)]
    return tuple(sorted(often, key=lambda tag: (-counts[tag], tag)))


def _agreement(judged: Sequence[RolloutJudgment]) -> float | None:
    values = []
    for each in judged:
        by_judge = {opinion.judge: opinion for opinion in each.opinions if opinion.available}
        if len(by_judge) == 2:
            value = agreement(by_judge["code"], by_judge["vlm"])
            values += [] if value is None else [value]
    return _share(math.fsum(values) / len(values)) if values else None


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def _std(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
