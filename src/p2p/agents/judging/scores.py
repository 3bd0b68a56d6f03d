"""Small sums over scores: one rubric, the same weights everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from p2p.contracts import FAILURE_TAGS, Criterion


class Scored(Protocol):
    """A criterion with a score."""

    @property
    def id(self) -> str:
        """Of the criterion."""
        ...

    @property
    def score(self) -> float | None:
        """0 to 1; None where it could not be judged."""
        ...


def weighted_score(scores: Iterable[Scored], criteria: Sequence[Criterion]) -> float | None:
    """The mean of the scores by the criteria's weights; None if nothing was judged."""
    weights = {criterion.id: criterion.weight for criterion in criteria}
    known = [(weights[s.id], s.score) for s in scores if s.score is not None and s.id in weights]
    total = sum(weight for weight, _ in known)
    if not known:
        return None
    return min(1.0, max(0.0, sum(weight * score for weight, score in known) / total))


def task_score(scores: Iterable[Scored], criteria: Sequence[Criterion]) -> float | None:
    """The same over the criteria of the category `task`."""
    return weighted_score(scores, [c for c in criteria if c.category == "task"])


def split_tags(tags: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tags of the controlled list, and the others; each once, in their order."""
    tidy = [tag.strip().lower().replace(" ", "_").replace("-", "_") for tag in tags]
    each = list(dict.fromkeys(tag for tag in tidy if tag))
    known = tuple(tag for tag in each if tag in FAILURE_TAGS)
    return known, tuple(tag for tag in each if tag not in FAILURE_TAGS)
