"""Term by term: mean, spread, trend and share, whatever the values are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from p2p.analysis.trajectory_metrics import analyze_trajectory


def test_each_term_has_its_mean_spread_and_share():
    terms = analyze_trajectory({"speed": np.full(100, 3.0), "ctrl": np.full(100, -1.0)}).terms
    assert (terms["speed"].mean, terms["speed"].std, terms["speed"].trend) == (3.0, 0.0, "flat")
    assert terms["speed"].fraction_of_total == pytest.approx(0.75)
    assert terms["ctrl"].fraction_of_total == pytest.approx(0.25)
    assert terms["ctrl"].mean == -1.0


def test_shares_of_terms_that_cancel_out_are_still_shares():
    wave = np.sin(np.linspace(0, 20 * np.pi, 400))
    terms = analyze_trajectory({"a": wave, "b": -wave}).terms
    assert terms["a"].fraction_of_total == pytest.approx(0.5)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize(
    ("curve", "trend"),
    [
        (np.linspace(0, 1, 200), "rising"),
        (np.linspace(1, -1, 200), "falling"),
        (np.sin(np.linspace(0, 40 * np.pi, 400)), "flat"),
        (np.full(50, 0.1) + 1e-15 * np.arange(50), "flat"),
    ],
)
def test_trend_does_not_depend_on_scale(curve, trend, scale):
    assert analyze_trajectory({"t": curve * scale}).terms["t"].trend == trend


def test_what_is_not_finite_is_counted_and_left_out():
    curve = np.ones(10)
    curve[[2, 5]] = np.nan, np.inf
    metrics = analyze_trajectory({"t": curve, "dead": np.full(10, np.nan), "none": []})
    assert (metrics.terms["t"].mean, metrics.terms["t"].not_finite) == (1.0, 2)
    assert metrics.terms["t"].fraction_of_total == 1.0
    assert (metrics.terms["dead"].mean, metrics.terms["dead"].not_finite) == (None, 10)
    assert "2 values not finite" in metrics.text()
    assert "dead: no finite value in 10 steps" in metrics.text()


def test_nothing_gives_nothing():
    assert analyze_trajectory({}).text() == ""
    assert analyze_trajectory({"t": [0.0, 0.0]}).terms["t"].fraction_of_total is None


@given(st.dictionaries(st.text(max_size=3), arrays(np.float64, st.integers(0, 30)), max_size=4))
def test_no_array_makes_a_number_that_is_not_finite(terms):
    for term in analyze_trajectory(terms).terms.values():
        assert term.mean is None or np.isfinite(term.mean)
        assert term.std is None or np.isfinite(term.std)
        assert term.fraction_of_total is None or 0 <= term.fraction_of_total <= 1 + 1e-9
