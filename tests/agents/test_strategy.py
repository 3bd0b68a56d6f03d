"""What a history says about the strategy behind it."""

from __future__ import annotations

import pytest

from p2p.agents.session_text import Attempt, strategy_text, trend
from p2p.contracts import LineageNode


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], "too few"),
        ([0.5], "too few"),
        ([0.5, 0.9], "new best"),
        ([0.5, 0.51, 0.5, 0.49], "plateau"),
        ([0.9, 0.3, 0.4, 0.5, 0.6], "improving"),
        ([0.9, 0.8, 0.7, 0.6], "declining"),
        ([0.9, 0.2, 0.8, 0.3], "erratic"),
    ],
)
def test_the_trend_of_scores(scores, expected):
    assert trend(scores) == expected


def attempts(scores, codes=None, gammas=None, tags=()):
    count = len(scores)
    return [
        Attempt(
            LineageNode(iteration=i + 1, parent=i or None, score=scores[i], failure_tags=tags),
            (codes or [str(n) for n in range(count)])[i],
            {"gamma": (gammas or [0.9] * count)[i]},
        )
        for i in range(count)
    ]


def test_going_back_and_forth_is_noted():
    text = strategy_text(attempts([0.1, 0.2, 0.1], codes=["a\nb", "c\nd", "a\nb"]))
    assert "iterations 1, 2, 3 go back and forth between two rewards" in text
    text = strategy_text(attempts([0.1, 0.2, 0.1], gammas=[0.9, 0.8, 0.9]))
    assert "iterations 1, 2, 3 go back and forth in gamma" in text
    assert "back and forth" not in strategy_text(attempts([0.1, 0.2, 0.1]))


def test_failures_that_stay_and_phases_are_noted():
    text = strategy_text(attempts([0.1, 0.3, 0.5, 0.5], tags=("fell",)))
    assert "failures that stay, of 4 iterations: fell in 4" in text
    assert "phases: 1-3 rising, 3-4 flat" in text


def test_what_was_not_judged_counts_for_nothing():
    text = strategy_text(attempts([0.5, None, 0.5]))
    assert "2 of 3 iterations judged; trend: plateau" in text
    assert strategy_text(attempts([None])) == "no iteration is judged yet"
