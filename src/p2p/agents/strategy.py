"""What a history of iterations says about the strategy behind it: trend, regressions, circles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any, Literal

from p2p.contracts import LineageNode

Trend = Literal["too few", "new best", "plateau", "improving", "declining", "erratic"]

PLATEAU = 0.05
CLEAR_STEP = 0.02
_WINDOW = 4
_SIMILAR = 0.95
_MOST_NOTES = 6
_MOST_CHANGES = 15


@dataclass(frozen=True)
class Attempt:
    """An iteration: where it stands in the tree, and what was tried."""

    node: LineageNode
    code: str
    hyperparameters: Mapping[str, Any]


def trend(scores: Sequence[float]) -> Trend:
    """Where the last scores go."""
    if len(scores) < 2:
        return "too few"
    if scores[-1] > max(scores[:-1]) + CLEAR_STEP:
        return "new best"
    last = scores[-_WINDOW:]
    if max(last) - min(last) < PLATEAU:
        return "plateau"
    steps = [after - before for before, after in pairwise(last)]
    if all(step >= 0 for step in steps):
        return "improving"
    return "declining" if all(step <= 0 for step in steps) else "erratic"


def strategy_text(attempts: Sequence[Attempt]) -> str:
    """The judged iterations, summed up in a few lines."""
    judged = [attempt for attempt in attempts if attempt.node.score is not None]
    if not judged:
        return "no iteration is judged yet"
    scores = [_score(attempt) for attempt in judged]
    lines = [
        f"{len(judged)} of {len(attempts)} iterations judged; trend: {trend(scores)}",
        f"phases: {_phases(judged)}",
        *[f"note: {note}" for note in _notes(judged)[:_MOST_NOTES]],
        "tried:",
        *[_change(attempt, judged) for attempt in judged[-_MOST_CHANGES:]],
    ]
    return "\n".join(lines)


def _score(attempt: Attempt) -> float:
    assert attempt.node.score is not None
    return attempt.node.score


def _phases(judged: Sequence[Attempt]) -> str:
    """Stretches in which the score rose, fell or stayed, as `1-3 rising, 4-6 flat`."""
    phases: list[tuple[str, int, int]] = []
    for before, after in pairwise(judged):
        step = _score(after) - _score(before)
        kind = "flat" if abs(step) <= CLEAR_STEP else "rising" if step > 0 else "falling"
        start, end = before.node.iteration, after.node.iteration
        if phases and phases[-1][0] == kind:
            phases[-1] = (kind, phases[-1][1], end)
        else:
            phases.append((kind, start, end))
    return ", ".join(f"{start}-{end} {kind}" for kind, start, end in phases[-8:]) or "only one"


def _notes(judged: Sequence[Attempt]) -> list[str]:
    return [*_circles(judged), *_regressions(judged), *_lasting_tags(judged)]


def _regressions(judged: Sequence[Attempt]) -> list[str]:
    """Iterations that lost clearly against the one they were based on; the worst first."""
    by_number = {attempt.node.iteration: attempt for attempt in judged}
    lost = [
        (_score(parent) - _score(attempt), attempt.node)
        for attempt in judged
        if (parent := by_number.get(attempt.node.parent or 0)) is not None
    ]
    worst = sorted((pair for pair in lost if pair[0] > CLEAR_STEP), key=lambda pair: -pair[0])
    return [
        f"iteration {node.iteration} lost {loss:.2f} against {node.parent}"
        for loss, node in worst[:2]
    ]


def _lasting_tags(judged: Sequence[Attempt]) -> list[str]:
    if len(judged) < 2:
        return []
    counts = Counter(tag for attempt in judged for tag in set(attempt.node.failure_tags))
    lasting = [(tag, n) for tag, n in counts.most_common() if n >= max(2, 0.3 * len(judged))]
    told = ", ".join(f"{tag} in {n}" for tag, n in lasting[:4])
    return [f"failures that stay, of {len(judged)} iterations: {told}"] if told else []


def _circles(judged: Sequence[Attempt]) -> list[str]:
    """Values and code that went away and came back."""
    notes: list[str] = []
    for first, second, third in zip(judged, judged[1:], judged[2:], strict=False):
        names = [
            name
            for name, value in third.hyperparameters.items()
            if first.hyperparameters.get(name) == value != second.hyperparameters.get(name)
            and name in second.hyperparameters
        ]
        where = f"{first.node.iteration}, {second.node.iteration}, {third.node.iteration}"
        if names:
            notes.append(f"iterations {where} go back and forth in {', '.join(names[:4])}")
        if _alike(first.code, third.code) > _SIMILAR > _alike(first.code, second.code):
            notes.append(f"iterations {where} go back and forth between two rewards")
    return notes[-3:]


def _alike(first: str, second: str) -> float:
    """Share of equal lines."""
    return SequenceMatcher(None, first.splitlines(), second.splitlines(), autojunk=False).ratio()


def _change(attempt: Attempt, judged: Sequence[Attempt]) -> str:
    node = attempt.node
    parents = [other for other in judged if other.node.iteration == node.parent]
    gained = f" ({_score(attempt) - _score(parents[0]):+.2f})" if parents else ""
    changes = " ".join(node.changes.split())[:120] or "the first reward"
    return f"  {node.iteration}: {changes} -> {_score(attempt):.2f}{gained}"
