"""Ratings, held against the packages they stand for."""

from __future__ import annotations

import math

import pytest
import trueskill
from hypothesis import given, settings
from hypothesis import strategies as st

from unstable.core import Rating
from unstable.samplers import RATING_SYSTEMS, TrueSkill, ranks

SYSTEM = TrueSkill()
PACKAGE = trueskill.TrueSkill(beta=4.0)
RATINGS = st.builds(Rating, st.floats(0, 50), st.floats(0.5, 8.4))


def package_rates(ratings: list[Rating], scores: list[float]) -> list[Rating]:
    groups = [(PACKAGE.create_rating(r.mu, r.sigma),) for r in ratings]
    return [Rating(g[0].mu, g[0].sigma) for g in PACKAGE.rate(groups, ranks=ranks(scores))]


@settings(deadline=None)
@given(RATINGS, RATINGS, st.sampled_from([(1, -1), (-1, 1), (0, 0)]))
def test_two_players_are_rated_as_trueskill_does(one, other, scores):
    try:
        expected = package_rates([one, other], list(scores))
    except FloatingPointError:  # the package gives up far out in the tail; ours must not
        assert all(math.isfinite(r.mu) for r in SYSTEM.rate([one, other], scores))
        return
    for ours, theirs in zip(SYSTEM.rate([one, other], scores), expected, strict=True):
        assert ours.mu == pytest.approx(theirs.mu, rel=1e-5, abs=1e-5)
        assert ours.sigma == pytest.approx(theirs.sigma, rel=1e-5)


@settings(deadline=None)
@given(RATINGS, RATINGS)
def test_quality_is_trueskills(one, other):
    groups = [(PACKAGE.create_rating(r.mu, r.sigma),) for r in (one, other)]
    assert SYSTEM.quality(one, other) == pytest.approx(PACKAGE.quality(groups))


@pytest.mark.parametrize("scores", [(1, 0), (0, 1), (0, 0)])
@pytest.mark.parametrize("gap", [100.0, 1000.0, 1e5])
def test_a_game_that_could_not_end_so_is_rated_all_the_same(gap, scores):
    one, other = SYSTEM.rate([Rating(0.0, 1.0), Rating(gap, 1.0)], scores)
    assert all(map(math.isfinite, (one.mu, one.sigma, other.mu, other.sigma)))
    assert one.sigma > 0
    assert other.sigma > 0


@pytest.mark.parametrize("name", RATING_SYSTEMS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_winning_raises_and_only_the_order_of_scores_matters(name, scale):
    system = RATING_SYSTEMS[name]()
    prior = system.prior
    won, second, last = system.rate([prior] * 3, [3 * scale, 0.0, -scale])
    assert won.mu > second.mu > last.mu
    assert [r.mu for r in system.rate([prior] * 3, [3, 2, 1])] == [won.mu, second.mu, last.mu]
    assert all(r.sigma < prior.sigma for r in (won, second, last))


@pytest.mark.parametrize("name", RATING_SYSTEMS)
def test_a_draw_brings_two_players_together(name):
    system = RATING_SYSTEMS[name]()
    strong, weak = system.rate([Rating(30.0, 5.0), Rating(20.0, 5.0)], [0.5, 0.5])
    assert 20.0 < weak.mu < 25.0 < strong.mu < 30.0


@pytest.mark.parametrize("name", RATING_SYSTEMS)
def test_equals_make_the_most_open_game(name):
    system = RATING_SYSTEMS[name]()
    equal = system.quality(Rating(25, 2), Rating(25, 2))
    near = system.quality(Rating(25, 2), Rating(28, 2))
    far = system.quality(Rating(25, 2), Rating(45, 2))
    assert 1 >= equal > near > far >= 0


@pytest.mark.parametrize("scores", [(2, 1, 0), (0, 0, 0), (1, 1, 0)])
def test_three_players_of_different_worlds_are_rated_all_the_same(scores):
    ratings = [Rating(0.0, 0.5), Rating(500.0, 0.5), Rating(9000.0, 0.5)]
    assert all(math.isfinite(r.mu) and r.sigma > 0 for r in SYSTEM.rate(ratings, scores))


def test_three_players_are_rated_as_trueskill_does():
    ratings = [Rating(25, 8), Rating(28, 3), Rating(20, 2)]
    assert SYSTEM.rate(ratings, [0.0, 5.0, 5.0]) == package_rates(ratings, [0.0, 5.0, 5.0])
