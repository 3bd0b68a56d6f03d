"""Evaluation results by checkpoint, environment and opponent."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unstable.core import outcome

Z_95 = 1.959963984540054


def parse_iteration(ckpt_uid: str) -> float:
    """Return the update of a checkpoint; a name without a number is the oldest."""
    match = re.fullmatch(r"ckpt-(-?\d+)", ckpt_uid)
    return float(match[1]) if match else -math.inf


def wilson(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """Return the 95 % interval of a share: right also for few games and for shares near 0 and 1."""
    if trials == 0:
        return 0.0, 1.0
    share, squared = successes / trials, z * z
    centre = share + squared / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + squared / (4 * trials * trials))
    scale = 1 + squared / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


@dataclass
class Evaluation:
    """The games of one checkpoint in one environment against one opponent."""

    ckpt_uid: str
    env_id: str
    opponent: str
    games: int = 0
    wins: int = 0
    draws: int = 0
    reward_sum: float = 0.0
    reward_squares: float = 0.0
    invalid: int = 0
    players: int = 0
    """Seats of a game; 0 before the first one."""
    exploitability: float | None = None
    """What a best response to the policy gains, where the game is small enough to compute it."""

    def add(self, rewards: Mapping[int, float], player_id: int, *, invalid: bool = False) -> None:
        result = outcome(rewards, player_id)
        reward = rewards[player_id]
        self.players = len(rewards)
        self.games += 1
        self.wins += result > 0
        self.draws += result == 0
        self.reward_sum += reward
        self.reward_squares += reward * reward
        self.invalid += invalid

    def summary(self) -> dict[str, Any]:
        """Return shares with the interval of the win rate, and the mean reward with its error.

        Single-player games (`players` is 1) report the mean reward; a win is a whole solution.
        """
        n = self.games
        low, high = wilson(self.wins, n)
        mean = self.reward_sum / n if n else 0.0
        variance = max(0.0, self.reward_squares / n - mean * mean) if n else 0.0
        return {
            "ckpt_uid": self.ckpt_uid,
            "env_id": self.env_id,
            "opponent": self.opponent,
            "players": self.players,
            "games": n,
            "win_rate": self.wins / n if n else 0.0,
            "win_rate_low": low,
            "win_rate_high": high,
            "draw_rate": self.draws / n if n else 0.0,
            "loss_rate": (n - self.wins - self.draws) / n if n else 0.0,
            "invalid_rate": self.invalid / n if n else 0.0,
            "reward": mean,
            "reward_se": math.sqrt(variance / (n - 1)) if n > 1 else 0.0,
            "exploitability": self.exploitability,
        }
