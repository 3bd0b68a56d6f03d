"""Advantages, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstable.algorithms.losses import (
    gae,
    group_relative,
    leave_one_out,
    normalize,
    per_turn_rewards,
)

REWARDS = [1.0, 1.0, -1.0, 3.0, 5.0]
GAMES = [0, 0, 1, 2, 3]
GROUPS = ["a", "a", "a", "b", "b"]


def test_rewards_that_are_all_alike_teach_nothing():
    assert normalize([0.7, 0.7, 0.7], scale=True) == pytest.approx([0.0, 0.0, 0.0])
    assert group_relative([2.0, 2.0], [0, 1], ["a", "a"]) == [0.0, 0.0]
    assert normalize([]) == []


def test_grpo_compares_games_not_steps():
    # group a: games 1 and -1, mean 0, spread 1, though three steps have the mean 1/3
    found = group_relative(REWARDS, GAMES, GROUPS)
    assert found == [1.0, 1.0, -1.0, -1.0, 1.0]


def test_dr_grpo_does_not_divide_by_the_spread():
    found = group_relative([0.0, 4.0, 1.0, 1.5], [0, 1, 2, 3], ["a", "a", "b", "b"], scale=False)
    assert found == [-2.0, 2.0, -0.25, 0.25]


def test_leave_one_out_compares_with_the_other_games():
    found = leave_one_out([1.0, 1.0, -1.0, 3.0], [0, 0, 1, 2], ["a", "a", "a", "a"])
    assert found == [0.0, 0.0, -3.0, 3.0]


def test_a_game_alone_in_its_group_has_no_advantage():
    assert leave_one_out([5.0], [0], ["a"]) == [0.0]
    assert group_relative([5.0], [0], ["a"]) == [0.0]


def test_the_outcome_is_counted_once_and_falls_to_the_last_turn():
    assert per_turn_rewards([1.0, 1.0, 1.0]) == [0.0, 0.0, 1.0]


def test_gae_by_hand():
    # surprises: 0 + .4 - .2 = .2; 0 + .6 - .4 = .2; 1 - .6 = .4
    found = gae([0.0, 0.0, 1.0], [0.2, 0.4, 0.6], 0.5)
    assert found == pytest.approx([0.2 + 0.5 * (0.2 + 0.5 * 0.4), 0.2 + 0.5 * 0.4, 0.4])


@given(
    st.lists(
        st.tuples(st.floats(-5, 5, width=32), st.floats(-5, 5, width=32)), min_size=1, max_size=9
    )
)
def test_with_lambda_one_a_turn_gets_its_credit_less_its_value(turns):
    earned, values = [list(column) for column in zip(*turns, strict=True)]
    found = gae(per_turn_rewards(earned), values, 1.0)
    expected = [credit - value for credit, value in zip(earned, values, strict=True)]
    assert found == pytest.approx(expected, abs=1e-6)
