"""How numbers and verdicts read, everywhere: terminal, reports, pages and Python."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Self

from p2p.contracts import Category, CriterionScore, Record, Score
from p2p.records.loop_files import MOST_TRIES

if TYPE_CHECKING:
    from p2p.contracts import Criterion
    from p2p.records.session_view import IterationView, SessionView


def format_score(score: float | None, std: float | None = None) -> str:
    """`0.83 ± 0.05`. Rounded down: 1.00 is a score of one, and 0.90 is not short of 0.9."""
    if score is None:
        return "not judged"
    floor = math.floor(score * 100 + 1e-6) / 100
    return f"{floor:.2f}" + (f" ± {std:.2f}" if std is not None else "")


def format_value(value: float | None) -> str:
    """A measured value in three digits."""
    return "" if value is None else f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """`40 s`, `6 min`, `2.5 h`, `3 days`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.0f} days"


def count(number: int, noun: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class CriterionResult(Record):
    """What was asked, what was measured of it, and whether that meets it."""

    id: str
    title: str
    asked: str
    """The target, as `≥ 3 m/s`."""
    demand: str
    """Title and target."""
    category: Category
    soft_reason: str = ""
    """Why it need not be met; empty where it must."""
    value: float | None = None
    measured: str = ""
    score: Score | None = None
    met: bool | None = None
    """None: not judged yet."""
    evidence: str = ""

    is_event: bool = False
    """Whether it counts what must not happen."""

    @classmethod
    def of(cls, criterion: Criterion, score: CriterionScore | None, share: float) -> Self:
        """The result of a criterion; `share` is the score that meets it."""
        value = score.value if score is not None else None
        return cls(
            id=criterion.id,
            title=criterion.title,
            asked=criterion.target,
            demand=criterion.demand,
            category=criterion.category,
            soft_reason=criterion.soft_reason,
            value=value,
            measured="" if value is None else criterion.with_unit(value, format_value(value)),
            score=score.score if score is not None else None,
            met=criterion.is_met(score, share) if score is not None else None,
            evidence=score.evidence if score is not None else "",
            is_event=bool(criterion.event),
        )


def criterion_results(
    session: SessionView, iteration: IterationView | None
) -> tuple[CriterionResult, ...]:
    """The criteria of a session, with what an iteration has shown; empty while there are none."""
    judgment = iteration.judgment if iteration else None
    scores = {score.id: score for score in judgment.criteria} if judgment else {}
    criteria = session.intent.criteria if session.intent else ()
    share = session.loop.pass_threshold
    return tuple(CriterionResult.of(each, scores.get(each.id), share) for each in criteria)


def describe_evidence(iteration: IterationView) -> str:
    """Return how many trainings passed, and on what: empty while nothing is judged.

    `1 of 2 training seeds passed; that policy held on 16 unseen episodes`.
    """
    passed, judged, trained = iteration.seeds_passed
    confirmation = iteration.confirmation
    others = f" ({trained - judged} not judged)" if judged < trained else ""
    parts = [f"{passed} of {trained} training seeds passed{others}"] if trained > 1 else []
    if confirmation is not None:
        policy = "that policy " if parts else ""
        held = "held" if confirmation.passed else "did not hold"
        known = iteration.record.confirmation_tries.read()
        tries = len(known.tries) if known else 1
        which = f" (try {tries} of at most {MOST_TRIES})" if tries > 1 else ""
        episodes = count(len(confirmation.rollouts), "unseen episode")
        parts.append(f"{policy}{held} on {episodes}{which}")
    return "; ".join(parts)


def short_env_name(env_id: str) -> str:
    """Return `HalfCheetah`, or `rover` of `robots/rover-0123456789ab`."""
    return re.sub(r"^robots/(.*)-[0-9a-f]{12}$", r"\1", re.sub(r"-v\d+$", "", env_id))
