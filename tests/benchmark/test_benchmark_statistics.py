"""Intervals and rank correlation against values worked out elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.benchmark.report import spearman, wilson


def test_wilson_gives_the_textbook_interval() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(0, 0) is None


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_rate(counts: tuple[int, int]) -> None:
    passed, total = counts
    low, high = wilson(passed, total) or (1.0, 0.0)
    assert 0 <= low <= passed / total <= high <= 1


def test_spearman_ranks_ties_in_the_middle() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)  # scipy's spearmanr


def test_where_ranks_say_nothing_there_is_no_correlation() -> None:
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([1, 1, 1], [1, 2, 3]) is None
