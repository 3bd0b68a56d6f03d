"""Transforms of final rewards, of all players at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from unstable.core import RewardTransform, Stack, outcome


class FinalRewardTransform(RewardTransform, ABC):
    """Maps the rewards of all players, by seat, to new ones."""

    @abstractmethod
    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return the new rewards; `x` is left as it is."""

    def in_game(self, x: dict[int, float], env_id: str | None, opponent: str) -> dict[int, float]:
        """Return the new rewards, where the kind of opponent is known."""
        del opponent
        return self(x, env_id)


class ComposeFinalRewardTransforms(Stack[FinalRewardTransform]):
    def __call__(
        self, x: dict[int, float], env_id: str | None = None, opponent: str = ""
    ) -> dict[int, float]:
        for transform in self.transforms:
            x = transform.in_game(x, env_id, opponent)
        return x


class WinDrawLossFormatter(FinalRewardTransform):
    """Win, draw or loss instead of a score, as `unstable.core.outcome` tells them apart."""

    def __init__(self, win: float = 1.0, draw: float = 0.0, loss: float = -1.0) -> None:
        self.win, self.draw, self.loss = win, draw, loss

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        del env_id
        values = {1: self.win, 0: self.draw, -1: self.loss}
        return {pid: values[outcome(x, pid)] for pid in x}


class _RoleAdvantage(FinalRewardTransform):
    """Subtracts a baseline per role.

    The baseline is read before it takes the game in: a reward measured against a mean that already
    contains it would be too small.
    """

    def __init__(self, tau: float) -> None:
        if not 0.0 < tau <= 1.0:
            raise ValueError(f"tau is a share of the newest game, in (0, 1], not {tau}")
        self.tau = tau
        self.baselines: dict[str, dict[int, float]] = {}
        self.initial: dict[int, float] = {}

    def _advantages(self, key: str, x: dict[int, float]) -> dict[int, float]:
        baselines = self.baselines.setdefault(key, dict(self.initial))
        advantages = {}
        for pid, reward in x.items():
            baseline = baselines.get(pid, 0.0)
            advantages[pid] = reward - baseline
            baselines[pid] = baseline + self.tau * (reward - baseline)
        return advantages

    def state_dict(self) -> dict[str, Any]:
        """Return the baselines; seats as text, since JSON has no other keys."""
        return {
            key: {str(pid): value for pid, value in values.items()}
            for key, values in self.baselines.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.baselines = {
            key: {int(pid): float(value) for pid, value in values.items()}
            for key, values in state.items()
        }


class RoleAdvantageFormatter(_RoleAdvantage):
    """Subtracts a moving average of each role's past rewards.

    Args:
        role_advantage: the averages to begin with, by seat; 0 where there is none.
        tau: the weight of the newest game.
    """

    def __init__(self, role_advantage: dict[int, float] | None = None, tau: float = 0.05) -> None:
        super().__init__(tau)
        self.initial = dict(role_advantage or {})

    @property
    def role_advantage(self) -> dict[int, float]:
        return dict(self.baselines.get("", self.initial))

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        del env_id
        return self._advantages("", x)


class RoleAdvantageByEnvFormatter(_RoleAdvantage):
    """The same, with averages of their own for every environment."""

    def __init__(
        self, default_role_advantage: dict[int, float] | None = None, tau: float = 0.05
    ) -> None:
        super().__init__(tau)
        self.initial = dict(default_role_advantage or {})

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        return self._advantages(env_id or "", x)


class RoleAdvantageByOpponentFormatter(RoleAdvantageByEnvFormatter):
    """The same, with averages of their own also for every kind of opponent.

    A role that wins half its mirror games may win all those against an old checkpoint; one average
    over both would be right for neither.
    """

    def in_game(self, x: dict[int, float], env_id: str | None, opponent: str) -> dict[int, float]:
        return self._advantages(f"{env_id or ''}|{opponent}", x)
