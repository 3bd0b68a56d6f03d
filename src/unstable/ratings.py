"""How strong players are: TrueSkill, or OpenSkill as the free alternative (TrueSkill is patented).

A game is a list of scores, of any scale, one per player: only who has more matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

from unstable.core import Rating

_SQRT_2 = math.sqrt(2.0)
_SQRT_2PI = math.sqrt(2.0 * math.pi)


class RatingSystem(Protocol):
    @property
    def prior(self) -> Rating: ...

    @property
    def beta(self) -> float:
        """A difference in mu that makes the stronger one win about three games of four."""
        ...

    def rate(self, ratings: Sequence[Rating], scores: Sequence[float]) -> list[Rating]:
        """Ratings after a game; equal scores are a draw."""
        ...

    def quality(self, one: Rating, other: Rating) -> float: ...


@dataclass(frozen=True)
class _Prior:
    mu: float = 25.0
    sigma: float = 25.0 / 3.0
    beta: float = 4.0
    tau: float = 25.0 / 300.0

    @property
    def prior(self) -> Rating:
        return Rating(self.mu, self.sigma)


@dataclass(frozen=True)
class TrueSkill(_Prior):
    """TrueSkill, in closed form for two players and by the `trueskill` package for more."""

    draw_probability: float = 0.10

    def rate(self, ratings: Sequence[Rating], scores: Sequence[float]) -> list[Rating]:
        if len(ratings) == 2:
            (one, other), (score, other_score) = ratings, scores
            if score >= other_score:
                return list(self._rate_two(one, other, drawn=score == other_score))
            other, one = self._rate_two(other, one, drawn=False)
            return [one, other]
        groups = [(self._package.create_rating(r.mu, r.sigma),) for r in ratings]
        try:
            rated = self._package.rate(groups, ranks=ranks(scores))
        except FloatingPointError:  # an outcome too unlikely for the package's arithmetic
            return self._rate_neighbours(ratings, scores)
        return [Rating(group[0].mu, group[0].sigma) for group in rated]

    def quality(self, one: Rating, other: Rating) -> float:
        noise = 2.0 * self.beta**2
        spread = noise + one.sigma**2 + other.sigma**2
        return math.sqrt(noise / spread) * math.exp(-((one.mu - other.mu) ** 2) / (2.0 * spread))

    def _rate_neighbours(self, ratings: Sequence[Rating], scores: Sequence[float]) -> list[Rating]:
        """Who came in next to each other, as games of two."""
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        updated = list(ratings)
        for better, worse in pairwise(order):
            drawn = scores[better] == scores[worse]
            updated[better], updated[worse] = self._rate_two(
                updated[better], updated[worse], drawn=drawn
            )
        return updated

    def _rate_two(self, winner: Rating, loser: Rating, *, drawn: bool) -> tuple[Rating, Rating]:
        variances = winner.sigma**2 + self.tau**2, loser.sigma**2 + self.tau**2
        spread = 2.0 * self.beta**2 + variances[0] + variances[1]
        scale = math.sqrt(spread)
        margin = self._draw_margin / scale
        truncated = _truncated_draw if drawn else _truncated_win
        v, w = truncated((winner.mu - loser.mu) / scale, margin)
        return (
            Rating(
                winner.mu + variances[0] / scale * v,
                math.sqrt(variances[0] * (1.0 - variances[0] / spread * w)),
            ),
            Rating(
                loser.mu - variances[1] / scale * v,
                math.sqrt(variances[1] * (1.0 - variances[1] / spread * w)),
            ),
        )

    @cached_property
    def _draw_margin(self) -> float:
        from statistics import NormalDist

        quantile = NormalDist().inv_cdf((self.draw_probability + 1.0) / 2.0)
        return quantile * _SQRT_2 * self.beta

    @cached_property
    def _package(self) -> Any:
        import trueskill

        return trueskill.TrueSkill(
            self.mu, self.sigma, self.beta, self.tau, self.draw_probability
        )  # fmt: skip


@dataclass(frozen=True)
class OpenSkill(_Prior):
    def rate(self, ratings: Sequence[Rating], scores: Sequence[float]) -> list[Rating]:
        rated = self._model.rate(self._teams(*ratings), ranks=[float(r) for r in ranks(scores)])
        return [Rating(team[0].mu, team[0].sigma) for team in rated]

    def quality(self, one: Rating, other: Rating) -> float:
        return float(self._model.predict_draw(self._teams(one, other)))

    def _teams(self, *ratings: Rating) -> list[list[Any]]:
        return [[self._model.rating(mu=r.mu, sigma=r.sigma)] for r in ratings]

    @cached_property
    def _model(self) -> Any:
        from openskill.models import PlackettLuce

        return PlackettLuce(mu=self.mu, sigma=self.sigma, beta=self.beta, tau=self.tau)


def ranks(scores: Sequence[float]) -> list[int]:
    """0 for the best, equal for equal scores."""
    order = sorted(set(scores), reverse=True)
    return [order.index(score) for score in scores]


def _density(x: float) -> float:
    return math.exp(-x * x / 2.0) / _SQRT_2PI


def _below(x: float) -> float:
    """The normal distribution's cdf, exact far down its tail."""
    return math.erfc(-x / _SQRT_2) / 2.0


def _truncated_win(t: float, margin: float) -> tuple[float, float]:
    """By how much a win moves mean and variance; TrueSkill calls them v and w."""
    x = t - margin
    below = _below(x)
    if below < 1e-300:  # a win that could not happen: what v and w come to far out
        return -x, 1.0
    v = _density(x) / below
    return v, v * (v + x)


def _truncated_draw(t: float, margin: float) -> tuple[float, float]:
    distance = abs(t)
    a, b = margin - distance, -margin - distance
    between = _below(a) - _below(b)
    if between < 1e-300:
        v, w = a, 1.0
    else:
        v = (_density(b) - _density(a)) / between
        w = v * v + (a * _density(a) - b * _density(b)) / between
    return (-v if t < 0 else v), w


RATING_SYSTEMS: dict[str, Callable[[], RatingSystem]] = {
    "trueskill": TrueSkill,
    "openskill": OpenSkill,
}
