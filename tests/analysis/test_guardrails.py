"""Constructed curves: each kind is recognised at any scale, and noise is not a finding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.analysis.guardrails import (
    check_run,
    check_terms,
    check_traded_terms,
    check_training_plateau,
    detect_reward_hacking,
)


def _lines(values, **more):
    return [
        {"type": "train", "global_step": 2048 * (i + 1), "episodic_return": float(v)}
        for i, v in enumerate(values)
    ]


X = np.linspace(0, 1, 300)
CURVES = {
    "rising": 100 * X,
    "still rising, slowing": 100 * np.sqrt(X),
    "plateau": 100 * np.minimum(1, 3 * X),
    "flat": np.zeros_like(X),
    "falling": 100 * np.minimum(1, 3 * X) - 300 * np.maximum(0, X - 0.8),
}
STATES = {
    "rising": "rising",
    "still rising, slowing": "rising",
    "plateau": "plateau",
    "flat": "plateau",
    "falling": "falling",
}


@pytest.mark.parametrize("noise", [0.0, 3.0])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shift", [0.0, -50.0])
@pytest.mark.parametrize("kind", CURVES)
def test_a_curve_is_recognised_at_any_scale(kind, scale, shift, noise):
    rng = np.random.default_rng(0)
    curve = CURVES[kind] + shift + noise * rng.standard_normal(len(X))
    assert check_training_plateau(_lines(scale * curve)).state == STATES[kind]


@pytest.mark.parametrize("kind", ["rising", "plateau", "flat"])
def test_noise_does_not_often_change_the_finding(kind):
    right = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        # Averages over the last episodes: noise that hangs together over ten points.
        noise = np.convolve(rng.standard_normal(len(X) + 9), np.ones(10) / 10, "valid")
        right += check_training_plateau(_lines(CURVES[kind] + 20 * noise)).state == STATES[kind]
    assert right >= 85


def test_slow_noisy_rise_is_seldom_a_plateau():
    called = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        curve = 20 * X + 20 * rng.standard_normal(len(X))
        called.append(check_training_plateau(_lines(curve)).state)
    assert called.count("plateau") <= 10


def test_too_few_points_are_unclear():
    found = check_training_plateau(_lines(range(5)))
    assert found.state == "unclear"
    assert "too few" in found.text()
    assert check_training_plateau([]).state == "unclear"


def test_one_outlier_is_not_a_range():
    curve = CURVES["rising"].copy()
    curve[20] = 1e9
    assert check_training_plateau(_lines(curve)).state == "rising"


def test_values_that_are_not_finite_are_left_out():
    curve = CURVES["plateau"].copy()
    curve[::7] = np.nan
    curve[5] = np.inf
    lines = _lines(curve)
    lines[3]["episodic_return"] = "NaN"
    lines[4]["episodic_return"] = None
    del lines[6]["episodic_return"]
    found = check_training_plateau(lines)
    assert found.state == "plateau"
    assert found.gain == pytest.approx(0, abs=1e-6)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(), max_size=40))
def test_no_curve_makes_it_raise(values):
    found = check_training_plateau(_lines(values))
    assert found.gain is None or np.isfinite(found.gain)
    found.text()


def test_a_reward_of_one_term_is_not_dominated():
    assert check_terms({"speed": 5.0}) == []
    assert check_terms({}) == []


def test_one_term_that_drowns_the_others_is_named():
    (warning,) = check_terms({"alive": 100.0, "speed": 1.0, "ctrl": -1.0})
    assert (warning.kind, warning.term) == ("dominant_term", "alive")
    assert "98%" in warning.message
    assert check_terms({"speed": 5.0, "ctrl": -1.0}) == []


def test_dead_term_makes_no_other_dominant():
    (warning,) = check_terms({"speed": 5.0, "bonus": 0.0})
    assert (warning.kind, warning.term) == ("dead_term", "bonus")
    assert check_terms({"a": 0.0, "b": 0.0}) == []


def test_a_penalty_dominates_by_its_size():
    (warning,) = check_terms({"speed": 1.0, "ctrl": -99.0})
    assert warning.term == "ctrl"


def test_terms_that_are_not_finite_are_reported_and_not_counted():
    warnings = check_terms({"a": float("nan"), "b": 1.0, "c": 1.0, "d": float("-inf")})
    assert [(w.kind, w.term) for w in warnings] == [("not_finite", "a"), ("not_finite", "d")]
    assert check_terms({"a": 1.5e308, "b": 1.5e308}) == []


def test_a_gain_that_others_pay_for_is_named():
    warning = check_traded_terms({"speed": 1.0, "upright": 10.0}, {"speed": 9.0, "upright": 2.0})
    assert warning is not None
    assert warning.term == "speed"
    assert "upright" in warning.message
    assert check_traded_terms({"a": 1.0, "b": 1.0}, {"a": 9.0, "b": 0.5}) is None
    assert check_traded_terms({"a": 1.0}, {"a": 0.0}) is None
    assert check_traded_terms({"a": 1.0, "b": 2.0}, {"a": float("nan")}) is None


def test_the_last_evaluation_counts():
    evaluations = [
        {"reward_terms": {"a": 1.0, "b": 1.0}},
        {"reward_terms": {}},
        {"reward_terms": {"a": 100.0, "b": 1.0}},
    ]
    assert [w.kind for w in detect_reward_hacking(evaluations)] == ["dominant_term"]
    assert detect_reward_hacking([]) == []
    assert detect_reward_hacking([{"reward_terms": [1]}]) == []


def test_a_whole_run_is_checked():
    kinds = [w.kind for w in check_run(_lines(CURVES["plateau"]), [{"reward_terms": {"a": 1.0}}])]
    assert kinds == ["plateau"]
    assert [w.kind for w in check_run(_lines(CURVES["falling"]), [])] == ["decline"]
    assert check_run(_lines(CURVES["rising"]), []) == []
