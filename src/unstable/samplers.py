"""Rating systems and opponent samplers.

Strength is by TrueSkill, or by OpenSkill as the free alternative (TrueSkill is patented). A game is
a list of scores, of any scale, one per player: only their order matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from unstable.core import Opponent, Rating
from unstable.utils.plugins import load_part


class RatingSystem(Protocol):
    @property
    def prior(self) -> Rating: ...

    @property
    def beta(self) -> float:
        """A difference in mu that makes the stronger one win about three games of four."""
        ...

    def rate(self, ratings: Sequence[Rating], scores: Sequence[float]) -> list[Rating]:
        """Return the ratings after a game; equal scores are a draw."""
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
    draw_probability: float = 0.10

    def rate(self, ratings: Sequence[Rating], scores: Sequence[float]) -> list[Rating]:
        try:
            rated = self._package.rate(self._teams(*ratings), ranks=rank_scores(scores))
        except FloatingPointError:  # an outcome too unlikely for the package's arithmetic
            return list(ratings)
        return [Rating(team[0].mu, team[0].sigma) for team in rated]

    def quality(self, one: Rating, other: Rating) -> float:
        return float(self._package.quality(self._teams(one, other)))

    def _teams(self, *ratings: Rating) -> list[tuple[Any]]:
        return [(self._package.create_rating(r.mu, r.sigma),) for r in ratings]

    @cached_property
    def _package(self) -> Any:
        import trueskill

        return trueskill.TrueSkill(
            self.mu, self.sigma, self.beta, self.tau, self.draw_probability
        )  # fmt: skip


@dataclass(frozen=True)
class OpenSkill(_Prior):
    def rate(self, ratings: Sequence[Rating], scores: Sequence[float]) -> list[Rating]:
        rated = self._model.rate(
            self._teams(*ratings), ranks=[float(r) for r in rank_scores(scores)]
        )
        return [Rating(team[0].mu, team[0].sigma) for team in rated]

    def quality(self, one: Rating, other: Rating) -> float:
        return float(self._model.predict_draw(self._teams(one, other)))

    def _teams(self, *ratings: Rating) -> list[list[Any]]:
        return [[self._model.rating(mu=r.mu, sigma=r.sigma)] for r in ratings]

    @cached_property
    def _model(self) -> Any:
        from openskill.models import PlackettLuce

        return PlackettLuce(mu=self.mu, sigma=self.sigma, beta=self.beta, tau=self.tau)


def rank_scores(scores: Sequence[float]) -> list[int]:
    """Return ranks: 0 for the best, equal for equal scores."""
    order = sorted(set(scores), reverse=True)
    return [order.index(score) for score in scores]


RATING_SYSTEMS: dict[str, Callable[[], RatingSystem]] = {
    "trueskill": TrueSkill,
    "openskill": OpenSkill,
}


class OpponentPool(Protocol):
    """The part of ModelPool that samplers use."""

    lag_range: tuple[int, int]

    @property
    def models(self) -> Mapping[str, Opponent]: ...
    @property
    def rating_scale(self) -> float: ...
    def current_uid(self) -> str | None: ...
    def lag(self, uid: str) -> int: ...
    def quality(self, uid: str, other: str) -> float: ...
    def novelty(self, uid: str) -> float: ...


class Sampler(Protocol):
    def weights(self, pool: OpponentPool, me: str) -> dict[str, float]:
        """Return relative chances by uid of those who may be chosen; empty: none."""
        ...

    def keep(self, pool: OpponentPool, uid: str) -> float:
        """Return how much a checkpoint is wanted among the active ones."""
        ...


class MirrorSampler:
    def weights(self, pool: OpponentPool, me: str) -> dict[str, float]:
        return {pool.current_uid() or me: 1.0}

    def keep(self, pool: OpponentPool, uid: str) -> float:
        return -float(pool.lag(uid))


@dataclass(frozen=True)
class UniformSampler:
    """Uniform over those who are eligible; keeps the newest checkpoints active.

    Args:
        eligible: of the pool and an opponent.
        prefers_lagged: keep checkpoints in the lag range before all others.
    """

    eligible: Callable[[OpponentPool, Opponent], bool]
    prefers_lagged: bool = False

    def weights(self, pool: OpponentPool, me: str) -> dict[str, float]:
        del me
        return {uid: 1.0 for uid, model in pool.models.items() if self.eligible(pool, model)}

    def keep(self, pool: OpponentPool, uid: str) -> float:
        preferred = self.prefers_lagged and _is_in_lag_range(pool, uid)
        return -float(pool.lag(uid)) + (1e9 if preferred else 0.0)


@dataclass(frozen=True)
class SoftmaxSampler:
    """Softmax over the scores of everybody active but the player itself.

    Args:
        score: of the pool, the player and an opponent.
        temperature: of the softmax.
        lag_penalty: per checkpoint that came later, for keeping the newer of equals active.
    """

    score: Callable[[OpponentPool, str, str], float]
    temperature: float
    lag_penalty: float = 0.0

    def weights(self, pool: OpponentPool, me: str) -> dict[str, float]:
        others = [uid for uid, model in pool.models.items() if model.active and uid != me]
        return softmax({uid: self.score(pool, me, uid) for uid in others}, self.temperature)

    def keep(self, pool: OpponentPool, uid: str) -> float:
        score = self.score(pool, pool.current_uid() or uid, uid)
        return score - self.lag_penalty * pool.lag(uid)


@dataclass(frozen=True)
class MixedSampler:
    """Mixes samplers, each in its share of the games.

    The share of a sampler without a candidate is spread over the others.
    """

    parts: tuple[tuple[Sampler, float], ...]

    def weights(self, pool: OpponentPool, me: str) -> dict[str, float]:
        mixed: dict[str, float] = {}
        for sampler, share in self.parts:
            weights = sampler.weights(pool, me)
            total = math.fsum(weights.values())
            for uid, weight in weights.items():
                mixed[uid] = mixed.get(uid, 0.0) + share * weight / total
        return mixed

    def keep(self, pool: OpponentPool, uid: str) -> float:
        return math.fsum(share * sampler.keep(pool, uid) for sampler, share in self.parts)


def softmax(scores: Mapping[str, float], temperature: float) -> dict[str, float]:
    if not scores:
        return {}
    highest = max(scores.values())
    raised = {uid: math.exp((score - highest) / temperature) for uid, score in scores.items()}
    total = math.fsum(raised.values())
    return {uid: value / total for uid, value in raised.items()}


def _is_lagged(pool: OpponentPool, model: Opponent) -> bool:
    is_candidate = model.kind == "checkpoint" and model.active
    return is_candidate and _is_in_lag_range(pool, model.uid)


def _is_in_lag_range(pool: OpponentPool, uid: str) -> bool:
    low, high = pool.lag_range
    return low <= pool.lag(uid) <= high


def _closeness(pool: OpponentPool, me: str, uid: str) -> float:
    mus = pool.models[me].rating.mu, pool.models[uid].rating.mu
    return -abs(mus[0] - mus[1]) / pool.rating_scale


SAMPLERS: dict[str, Sampler] = {
    "fixed": UniformSampler(lambda _, model: model.kind == "fixed"),
    "mirror": MirrorSampler(),
    "lagged": UniformSampler(_is_lagged, prefers_lagged=True),
    "random": UniformSampler(lambda _, model: model.active),
    "match-quality": SoftmaxSampler(lambda pool, me, uid: pool.quality(me, uid), 0.1),
    "ts-dist": SoftmaxSampler(_closeness, 1.0),
    # Who has not been played yet counts as all new. Playing one opponent much makes its play
    # known, so the others come up again.
    "exploration": SoftmaxSampler(lambda pool, _, uid: pool.novelty(uid), 0.1, lag_penalty=1e-6),
}
"""By `sample_mode`."""


def make_sampler(choice: str | Mapping[str, float] | Sampler) -> Sampler:
    """Return a sampler by its mode, by modes with their shares, or as it is.

    Raises:
        ValueError: with the known modes.
    """
    if isinstance(choice, str):
        return _find_sampler(choice)
    if not isinstance(choice, Mapping):
        return choice
    parts = tuple(
        (_find_sampler(mode), float(share)) for mode, share in choice.items() if share > 0
    )
    if not parts:
        raise ValueError("a mixture of sample modes needs one with a share above 0")
    return MixedSampler(parts)


def _find_sampler(mode: str) -> Sampler:
    if mode in SAMPLERS:
        return SAMPLERS[mode]
    if ":" not in mode:
        known = ", ".join(SAMPLERS)
        raise ValueError(f"no sample_mode {mode!r}; there are {known}, or my_module:Sampler")
    part = load_part(mode)
    sampler: Sampler = part() if isinstance(part, type) else part
    return sampler
