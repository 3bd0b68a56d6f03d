"""Who plays against the learner next: one small object per way of choosing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from unstable.core import Opponent


class Pool(Protocol):
    """What a sampler may ask about the pool."""

    lag_range: tuple[int, int]

    @property
    def models(self) -> Mapping[str, Opponent]:
        """Everybody, by uid, in the order of arrival."""
        ...

    @property
    def rating_scale(self) -> float:
        """A difference in mu that matters."""
        ...

    def current_uid(self) -> str | None:
        """The newest checkpoint."""
        ...

    def lag(self, uid: str) -> int:
        """How many checkpoints came after this one."""
        ...

    def quality(self, uid: str, other: str) -> float:
        """How open a game between the two is: 0 to 1."""
        ...

    def novelty(self, uid: str) -> float:
        """The share of new play in games against it: 0 to 1; 1 before the first game."""
        ...


class Sampler(Protocol):
    """A way of choosing."""

    def weights(self, pool: Pool, me: str) -> dict[str, float]:
        """Who may be chosen, by uid, and how likely relative to the others; empty: nobody."""
        ...

    def keep(self, pool: Pool, uid: str) -> float:
        """How much a checkpoint is wanted among the active ones."""
        ...


def softmax(scores: Mapping[str, float], temperature: float) -> dict[str, float]:
    """Probabilities; any scores, also equal or far apart."""
    if not scores:
        return {}
    highest = max(scores.values())
    raised = {uid: math.exp((score - highest) / temperature) for uid, score in scores.items()}
    total = math.fsum(raised.values())
    return {uid: value / total for uid, value in raised.items()}


def active_others(pool: Pool, me: str) -> list[str]:
    """Everybody active but me."""
    return [uid for uid, model in pool.models.items() if model.active and uid != me]


class _Recent:
    """Wants the newest checkpoints."""

    def keep(self, pool: Pool, uid: str) -> float:
        return -float(pool.lag(uid))


class Fixed(_Recent):
    """Uniform over the fixed players."""

    def weights(self, pool: Pool, me: str) -> dict[str, float]:
        del me
        return {uid: 1.0 for uid, model in pool.models.items() if model.kind == "fixed"}


class Mirror(_Recent):
    """The newest checkpoint: against itself."""

    def weights(self, pool: Pool, me: str) -> dict[str, float]:
        return {pool.current_uid() or me: 1.0}


class Lagged:
    """Uniform over active checkpoints that are `lag_range` checkpoints old, ends included."""

    def weights(self, pool: Pool, me: str) -> dict[str, float]:
        del me
        return {
            uid: 1.0
            for uid, model in pool.models.items()
            if model.kind == "checkpoint" and model.active and self._inside(pool, uid)
        }

    def keep(self, pool: Pool, uid: str) -> float:
        """Those in the range first, newest first."""
        return -float(pool.lag(uid)) + (1e9 if self._inside(pool, uid) else 0.0)

    def _inside(self, pool: Pool, uid: str) -> bool:
        low, high = pool.lag_range
        return low <= pool.lag(uid) <= high


class Uniform(_Recent):
    """Uniform over fixed players and active checkpoints."""

    def weights(self, pool: Pool, me: str) -> dict[str, float]:
        del me
        return {uid: 1.0 for uid, model in pool.models.items() if model.active}


@dataclass(frozen=True)
class MatchQuality:
    """Softmax of how open the game would be."""

    temperature: float = 0.1

    def weights(self, pool: Pool, me: str) -> dict[str, float]:
        others = active_others(pool, me)
        return softmax({uid: pool.quality(me, uid) for uid in others}, self.temperature)

    def keep(self, pool: Pool, uid: str) -> float:
        return pool.quality(pool.current_uid() or uid, uid)


@dataclass(frozen=True)
class RatingDistance:
    """Softmax of minus the distance in mu, in units of the rating system's scale."""

    temperature: float = 1.0

    def weights(self, pool: Pool, me: str) -> dict[str, float]:
        others = active_others(pool, me)
        return softmax({uid: -self._distance(pool, me, uid) for uid in others}, self.temperature)

    def keep(self, pool: Pool, uid: str) -> float:
        return -self._distance(pool, pool.current_uid() or uid, uid)

    def _distance(self, pool: Pool, uid: str, other: str) -> float:
        mus = pool.models[uid].rating.mu, pool.models[other].rating.mu
        return abs(mus[0] - mus[1]) / pool.rating_scale


@dataclass(frozen=True)
class Exploration:
    """Softmax of how much of recent play against an opponent had not been seen before.

    Who has not been played yet counts as all new. Playing one opponent much makes its play known,
    so the others come up again.
    """

    temperature: float = 0.1

    def weights(self, pool: Pool, me: str) -> dict[str, float]:
        others = active_others(pool, me)
        return softmax({uid: pool.novelty(uid) for uid in others}, self.temperature)

    def keep(self, pool: Pool, uid: str) -> float:
        """Those that bring new play; the newer ones first where they are alike."""
        return pool.novelty(uid) - 1e-6 * pool.lag(uid)


@dataclass(frozen=True)
class Mixture:
    """Several ways, each in its share of the games.

    The share of one that finds nobody is spread over the others.
    """

    parts: tuple[tuple[Sampler, float], ...]

    def weights(self, pool: Pool, me: str) -> dict[str, float]:
        mixed: dict[str, float] = {}
        for sampler, share in self.parts:
            found = sampler.weights(pool, me)
            total = math.fsum(found.values())
            for uid, weight in found.items():
                mixed[uid] = mixed.get(uid, 0.0) + share * weight / total
        return mixed

    def keep(self, pool: Pool, uid: str) -> float:
        """Those that the parts want, by their shares."""
        return math.fsum(share * sampler.keep(pool, uid) for sampler, share in self.parts)


SAMPLERS: dict[str, Sampler] = {
    "fixed": Fixed(),
    "mirror": Mirror(),
    "lagged": Lagged(),
    "random": Uniform(),
    "match-quality": MatchQuality(),
    "ts-dist": RatingDistance(),
    "exploration": Exploration(),
}
"""By `sample_mode`."""


def make_sampler(choice: str | Mapping[str, float] | Sampler) -> Sampler:
    """A sampler by its mode, by several modes with their shares, or as it is.

    Raises:
        ValueError: with the known modes.
    """
    if isinstance(choice, str):
        return _known(choice)
    if not isinstance(choice, Mapping):
        return choice
    parts = tuple((_known(mode), float(share)) for mode, share in choice.items() if share > 0)
    if not parts:
        raise ValueError("a mixture of sample modes needs one with a share above 0")
    return Mixture(parts)


def _known(mode: str) -> Sampler:
    if mode not in SAMPLERS:
        raise ValueError(f"no sample_mode {mode!r}; there are {', '.join(SAMPLERS)}")
    return SAMPLERS[mode]
