"""PPO's health on constructed runs: Gaussian entropy, divergence, spikes, and NaN reported."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.analysis.training_dynamics import (
    analyze_training,
    judge_clip_fraction,
    judge_explained_variance,
    judge_exploration,
    judge_kl,
    judge_value_loss,
)

NONE = np.empty(0)


@pytest.mark.parametrize("start", [0.05, 1.0, 2.0])
@pytest.mark.parametrize(
    ("ratios", "state"),
    [
        (np.linspace(1, 0.3, 100), "healthy"),
        (np.geomspace(1, 0.01, 100), "collapsed"),
        (np.maximum(0.1, 1 - 8 * np.linspace(0, 1, 100)), "collapsed_early"),
        (np.geomspace(1, 4, 100), "growing"),
        (np.ones(100), "unchanged"),
        (np.ones(1), "unknown"),
    ],
)
def test_exploration_is_judged_against_its_own_beginning(ratios, state, start):
    assert judge_exploration(start * ratios).state == state


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_value_loss_that_runs_away_is_bad_and_others_are_not(scale):
    n = np.arange(100)
    assert judge_value_loss(scale * np.exp(n / 10)).state == "bad"
    assert judge_value_loss(scale * np.exp(-n / 10)).state == "good"
    assert judge_value_loss(scale * (1.0 + n / 50)).state == "good"
    level = np.where(n < 30, 0.01, 0.1)  # longer episodes, larger returns: a new level
    assert judge_value_loss(scale * level).state == "good"
    assert judge_value_loss(np.array([1.0])).state == "unknown"
    assert judge_value_loss(np.zeros(20)).state == "good"


def test_kl_spikes_are_counted_and_large_steps_are_bad():
    calm = np.full(100, 0.005)
    assert judge_kl(calm).state == "good"
    calm[[3, 50]] = 0.5
    assert judge_kl(calm).detail == "2 of 100 spike"
    assert judge_kl(np.full(100, 0.2)).state == "bad"
    assert judge_kl(np.full(100, 0.02)).state == "good"
    assert judge_kl(NONE).state == "unknown"


def test_clip_fraction_and_explained_variance_have_their_bands():
    assert judge_clip_fraction(np.full(10, 0.1)).state == "good"
    assert judge_clip_fraction(np.full(10, 0.5)).state == "bad"
    assert judge_clip_fraction(np.zeros(10)).state == "fair"
    assert judge_explained_variance(np.linspace(-1, 0.9, 50)).state == "good"
    assert judge_explained_variance(np.full(10, 0.3)).state == "fair"
    assert judge_explained_variance(np.full(10, -0.5)).state == "bad"
    assert judge_explained_variance(NONE).state == judge_clip_fraction(NONE).state == "unknown"


def _healthy_run(n: int = 60) -> list[dict]:
    x = np.linspace(0, 1, n)
    return [
        {
            "type": "train", "global_step": 2048 * (i + 1), "iteration": i + 1,
            "episodic_return": 100 * x[i], "policy_std": 1 - 0.5 * x[i], "entropy": 3 - x[i],
            "value_loss": 1 - 0.5 * x[i], "approx_kl": 0.01, "clip_fraction": 0.1,
            "explained_variance": 0.9 * x[i], "reward_term_speed": x[i], "reward_term_ctrl": -0.1,
        }
        for i in range(n)
    ]  # fmt: skip


def test_a_healthy_run_reads_as_one():
    found = analyze_training(_healthy_run())
    assert found.returns.state == "rising"
    assert found.exploration.state == "healthy"
    states = {found.value_loss.state, found.kl.state, found.clip_fraction.state}
    assert states | {found.explained_variance.state} == {"good"}
    assert found.terms["speed"].trend == "rising"
    assert found.terms["ctrl"].trend == "flat"
    assert found.not_finite == {}
    text = found.text()
    for part in ("60 updates to step 122880", "rising", "term speed", "value_loss", "kl"):
        assert part in text
    assert "nan" not in text.lower()


def test_nan_is_reported_and_goes_no_further():
    lines = _healthy_run()
    for line in lines[40:]:
        line["value_loss"] = float("nan")
        line["reward_term_speed"] = "NaN"
    lines[50]["approx_kl"] = float("inf")
    found = analyze_training(lines)
    assert found.not_finite == {"approx_kl": 1, "reward_term_speed": 20, "value_loss": 20}
    assert found.value_loss.state == "good"
    assert "value_loss: not finite in 20 lines" in found.text()
    assert "nan" not in found.model_dump_json().lower()


def test_no_lines_and_lines_without_metrics_are_no_error():
    assert analyze_training([]).text() == "no training lines"
    found = analyze_training([{"global_step": 5}])
    assert found.exploration.state == "unknown"
    assert found.returns.state == "unclear"
    assert "no data" in found.text()


_NAMES = ["policy_std", "entropy", "value_loss", "approx_kl", "episodic_return", "reward_term_a"]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["global_step", *_NAMES]),
            st.floats() | st.none() | st.text(max_size=3) | st.booleans(),
        ),
        max_size=30,
    )
)
def test_no_lines_make_it_raise(lines):
    analyze_training(lines).text()


def test_episode_lengths_and_ends_by_failed_are_told():
    shares = np.linspace(0.9, 0.1, 50)
    lines = [
        {"global_step": i, "episode_length": 20.0 + i, "failed_share": share}
        for i, share in enumerate(shares)
    ]
    text = analyze_training(lines).text()
    assert "steps of a training episode: 22 at first, 67 at the end" in text
    assert "of them ended by `failed`: 87% at first, 13% at the end" in text
    assert "failed" not in analyze_training([{"global_step": 1, "episode_length": 9.0}]).text()
